"""Packs of whole objects (no deltas) and their indexes: written in one go, read in place.

One pack holds what one episode added. Knows nothing of commits, refs or work trees.
"""

from __future__ import annotations

import binascii
import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from pytest_proteus.core.snapshot.objects import SnapshotError, object_id

COMMIT, TREE, BLOB = 1, 2, 3
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}

#: Smaller objects, and trees (mostly ids), are not compressed: setting up a compressor costs more than it saves.
_COMPRESSED_FROM = 1024
_LARGEST_STORED = 0xFFFF


class Packed(NamedTuple):
    """One object on its way into a pack: kind, id, size of its content, compressed content."""

    kind: int
    oid: bytes
    size: int
    body: bytes


def packed(kind: int, oid: bytes, data: bytes) -> Packed:
    """Make an object ready for a pack."""
    size = len(data)
    if size <= _LARGEST_STORED and (kind == TREE or size < _COMPRESSED_FROM):
        return Packed(kind, oid, size, _stored(data))
    return Packed(kind, oid, size, zlib.compress(data, 0 if kind == TREE else 1))


def _stored(data: bytes) -> bytes:
    """A zlib stream of one block that is not compressed (RFC 1950 and 1951)."""
    size = len(data)
    lengths = size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
    return b"\x78\x01\x01" + lengths + data + zlib.adler32(data).to_bytes(4, "big")


def _entry_header(kind: int, size: int) -> bytes:
    first = kind << 4 | size & 15
    size >>= 4
    if not size:
        return bytes((first,))
    out = [first | 128]
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


def _index_data(rows: list[tuple[bytes, int, int]], pack_sum: bytes) -> bytes:
    """A version 2 index of (id, crc32, offset) rows in order of id."""
    counts = [0] * 256
    for oid, _, _ in rows:
        counts[oid[0]] += 1
    n = len(rows)
    data = b"".join(
        [
            b"\377tOc\0\0\0\2",
            struct.pack(">256I", *accumulate(counts)),
            b"".join([oid for oid, _, _ in rows]),
            struct.pack(f">{n}I", *[crc for _, crc, _ in rows]),
            struct.pack(f">{n}I", *[offset for _, _, offset in rows]),
            pack_sum,
        ]
    )
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


class Written(NamedTuple):
    """A pack in place: its path without suffix, offsets of its objects, open descriptors still to be flushed."""

    stem: bytes
    offsets: list[tuple[bytes, int]]
    unflushed: list[int]


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_pack(folder: bytes, objects: Sequence[Packed]) -> Written:
    """Write a pack and its index below ``folder``; the index comes last and whole, so that no reader sees half.

    The descriptors are left open: the caller flushes them when the episode is to become durable.
    """
    parts = [struct.pack(">4sII", b"PACK", 2, len(objects))]
    rows: list[tuple[bytes, int, int]] = []
    offset = 12
    for item in objects:
        data = _entry_header(item.kind, item.size) + item.body
        rows.append((item.oid, binascii.crc32(data), offset))
        parts.append(data)
        offset += len(data)
    if offset >= 2**31:
        raise SnapshotError(f"one episode added {offset} bytes; a snapshot holds less than 2 GiB of them")
    content = b"".join(parts)
    checksum = hashlib.sha1(content, usedforsecurity=False).digest()
    stem = folder + b"/pack-" + checksum.hex().encode()
    unflushed: list[int] = []
    try:
        unflushed.append(os.open(stem + b".pack", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        _write(unflushed[0], content + checksum)
        unflushed.append(write_index(stem, rows, checksum))
    except BaseException:
        for fd in unflushed:
            os.close(fd)
        raise
    return Written(stem, [(oid, at) for oid, _, at in rows], unflushed)


def write_index(stem: bytes, rows: list[tuple[bytes, int, int]], checksum: bytes) -> int:
    """Write a pack's index under a temporary name, then in place; returns its open descriptor."""
    temporary = os.path.dirname(stem) + b"/tmp_idx_%d" % os.getpid()
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write(fd, _index_data(sorted(rows), checksum))
        os.rename(temporary, stem + b".idx")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_index(path: bytes) -> list[tuple[bytes, int]]:
    """(id, offset) of every object that an index lists.

    Raises:
        SnapshotError: the index is torn, or lists offsets beyond 2 GiB.
    """
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 1072 or data[:8] != b"\377tOc\0\0\0\2":
        raise SnapshotError(f"{os.fsdecode(path)} is not a whole pack index")
    n = int.from_bytes(data[1028:1032], "big")
    if len(data) < 1072 + 28 * n or hashlib.sha1(data[:-20], usedforsecurity=False).digest() != data[-20:]:
        raise SnapshotError(f"{os.fsdecode(path)} is not a whole pack index")
    offsets = struct.unpack_from(f">{n}I", data, 1032 + 24 * n)
    if any(offset & 0x80000000 for offset in offsets):
        raise SnapshotError(f"{os.fsdecode(path)} belongs to a pack of more than 2 GiB")
    return [(data[at : at + 20], offset) for at, offset in zip(range(1032, 1032 + 20 * n, 20), offsets, strict=True)]


def read_header(data: bytes | mmap.mmap, at: int) -> tuple[int, int, int]:
    """(kind, size, offset of the compressed content) of the object at an offset of a pack's bytes."""
    byte = data[at]
    kind, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 128:
        at += 1
        byte = data[at]
        size |= (byte & 127) << shift
        shift += 7
    return kind, size, at + 1


def rows_of(data: bytes) -> list[tuple[bytes, int, int]]:
    """(id, crc32, offset) of every object of a pack without deltas, from its bytes alone.

    Raises:
        SnapshotError: the pack is torn, or holds deltas.
    """
    if len(data) < 32 or hashlib.sha1(data[:-20], usedforsecurity=False).digest() != data[-20:]:
        raise SnapshotError("a pack is torn")
    rows, at = [], 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        kind, _, fed = read_header(data, at)
        if kind not in KINDS:
            raise SnapshotError("a pack with deltas has lost its index: run git index-pack on it")
        stream, content = zlib.decompressobj(), []
        while not stream.eof:
            content.append(stream.decompress(data[fed : fed + 65536]))
            fed += 65536
        end = min(fed, len(data)) - len(stream.unused_data)
        rows.append((object_id(KINDS[kind], b"".join(content)), binascii.crc32(data[at:end]), at))
        at = end
    return rows


def read_all(data: bytes, offsets: Sequence[tuple[bytes, int]]) -> list[Packed] | None:
    """Every object of a pack as it is, given its index; None when there are deltas among them."""
    ordered = sorted(offsets, key=lambda item: item[1])
    ends = [offset for _, offset in ordered[1:]] + [len(data) - 20]
    out = []
    for (oid, offset), end in zip(ordered, ends, strict=True):
        kind, size, start = read_header(data, offset)
        if kind not in KINDS:
            return None
        out.append(Packed(kind, oid, size, data[start:end]))
    return out
