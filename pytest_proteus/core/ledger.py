"""The ledger of a sweep folder: which cells were planned and how each of them ended.

One JSON file a cell, written by whoever holds the cell; the counts are always computed from the files, so that no
second book can disagree. Reading is for everybody; writing is the business of ``sweep``.

Layout of a sweep folder::

    manifest.json            the plan and the condition (``read_manifest``)
    cells/<run-id>.json      how each started cell stands (``read_cell``)
    seeds.jsonl              one line for each finished attempt at a run
    progress/<run-id>.jsonl  one line an episode
    runs/<run-id>/           artifacts of a run; runs/.proteus-records/<run-id>/ what its subject must not see
    report.json              this sweep's entry of the report and its gates
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import STATES, RecordError
from pytest_proteus.core.records import add_counters

#: States of a cell file that are not an end: it is being run, or the session that ran it was killed.
RUNNING = "running"


@dataclass
class CellRecord:
    """How one cell stands.

    Args:
        run_id: opaque id of the run.
        state: one of ``core.errors.STATES``, or ``running``.
        reason: why a ``skipped`` cell was skipped; empty otherwise.
        error: ``{"class", "type", "message", "retryable"}`` or None.
        attempts: how often the cell was begun, resumption after a killed session not counted.
        session: id of the session that wrote this file last.
        settled_by: id of the session that brought the cell to its end; empty while it has none.
        episodes_planned: episodes that the run was to complete.
        episodes_complete: episodes whose snapshot and record are on disk.
        counters: the adapter's counters, summed.
        started_at: seconds since the epoch of the first attempt, or None.
        seconds: wall time of all attempts, or None.
        measured: hash of the evaluators whose results the run has; empty while nobody looked.
        probe: ``{"run_id", "session", "state", "error"}`` of the run's probe; None while nobody began it.
        outside: paths outside of the run that changed while it ran; None where nobody looked.
    """

    run_id: str
    state: str = RUNNING
    reason: str = ""
    error: dict[str, Any] | None = None
    attempts: int = 0
    session: str = ""
    settled_by: str = ""
    episodes_planned: int = 0
    episodes_complete: int = 0
    counters: dict[str, Any] = field(default_factory=dict)
    started_at: float | None = None
    seconds: float | None = None
    measured: str = ""
    probe: dict[str, Any] | None = None
    outside: list[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for the cell's file."""
        return asdict(self)


def read_json(path: Path) -> Any:
    """The JSON value in ``path``, or None when there is no such file.

    Raises:
        RecordError: the file holds no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}); remove it or restore it from a backup") from error


def read_manifest(out: Path) -> dict[str, Any] | None:
    """The manifest of the sweep folder ``out``; None when it has none."""
    value: dict[str, Any] | None = read_json(out / "manifest.json")
    return value


def cell_path(out: Path, run_id: str) -> Path:
    """Where the file of a cell lies."""
    return out / "cells" / f"{run_id}.json"


def read_cell(out: Path, run_id: str) -> CellRecord | None:
    """How the cell stands; None when it was never begun."""
    value = read_json(cell_path(out, run_id))
    if value is None:
        return None
    known = set(CellRecord.__dataclass_fields__)
    return CellRecord(**{key: item for key, item in value.items() if key in known})


def ended_as(record: CellRecord | None, episodes: int | None = None) -> str:
    """The state of a cell for the ledger: one of ``STATES``.

    A cell that nobody is running any more is ``not_run``, and so is one that was complete with fewer ``episodes`` than
    are planned now, and that nobody extended.
    """
    if record is None or record.state == RUNNING:
        return "not_run"
    if record.state == "complete" and episodes and record.episodes_complete < episodes:
        return "not_run"
    return record.state


def within(record: CellRecord, episodes: int | None, records: Iterable[Mapping[str, Any]]) -> CellRecord:
    """How a cell stood after its first ``episodes``, where a session ran more of them than are planned now.

    Counters are summed anew. What is known of all episodes together only, its seconds, is not known of these.

    Args:
        record: how it stands.
        episodes: episodes that are planned; None for all.
        records: its episodes' records; looked at only where it has more than that.
    """
    if not episodes or record.episodes_complete <= episodes:
        return record
    counters: dict[str, Any] = {}
    for one in records:
        if one["episode"] <= episodes:
            add_counters(counters, one.get("counters") or {})
    return replace(record, episodes_complete=episodes, counters=counters, seconds=None)


def count(states: Iterable[str]) -> dict[str, int]:
    """``planned`` and a count for each of ``STATES``; planned is their sum."""
    counts = dict.fromkeys(STATES, 0)
    planned = 0
    for state in states:
        counts[state] += 1
        planned += 1
    return {"planned": planned, **counts}


def ledger(cells: Iterable[Mapping[str, Any]], records: Mapping[str, CellRecord | None]) -> dict[str, Any]:
    """The counts of planned cells, whole and ``by_arm``.

    Args:
        cells: entries of the manifest's ``runs`` (each with ``id`` and ``arm``).
        records: run id → record, None for cells never begun.
    """
    listed = list(cells)
    arms = sorted({str(cell["arm"]) for cell in listed})
    return {
        **count(ended_as(records.get(cell["id"])) for cell in listed),
        "by_arm": {
            arm: count(ended_as(records.get(cell["id"])) for cell in listed if cell["arm"] == arm) for arm in arms
        },
    }
