"""The bare repository of one run: where its objects, its one branch and its failed candidates are kept.

Reads and writes files of git's own formats in this process. Only objects that this module does not read (deltas, after
somebody repacked) are asked of a ``git`` process, and only the bare repository is shown to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_proteus.core.errors import RecordError
from pytest_proteus.core.snapshot import pack
from pytest_proteus.core.snapshot.catfile import CatFile
from pytest_proteus.core.snapshot.objects import Commit, Entry, Node, SnapshotError, load_node, parse_commit

BRANCH = b"refs/heads/main"
FAILED = b"refs/failed/"
#: Which commit is which episode's, one "episode commit head" line each; rebuilt from the history when it does not fit.
INDEX = b"episode-index"

_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\thooksPath = /dev/null
\tlogAllRefUpdates = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[protocol]
\tallow = never
"""
_HEX = re.compile(rb"[0-9a-f]{40}\Z")
_HEAD = re.compile(rb"(?:ref: refs(?:/[\w-][\w.-]*)+|[0-9a-f]{40})\Z")
_EPISODE = re.compile(r"episode (\d+):")
_OPEN_PACKS = 128
_MAPPED_FROM = 1 << 17


def oid_of(sha: str) -> bytes | None:
    """The id that a user spells in hexadecimal, or None when it is none."""
    text = sha.encode("ascii", "replace")
    return bytes.fromhex(sha) if _HEX.match(text) else None


def episode_of(subject: str) -> int | None:
    """The episode that a commit's subject says it is, or None."""
    match = _EPISODE.match(subject)
    return int(match[1]) if match else None


def _read_file(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def replace_file(path: bytes, data: bytes, *, durable: bool = False) -> None:
    """Write a small file whole, by way of git's own lock name; a leftover lock of a killed process is overwritten."""
    fd = os.open(path + b".lock", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + b".lock", path)


def _offsets(stem: bytes) -> list[tuple[bytes, int]]:
    """(id, offset) of a pack's objects; from the pack itself when its index is missing or torn."""
    try:
        return pack.read_index(stem + b".idx")
    except (SnapshotError, FileNotFoundError):
        try:
            return [(oid, offset) for oid, _, offset in pack.rows_of(_read_file(stem + b".pack"))]
        except SnapshotError:
            return []


class History(NamedTuple):
    """Commits of the episodes, ascending, and how much of the index file says so (-1: it has to be rewritten)."""

    episodes: dict[int, bytes]
    valid: int
    missing: list[tuple[int, bytes]]


class Repository:
    """Objects, refs and the episode index of one bare repository.

    Args:
        git_dir: the repository's folder. It is not created here.
    """

    def __init__(self, git_dir: Path) -> None:
        self.path = Path(git_dir)
        self.dir = os.fsencode(git_dir)
        self.packs = self.dir + b"/objects/pack"
        self._where: dict[bytes, tuple[bytes, int]] | None = None
        self._loaded: set[bytes] = set()
        self._data: dict[bytes, bytes | mmap.mmap] = {}
        self._entries: dict[tuple[bytes, bytes], Entry] = {}
        self._git: CatFile | None = None

    # -- making and repairing ------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is a repository, whole enough to be opened."""
        return os.path.exists(self.dir + b"/HEAD") and os.path.isdir(self.packs)

    def create(self) -> None:
        """Make an empty repository; HEAD comes last, so that a half-made one does not exist."""
        for folder in (b"/objects/pack", b"/objects/info", b"/refs/heads", b"/refs/failed", b"/refs/tags", b"/info"):
            os.makedirs(self.dir + folder, exist_ok=True)
        replace_file(self.dir + b"/config", _CONFIG)
        replace_file(self.dir + b"/HEAD", b"ref: " + BRANCH + b"\n")

    def repair(self) -> None:
        """Take away what a killed writer left: locks, temporary files, packs without a whole index.

        A whole pack whose index is missing or torn gets a new index. Only the writer of a run may call this.
        """
        for folder in (b"", b"/refs/heads", b"/refs/failed"):
            for name in os.listdir(self.dir + folder):
                if name.endswith(b".lock"):
                    os.unlink(self.dir + folder + b"/" + name)
        if not self._head_text():
            replace_file(self.dir + b"/HEAD", b"ref: " + BRANCH + b"\n")
        names = set(os.listdir(self.packs))
        for name in names:
            if name.startswith(b"tmp_"):
                os.unlink(self.packs + b"/" + name)
        for name in names:
            if name.endswith(b".pack"):
                self._repair_pack(self.packs + b"/" + name[:-5])
            elif name.endswith(b".idx") and name[:-4] + b".pack" not in names:
                os.unlink(self.packs + b"/" + name)
        self._where = None

    def _repair_pack(self, stem: bytes) -> None:
        """Keep, index anew or remove one pack; the end of each file tells whether the two belong together."""
        with open(stem + b".pack", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - 20))
            checksum = file.read(20)
        index = _read_file(stem + b".idx")
        if size > 32 and len(index) > 40 and index[-40:-20] == checksum:
            return
        data = _read_file(stem + b".pack")
        if size > 32 and hashlib.sha1(data[:-20], usedforsecurity=False).digest() == checksum:
            os.close(pack.write_index(stem, pack.rows_of(data), checksum))
            return
        for suffix in (b".idx", b".pack"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stem + suffix)

    def compact(self, least: int) -> None:
        """Make one pack of all packs when there are ``least`` or more; objects stay as they are.

        Kill-safe: the old packs go when the new one is on the disk. Packs with deltas are left to git.
        """
        stems = [self.packs + b"/" + name[:-5] for name in os.listdir(self.packs) if name.endswith(b".pack")]
        if len(stems) < least:
            return
        objects: dict[bytes, pack.Packed] = {}
        for stem in stems:
            found = pack.read_all(_read_file(stem + b".pack"), pack.read_index(stem + b".idx"))
            if found is None:
                return
            objects.update((item.oid, item) for item in found)
        self._data.clear()
        written = pack.write_pack(self.packs, [objects[oid] for oid in sorted(objects)])
        for fd in written.unflushed:
            os.fsync(fd)
            os.close(fd)
        for stem in stems:
            if stem != written.stem:
                os.unlink(stem + b".idx")
                os.unlink(stem + b".pack")
        self._where = None

    # -- refs ----------------------------------------------------------------------------------------------------

    def _head_text(self) -> bytes:
        """What HEAD says; nothing when it is missing or a power cut left it empty."""
        try:
            text = _read_file(self.dir + b"/HEAD").strip()
        except IsADirectoryError:
            text = b"(a folder)"
        if text and not _HEAD.match(text):
            raise RecordError(
                f"{self.path}/HEAD is damaged; write 'ref: {BRANCH.decode()}' into it, or start a new run"
            )
        return text

    def _head_ref(self) -> bytes:
        text = self._head_text()
        return text[5:] if text.startswith(b"ref: ") else BRANCH

    def ref(self, name: bytes) -> bytes | None:
        """The id that a ref names, or None."""
        text = _read_file(self.dir + b"/" + name).strip()
        if not text:
            for line in _read_file(self.dir + b"/packed-refs").splitlines():
                if line[41:] == name:
                    text = line[:40]
        return bytes.fromhex(text.decode()) if _HEX.match(text) else None

    def head(self) -> bytes | None:
        """The commit that the run's branch names, or None when there is none yet."""
        return self.ref(self._head_ref())

    def set_ref(self, name: bytes, commit: bytes) -> None:
        """Make a ref name a commit."""
        replace_file(self.dir + b"/" + name, commit.hex().encode() + b"\n")

    def set_head(self, commit: bytes) -> None:
        """Move the run's branch. One call writes over its 41 bytes, so that a kill leaves the old or the new."""
        path, line = self.dir + b"/" + BRANCH, commit.hex().encode() + b"\n"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = -1
        try:
            if fd >= 0 and os.fstat(fd).st_size == len(line):
                os.pwrite(fd, line, 0)
                return
        finally:
            if fd >= 0:
                os.close(fd)
        replace_file(path, line, durable=True)

    def flush_head(self) -> None:
        """Bring the branch to the disk."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.dir + b"/" + BRANCH, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    # -- objects -------------------------------------------------------------------------------------------------

    def _objects(self) -> dict[bytes, tuple[bytes, int]]:
        if self._where is None:
            self._where, self._loaded = {}, set()
            self._load_indexes()
        return self._where

    def _load_indexes(self) -> bool:
        """Read the indexes that have appeared since the last look; tells whether there were any."""
        assert self._where is not None
        try:
            names = os.listdir(self.packs)
        except (FileNotFoundError, NotADirectoryError):
            return False
        new = [name for name in names if name.endswith(b".pack") and name not in self._loaded]
        for name in new:
            with contextlib.suppress(FileNotFoundError):
                stem = self.packs + b"/" + name[:-5]
                self._where.update((oid, (stem, offset)) for oid, offset in _offsets(stem))
                self._loaded.add(name)
        return bool(new)

    def has(self, oid: bytes) -> bool:
        """Whether a pack of ours holds the object."""
        return oid in self._objects()

    def add(self, objects: Sequence[pack.Packed]) -> list[int]:
        """Write one pack; returns the descriptors that have to be flushed and closed."""
        where = self._objects()
        written = pack.write_pack(self.packs, objects)
        self._loaded.add(os.path.basename(written.stem) + b".pack")
        for oid, offset in written.offsets:
            where[oid] = (written.stem, offset)
        return written.unflushed

    def newest_packs(self, number: int) -> list[int]:
        """Open descriptors (pack, index, pack, …) of the packs written last, which may not be on the disk yet."""
        stems = [self.packs + b"/" + name[:-5] for name in os.listdir(self.packs) if name.endswith(b".pack")]
        stems.sort(key=lambda stem: os.stat(stem + b".pack").st_mtime_ns)
        paths = [stem + suffix for stem in stems[-number:] for suffix in (b".pack", b".idx")]
        return [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths]

    def _pack_data(self, stem: bytes) -> bytes | mmap.mmap:
        data = self._data.get(stem)
        if data is None:
            if len(self._data) >= _OPEN_PACKS:
                del self._data[next(iter(self._data))]
            with open(stem + b".pack", "rb") as file:
                large = os.fstat(file.fileno()).st_size > _MAPPED_FROM
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if large else file.read()
            self._data[stem] = data
        return data

    def _locate(self, oid: bytes) -> tuple[bytes | mmap.mmap, int] | None:
        """The bytes of the pack that holds an object, and where in them it begins; None when no pack does."""
        found = self._objects().get(oid)
        if found is None and self._load_indexes():
            found = self._objects().get(oid)
        if found is None:
            return None
        try:
            return self._pack_data(found[0]), found[1]
        except FileNotFoundError:  # packs were joined since they were listed
            self._where = None
            found = self._objects().get(oid)
            return (self._pack_data(found[0]), found[1]) if found else None

    def size(self, oid: bytes) -> int:
        """Size in bytes of an object's content, without reading the content where that can be avoided."""
        found = self._locate(oid)
        if found is not None:
            kind, size, _ = pack.read_header(*found)
            if kind in pack.KINDS:
                return size
        return len(self.read(oid))

    def read(self, oid: bytes) -> bytes:
        """An object's content.

        Raises:
            SnapshotError: the repository does not hold it.
        """
        found = self._locate(oid)
        if found is not None:
            content = self._unpack(oid, *found)
        else:
            name = oid.hex().encode()
            loose = _read_file(self.dir + b"/objects/" + name[:2] + b"/" + name[2:])
            content = zlib.decompress(loose).partition(b"\0")[2] if loose else None
        if content is None:
            raise SnapshotError(f"{self.path} does not hold the object {oid.hex()}")
        return content

    def _unpack(self, oid: bytes, data: bytes | mmap.mmap, offset: int) -> bytes | None:
        """Content of an object in a pack; None when the pack is damaged there."""
        kind, size, start = pack.read_header(data, offset)
        if kind in pack.KINDS:
            try:
                content = zlib.decompressobj().decompress(data[start : start + size + (size >> 9) + 64])
            except zlib.error:
                return None
            return content if len(content) == size else None
        if self._git is None:
            self._git = CatFile(self.dir)
        return self._git.read(oid)

    def commit(self, oid: bytes) -> Commit:
        """Read a commit."""
        return parse_commit(self.read(oid))

    def has_commit(self, oid: bytes) -> bool:
        """Whether the object is here and is a commit."""
        try:
            data = self.read(oid)
        except SnapshotError:
            return False
        return data.startswith(b"tree ") and object_is(b"commit", data, oid)

    def node(self, tree: bytes, cache: dict[bytes, Node]) -> Node:
        """A stored tree as a node."""
        return load_node(tree, self.read, self.size, cache, self._entries)

    # -- episodes ------------------------------------------------------------------------------------------------

    def history(self) -> History:
        """Which commit is which episode's, from the index file and from the commits that it does not know yet."""
        head = self.head()
        lines: list[tuple[int, bytes, int]] = []
        data, at = _read_file(self.dir + b"/" + INDEX), 0
        for line in data.splitlines(keepends=True):
            at += len(line)
            number, _, sha = line.strip().partition(b" ")
            if not line.endswith(b"\n") or not number.isdigit() or not _HEX.match(sha):
                break
            lines.append((int(number), bytes.fromhex(sha.decode()), at))
        if head is None:
            return History({}, 0 if not data else -1, [])
        known = {commit: at for at, (_, commit, _) in enumerate(lines)}
        missing: list[tuple[int, bytes]] = []
        oid: bytes | None = head
        while oid is not None and oid not in known:
            commit = self.commit(oid)
            episode = episode_of(commit.subject)
            if episode is not None:
                missing.append((episode, oid))
            oid = commit.parent
        kept = lines[: known[oid] + 1] if oid is not None else []
        missing.reverse()
        end = kept[-1][2] if kept else 0
        episodes = {number: commit for number, commit, _ in kept} | dict(missing)
        return History(episodes, end if end == len(data) else -1, missing)

    def index_line(self, episode: int, commit: bytes) -> bytes:
        """One line of the episode index."""
        return b"%d %s\n" % (episode, commit.hex().encode())

    def rewrite_index(self, episodes: dict[int, bytes]) -> None:
        """Make the index file say which commit is which episode's."""
        lines = [self.index_line(episode, commit) for episode, commit in episodes.items()]
        replace_file(self.dir + b"/" + INDEX, b"".join(lines))

    def failed(self, episode: int) -> list[tuple[bytes, bytes]]:
        """(ref, commit) of the failed candidates of an episode, in the order in which they failed."""
        start = b"%d-" % episode
        try:
            names = [name for name in os.listdir(self.dir + b"/" + FAILED) if name.startswith(start)]
        except FileNotFoundError:
            return []
        numbered = sorted((int(name[len(start) :]), name) for name in names if name[len(start) :].isdigit())
        found = [(FAILED + name, self.ref(FAILED + name)) for _, name in numbered]
        return [(name, commit) for name, commit in found if commit is not None]

    def close(self) -> None:
        """Let go of everything that is open."""
        self._data.clear()
        if self._git is not None:
            self._git.close()
            self._git = None


def object_is(kind: bytes, data: bytes, oid: bytes) -> bool:
    """Whether content has this id as an object of this kind."""
    return hashlib.sha1(b"%s %d\0" % (kind, len(data)) + data, usedforsecurity=False).digest() == oid
