"""The runs of one sweep folder as entries of the report, each read on its own so that one broken run costs no other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import STATES
from pytest_proteus.core.ledger import CellRecord, ended_as, read_cell, within
from pytest_proteus.core.records import read_jsonl, read_records, read_rescores, with_versions
from pytest_proteus.metering.names import of_cell
from pytest_proteus.metering.totals import usage_of
from pytest_proteus.report.shape import (
    UNREADABLE,
    anything,
    attempt,
    count,
    fields,
    flag,
    in_words,
    listed,
    mapping,
    number,
    text,
)

CELL = {"harness": text, "arm": text, "seed": anything, "model": text, "task": anything}
ERROR = {"class": text, "type": text, "message": text, "retryable": flag}
USAGE = {
    **dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), count),
    **dict.fromkeys(("reasoning_tokens", "total_tokens"), count),
    "cost_usd": number,
    "price_source": text,
    "requests": count,
    "token_source": text,
    "discrepancy": anything,
}


class Runs:
    """Reads the runs of one sweep folder."""

    def __init__(
        self,
        name: str,
        out: Path,
        manifest: Mapping[str, Any],
        session: str,
        nodeids: Mapping[str, list[str]],
        problems: list[str],
    ) -> None:
        self.name, self.out, self.session, self.nodeids, self.problems = name, out, session, nodeids, problems
        self.episodes = count(manifest.get("episodes"))
        self.evaluators = list(declared_evaluators(manifest))
        versions = {name: mapping(given).get("version") for name, given in declared_evaluators(manifest).items()}
        self.versions = {name: version for name, version in versions.items() if isinstance(version, str) and version}
        self.reported = reported_sessions(out, problems)
        self.changed_outside: dict[str, list[str]] = {}  # of the runs that have an entry
        used = attempt(lambda: usage_of(out), {}, f"sweep {name}: what its runs used cannot be read", problems)
        self._usage = {run_id: found.entry() for run_id, found in used.items()}

    def entry(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """One run of the report."""
        run_id = cell["id"]
        record, failure = self._cell(run_id)
        if changed := [str(path) for path in listed(record.outside)]:
            self.changed_outside[run_id] = changed
        planned = self.episodes or count(record.episodes_planned)
        records = [item for item in self._records(run_id) if not planned or item["episode"] <= planned]
        if record.state == "complete" and len(records) < min(planned or 0, count(record.episodes_complete) or 0):
            self.problems.append(f"sweep {self.name}: {run_id} is complete, but episodes of it have no record")
        said = f"sweep {self.name}: results of {run_id} cannot be read"
        measured = attempt(
            lambda: trajectories(records, self.evaluators), trajectories([], self.evaluators), said, self.problems
        )
        longer = bool(planned) and (count(record.episodes_complete) or 0) > (planned or 0)
        if longer:
            record = within(record, planned, records)
        seconds = [item["seconds"] for item in records if number(item.get("seconds")) is not None]
        return {
            "run_id": run_id,
            "task_id": self._task_id(cell),
            **fields(cell, CELL),
            "axes": dict(mapping(cell.get("axes"))),
            "state": "errored" if failure else _state(record, len(records), planned),
            "error": failure or (fields(record.error, ERROR) if record.error else None),
            "reused": record.settled_by != self.session and record.settled_by in self.reported,
            "attempts": count(record.attempts) or 0,
            "episodes_planned": planned,
            "episodes_complete": len(records),
            "refused": text(records[-1].get("error")) if records and records[-1].get("failure_kind") else None,
            "accepted": sum(1 for item in records if item.get("accepted", True)),
            "violations": sum(len(listed(item.get("violations"))) for item in records),
            "evaluators": measured,
            "counters": dict(mapping(record.counters)),
            "usage": fields(None if longer else self._usage.get(run_id), USAGE),
            "started_at": number(record.started_at),
            "seconds": number(record.seconds),
            "working_seconds": math.fsum(seconds) if seconds else None,
            "waiting_seconds": None,
            "nodeids": self.nodeids.get(run_id, []),
        }

    def _task_id(self, cell: Mapping[str, Any]) -> str | None:
        """The run's id for people; None where the manifest's entry is not whole."""
        if not {"harness", "arm", "seed"} <= set(cell) or not isinstance(cell.get("axes") or {}, dict):
            return None
        return of_cell(self.name, self.out.name, cell)

    def _cell(self, run_id: str) -> tuple[CellRecord, dict[str, Any] | None]:
        """How the cell stands, or the error that takes its place: an unreadable cell counts as ``errored``."""
        try:
            record = read_cell(self.out, run_id)
            if ended_as(record) not in STATES:
                raise ValueError(f"state {record and record.state!r} is not one of {', '.join(STATES)}")
            return record or CellRecord(run_id, "not_run"), None
        except UNREADABLE as error:
            self.problems.append(f"sweep {self.name}: cell {run_id} cannot be read: {in_words(error)}")
            failure = {
                "class": "apparatus",
                "type": type(error).__name__,
                "message": in_words(error),
                "retryable": False,
            }
            return CellRecord(run_id, "errored"), failure

    def _records(self, run_id: str) -> list[dict[str, Any]]:
        root = self.out / "runs" / run_id
        if not root.exists():
            return []
        said = f"sweep {self.name}: records of {run_id} cannot be read"
        records = attempt(lambda: read_records(root), [], said, self.problems)

        def scored() -> list[dict[str, Any]]:
            rescores = read_rescores(root)
            return [with_versions(record, rescores, self.versions) for record in records]

        return attempt(scored, records, said, self.problems)


def reported_sessions(out: Path, problems: list[str]) -> frozenset[str]:
    """Ids of the sessions that ended with a report on this sweep folder: what they settled is reused by later ones."""
    path = out / "sessions.jsonl"
    lines = attempt(lambda: read_jsonl(path), [], f"{path} cannot be read", problems)
    return frozenset(str(line.get("session")) for line in lines)


def _state(record: CellRecord, found: int, planned: int | None) -> str:
    complete = max(found, count(record.episodes_complete) or 0)
    state = ended_as(replace(record, episodes_complete=complete), planned)
    return f"skipped:{record.reason}" if state == "skipped" and record.reason else state


def trajectories(records: Sequence[Mapping[str, Any]], evaluators: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What every evaluator said over the episodes of a run; those that only records know come last."""
    rows = [
        {str(item.get("name")): item for item in record.get("results") or [] if isinstance(item, dict)}
        for record in records
    ]
    declared = list(evaluators)
    further = sorted({name for row in rows for name in row} - set(declared))
    return {name: _trajectory([row.get(name) for row in rows]) for name in declared + further}


def _trajectory(results: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    scores: list[float | None] = []
    passed: list[bool | None] = []
    errors: list[str | None] = []
    for result in results:
        error = _missing(result)
        scores.append(result["score"] if result and error is None else None)
        passed.append(bool(result.get("passed")) if result and error is None else None)
        errors.append(error)
    last = results[-1] if results else None
    detail = None if last is None else last.get("detail")
    return {
        "scores": scores,
        "passed": passed,
        "errors": errors,
        "last_detail": text(detail),
        "last_data": None if last is None else mapping(last.get("data")) or None,
    }


def _missing(result: Mapping[str, Any] | None) -> str | None:
    """Why a result has no score; None when it has one."""
    if result is None:
        return "no result"
    if result.get("error"):
        return str(result.get("detail") or "evaluator error")
    return None if number(result.get("score")) is not None else f"score {result.get('score')!r} is not a finite number"


def wanted_by(sweep: str, nodes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Run id → ids of the tests that want it, sorted."""
    found: dict[str, list[str]] = {}
    for nodeid in sorted(nodes):
        entry = nodes[nodeid]
        if isinstance(entry, dict) and entry.get("sweep") == sweep:
            for run_id in listed(entry.get("runs")):
                found.setdefault(str(run_id), []).append(nodeid)
    return found


def declared_evaluators(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluators of a manifest: name → what it says of each."""
    return mapping(manifest.get("evaluators"))
