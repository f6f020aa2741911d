"""Handling what a subject may have touched: removing any tree, reading a file that may be no file.

Nothing here follows a link, waits for a FIFO's other end, or needs a path that is short.
"""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path


def read_regular(path: Path, limit: int) -> bytes | None:
    """At most ``limit`` bytes of a regular file; None when there is none at ``path``, or it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)


def remove(path: Path) -> None:
    """Take away whatever lies at ``path``, a folder with all that is in it included; links are not followed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink()
        return
    path.chmod(0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        while names := os.listdir(top):  # noqa: PTH208 - by descriptor
            for name in names:
                _take_away(name, top)
    finally:
        os.close(top)
    path.rmdir()


def _take_away(name: str, top: int) -> None:
    """Remove one entry of the folder ``top``; folders inside it move up into ``top``: no path gets long."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208
            if stat.S_ISDIR(os.lstat(inner, dir_fd=folder).st_mode):
                os.chmod(inner, 0o700, dir_fd=folder)
                os.rename(inner, uuid.uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
