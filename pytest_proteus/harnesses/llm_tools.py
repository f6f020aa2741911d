"""The tools of the harness ``llm``: files of its own folders, handled as what an enemy left there, and a shell.

Files are opened from their folder on, name by name, and no link is followed, so that no path leads out. They are
touched only while no process of the agent lives. Commands run in the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.trees import read_regular
from pytest_proteus.harnesses.traces import bounded_text, open_folder
from pytest_proteus.sandbox import Outcome

#: Longest file that is read or edited, in bytes, and longest answer of a tool, in characters.
FILE_LIMIT, ANSWER_LIMIT = 1 << 20, 50_000

#: Seconds that a command may take.
SHELL_SECONDS = 120.0

_TEXT = {"type": "string"}

#: Tool → what it does, and its arguments, which are all required texts.
TOOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "write": ("Write a text file, in place of one that is there. Folders are made.", ("path", "content")),
    "edit": ("Replace a piece of text that occurs exactly once in a file.", ("path", "old_string", "new_string")),
    "read": ("Read a text file.", ("path",)),
    "shell": ("Run a command with bash in the working folder. Nothing that it starts lives on.", ("command",)),
}


def schema(tool: str) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    names = TOOLS[tool][1]
    return {"type": "object", "properties": dict.fromkeys(names, _TEXT), "required": list(names)}


class ToolError(Exception):
    """A tool could not do what it was asked for; the sentence goes to the model."""


@dataclass
class Tools:
    """The tools in one phase.

    Args:
        working: where relative paths begin, and commands.
        writable, readable: folders whose files may be written; further ones whose files may be read.
        launch: runs a command line there, for at most so many seconds.
        deadline: when the phase's time is over, in seconds of ``time.monotonic``.
    """

    working: Path
    writable: Sequence[Path]
    readable: Sequence[Path]
    launch: Callable[[Sequence[str], float], Outcome]
    deadline: float
    exceeded: str = ""

    def use(self, tool: str, given: Mapping[str, Any]) -> tuple[str, bool]:
        """Use a tool: what came of it, and whether it failed."""
        try:
            if tool not in TOOLS:
                raise ToolError(f"there is no tool {tool!r}, only {', '.join(TOOLS)}")
            wanted = [given.get(name) for name in TOOLS[tool][1]]
            for name, value in zip(TOOLS[tool][1], wanted, strict=True):
                if not isinstance(value, str):
                    raise ToolError(f"{tool} needs the text {name!r}")
            return getattr(self, f"_{tool}")(*wanted)  # type: ignore[no-any-return]
        except ToolError as error:
            return str(error), True
        except (OSError, ValueError) as error:
            return f"{getattr(error, 'strerror', None) or error}", True

    def _write(self, path: str, content: str) -> tuple[str, bool]:
        root, names = self._place(path, self.writable)
        with _folder_of(root, names, make=True) as folder:
            _put(folder, names[-1], content.encode("utf-8", "replace"))
        return f"Wrote {path}.", False

    def _edit(self, path: str, old: str, new: str) -> tuple[str, bool]:
        root, names = self._place(path, self.writable)
        with _folder_of(root, names) as folder:
            text = _text_at(folder, names[-1], path)
            count = text.count(old) if old else 0
            if count != 1:
                raise ToolError(f"old_string occurs {count} times in {path}: it must occur once")
            _put(folder, names[-1], text.replace(old, new).encode("utf-8", "replace"))
        return f"Edited {path}.", False

    def _read(self, path: str) -> tuple[str, bool]:
        root, names = self._place(path, [*self.writable, *self.readable])
        with _folder_of(root, names) as folder:
            return bounded_text(_text_at(folder, names[-1], path), ANSWER_LIMIT), False

    def _shell(self, command: str) -> tuple[str, bool]:
        if "\0" in command:
            raise ToolError("a command holds no zero byte")
        seconds = max(min(SHELL_SECONDS, self.deadline - time.monotonic()), 0.1)
        outcome = self.launch(["bash", "-c", command], seconds)
        self.exceeded = self.exceeded or outcome.exceeded
        said = bounded_text(outcome.stdout + outcome.stderr, ANSWER_LIMIT)
        ended = f"stopped after {seconds:.0f} seconds" if outcome.timed_out else f"exit status {outcome.returncode}"
        failed = outcome.timed_out or outcome.returncode != 0
        return f"{said.rstrip()}\n[{ended}]" if failed else said, failed

    def _place(self, path: str, roots: Sequence[Path]) -> tuple[Path, list[str]]:
        """The folder that a path lies in, and the names that lead from there to it."""
        whole = Path(os.path.normpath(self.working / path))
        for root in roots:
            if whole != root and whole.is_relative_to(root):
                return root, list(whole.relative_to(root).parts)
        raise ToolError(f"{path} is not below {' or '.join(map(str, roots))}")


@contextlib.contextmanager
def _folder_of(root: Path, names: Sequence[str], *, make: bool = False) -> Any:
    """A descriptor of the folder that holds the last of ``names``; links are not followed."""
    for count in range(1, len(names)) if make else ():
        above = open_folder(root, *names[: count - 1])
        if above is not None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(names[count - 1], dir_fd=above)
            os.close(above)
    folder = open_folder(root, *names[:-1])
    if folder is None:
        raise ToolError(f"{'/'.join(names[:-1]) or root} is no folder")
    try:
        yield folder
    finally:
        os.close(folder)


def _text_at(folder: int, name: str, path: str) -> str:
    data = read_regular(name, FILE_LIMIT + 1, folder)
    if data is None:
        raise ToolError(f"{path} is no file that can be read")
    if len(data) > FILE_LIMIT:
        raise ToolError(f"{path} is longer than {FILE_LIMIT} bytes: use the shell")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ToolError(f"{path} is no text: use the shell") from None


def _put(folder: int, name: str, data: bytes) -> None:
    """Put a file in the place of whatever has that name, but a folder; rights to run it are kept."""
    mode = 0o644
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o100:
            mode = 0o755
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
        file.write(data)
