"""A sweep's folder on disk as runs: for readers that come after the session, and with nothing but the folder.

Reads folders of pytest sessions, of ``run_sweep``, and of proteus-evolve, whose records and traces lie in other files.
Imports no adapter and no suite; changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import ActionEvent, Surface
from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import read_manifest
from pytest_proteus.core.records import EPISODES, eval_history_path, private_record_dir, read_jsonl
from pytest_proteus.measure.strata import by_stratum
from pytest_proteus.sweep.run import Run, runs_of

#: Larger files of an agent's log are not taken for a normalized trace.
TRACE_BYTES = 64 << 20
_EVENT_FIELDS = frozenset(field.name for field in fields(ActionEvent))
_SURFACE_FIELDS = frozenset(field.name for field in fields(Surface))


@dataclass(frozen=True)
class FinishedSweep:
    """A sweep as its folder has it.

    Args:
        name: name of the sweep.
        out: the folder.
        manifest: its manifest.
        runs: every planned run.
        gone: what of their artifacts is not there, a sentence each.
    """

    name: str
    out: Path
    manifest: Mapping[str, Any]
    runs: tuple[Run, ...]
    gone: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def strata(self) -> dict[str, list[Run]]:
        """Stratum → its runs; see ``measure.strata.by_stratum``."""
        return by_stratum(self.runs)

    def surfaces_of(self, harness: str) -> list[Surface]:
        """The declared surfaces of a harness, by label.

        Raises:
            RecordError: the manifest does not tell them.
        """
        told = self.manifest.get("surfaces")
        if told is None:  # proteus-evolve has one harness a sweep
            told = {harness: _at(self.manifest, "condition", "adapter", "surfaces")}
        try:
            return [_surface(item) for item in told[harness]]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise RecordError(f"{self.out / 'manifest.json'} does not tell the surfaces of {harness}") from error

    @property
    def probes(self) -> dict[str, Any] | None:
        """``episode`` and ``runs`` (run id → id of its probe) of the probes; None where none were declared."""
        found: dict[str, Any] | None = self.manifest.get("probes")
        return found

    def shares_seeds(self, harness: str) -> bool:
        """Whether a seed means the same start of a harness in every arm."""
        return harness in (self.manifest.get("seeded") or ())

    def copies(self) -> dict[str, str]:
        """Each identical copy of an arm → the arm that it copies."""
        controls = self.manifest.get("controls")
        listed = controls.items() if isinstance(controls, Mapping) else ()
        return {label: str(_at(told, "of")) for label, told in listed if _at(told, "kind") == "aa"}


def _surface(item: Mapping[str, Any]) -> Surface:
    known = {name: value for name, value in item.items() if name in _SURFACE_FIELDS}
    return Surface(**{**known, "write_tools": frozenset(known.get("write_tools") or ())})


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def open_sweep(out: Path) -> FinishedSweep:
    """The sweep whose folder ``out`` is.

    Raises:
        ConfigurationError: it is none, or its manifest is damaged.
        RecordError: a cell's file is.
    """
    out = Path(out).absolute()
    if not out.is_dir():
        raise ConfigurationError(f"{out} is no folder; give a sweep's folder, such as .proteus/<sweep>/0001")
    try:
        manifest = read_manifest(out)
    except (UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{out / 'manifest.json'} is not JSON; restore it from a backup") from error
    if manifest is None:
        raise ConfigurationError(
            f"{out} holds no manifest.json, so it is no sweep's folder; give one, such as .proteus/<sweep>/0001"
        )
    listed = _at(manifest, "runs")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "id" in entry for entry in listed):
        raise ConfigurationError(f"{out / 'manifest.json'} does not list its runs; restore it from a backup")
    try:
        runs = runs_of(out, manifest) if (out / "cells").is_dir() else _serial_runs(out, manifest)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RecordError(f"{out / 'manifest.json'} or a file of its cells is damaged ({error})") from error
    gone = tuple(why for run in runs if (why := _gone(run)))
    return FinishedSweep(str(manifest.get("name") or out.name), out, manifest, tuple(runs), gone)


def _gone(run: Run) -> str:
    """What a run is said to have done and is not there to be read, in one sentence; empty when all is."""
    if run.episodes_complete and not (run.root / ".snapshot.git").is_dir():
        return f"{run.root / '.snapshot.git'}, the history of its states, is not there; restore it"
    try:
        found = len(run.stored_records())
    except RecordError:
        return ""  # whoever needs them says what is wrong
    if found < run.episodes_complete:
        where = private_record_dir(run.root)
        return f"{where}: {run.episodes_complete} episodes are complete, and {found} of them have a record; restore it"
    return ""


def _serial_runs(out: Path, manifest: Mapping[str, Any]) -> list[Run]:
    """The runs of ``run_sweep`` and of proteus-evolve, whose ends are lines of ``seeds.jsonl``."""
    lines = read_jsonl(out / "seeds.jsonl")
    ended = {str(line.get("run_id") or Path(str(line.get("root"))).name): line for line in lines}
    return [_serial_run(out, manifest, entry, ended.get(str(entry["id"]), {})) for entry in manifest["runs"]]


def _serial_run(out: Path, manifest: Mapping[str, Any], entry: Mapping[str, Any], ended: Mapping[str, Any]) -> Run:
    root, episodes = out / "runs" / str(entry["id"]), int(manifest["episodes"])
    declared = manifest.get("evaluators") or {}
    error, complete = str(ended.get("error") or ""), int(ended.get("episodes_complete") or 0)
    state = "not_run" if not ended else "complete" if not error and complete >= episodes else "errored"
    kind = Run if (private_record_dir(root) / EPISODES).exists() else EvolveRun
    return kind(
        harness=str(entry.get("harness") or _at(manifest, "condition", "adapter", "name") or ""),
        arm=str(entry["arm"]),
        seed=int(entry["seed"]),
        model=entry.get("model") or None,
        task=entry.get("task") or None,
        axes=dict(entry.get("axes") or {}),
        run_id=root.name,
        root=root,
        episodes=episodes,
        episodes_complete=min(complete, episodes),
        state=str(ended.get("state") or state),
        error=error,
        counters=ended.get("counters") or {},
        evaluators={item["name"] if isinstance(item, dict) else item: "" for item in declared},
    )


@dataclass(frozen=True)
class EvolveRun(Run):
    """A run in the layout of proteus-evolve: records in ``eval_history.json``, traces as the adapter's own logs."""

    def stored_records(self) -> list[dict[str, Any]]:
        """The records as they were written."""
        path = eval_history_path(self.root)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return [_record(item) for item in found if item["episode"] <= self.episodes]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{path} is no list of records ({error}); restore it from a backup") from error

    def trace(self, episode: int) -> Sequence[ActionEvent]:
        """What the agent did in an episode, where its adapter logs normalized actions.

        Raises:
            LookupError: the episode is not complete.
            RecordError: the log holds something else.
        """
        self._require(episode, first=1)
        return read_normalized(self.root / "traces" / f"ep{episode:03d}.jsonl")


def _record(item: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose results say whether the evaluator failed, which there only the detail does."""
    results = [
        {**result, "error": str(result.get("detail") or "").startswith("evaluator error:")}
        for result in item.get("results") or ()
    ]
    return {**item, "results": results}


def read_normalized(path: Path) -> list[ActionEvent]:
    """The actions in a log of one JSON object a line with the fields of ``ActionEvent``.

    Raises:
        RecordError: it cannot be read as that.
    """
    said = f"{path} is no log of normalized actions; only its adapter can read it"
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > TRACE_BYTES:
            raise RecordError(said)
        lines = read_jsonl(path)
    except (OSError, RecordError) as error:
        raise RecordError(said) from error
    if not all(_is_event(line) for line in lines):
        raise RecordError(said)
    return [ActionEvent(**line) for line in lines]


def _is_event(line: Mapping[str, Any]) -> bool:
    texts = (line.get("phase"), line.get("text", ""), line.get("tool") or "", line.get("surface") or "")
    return (
        {"turn", "phase", "tool"} <= line.keys() <= _EVENT_FIELDS
        and all(isinstance(text, str) for text in texts)
        and isinstance(line["turn"], int)
        and isinstance(line.get("params", {}), dict)
    )
