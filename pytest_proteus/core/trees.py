"""Folders that a subject has had its hands on: remove them, own them, keep its logs. Follows nothing that lies in them.

Used when no process of the subject is alive. What a tree holds is the business of ``core.snapshot``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

#: Deepest folder below the source, and largest file in bytes, that a ``Mirror`` copies.
MIRROR_DEPTH, MIRROR_BYTES = 8, 64 * 1024 * 1024


def remove(path: Path) -> None:
    """Remove a file or a tree of any depth, any modes and any content; nothing there is fine."""
    if not os.path.lexists(path):
        return
    from pytest_proteus.core.snapshot.restore import Bin

    trash = Bin(os.fsencode(path.with_name(f"{path.name}.bin")))
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        trash.empty()
        trash.remove(parent, os.fsencode(path.name))
        trash.empty()
    finally:
        os.close(parent)


def own_folder(path: Path) -> None:
    """Make sure that ``path`` is a folder and no link to one; whatever else has its name is removed."""
    if path.is_symlink() or not path.is_dir():
        remove(path)
        path.mkdir()


class Mirror:
    """Copies plain files below ``source`` to ``target``, bounded in depth and size; follows and reads nothing else."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._known: set[str] = set()
        self._folders: dict[str, int] = {}

    def update(self, *, whole: bool = False) -> None:
        """Copy the files that are new, at a cost that does not grow with those there; ``whole``: changed ones, too."""
        self._target.mkdir(exist_ok=True)
        todo = [] if self._source.is_symlink() else [(self._source, self._target, 0)]
        while todo:
            here, there, depth = todo.pop()
            with contextlib.suppress(OSError), os.scandir(here) as items:
                for item in items:
                    if item.is_dir(follow_symlinks=False):
                        if depth < MIRROR_DEPTH and (self._moved(item) or whole):
                            (there / item.name).mkdir(exist_ok=True)
                            todo.append((here / item.name, there / item.name, depth + 1))
                    elif whole or item.path not in self._known:
                        self._known.add(item.path)
                        _copy(item, there / item.name)

    def _moved(self, folder: os.DirEntry[str]) -> bool:
        """Whether names came to a folder or went since the last time."""
        before = self._folders.get(folder.path)
        self._folders[folder.path] = now = folder.stat(follow_symlinks=False).st_mtime_ns
        return now != before


def _copy(item: os.DirEntry[str], target: Path) -> None:
    seen = item.stat(follow_symlinks=False)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > MIRROR_BYTES:
        return
    with contextlib.suppress(FileNotFoundError):
        kept = target.lstat()
        if kept.st_size == seen.st_size and kept.st_mtime_ns == seen.st_mtime_ns:
            return
    fd = os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(MIRROR_BYTES)
    target.write_bytes(data)
    os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))
