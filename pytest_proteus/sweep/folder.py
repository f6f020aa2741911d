"""Where sessions and sweeps lie on disk, and who may write there.

One session is one invocation of pytest, however many processes it has. Every process of a session holds a shared
lock on the folders it uses; the operating system drops it when the process dies, however it dies. Runs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import read_cell, read_json, read_manifest
from pytest_proteus.core.records import append_jsonl, as_path, read_jsonl, write_json_atomic
from pytest_proteus.sweep.condition import differing_keys

POLICIES = ("resume", "fresh", "refuse", "overwrite")

_held: dict[Path, int] = {}  # lock file → descriptor that this process keeps open until it ends


def hold(folder: Path, session: str) -> None:
    """Mark ``folder`` as used by ``session`` for as long as this process lives."""
    path = folder / "session.lock"
    if path in _held:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.lockf(descriptor, fcntl.LOCK_SH)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, session.encode(), 0)
    _held[path] = descriptor


def let_go(folder: Path) -> None:
    """End what ``hold`` began."""
    descriptor = _held.pop(folder / "session.lock", None)
    if descriptor is not None:
        os.close(descriptor)


def is_live(folder: Path) -> bool:
    """Whether any process holds ``folder``."""
    path = folder / "session.lock"
    if path in _held:
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True)
class SessionFolder:
    """What the processes of one session share on disk.

    Args:
        base: ``.proteus`` below the root folder, or what ``--proteus-out`` says.
        session: id of the session.
    """

    base: Path
    session: str

    @property
    def path(self) -> Path:
        """The session's own folder; removed when its report is written."""
        return self.base / ".sessions" / self.session

    def open(self) -> None:
        """Make the folder and hold it.

        Raises:
            ConfigurationError: it cannot be made.
        """
        try:
            for name in ("sweeps", "gates", "wanted"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            hold(self.path, self.session)
        except OSError as error:
            raise ConfigurationError(
                f"{self.base} cannot be written ({error.strerror}); make room there or choose another folder with "
                f"--proteus-out=DIR"
            ) from error

    def lock(self) -> FileLock:
        """The lock under which folders are allocated, one for all sessions of ``base``."""
        return FileLock(self.base / ".lock")

    def stop(self) -> None:
        """Ask every process of the session to begin no further cell."""
        if self.path.is_dir():
            (self.path / "stop").touch()

    @property
    def stopped(self) -> bool:
        """Whether somebody asked to stop."""
        return (self.path / "stop").exists()

    def want_whole(self, sweep: str) -> None:
        """Say that a test waits for every cell of a sweep."""
        with contextlib.suppress(OSError):  # then nobody helps it
            (self.path / "wanted" / sweep).touch()

    def is_wanted_whole(self, sweep: str) -> bool:
        """Whether a test waits, or waited, for every cell of a sweep."""
        return (self.path / "wanted" / sweep).exists()

    @property
    def needs_help(self) -> bool:
        """Whether a test that needs a whole sweep is to come, or running."""
        return (self.path / "helping").exists() and os.access(self.path, os.W_OK)

    def ask_for_help(self, needed: bool) -> None:
        """Say whether one is: as long as it is, a worker that has no test left stays."""
        with contextlib.suppress(OSError):
            (self.path / "helping").touch() if needed else (self.path / "helping").unlink()

    def close(self) -> None:
        """Remove the session's folder, and those that killed sessions left."""
        let_go(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        for other in (self.base / ".sessions").glob("*"):
            if not is_live(other) and time.time() - other.stat().st_mtime > 3600:
                shutil.rmtree(other, ignore_errors=True)
        for folder in (self.base / ".sessions", self.base):  # as they were found, when nothing else is in them
            with contextlib.suppress(OSError):
                folder.rmdir()


# --- sweep folders ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepFolder:
    """The folder that a session's sweep writes to.

    Args:
        out: the folder.
        manifest: its manifest.
        fresh: False when it holds runs of earlier sessions.
    """

    out: Path
    manifest: dict[str, Any]
    fresh: bool


def allocate(
    folder: SessionFolder,
    name: str,
    draft: Callable[[], dict[str, Any]],
    *,
    policy: str,
    numbered: bool,
    exactly: Path | None = None,
) -> SweepFolder:
    """The session's folder for the sweep ``name``; the first process to ask chooses it, the others get the same.

    Args:
        folder: the session.
        name: name of the sweep.
        draft: makes the manifest; called by the first process only.
        policy: one of ``POLICIES``.
        numbered: a numbered folder below the sweep's name, rather than the one folder of that name.
        exactly: the sweep's folder itself, in place of one below the session's base.

    Raises:
        ConfigurationError: the policy forbids to use what is there; nothing was written then.
    """
    note = folder.path / "sweeps" / f"{name}.json"
    named = exactly or (None if numbered else folder.base / name)
    with folder.lock():
        known = read_json(note)
        if known is not None:
            out = as_path(known["out"])
            hold(out, folder.session)
            return SweepFolder(out, read_manifest(out) or {}, known["fresh"])
        manifest = draft()
        if named is None:
            out, earlier = _choose_numbered(folder.base / name, manifest, policy)
        else:
            out, earlier = named, may_use(named, manifest, policy)
        out.mkdir(parents=True, exist_ok=True)
        hold(out, folder.session)  # before anything changes there: other processes of the session are looking
        try:
            if earlier is not None and policy == "overwrite":
                _discard(out)
                earlier = None
            _fill(out, manifest, earlier)
            if exactly is None and not (folder.base / ".gitignore").exists():
                (folder.base / ".gitignore").write_text("*\n", encoding="utf-8")
            write_json_atomic(note, {"name": name, "out": str(out), "fresh": earlier is None})
        except OSError:
            let_go(out)
            raise
        return SweepFolder(out, manifest, earlier is None)


def _fill(out: Path, manifest: dict[str, Any], earlier: dict[str, Any] | None) -> None:
    """Write what a sweep's folder begins with; ``earlier`` is the manifest of what is kept of it."""
    if earlier is not None:
        planned = {run["id"] for run in manifest["runs"]}
        others = [*earlier.get("runs", []), *earlier.get("other_runs", [])]
        manifest["other_runs"] = [run for run in others if run["id"] not in planned]
        manifest["created_at"] = earlier.get("created_at")
    write_json_atomic(out / "manifest.json", manifest)
    for part in ("cells", "progress", "runs/.proteus-records"):
        (out / part).mkdir(parents=True, exist_ok=True)


def _choose_numbered(parent: Path, manifest: dict[str, Any], policy: str) -> tuple[Path, dict[str, Any] | None]:
    numbers = sorted((int(path.name) for path in parent.glob("[0-9]*") if path.name.isdigit()), reverse=True)
    following = parent / f"{(numbers[0] if numbers else 0) + 1:04d}"
    free = [parent / f"{number:04d}" for number in numbers if not is_live(parent / f"{number:04d}")]
    if policy == "refuse" and numbers:
        raise ConfigurationError(
            f"{parent} holds data already and --proteus-on-existing=refuse was given; "
            f"use resume, fresh or overwrite, or another --proteus-out"
        )
    if free and read_manifest(free[0]) is None:
        return free[0], None  # a session was killed before it had written its plan there
    if policy == "overwrite" and free:
        return free[0], read_manifest(free[0])
    if policy == "resume":
        for path in free:
            earlier = read_manifest(path)
            if earlier is not None and not conflicts(earlier, manifest):
                return path, earlier
    return following, None


def may_use(out: Path, manifest: dict[str, Any], policy: str) -> dict[str, Any] | None:
    """The manifest of what lies in a folder that the user named, or None where nothing does. Writes nothing.

    Raises:
        ConfigurationError: it may not be used; names the keys of the condition that differ.
    """
    if is_live(out):
        raise ConfigurationError(f"{out} is in use by another session; wait for it, or choose another folder")
    if not _contents(out):
        return None
    earlier = read_manifest(out)
    if earlier is None:
        raise ConfigurationError(
            f"{out} holds files but no manifest.json, so it is no sweep's folder; choose another one"
        )
    if policy == "overwrite":
        return earlier
    if policy in ("refuse", "fresh"):
        raise ConfigurationError(
            f"{out} holds a sweep already and --proteus-on-existing={policy} was given; use resume or overwrite, or "
            f"choose another folder"
        )
    keys = conflicts(earlier, manifest)
    if keys:
        raise ConfigurationError(
            f"{out} holds a sweep of another condition; it differs in {', '.join(keys)}. Choose another folder, or "
            f"discard it with --proteus-on-existing=overwrite"
        )
    return earlier


def _contents(out: Path) -> list[Path]:
    """What lies in a sweep's folder, without what sessions put there to know themselves by."""
    return [path for path in out.glob("*") if path.name != "session.lock" and not path.name.startswith(".")]


def _discard(out: Path) -> None:
    for path in _contents(out):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def conflicts(earlier: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The condition's keys in which a folder's sweep differs from the wanted one, for what both of them have.

    Further arms, seeds, harnesses or episodes are no conflict: they extend a sweep.
    """
    old, new = earlier.get("condition", {}), wanted["condition"]
    keys = differing_keys(old.get("sweep"), new["sweep"])
    for part in ("harnesses", "arms", "tasks"):
        before, after = old.get(part, {}), new[part]
        for label in sorted(set(before) & set(after)):
            olds, news = conditions_of(before[label]), conditions_of(after[label])
            if len(olds) == len(news) == 1:
                keys += differing_keys(olds[0], news[0], f"{part}.{label}.")
            elif not (all(old in news for old in olds) or all(new in olds for new in news)):
                keys.append(f"{part}.{label}")
    return keys


def conditions_of(found: Any) -> list[Any]:
    """The conditions under one label: several where other axes shape it, and then further values extend it."""
    return list(found["each"]) if isinstance(found, dict) and found.keys() == {"each"} else [found]


def note_finished(out: Path, session: str) -> None:
    """Write down that ``session`` reported on this folder: what is settled there counts as reused from now on.

    That goes for cells of killed sessions, too: they are in this session's report, which is their first.
    """
    ended_by = {session}
    for path in (out / "cells").glob("*.json"):
        with contextlib.suppress(RecordError):  # the report has named the file
            record = read_cell(out, path.stem)
            ended_by.add(record.settled_by if record else "")
    reported = {line.get("session") for line in read_jsonl(out / "sessions.jsonl")}
    for settled in sorted(ended_by):
        if settled and settled not in reported:
            append_jsonl(out / "sessions.jsonl", {"session": settled})
