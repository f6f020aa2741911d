"""Folders that a subject has had its hands on: remove them, own them, keep its logs. Follows nothing that lies in them.

Used when no process of the subject is alive. What a tree holds is the business of ``core.snapshot``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

#: Deepest folder below the source, and largest file in bytes, that ``mirror`` copies.
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


def listing(folder: Path) -> dict[str, object]:
    """Path below ``folder`` → what of its state a change changes, for all that is in it; only folders are opened."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder) if not folder.is_symlink() else ():
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118 - names may be anything, and there may be many
            with contextlib.suppress(OSError):
                seen = os.lstat(path)
                told = os.fsencode(os.path.relpath(path, folder)).decode("utf-8", "backslashreplace")
                found[told] = (seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return found


def mirror(source: Path, target: Path) -> None:
    """Copy what is new or changed of the plain files below ``source`` to ``target``, bounded in depth and size.

    Links are not followed, and nothing else than plain files is opened; what cannot be read is left out.
    """
    target.mkdir(exist_ok=True)
    todo = [] if source.is_symlink() else [(source, target, 0)]
    while todo:
        here, there, depth = todo.pop()
        with contextlib.suppress(OSError), os.scandir(here) as items:
            for item in items:
                seen = item.stat(follow_symlinks=False)
                if stat.S_ISDIR(seen.st_mode) and depth < MIRROR_DEPTH:
                    (there / item.name).mkdir(exist_ok=True)
                    todo.append((here / item.name, there / item.name, depth + 1))
                elif stat.S_ISREG(seen.st_mode) and seen.st_size <= MIRROR_BYTES:
                    _copy(here / item.name, there / item.name, seen)


def read_regular(path: str | Path, limit: int, folder: int | None = None) -> bytes | None:
    """At most ``limit`` bytes of a regular file; None when there is none at ``path``, or it cannot be read.

    Args:
        path: the file; relative to the open ``folder`` if there is one. A link in its place is not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)


def _copy(source: Path, target: Path, seen: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        kept = target.lstat()
        if kept.st_size == seen.st_size and kept.st_mtime_ns == seen.st_mtime_ns:
            return
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(MIRROR_BYTES)
    target.write_bytes(data)
    os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))
