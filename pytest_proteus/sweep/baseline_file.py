"""The file of a baseline: what every run of a finished session measured, so that a later one can be held against it.

One JSON file a baseline, with the observations of each seed and never only their means. Reading trusts nothing: a file
that is cut, edited or of another version is one sentence. Compares nothing.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict, is_typeddict

from pytest_proteus.core.errors import STATES, ConfigurationError
from pytest_proteus.core.records import plain, write_json_atomic
from pytest_proteus.sweep.condition import digest
from pytest_proteus.sweep.run import Run

FORMAT = "pytest-proteus baseline"
VERSION = 1
#: Largest file that is read, in bytes: about a million runs.
LIMIT = 1 << 30


class SavedCell(TypedDict):
    """One run. ``scores`` has one item an episode, null where there is none."""

    run_id: str
    harness: str
    arm: str
    seed: int
    model: str | None
    task: str | None
    axes: dict[str, str]
    state: str
    episodes_complete: int
    seconds: float | None
    counters: dict[str, Any]
    usage: dict[str, Any] | None
    scores: dict[str, list[float | None]]


class SavedSweep(TypedDict):
    """One sweep: its condition, its evaluators as the manifest has them, its runs."""

    name: str
    episodes: int
    condition: dict[str, Any]
    condition_sha256: str
    measurement_sha256: str | None
    evaluators: dict[str, dict[str, Any]]
    runs: list[SavedCell]


class SavedSession(TypedDict):
    """The whole file."""

    format: Literal["pytest-proteus baseline"]
    version: Literal[1]
    name: str
    created_at: float
    commit: str | None
    sweeps: list[SavedSweep]


for _kind in [kind for kind in globals().values() if is_typeddict(kind)]:
    # Set from outside, because mypy takes an assignment in the class body for a field.
    _kind.__pydantic_config__ = ConfigDict(extra="ignore", strict=True)


@dataclass(frozen=True)
class SavedRun:
    """A run of a baseline, with the names that a ``Run`` has."""

    harness: str
    arm: str
    seed: int
    model: str | None
    task: str | None
    axes: Mapping[str, str]
    state: str
    episodes: int
    episodes_complete: int
    seconds: float | None
    counters: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    saved_scores: Mapping[str, Sequence[float | None]]

    def scores(self, name: str) -> Sequence[float | None]:
        """An evaluator's score at each completed episode; empty where it was not attached."""
        return self.saved_scores.get(name, ())


@dataclass(frozen=True)
class Baseline:
    """A saved session.

    Args:
        name: the name it was saved under.
        path: its file.
        saved: what the file holds.
    """

    name: str
    path: Path
    saved: SavedSession

    def sweep(self, name: str) -> SavedSweep | None:
        """The sweep of that name."""
        return next((sweep for sweep in self.saved["sweeps"] if sweep["name"] == name), None)


def runs_in(sweep: SavedSweep) -> list[SavedRun]:
    """The runs of a saved sweep."""
    shared = ("harness", "arm", "seed", "model", "task", "axes", "state", "episodes_complete", "seconds", "counters")
    return [
        SavedRun(
            **{key: cell[key] for key in shared},  # type: ignore[literal-required]
            usage=cell["usage"],
            episodes=sweep["episodes"],
            saved_scores=cell["scores"],
        )
        for cell in sweep["runs"]
    ]


# --- writing ----------------------------------------------------------------------------------------------------------


def saved_sweep(manifest: Mapping[str, Any], runs: Sequence[Run]) -> SavedSweep:
    """A finished sweep as the file has it."""
    shown = ("name", "episodes", "condition", "condition_sha256", "measurement_sha256", "evaluators")
    return {**{key: manifest[key] for key in shown}, "runs": [_saved_cell(run) for run in runs]}  # type: ignore[typeddict-item]


def _saved_cell(run: Run) -> SavedCell:
    return {
        "run_id": run.run_id,
        "harness": run.harness,
        "arm": run.arm,
        "seed": run.seed,
        "model": run.model,
        "task": run.task,
        "axes": dict(run.axes),
        "state": run.state,
        "episodes_complete": run.episodes_complete,
        "seconds": run.seconds,
        "counters": plain(run.counters),
        "usage": plain(run.usage),
        "scores": {name: run.scores(name) for name in run.evaluators},
    }


def write_baseline(path: Path, name: str, sweeps: Sequence[SavedSweep], *, commit: str | None, now: float) -> None:
    """Put a baseline in its place, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {"format": FORMAT, "version": VERSION, "name": name, "created_at": now, "commit": commit}
    write_json_atomic(path, {**saved, "sweeps": list(sweeps)})


# --- reading ----------------------------------------------------------------------------------------------------------


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        ConfigurationError: it cannot be read, is no baseline, is of another version, or contradicts itself.
    """
    value = _read(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigurationError(f"{path} is no baseline; write the file of a session with --proteus-save=NAME")
    if value.get("version") != VERSION:
        raise ConfigurationError(
            f"{path} is a baseline of version {value.get('version')!r}, and this pytest-proteus reads version "
            f"{VERSION}; save it again with --proteus-save"
        )
    try:
        saved = TypeAdapter(SavedSession).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _damaged(path, f"{place}: {first['msg']}") from error
    for sweep in saved["sweeps"]:
        _check(path, sweep)
    names = [sweep["name"] for sweep in saved["sweeps"]]
    if len(set(names)) < len(names):
        raise _damaged(path, "two sweeps have one name")
    return Baseline(saved["name"], path, saved)


def _check(path: Path, sweep: SavedSweep) -> None:
    if digest(sweep["condition"]) != sweep["condition_sha256"]:
        raise _damaged(path, f"the condition of {sweep['name']} is not the one that its hash was made of")
    for part in ("sweep", "harnesses", "arms", "tasks"):
        if not isinstance(sweep["condition"].get(part), dict):
            raise _damaged(path, f"the condition of {sweep['name']} has no {part}")
    seen = set()
    for run in runs_in(sweep):
        place = (run.harness, run.arm, run.seed, run.model, run.task, tuple(sorted(run.axes.items())))
        if place in seen:
            raise _damaged(
                path, f"{sweep['name']} has two runs of harness {run.harness}, arm {run.arm}, seed {run.seed}"
            )
        seen.add(place)
        if run.state not in STATES or not 0 <= run.episodes_complete <= run.episodes:
            raise _damaged(path, f"a run of {sweep['name']} is {run.state} with {run.episodes_complete} episodes")
        if any(len(scores) > run.episodes_complete for scores in run.saved_scores.values()):
            raise _damaged(path, f"a run of {sweep['name']} has more scores than episodes")


def _damaged(path: Path, told: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged ({told}); save the baseline again with --proteus-save")


def _read(path: Path) -> Any:
    try:
        # a FIFO without a writer would keep an ordinary open waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"the baseline {path} cannot be read: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LIMIT:
            raise ConfigurationError(f"{path} is no baseline; write the file of a session with --proteus-save=NAME")
        try:
            return json.loads(file.read(LIMIT), parse_constant=_refuse)
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path, f"not JSON: {error}") from error


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")
