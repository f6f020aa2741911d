"""Git objects as values: ids, the entries and nodes of a Merkle tree, trees and commits as bytes and back.

Pure functions. Nothing here touches a disk or knows where an object is kept.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pytest_proteus.core.errors import ProteusError

FILE, EXECUTABLE, LINK, FOLDER = 0o100644, 0o100755, 0o120000, 0o40000


def plain_mode(mode: int) -> int:
    """The permission bits that a restore gives to a file or folder: all that a snapshot keeps is the owner's x bit."""
    return 0o755 if mode & 0o100 or mode & 0o170000 == FOLDER else 0o644


#: Who commits, and the date of episode 0. Equal histories must have equal ids, so no clock and no user enters.
IDENTITY = b"harness <harness@localhost>"
EPOCH, EPISODE_SECONDS = 946684800, 60


class SnapshotError(ProteusError, RuntimeError):
    """A snapshot cannot be taken, found or put back: one sentence that says which and why."""


class Entry(NamedTuple):
    """One file or link of a tree: git mode, object id (20 bytes) and size in bytes of its content."""

    mode: int
    oid: bytes
    size: int


class Node:
    """One folder of a tree, never changed once made, so that unchanged folders are shared between trees.

    ``files`` maps names to entries, ``dirs`` names to nodes. A folder with no file below it has the id of the
    empty tree and is left out of its parent's tree object, as git does. ``count`` files and ``size`` bytes lie below;
    ``hollow`` says that some folder below (or this one) is empty.
    """

    __slots__ = ("count", "dirs", "files", "hollow", "oid", "size")

    def __init__(self, files: dict[bytes, Entry], dirs: dict[bytes, Node], oid: bytes) -> None:
        self.files = files
        self.dirs = dirs
        self.oid = oid
        self.count = len(files)
        self.size = sum([entry.size for entry in files.values()])
        self.hollow = not files and not dirs
        for node in dirs.values():
            self.count += node.count
            self.size += node.size
            self.hollow = self.hollow or node.hollow


def object_id(kind: bytes, data: bytes) -> bytes:
    """Id of an object of a kind (``blob``, ``tree``, ``commit``), 20 bytes."""
    return hashlib.sha1(b"%s %d\0" % (kind, len(data)) + data, usedforsecurity=False).digest()


_ROW = re.compile(rb"([0-7]+) ([^\0]+)\0(.{20})", re.DOTALL)
EMPTY_TREE, EMPTY_BLOB = object_id(b"tree", b""), object_id(b"blob", b"")
EMPTY = Node({}, {}, EMPTY_TREE)


def row(mode: int, name: bytes, oid: bytes) -> bytes:
    """One line of a tree object."""
    return b"%o %s\0%s" % (mode, name, oid)


def tree_data(names: list[bytes], rows: list[bytes], dirs: Mapping[bytes, Node]) -> bytes:
    """The tree object of a folder: the rows of its files, whose names are sorted, and those of the folders in it.

    In git's order a folder's name ends with a slash.
    """
    folders = sorted((name + b"/", row(FOLDER, name, node.oid)) for name, node in dirs.items() if node.count)
    if not folders:
        return b"".join(rows)
    rows = list(rows)
    for name, line in reversed(folders):
        rows.insert(bisect_left(names, name), line)
    return b"".join(rows)


def parse_tree(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """(mode as it is written, name, id) of each row of a tree object.

    Raises:
        SnapshotError: this is no tree object.
    """
    rows: list[tuple[bytes, bytes, bytes]] = _ROW.findall(data)
    if sum(map(len, itertools.chain.from_iterable(rows))) + 2 * len(rows) != len(data):
        raise SnapshotError("a tree object is damaged")
    return rows


def commit_data(tree: bytes, parents: list[bytes], episode: int, message: str) -> bytes:
    """The commit object of an episode; its date is the episode's number, not the clock's."""
    head = [b"tree " + tree.hex().encode()]
    head += [b"parent " + parent.hex().encode() for parent in parents]
    who = b"%s %d +0000" % (IDENTITY, EPOCH + EPISODE_SECONDS * episode)
    text = message.replace("\0", " ").encode("utf-8", "backslashreplace")
    return b"\n".join([*head, b"author " + who, b"committer " + who, b"", text.rstrip(b"\n") + b"\n"])


class Commit(NamedTuple):
    """What a commit object says. ``parent`` is the first parent, or None."""

    tree: bytes
    parent: bytes | None
    subject: str
    body: str


def parse_commit(data: bytes) -> Commit:
    """Read a commit object."""
    head, _, text = data.partition(b"\n\n")
    tree, parent = b"", None
    for line in head.split(b"\n"):
        if line.startswith(b"tree "):
            tree = bytes.fromhex(line[5:].decode())
        elif line.startswith(b"parent ") and parent is None:
            parent = bytes.fromhex(line[7:].decode())
    subject, _, body = text.decode("utf-8", "replace").partition("\n")
    return Commit(tree, parent, subject, body)


def find(node: Node, path: bytes) -> Entry | None:
    """The file or link at a path below a node."""
    *folders, name = path.split(b"/")
    for folder in folders:
        below = node.dirs.get(folder)
        if below is None:
            return None
        node = below
    return node.files.get(name)


def walk(node: Node, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Every file and link below a node, with its path."""
    todo = [(prefix, node)]
    while todo:
        prefix, node = todo.pop()
        for name, entry in node.files.items():
            yield prefix + name, entry
        todo += [(prefix + name + b"/", below) for name, below in node.dirs.items()]


def empty_folders(node: Node, prefix: bytes = b"") -> Iterator[bytes]:
    """Paths of the folders below a node that hold nothing at all."""
    for name, below in node.dirs.items():
        if not below.files and not below.dirs:
            yield prefix + name
        elif below.hollow:
            yield from empty_folders(below, prefix + name + b"/")


def differences(old: Node, new: Node) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """(path, old entry, new entry) of what differs; folders of equal ids are not looked into."""
    todo = [(b"", old, new)]
    while todo:
        prefix, old, new = todo.pop()
        if old is new or old.oid == new.oid:
            continue
        before, after = old.files, new.files
        for name, entry in after.items():
            was = before.get(name)
            if was is not entry and was != entry:
                yield prefix + name, was, entry
        for name in before.keys() - after.keys():
            yield prefix + name, before[name], None
        for name, below in new.dirs.items():
            todo.append((prefix + name + b"/", old.dirs.get(name, EMPTY), below))
        for name in old.dirs.keys() - new.dirs.keys():
            todo.append((prefix + name + b"/", old.dirs[name], EMPTY))


def load_node(
    oid: bytes,
    read: Callable[[bytes], bytes],
    size_of: Callable[[bytes], int],
    cache: dict[bytes, Node],
    entries: dict[tuple[bytes, bytes], Entry],
) -> Node:
    """The node of a stored tree; ``cache`` shares folders between trees, ``entries`` files."""
    known = cache.get(oid)
    if known is not None:
        return known
    files: dict[bytes, Entry] = {}
    dirs: dict[bytes, Node] = {}
    for mode, name, child in parse_tree(read(oid)):
        entry = entries.get((mode, child))
        if entry is not None:
            files[name] = entry
        elif stat.S_ISDIR(int(mode, 8)):
            dirs[name] = load_node(child, read, size_of, cache, entries)
        else:
            files[name] = entries[mode, child] = Entry(int(mode, 8), child, size_of(child))
    node = cache[oid] = Node(files, dirs, oid)
    return node


def with_empty_folders(node: Node, paths: list[bytes]) -> Node:
    """The same tree, with folders that hold nothing put in; its id does not change."""
    for path in paths:
        node = _with_folder(node, path.split(b"/"))
    return node


def _with_folder(node: Node, parts: list[bytes]) -> Node:
    name, *rest = parts
    if name in node.files:
        return node
    below = node.dirs.get(name, EMPTY)
    dirs = {**node.dirs, name: _with_folder(below, rest) if rest else below}
    return Node(node.files, dirs, node.oid)
