"""Arms: what a cell's harness is given that other cells' are not. A disposition, files, or both; and their controls.

Does not run anything: ``ArmedHarness`` puts an arm's files in place when its harness is seeded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_proteus.core.adapter import HarnessAdapter, Surface
from pytest_proteus.core.disposition import NEUTRAL, Disposition, record, review
from pytest_proteus.core.errors import ConfigurationError

FILE_MODES = ("replace", "overlay")


@dataclass(frozen=True)
class Files:
    """Harness files that an arm brings along, from a folder or from a git ref.

    Args:
        source: a folder, or a ref of ``repo`` (branch, tag, commit).
        paths: files and folders to take, relative to the source and to the harness root; those of the harness's
            declared surfaces when not given.
        mode: ``replace`` (what the source lacks below ``paths`` is deleted from the harness) or ``overlay``.
        repo: repository of the ref; the one that the session's root lies in when not given.

    Raises:
        ValueError: an unknown mode, or a path that is absolute or leads upwards.
    """

    source: str | os.PathLike[str]
    paths: Sequence[str] | None = None
    mode: str = "replace"
    repo: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.mode not in FILE_MODES:
            raise ValueError(f"Files: mode={self.mode!r} is not one of {', '.join(FILE_MODES)}")
        for text in self.paths or ():
            path = PurePosixPath(text)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"Files: path {text!r} must be relative to the harness root and stay below it")


@dataclass(frozen=True)
class Arm:
    """One arm of a sweep.

    Args:
        label: its name in node ids and reports; never shown to the agent.
        disposition: a removable tendency; none by default.
        framework: label of the scaffolding around the agent, where arms differ in it.
        env: label of the environment, where arms differ in it.
        files: harness files of this arm.
        evolves: whether an episode starts from what the one before it left, and not from the seeded harness.
        control: kind (``aa`` or ``frozen``) and label of the arm that this one is a control of; set by ``aa()`` and
            ``frozen()``.
    """

    label: str
    disposition: Disposition = field(default=NEUTRAL)
    framework: str | None = None
    env: str | None = None
    files: Files | None = None
    evolves: bool = True
    control: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("an Arm needs a label")

    def __str__(self) -> str:
        return self.label

    def aa(self) -> Arm:
        """A second, identical arm, ``<label>_aa``, with runs of its own: what differs between the two is chance."""
        return replace(self, label=f"{self.label}_aa", control=("aa", self.label))

    def frozen(self) -> Arm:
        """The same at the same budget, ``<label>_frozen``, each episode from the seeded harness: k tries."""
        return replace(self, label=f"{self.label}_frozen", evolves=False, control=("frozen", self.label))


def as_arm(value: Any) -> Arm:
    """An arm from an ``Arm``, a ``Disposition`` or a spec.

    Specs are ``neutral``, ``review:<surface>``, ``record:<surface>``, and ``aa:<spec>`` and ``frozen:<spec>`` for the
    controls of such an arm.

    Raises:
        ConfigurationError: anything else.
    """
    if isinstance(value, Arm):
        return value
    if isinstance(value, Disposition):
        return Arm(value.label, disposition=value)
    if isinstance(value, str):
        kind, _, surface = value.partition(":")
        if value == "neutral":
            return as_arm(NEUTRAL)
        if kind == "review" and surface:
            return as_arm(review(surface))
        if kind == "record" and surface:
            return as_arm(record(surface))
        if kind == "aa" and surface:
            return as_arm(surface).aa()
        if kind == "frozen" and surface:
            return as_arm(surface).frozen()
    raise ConfigurationError(
        f"arm {value!r} is neither an Arm, a Disposition nor one of 'neutral', 'review:<surface>', 'record:<surface>', "
        f"'aa:<arm>', 'frozen:<arm>'"
    )


def reviewed_surface(arm: Arm) -> str | None:
    """Name of the surface that the arm's disposition is about, where it names one."""
    return arm.disposition.config.get("SURFACE")


Member = tuple[str, int, bytes]  # path relative to the harness root, mode 0o644 or 0o755, bytes


def read_files(files: Files, surfaces: Sequence[Surface], root: Path) -> list[Member]:
    """The members that ``files`` brings, sorted by path.

    Args:
        files: what the arm declares.
        surfaces: declared surfaces, for the default paths.
        root: where a relative folder and the repository are looked for.

    Raises:
        ConfigurationError: no such folder and no such ref, nothing there to take, or a member that is neither file nor
            folder.
    """
    paths = _paths(files, surfaces)
    folder = root / files.source
    if folder.is_dir():
        members = [member for path in paths for member in _below(folder, path)]
    else:
        from pytest_proteus.core.snapshot.source import read_ref

        members = read_ref(Path(files.repo) if files.repo else root, os.fspath(files.source), paths)
    is_empty = folder.is_dir() and not any(item.is_file() for item in folder.rglob("*"))
    if not members and not is_empty:
        raise ConfigurationError(
            f"Files: {files.source} has no file in {', '.join(paths)}, so it would change nothing but delete what is "
            f"there; name the places that are to be taken with paths=[…]"
        )
    return sorted(set(members))


def _paths(files: Files, surfaces: Sequence[Surface]) -> list[str]:
    return list(files.paths) if files.paths is not None else [surface.subdir for surface in surfaces]


def _below(folder: Path, path: str) -> list[Member]:
    start = folder / path
    found = [start] if start.is_file() else sorted(start.rglob("*")) if start.is_dir() else []
    members = []
    for item in found:
        relative = item.relative_to(folder).as_posix()
        if item.is_symlink() or (not item.is_file() and not item.is_dir()):
            raise ConfigurationError(f"Files: {item} is neither a plain file nor a folder; take it out of the source")
        if item.is_file() and ".git" not in item.relative_to(folder).parts:
            mode = 0o755 if item.stat().st_mode & 0o111 else 0o644
            members.append((relative, mode, item.read_bytes()))
    return members


def files_digest(members: Sequence[Member]) -> str:
    """A digest of paths, modes and bytes."""
    digest = hashlib.sha256()
    for path, mode, data in members:
        digest.update(os.fsencode(f"{path}\0{mode:o}\0{len(data)}\0"))
        digest.update(data)
    return digest.hexdigest()


class ArmedHarness:
    """An adapter whose seeded tree also has an arm's files; everything else is the adapter's own."""

    def __init__(self, adapter: HarnessAdapter, files: Files, members: Sequence[Member]) -> None:
        self._adapter = adapter
        self._files = files
        self._members = members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Seed the harness, then put the arm's files in place."""
        self._adapter.seed(harness_root, rng_seed)
        if self._files.mode == "replace":
            for path in _paths(self._files, self._adapter.surfaces()):
                target = Path(harness_root) / path
                if target.is_dir():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
        for path, mode, data in self._members:
            target = Path(harness_root) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
