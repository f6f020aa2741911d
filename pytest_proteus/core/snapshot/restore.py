"""Writing trees back: make a folder equal to a node, remove what a subject left, write a checkpoint elsewhere.

Survives anything that can lie in a work tree: nothing is followed, folders are opened one below the other, and
removal never goes deeper than one level, whatever the depth. Runs when no process of the subject is alive.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from itertools import count

from pytest_proteus.core.snapshot import names
from pytest_proteus.core.snapshot.objects import EXECUTABLE, LINK, Entry, Node, SnapshotError, plain_mode

_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Read = Callable[[bytes], bytes]


def make_plain(root: bytes, paths: Iterable[bytes]) -> None:
    """Give files and folders below ``root`` the modes that a restore gives them; somebody else's stay as they are.

    Nothing is followed, and what is neither, or has a second name elsewhere, is left alone.
    """
    for path in sorted(paths):
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            fd = _opened(opened, root, _FOLDER)
            *folders, name = path.split(b"/")
            for part in folders:
                fd = _opened(opened, part, _FOLDER, fd)
            seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(seen.st_mode) or (stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1):
                os.fchmod(_opened(opened, name, _READ, fd), plain_mode(seen.st_mode))


def _opened(stack: contextlib.ExitStack, path: bytes, flags: int, folder: int | None = None) -> int:
    fd = os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, fd)
    return fd


class Bin:
    """A folder outside the work tree, on the same file system, through which things are removed and made."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._numbers = count()

    def empty(self) -> None:
        """Remove what a killed process left here, and the folder itself."""
        if not os.path.isdir(self.path):
            return
        fd = os.open(self.path, _FOLDER)
        try:
            for name in os.listdir(fd):
                self.remove(fd, os.fsencode(name))
        finally:
            os.close(fd)
        os.rmdir(self.path)

    def fresh(self) -> bytes:
        """A path in the bin that nothing has yet."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        path = self.path + b"/%d" % next(self._numbers)
        while os.path.lexists(path):
            path = self.path + b"/%d" % next(self._numbers)
        return path

    def remove(self, fd: int, name: bytes) -> None:
        """Remove anything: a file of any kind, or a folder of any depth and any mode.

        A folder is moved into the bin, and so is each folder below it in turn, so that no path ever gets long.

        Raises:
            SnapshotError: the system will not remove it (a mount point, somebody else's, an immutable file).
        """
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                return
            todo = [self._move(fd, name)]
            while todo:
                folder = todo.pop()
                todo += self._strip(folder)
                os.rmdir(folder)
        except OSError as error:
            raise SnapshotError(f"{names.shown(name)} in the work tree cannot be removed: {error.strerror}") from error

    def _move(self, fd: int, name: bytes) -> bytes:
        """Move a folder into the bin, made readable and writable: moving it changes what its ``..`` means."""
        target = self.fresh()
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=fd)
        os.rename(name, target, src_dir_fd=fd)
        return target

    def _strip(self, folder: bytes) -> list[bytes]:
        """Remove the files of a folder and move its folders into the bin; returns where they are now."""
        moved = []
        fd = os.open(folder, _FOLDER)
        try:
            for item in os.listdir(fd):
                name = os.fsencode(item)
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    moved.append(self._move(fd, name))
                else:
                    os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)
        return moved


def own_root(root: bytes) -> None:
    """Make sure that a work tree is a folder of its own that its owner can use, whatever has taken its place."""
    os.makedirs(os.path.dirname(root), exist_ok=True)
    if os.path.lexists(root) and not _is_folder(root):
        os.unlink(root)
    if not os.path.lexists(root):
        os.mkdir(root, 0o755)
    mode = stat.S_IMODE(os.lstat(root).st_mode)
    if mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.chmod(root, mode | 0o700)


def _owner(path: bytes) -> tuple[int, int] | None:
    """Whose a tree is, when this process may give files away."""
    if os.geteuid() != 0:
        return None
    seen = os.lstat(path)
    return seen.st_uid, seen.st_gid


class Writer:
    """Writes files, links and folders of nodes below one root.

    Args:
        root: an existing folder.
        trash: where things are made before they are moved into place, and removed.
        read: content of an object.
    """

    def __init__(self, root: bytes, trash: Bin, read: Read) -> None:
        self.root = root
        self._trash = trash
        self._read = read
        self._owner = _owner(root)

    def _give(self, path: bytes) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner, follow_symlinks=False)

    def put(self, fd: int, name: bytes, entry: Entry, *, there: bool) -> None:
        """Put one file or link into an open folder, in the place of whatever has its name."""
        if there and stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            self._trash.remove(fd, name)
        data = self._read(entry.oid)
        made = self._trash.fresh()
        if entry.mode == LINK:
            os.symlink(data, made)
        else:
            mode = plain_mode(entry.mode)
            file = os.open(made, _NEW, mode)
            try:
                os.fchmod(file, mode)
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
            finally:
                os.close(file)
        self._give(made)
        os.rename(made, name, dst_dir_fd=fd)

    def folder(self, fd: int, name: bytes) -> None:
        """Make a folder inside an open one."""
        made = self._trash.fresh()
        os.mkdir(made, 0o755)
        os.chmod(made, 0o755)
        self._give(made)
        os.rename(made, name, dst_dir_fd=fd)

    def sync(self, target: Node, now: Node | None, dirty: Callable[[bytes], bool], keep: Iterable[bytes] = ()) -> None:
        """Make the root equal to ``target``, touching only what differs.

        Args:
            target: what shall be there.
            now: what a walk saw there just now; None when it is not known.
            dirty: whether something that no node shows may lie below a path (``b"a/b/"``; the root is ``b""``).
            keep: paths that are left alone, whatever they are.
        """
        fd = os.open(self.root, _FOLDER)
        try:
            _make_writable(fd)
            self._sync(fd, b"", target, now, dirty, frozenset(keep))
        finally:
            os.close(fd)

    def _sync(
        self,
        fd: int,
        prefix: bytes,
        target: Node,
        now: Node | None,
        dirty: Callable[[bytes], bool],
        keep: frozenset[bytes],
    ) -> None:
        present = {os.fsencode(name) for name in os.listdir(fd)}
        wanted = target.files.keys() | target.dirs.keys()
        for name in present - wanted:
            if prefix + name not in keep:
                self._trash.remove(fd, name)
        for name, entry in target.files.items():
            there = name in present
            if not there or now is None or now.files.get(name) != entry:
                self.put(fd, name, entry, there=there)
        for name, node in target.dirs.items():
            below = now.dirs.get(name) if now is not None and name in present else None
            same = below is not None and below.oid == node.oid and not below.hollow and not node.hollow
            if same and not dirty(prefix + name + b"/"):
                continue
            if below is None and name in present:
                self._trash.remove(fd, name)
            if below is None:
                self.folder(fd, name)
            inner = os.open(name, _FOLDER, dir_fd=fd)
            try:
                _make_writable(inner)
                self._sync(inner, prefix + name + b"/", node, below, dirty, keep)
            finally:
                os.close(inner)


def _make_writable(fd: int) -> None:
    """Let the owner write into an open folder; somebody else's stays as it is."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(fd, mode | 0o700)


def materialize(node: Node, dest: bytes, read: Read) -> None:
    """Write a tree as plain files into a folder that exists or not; what else lies there stays.

    Nothing that lies there is followed: a link or file where a folder belongs is removed first.
    """
    os.makedirs(dest, exist_ok=True)
    todo = [(dest, node)]
    while todo:
        folder, node = todo.pop()
        for name, entry in node.files.items():
            _write_plain(folder + b"/" + name, entry, read)
        for name, below in node.dirs.items():
            path = folder + b"/" + name
            if not _is_folder(path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                os.mkdir(path)
            todo.append((path, below))


def _is_folder(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _write_plain(path: bytes, entry: Entry, read: Read) -> None:
    data = read(entry.oid)
    if os.path.lexists(path):
        if _is_folder(path):
            raise SnapshotError(f"{names.shown(path)} is a folder, but the checkpoint has a file of this name")
        os.unlink(path)
    if entry.mode == LINK:
        os.symlink(data, path)
        return
    fd = os.open(path, _NEW, 0o777 if entry.mode == EXECUTABLE else 0o666)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
