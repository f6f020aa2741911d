"""The repository of a task: what a cell's agent gets of it.

An agent gets plain files of one commit, links among them, and no ``.git``: nothing leads back to the repository, which
is only ever read. Files that agents take for instructions are left out, so that what differs between arms is what the
arms bring along.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.snapshot.objects import EXECUTABLE, FILE, Entry, object_id
from pytest_proteus.core.snapshot.source import LINK, read_ref, resolve_ref
from pytest_proteus.core.trees import own_folder, remove

#: A member of a tree: path, ``0o644``, ``0o755`` or ``LINK``, bytes of the file or target of the link.
Member = tuple[str, int, bytes]

#: Names of files, at any depth and in any case, that some agent takes for its instructions or its configuration.
_RULES = frozenset(
    {
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "qwen.md"),
        *(".cursorrules", ".windsurfrules", ".goosehints", ".mcp.json", "opencode.json", "opencode.jsonc"),
        "copilot-instructions.md",
    }
)
#: The same for folders.
_FOLDERS = frozenset(
    {
        *(".agents", ".claude", ".clinerules", ".codex", ".copilot", ".cursor", ".gemini", ".opencode", ".pi", ".qwen"),
        ".windsurf",
    }
)


def is_rules(path: str) -> bool:
    """Whether some agent takes this file for its instructions: such files of a repository are not given to agents."""
    parts = [part.casefold() for part in PurePosixPath(path).parts]
    return (
        bool(_FOLDERS.intersection(parts))
        or parts[-1] in _RULES
        or parts[-1].startswith(".aider")
        or parts[:2] == [".github", "instructions"]
    )


@dataclass(frozen=True)
class TaskRepository:
    """One commit of a repository.

    Args:
        path: a folder in the repository.
        commit: id of the commit.
        tree: id of its tree.
    """

    path: Path
    commit: str
    tree: str

    @property
    def members(self) -> Sequence[Member]:
        """What an agent gets, sorted by path."""
        return _read(self.path, self.commit)[0]

    @property
    def neutralised(self) -> list[str]:
        """The files that it does not get."""
        return list(_read(self.path, self.commit)[1])

    def export(self, folder: Path) -> None:
        """Write what an agent gets below an existing folder."""
        for path, mode, data in self.members:
            put(folder, path, mode, data)

    def entries(self) -> Mapping[bytes, Entry]:
        """Path → entry of what an agent gets, as a snapshot has it, in the order of ``members``."""
        return _entries(self.path, self.commit)


def open_repository(path: Path, ref: str) -> TaskRepository:
    """The commit that ``ref`` names, and whether it can be given to agents.

    Raises:
        ConfigurationError: no repository, no such ref, submodules, or no file in it.
    """
    commit, tree = resolve_ref(path, ref)
    found = TaskRepository(Path(path), commit, tree)
    if not found.members:
        raise ConfigurationError(f"{ref} of {path} has no file that an agent could be given")
    return found


@functools.lru_cache(maxsize=2)
def _read(path: Path, commit: str) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """What an agent gets of a commit, and the paths of what it does not; asked for at every episode."""
    members = read_ref(path, commit, ["."], links=True)
    rules = {path for path, _, _ in members if is_rules(path)}
    return tuple(member for member in members if member[0] not in rules), tuple(sorted(rules))


@functools.lru_cache(maxsize=2)
def _entries(path: Path, commit: str) -> Mapping[bytes, Entry]:
    return {
        os.fsencode(path): Entry(
            mode if mode == LINK else EXECUTABLE if mode == 0o755 else FILE, object_id(b"blob", data), len(data)
        )
        for path, mode, data in _read(path, commit)[0]
    }


def put(folder: Path, path: str, mode: int, data: bytes) -> None:
    """Write one member below a folder, whatever stands in its place or in its way; no link is followed.

    No process of a subject may be alive.
    """
    parts = PurePosixPath(path).parts
    parent = folder
    for part in parts[:-1]:
        parent = parent / part
        own_folder(parent)
    target = parent / parts[-1]
    remove(target)
    if mode == LINK:
        target.symlink_to(os.fsdecode(data))
        return
    target.write_bytes(data)
    target.chmod(mode)
