"""Objects in forms that only git reads: one ``git cat-file --batch`` on a bare repository, as long as it is needed.

It sees no variable and no configuration of the user's, and of the repository's own configuration nothing that makes
git run or fetch something: where a sandbox does not hide the repository, a subject may have written that.
"""

from __future__ import annotations

import os
import subprocess

from pytest_proteus.core.snapshot.objects import SnapshotError

_HARMLESS = [
    part
    for setting in (b"core.hooksPath=/dev/null", b"core.fsmonitor=false", b"protocol.allow=never")
    for part in (b"-c", setting)
]


class CatFile:
    """A running ``git cat-file``.

    Args:
        git_dir: the bare repository.

    Raises:
        SnapshotError: there is no git.
    """

    def __init__(self, git_dir: bytes) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1"}
        command = [b"git", *_HARMLESS, b"--git-dir", os.path.abspath(git_dir), b"cat-file", b"--batch"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
            )
        except FileNotFoundError as error:
            raise SnapshotError(
                f"{os.fsdecode(git_dir)} was repacked and reading it needs the git command, which is not on PATH: "
                f"install git"
            ) from error

    def read(self, oid: bytes) -> bytes | None:
        """An object's content, or None when git does not find it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(oid.hex().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        header = self._process.stdout.readline().split()
        if len(header) != 3:
            return None
        size = int(header[2])
        return self._process.stdout.read(size + 1)[:size]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
