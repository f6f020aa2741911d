"""The runs of one sweep folder as entries of the report, each read on its own so that one broken run costs no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_proteus.core.errors import STATES, ProteusError
from pytest_proteus.core.ledger import CellRecord, ended_as, read_cell
from pytest_proteus.core.records import read_jsonl, read_records

ERROR_FIELDS = ("class", "type", "message", "retryable")
USAGE_FIELDS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "total_tokens",
    "cost_usd", "price_source", "requests", "token_source", "discrepancy",
)  # fmt: skip
#: What reading artifacts that somebody cut, changed or removed may raise.
UNREADABLE = (OSError, ProteusError, ValueError, TypeError, KeyError, AttributeError, LookupError, RecursionError)

_T = TypeVar("_T")
_D = TypeVar("_D")


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
        self.episodes = manifest.get("episodes")
        self.evaluators = list(declared_evaluators(manifest))
        self.reported = reported_sessions(out, problems)

    def entry(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """One run of the report."""
        run_id = cell["id"]
        record, failure = self._cell(run_id)
        records = self._records(run_id, record)
        said = f"sweep {self.name}: results of {run_id} cannot be read"
        measured = attempt(
            lambda: trajectories(records, self.evaluators), trajectories([], self.evaluators), said, self.problems
        )
        seconds = [item["seconds"] for item in records if _is_number(item.get("seconds"))]
        return {
            "run_id": run_id,
            "task_id": None,
            **{key: cell.get(key) for key in ("harness", "arm", "seed", "model", "task")},
            "axes": dict(cell.get("axes") or {}),
            "state": "errored" if failure else _state(record),
            "error": failure or (fields(record.error, ERROR_FIELDS) if record and record.error else None),
            "reused": bool(record and record.settled_by != self.session and record.settled_by in self.reported),
            "attempts": record.attempts if record else 0,
            "episodes_planned": record.episodes_planned if record and record.episodes_planned else self.episodes,
            "episodes_complete": len(records) or (record.episodes_complete if record else 0),
            "accepted": sum(1 for item in records if item.get("accepted", True)),
            "violations": sum(len(item.get("violations") or []) for item in records),
            "evaluators": measured,
            "counters": dict(record.counters) if record else {},
            "usage": fields(None, USAGE_FIELDS),
            "started_at": record.started_at if record else None,
            "seconds": record.seconds if record else None,
            "working_seconds": math.fsum(seconds) if seconds else None,
            "waiting_seconds": None,
            "nodeids": self.nodeids.get(run_id, []),
        }

    def _cell(self, run_id: str) -> tuple[CellRecord | None, dict[str, Any] | None]:
        """How the cell stands, or the error that takes its place: an unreadable cell counts as ``errored``."""
        try:
            record = read_cell(self.out, run_id)
            if record is not None and ended_as(record) not in STATES:
                raise ValueError(f"state {record.state!r} is not one of {', '.join(STATES)}")
            return record, None
        except UNREADABLE as error:
            self.problems.append(f"sweep {self.name}: cell {run_id} cannot be read: {in_words(error)}")
            return None, {
                "class": "apparatus",
                "type": type(error).__name__,
                "message": in_words(error),
                "retryable": False,
            }

    def _records(self, run_id: str, record: CellRecord | None) -> list[dict[str, Any]]:
        root = self.out / "runs" / run_id
        if record is None and not root.exists():
            return []
        return attempt(
            lambda: read_records(root), [], f"sweep {self.name}: records of {run_id} cannot be read", self.problems
        )


def reported_sessions(out: Path, problems: list[str]) -> frozenset[str]:
    """Ids of the sessions that ended with a report on this sweep folder: what they settled is reused by later ones."""
    path = out / "sessions.jsonl"
    lines = attempt(lambda: read_jsonl(path), [], f"{path} cannot be read", problems)
    return frozenset(str(line.get("session")) for line in lines)


def _state(record: CellRecord | None) -> str:
    state = ended_as(record)
    return f"skipped:{record.reason}" if record and state == "skipped" and record.reason else state


def trajectories(records: Sequence[Mapping[str, Any]], evaluators: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What every evaluator said over the episodes of a run; those that only records know come last."""
    rows = [
        {item.get("name"): item for item in record.get("results") or [] if isinstance(item, dict)} for record in records
    ]
    declared = list(evaluators)
    further = sorted({str(name) for row in rows for name in row} - set(declared))
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
        "last_detail": None if detail is None else str(detail),
    }


def _missing(result: Mapping[str, Any] | None) -> str | None:
    """Why a result has no score; None when it has one."""
    if result is None:
        return "no result"
    if result.get("error"):
        return str(result.get("detail") or "evaluator error")
    return None if _is_number(result.get("score")) else f"score {result.get('score')!r} is not a finite number"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def wanted_by(sweep: str, nodes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Run id → ids of the tests that want it, sorted."""
    found: dict[str, list[str]] = {}
    for nodeid in sorted(nodes):
        entry = nodes[nodeid]
        if isinstance(entry, dict) and entry.get("sweep") == sweep:
            for run_id in entry.get("runs") or []:
                found.setdefault(run_id, []).append(nodeid)
    return found


def declared_evaluators(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluators of a manifest: name → what it says of each."""
    given = manifest.get("evaluators")
    return given if isinstance(given, dict) else {}


def fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """The named fields of a mapping, null where it does not have them."""
    given = value if isinstance(value, Mapping) else {}
    return {name: given.get(name) for name in names}


def attempt(read: Callable[[], _T], default: _D, said: str, problems: list[str]) -> _T | _D:
    """What ``read`` returns, or ``default`` and a sentence in ``problems``."""
    try:
        return read()
    except UNREADABLE as error:
        problems.append(f"{said}: {in_words(error)}")
        return default


def in_words(error: BaseException) -> str:
    """An exception as part of a sentence."""
    return f"{type(error).__name__}: {error}"[:300]
