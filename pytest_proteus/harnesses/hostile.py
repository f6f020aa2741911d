"""Things that a hostile agent leaves in its tree, on demand: for the minimal harness and for tests.

Each is planted below one folder and is harmless to the machine: no device that needs rights, no real disk space.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe.md")


def _socket(folder: Path) -> None:
    # a socket's path is short by law, so it is bound relative to a descriptor of its folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/door.md")
    finally:
        os.close(descriptor)


def _nested_git(folder: Path) -> None:
    hooks = folder / "nested" / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (hooks.parent / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    (hooks.parent / "config").write_text("[core]\n\tfsmonitor = false\n", encoding="ascii")
    (hooks / "post-commit").write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    (hooks / "post-commit").chmod(0o755)
    (folder / "nested" / "inside.md").write_text("# Inside\n", encoding="ascii")


def _ignore(folder: Path) -> None:
    (folder / ".gitignore").write_text("*\n", encoding="ascii")
    (folder / ".gitattributes").write_text("* filter=boom -text eol=crlf ident\n", encoding="ascii")
    (folder / "ignored.md").write_text("# $Id$\r\n", encoding="ascii")


def _link(folder: Path) -> None:
    (folder / "outside.md").symlink_to("/etc/passwd")
    (folder / "above").symlink_to("../..")


def _hard_link(folder: Path) -> None:
    (folder / "first.md").write_text("# Twice\n", encoding="ascii")
    os.link(folder / "first.md", folder / "second.md")


def _deep(folder: Path) -> None:
    """3,000 nested folders: the path is longer than the system takes in one piece."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def _bytes(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9\n.md")).write_text("# Bytes\n", encoding="ascii")


def _sparse(folder: Path) -> None:
    path = folder / "huge.md"
    path.touch()
    os.truncate(path, 1 << 40)


def _locked(folder: Path) -> None:
    (folder / "locked").mkdir()
    (folder / "locked" / "secret.md").write_text("# Locked\n", encoding="ascii")
    (folder / "locked" / "secret.md").chmod(0)
    (folder / "locked").chmod(0)


#: Name → what plants it below a folder.
KINDS: dict[str, Callable[[Path], None]] = {
    "bytes": _bytes,
    "deep": _deep,
    "fifo": _fifo,
    "hard-link": _hard_link,
    "ignore": _ignore,
    "link": _link,
    "locked": _locked,
    "nested-git": _nested_git,
    "socket": _socket,
    "sparse": _sparse,
}


def plant(kind: str, folder: Path) -> None:
    """Plant one of ``KINDS`` below an existing folder; a second time in the same folder does nothing.

    Raises:
        KeyError: an unknown kind.
    """
    try:
        KINDS[kind](folder)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno != 98:  # EADDRINUSE: the socket is there already
            raise
