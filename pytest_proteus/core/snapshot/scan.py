"""Reading the tree that the subject wrote: one walk, what changed since the last one, and what is wrong with it.

The walk lists folders, looks at every file without following anything, and reads a file only when its times, size,
inode or mode differ from last time. It never raises for what it meets: what cannot be kept is a violation.
It writes nothing. Modes decide what is readable, so that root and everybody else come to the same verdict.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from pytest_proteus.core.snapshot import names, pack
from pytest_proteus.core.snapshot.objects import (
    EMPTY,
    EXECUTABLE,
    FILE,
    LINK,
    Entry,
    Node,
    differences,
    empty_folders,
    find,
    object_id,
    plain_mode,
    row,
    tree_data,
    walk,
)

LISTED_VIOLATIONS = 100

_Key = tuple[int, int, int, int, int]
_UNKNOWN: _Key = (-1, -1, -1, -1, -1)
_key: Callable[[os.stat_result], _Key] = attrgetter("st_mtime_ns", "st_ctime_ns", "st_size", "st_ino", "st_mode")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class Violation(NamedTuple):
    """Something in the tree that a snapshot cannot keep: escaped path, kind, one sentence."""

    path: str
    kind: str
    detail: str


class Change(NamedTuple):
    """A path whose entry differs from the last accepted state; None where there is none."""

    path: bytes
    old: Entry | None
    new: Entry | None


@dataclass(frozen=True)
class Limits:
    """How large a tree may be: number of entries, bytes of one file, bytes of all, folders below each other."""

    entries: int = 100_000
    file_bytes: int = 64 << 20
    tree_bytes: int = 512 << 20
    depth: int = 64


class Entries(Mapping[bytes, Entry]):
    """Path → entry of every file and link of a tree, read from its nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getitem__(self, path: bytes) -> Entry:
        entry = find(self._node, path)
        if entry is None:
            raise KeyError(path)
        return entry

    def __iter__(self) -> Iterator[bytes]:
        for path, _ in walk(self._node):
            yield path

    def __len__(self) -> int:
        return self._node.count

    def items(self) -> _Items:  # type: ignore[override]
        """(path, entry) pairs in one walk."""
        return _Items(self._node)


class _Items:
    def __init__(self, node: Node) -> None:
        self._node = node

    def __iter__(self) -> Iterator[tuple[bytes, Entry]]:
        return walk(self._node)

    def __len__(self) -> int:
        return self._node.count


class Scan:
    """What one walk saw. ``tree`` and ``base`` are the tree ids of this state and of the last accepted one.

    ``violations`` are listed up to a number, ``refused`` are all their paths; ``read`` gives the content of an entry.
    """

    def __init__(
        self,
        node: Node,
        base: Node,
        violations: tuple[Violation, ...],
        read: Callable[[bytes], bytes],
        refused: frozenset[bytes],
    ) -> None:
        self.node = node
        self.base_node = base
        self.violations = violations
        self.read = read
        self.refused = refused

    @property
    def tree(self) -> str:
        """Id of the tree of everything that can be kept, the same as git's for these files."""
        return self.node.oid.hex()

    @property
    def base(self) -> str:
        """Id of the tree that ``changes`` are against."""
        return self.base_node.oid.hex()

    @property
    def entries(self) -> Mapping[bytes, Entry]:
        """Every file and link."""
        return Entries(self.node)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What differs from the last accepted state, sorted by path."""
        return tuple(sorted(Change(*item) for item in differences(self.base_node, self.node)))

    @property
    def empty_folders(self) -> list[bytes]:
        """Folders that hold nothing: git has no place for them, the commit's message keeps them."""
        return sorted(empty_folders(self.node)) if self.node.hollow else []


class _Folder:
    """What the last walk saw of a folder: its files in order, each with its key and its row of the tree object.

    ``key`` is None when the folder has to be listed again in any case, a file's when it has to be read again.
    """

    __slots__ = ("folders", "key", "keys", "names", "node", "rows")

    def __init__(self) -> None:
        self.key: _Key | None = None
        self.names: list[bytes] = []
        self.keys: list[_Key | None] = []
        self.rows: list[bytes] = []
        self.folders: dict[bytes, _Folder] = {}
        self.node: Node = EMPTY


class _Place(NamedTuple):
    """An open folder: its descriptor, its path with a slash behind, how deep it is, and how to look at a name in it."""

    fd: int
    prefix: bytes
    depth: int
    look: Callable[[bytes], os.stat_result]


def _place(fd: int, prefix: bytes, depth: int) -> _Place:
    return _Place(fd, prefix, depth, partial(os.stat, dir_fd=fd, follow_symlinks=False))


class _Stop(Exception):
    """The tree is larger than a walk goes on for."""


class Scanner:
    """Walks one tree again and again, remembering what it saw.

    Args:
        root: the tree.
        has: whether an object is stored already.
        limits: how large the tree may be.
        paranoid: read every file every time.
        racy_ns: a file whose times are younger than this when a walk starts is read again at the next: a second edit
            may have left the same times behind. 0 where each change gets a time of its own.
        lenient: keep every file and link that can be read, as in trees that are not going to be snapshots.
    """

    def __init__(
        self,
        root: bytes,
        has: Callable[[bytes], bool],
        limits: Limits,
        *,
        paranoid: bool,
        racy_ns: int,
        lenient: bool = False,
    ) -> None:
        self.root = root
        self.pending: dict[bytes, pack.Packed] = {}
        self._has = has
        self._limits = limits
        self._paranoid = paranoid
        self._lenient = lenient
        self._racy_ns = racy_ns
        self._top = _Folder()
        self.refused: frozenset[bytes] = frozenset()
        self._odd_files: set[bytes] = set()
        self._odd_folders: set[bytes] = set()

    def walk(self) -> tuple[Node, tuple[Violation, ...]]:
        """Look at the whole tree; returns it and what is wrong with it."""
        self._found: list[Violation] = []
        self._refused: set[bytes] = set()
        self._count = 0
        self._bytes = 0
        self._odd_folders.clear()
        self._fresh = time.time_ns() - self._racy_ns if self._racy_ns else 1 << 63
        try:
            self._start()
        except _Stop:
            self._top = _Folder()
        except BaseException:
            self._top = _Folder()  # interrupted: nothing half-remembered may be believed next time
            raise
        more = len(self._refused) - LISTED_VIOLATIONS
        if more > 0:
            self._found.append(Violation("", "more", f"… and {more} more"))
        self.refused = frozenset(self._refused)
        return self._last, tuple(self._found)

    def odd_modes(self) -> set[bytes]:
        """Files and folders whose permission bits no snapshot keeps, so that they would be others after a restore."""
        return self._odd_files | self._odd_folders

    def forget_odd_modes(self) -> None:
        """They have been made plain; the next walk sees whether they are."""
        self._odd_files.clear()
        self._odd_folders.clear()

    def unsettled(self) -> set[bytes]:
        """Folders, as ``b"a/b/"``, below which something may lie that no node shows."""
        out: set[bytes] = set()
        self._collect_unsettled(b"", self._top, out)
        return out

    def _collect_unsettled(self, prefix: bytes, folder: _Folder, out: set[bytes]) -> bool:
        found = folder.key is None
        for name, below in folder.folders.items():
            found = self._collect_unsettled(prefix + name + b"/", below, out) or found
        if found:
            out.add(prefix)
        return found

    def _start(self) -> None:
        self._last = EMPTY
        try:
            fd = os.open(self.root, _FOLDER)
        except OSError as error:
            self._top = _Folder()
            self._violation(b"", "missing", f"the harness folder cannot be opened: {error.strerror}")
            return
        try:
            top = os.fstat(fd)
            self._device = top.st_dev
            if top.st_mode & 0o500 != 0o500:
                self._violation(b"", "unreadable", f"the harness folder has mode {stat.S_IMODE(top.st_mode):04o}")
                self._top = _Folder()
            else:
                self._visit(_place(fd, b"", 0), self._top)
        except OSError as error:
            self._top = _Folder()
            self._violation(b"", "unreadable", f"the harness folder cannot be listed: {error.strerror}")
        finally:
            os.close(fd)
        self._last = self._top.node
        if self._last.size > self._limits.tree_bytes:
            detail = f"{self._last.size} bytes in all, more than {self._limits.tree_bytes}"
            self._violation(b"", "too-many-bytes", detail)

    def _violation(self, path: bytes, kind: str, detail: str) -> None:
        if len(self._found) < LISTED_VIOLATIONS:
            self._found.append(Violation(names.shown(path), kind, detail))
        self._refused.add(path)

    # -- folders -------------------------------------------------------------------------------------------------

    def _visit(self, place: _Place, folder: _Folder) -> None:
        """Bring what is remembered of one open folder up to date, and all below it."""
        key, before = _key(os.fstat(place.fd)), folder.node
        if place.depth and key[4] & 0o7777 != 0o755:
            self._odd_folders.add(place.prefix[:-1])
        keys = self._keys(folder.names, place) if key == folder.key and not self._paranoid else None
        if keys is None:
            self._list(place, folder, key)
            changed = True
        else:
            self._count += len(keys) + len(folder.folders)
            changed = keys != folder.keys and self._reread(place, folder, keys)
        if self._count > self._limits.entries:
            self._violation(b"", "too-many-files", f"more than {self._limits.entries} files and folders")
            raise _Stop
        for name, below in list(folder.folders.items()):
            changed = self._enter(place, folder, name, below) or changed
        if changed:
            self._settle(folder, before)

    def _enter(self, place: _Place, folder: _Folder, name: bytes, below: _Folder) -> bool:
        """Visit a folder below; tells whether its node is another one now."""
        path, before, problem = place.prefix + name, below.node, None
        try:
            fd = os.open(name, _FOLDER, dir_fd=place.fd)
            try:
                if os.fstat(fd).st_dev == self._device:
                    self._visit(_place(fd, path + b"/", place.depth + 1), below)
                else:
                    problem = "other-filesystem", "the folder lies on another file system"
            finally:
                os.close(fd)
        except OSError as error:
            problem = "unreadable", f"the folder cannot be read: {error.strerror}"
        if problem is None:
            return below.node is not before
        self._violation(path, *problem)
        del folder.folders[name]
        folder.key = None
        return True

    def _settle(self, folder: _Folder, before: Node) -> None:
        """Make the folder's node anew from its files and the folders below, unless it comes to the same."""
        dirs = {name: below.node for name, below in folder.folders.items()}
        data = tree_data(folder.names, folder.rows, dirs)
        node = Node(folder.node.files, dirs, object_id(b"tree", data))
        if node.oid == before.oid and not node.hollow and not before.hollow:
            folder.node = before
            return
        if node.oid not in self.pending and not self._has(node.oid):
            self.pending[node.oid] = pack.packed(pack.TREE, node.oid, data)
        folder.node = node

    def _list(self, place: _Place, folder: _Folder, key_of_folder: _Key) -> None:
        """List a folder that is new, changed, or was not clean last time."""
        with os.scandir(place.fd) as found:
            listed = [os.fsencode(item.name) for item in islice(found, self._limits.entries + 1)]
        self._count += len(listed)
        if self._count > self._limits.entries:
            return
        refused = set() if self._lenient else set(names.colliding(listed))
        for name in sorted(refused):
            self._violation(place.prefix + name, "case-collision", "another name here differs only by case or form")
        listed = sorted(set(listed) - refused)
        before, folders, clean = folder.node.files, folder.folders, not refused
        known: dict[bytes, tuple[_Key | None, bytes]] = {}
        if not self._paranoid:
            known.update(zip(folder.names, zip(folder.keys, folder.rows, strict=True), strict=True))
        folder.names, folder.keys, folder.rows, folder.folders = [], [], [], {}
        files: dict[bytes, Entry] = {}
        for name, key in zip(listed, self._keys(listed, place) or [_UNKNOWN] * len(listed), strict=True):
            remembered, line = known.get(name, (None, b""))
            if remembered == key:
                files[name] = before[name]
            else:
                entry = self._meet(place, name)
                if isinstance(entry, bool):
                    clean = clean and entry
                    if entry:
                        folder.folders[name] = folders.get(name) or _Folder()
                    continue
                files[name], key = entry
                line = row(files[name].mode, name, files[name].oid)
            folder.names.append(name)
            folder.keys.append(key if self._old_enough(key) else None)
            folder.rows.append(line)
        folder.node = Node(files, folder.node.dirs, folder.node.oid)
        folder.key = key_of_folder if clean and self._old_enough(key_of_folder) else None

    @staticmethod
    def _keys(listed: list[bytes], place: _Place) -> list[_Key] | None:
        """The key of each name; None when one of them cannot be looked at."""
        try:
            return list(map(_key, map(place.look, listed)))
        except OSError:
            return None

    def _meet(self, place: _Place, name: bytes) -> tuple[Entry, _Key] | bool:
        """What a name of a folder is: a file or link with its entry and key, True for a folder, False for neither."""
        try:
            seen = place.look(name)
        except OSError as error:
            detail = f"cannot be looked at: {error.strerror}"
            self._violation(place.prefix + name, "changed-while-read", detail)
            return False
        problem = self._problem(name, seen, place.depth)
        if problem is not None:
            self._violation(place.prefix + name, *problem)
            return False
        if stat.S_ISDIR(seen.st_mode):
            return True
        entry = self._read(place, name, seen)
        return entry is not None and (entry, _key(seen))

    def _old_enough(self, key: _Key) -> bool:
        return key[0] < self._fresh and key[1] < self._fresh

    def _reread(self, place: _Place, folder: _Folder, keys: list[_Key]) -> bool:
        """Read again the files of a folder whose keys differ; tells whether an entry does."""
        before, files = folder.node.files, dict(folder.node.files)
        for at, (old, new) in enumerate(zip(folder.keys, keys, strict=True)):
            if old == new:
                continue
            name = folder.names[at]
            found = self._meet(place, name)
            if isinstance(found, bool):
                folder.key = folder.keys[at] = None
                folder.rows[at] = b""
                files.pop(name, None)
            else:
                files[name], key = found
                folder.keys[at] = key if self._old_enough(key) else None
                folder.rows[at] = row(files[name].mode, name, files[name].oid)
        if files == before:
            return False
        folder.node = Node(files, folder.node.dirs, folder.node.oid)
        return True

    # -- files ---------------------------------------------------------------------------------------------------

    def _problem(self, name: bytes, seen: os.stat_result, depth: int) -> tuple[str, str] | None:
        """(kind, detail) when something may not be in a snapshot, by its name and by what it is."""
        mode = seen.st_mode
        problem = None if self._lenient else names.refused(name, stat.S_ISLNK(mode))
        if problem is not None:
            return problem
        if seen.st_dev != self._device:
            return "other-filesystem", "lies on another file system"
        if stat.S_ISDIR(mode):
            return self._problem_of_folder(mode, depth)
        if stat.S_ISLNK(mode):
            return None
        if not stat.S_ISREG(mode):
            return _special(mode), "is no file, folder or link"
        return self._problem_of_file(seen)

    def _problem_of_folder(self, mode: int, depth: int) -> tuple[str, str] | None:
        if mode & 0o500 != 0o500:
            return "unreadable", f"a folder of mode {stat.S_IMODE(mode):04o} cannot be read by its owner"
        if mode & (stat.S_ISUID | stat.S_ISVTX) and not self._lenient:
            return "special-mode", f"a folder of mode {stat.S_IMODE(mode):04o}"
        if depth >= self._limits.depth:
            return "too-deep", f"more than {self._limits.depth} folders deep"
        return None

    def _problem_of_file(self, seen: os.stat_result) -> tuple[str, str] | None:
        mode = stat.S_IMODE(seen.st_mode)
        if not mode & stat.S_IRUSR:
            return "unreadable", f"a file of mode {mode:04o} cannot be read by its owner"
        if seen.st_size > self._limits.file_bytes:
            return "too-large", f"{seen.st_size} bytes, more than {self._limits.file_bytes}"
        if self._lenient:
            return None
        if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
            return "special-mode", f"a file of mode {mode:04o}"
        if seen.st_nlink > 1:
            return "hard-link", f"has {seen.st_nlink} names, so that writing to it writes elsewhere"
        return None

    def _read(self, place: _Place, name: bytes, seen: os.stat_result) -> Entry | None:
        """The entry of a file or link; None, with a violation, when it cannot be had."""
        path = place.prefix + name
        try:
            if stat.S_ISLNK(seen.st_mode):
                return self._read_link(place, name)
            data = self._content(place.fd, name, seen)
        except OSError as error:
            self._violation(path, "unreadable", f"cannot be read: {error.strerror}")
            return None
        if data is None:
            self._violation(path, "changed-while-read", "changed while it was read")
            return None
        if names.long_attribute_line(name, data) and not self._lenient:
            self._violation(path, "nested-git", "git refuses attributes with a line of 2,048 bytes or more")
            return None
        if stat.S_IMODE(seen.st_mode) == plain_mode(seen.st_mode):
            self._odd_files.discard(path)
        else:
            self._odd_files.add(path)
        return self._keep(EXECUTABLE if seen.st_mode & stat.S_IXUSR else FILE, data)

    def _read_link(self, place: _Place, name: bytes) -> Entry | None:
        target = os.readlink(name, dir_fd=place.fd)
        problem = "" if self._lenient else names.link_problem(target, place.depth)
        if problem:
            self._violation(place.prefix + name, "link", f"a link to {names.shown(target[:200])} {problem}")
            return None
        return self._keep(LINK, target)

    def _content(self, fd: int, name: bytes, seen: os.stat_result) -> bytes | None:
        """A file's bytes; None when it changed under our hands."""
        expected = _key(seen)
        file = os.open(name, _READ, dir_fd=fd)
        try:
            if _key(os.fstat(file)) != expected:
                return None
            self._bytes += seen.st_size
            if self._bytes > self._limits.tree_bytes:
                self._violation(b"", "too-many-bytes", f"more than {self._limits.tree_bytes} bytes to read")
                raise _Stop
            data = os.read(file, seen.st_size + 1)
            while 0 < len(data) < seen.st_size:
                part = os.read(file, seen.st_size + 1 - len(data))
                if not part:
                    break
                data += part
            if len(data) != seen.st_size or _key(os.fstat(file)) != expected:
                return None
            return data
        finally:
            os.close(file)

    def _keep(self, mode: int, data: bytes) -> Entry:
        oid = object_id(b"blob", data)
        if oid not in self.pending and not self._has(oid):
            self.pending[oid] = pack.packed(pack.BLOB, oid, data)
        return Entry(mode, oid, len(data))


def _special(mode: int) -> str:
    """What a thing is called that is neither file, folder nor link."""
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def reader(pending: Mapping[bytes, pack.Packed], stored: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Read an object that waits for its pack, or else from the store."""

    def read(oid: bytes) -> bytes:
        waiting = pending.get(oid)
        return stored(oid) if waiting is None else zlib.decompress(waiting.body)

    return read
