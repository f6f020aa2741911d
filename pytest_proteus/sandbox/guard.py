"""The tripwire of the rung ``none``: what changed in folders that a run has no business in, by what ``lstat`` tells.

It prevents nothing, and does not know who changed something: a person who edits the folder meanwhile trips it, too. No
file is opened and no link followed, so that nothing that lies there can hold it up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Entries of the watched folders together, above which they are not watched, and changes that are named.
MOST_ENTRIES, MOST_NAMED = 100_000, 20


@dataclass
class Guard:
    """Remembers how folders look when it is made; ``changes`` tells what looks otherwise.

    Args:
        folders: what is watched, with all that lies below.
        besides: what lies in there and is not watched; links in its path are resolved.
        most: entries above which nothing is watched.
    """

    folders: Sequence[Path]
    besides: Sequence[Path] = ()
    most: int = MOST_ENTRIES
    _before: dict[str, tuple[int, ...]] | None = field(init=False)

    def __post_init__(self) -> None:
        self.folders = sorted({Path(os.path.realpath(folder)) for folder in self.folders})
        self._besides = frozenset(os.path.realpath(path) for path in self.besides)
        self._holders = frozenset(str(Path(path).parent) for path in self._besides)
        self._before = self._look()

    def changes(self) -> list[str] | None:
        """Paths that came, went or changed, sorted, the last one a count of further ones; None when the folders are
        too large to be watched."""
        if self._before is None:
            return None
        before, after = self._before, self._look()
        if after is None:
            return [f"more than {self.most} entries, where there were {len(before)}"]
        found = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        named = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in found[:MOST_NAMED]]
        return [*named, f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else named

    def _look(self) -> dict[str, tuple[int, ...]] | None:
        """Path → inode, size, mode, times and links. The change time cannot be set back without root's rights."""
        found: dict[str, tuple[int, ...]] = {}
        todo: list[str] = []
        for folder in self.folders:
            if not any(Path(other) in folder.parents for other in self.folders):
                todo.append(str(folder))
        while todo:
            place = todo.pop()
            with contextlib.suppress(OSError), os.scandir(place) as items:
                for item in items:
                    if item.path in self._besides:
                        continue
                    with contextlib.suppress(OSError):
                        if item.is_dir(follow_symlinks=False):
                            todo.append(item.path)
                        else:
                            found[item.path] = _look_of(item.stat(follow_symlinks=False))
            with contextlib.suppress(OSError):
                # a folder changes with each entry, also with those that are not watched
                state = os.lstat(place)
                found[place] = (state.st_ino, state.st_mode) if place in self._holders else _look_of(state)
            if len(found) + len(todo) > self.most:
                return None
        return found


def _look_of(state: os.stat_result) -> tuple[int, ...]:
    return state.st_ino, state.st_size, state.st_mode, state.st_mtime_ns, state.st_ctime_ns, state.st_nlink


def repository(folder: Path) -> list[Path]:
    """A folder, and the git folders of the working tree that it lies in, wherever these are."""
    found = [Path(folder)]
    for place in (Path(folder), *Path(folder).parents):
        named = place / ".git"
        if named.is_dir():
            return [*found, named]
        if named.is_file():
            # a further working tree: its own git folder, and below which one that lies
            own = _named_in(named, "gitdir:")
            common = _named_in(own / "commondir", "") if own else None
            return [*found, *(one for one in (own, common) if one is not None)]
    return found


def _named_in(file: Path, before: str) -> Path | None:
    """The folder that a small file of git names."""
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(4096)
    except (OSError, ValueError):
        return None
    told = text.strip().removeprefix(before).strip()
    return file.parent / told if told else None
