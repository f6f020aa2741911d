"""The calls of one task in the order in which they were made, with those that went on meanwhile and belong to none.

What belongs to none is shown beside and is part of no total. It is left out for runs in a sweep, which have no business
with what else was going on.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.metering import roles
from pytest_proteus.metering.store import NAME, check_version
from pytest_proteus.metering.totals import connect, usage_of
from pytest_proteus.metering.usage import KINDS

#: Seconds that the window of an open span goes on.
_NOW = 4e10


def timeline(folder: Path, task: str) -> dict[str, Any]:
    """A task's ``spans``, ``rows``, ``roles`` (role → calls and tokens, what is ambient added), ``canonical_agent``,
    ``canonical_model``, ``usage`` and ``largest`` (what the context of its largest call is made of).

    Args:
        folder: where the store lies: a sweep's folder, or that of measurements by hand.
        task: id of a task or of a run.

    Raises:
        ConfigurationError: there is no store, or no such task in it.
        RecordError: the store is damaged, or of a later version.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise ConfigurationError(f"nothing was metered in {folder}: there is no {NAME}")
    background = roles.read(folder)
    try:
        with contextlib.closing(connect(path)) as connection:
            check_version(connection, path)
            spans = [dict(row) for row in connection.execute(
                "SELECT * FROM spans WHERE task_id = ? OR run_id = ? ORDER BY opened", (task, task)
            )]  # fmt: skip
            if not spans:
                known = [row[0] for row in connection.execute("SELECT DISTINCT task_id FROM spans ORDER BY 1 LIMIT 5")]
                raise ConfigurationError(f"no task {task!r} in {path}; it has {', '.join(known) or 'none'}")
            idents = [span["id"] for span in spans]
            own = _own(connection, idents)
            ambient = [] if spans[0]["episode"] else _ambient(connection, spans)
    except sqlite3.Error as error:
        raise RecordError(f"the usage store {path} cannot be read: {error}") from error
    rows = sorted(
        [*(_row(row, background, False) for row in own), *(_row(row, background, True) for row in ambient)],
        key=lambda row: (row["began"], row["id"]),
    )
    turn = 0
    for row in rows:
        if not row["ambient"] and row["status"] is not None and row["status"] < 400:
            turn += 1
            row["turn"] = turn
    agent, model = roles.canonical(row for row in rows if not row["ambient"])
    usage = usage_of(folder, [spans[0]["run_id"]]).get(spans[0]["run_id"])
    return {
        "task_id": spans[0]["task_id"],
        "run_id": spans[0]["run_id"],
        "execution_mode": "parallel" if any(span["execution_mode"] == "parallel" for span in spans) else "serial",
        "canonical_agent": spans[0]["agent"] or agent,
        "canonical_model": model,
        "spans": [{key: span[key] for key in ("episode", "state", "opened", "closed", "note")} for span in spans],
        "usage": usage.entry() if usage else None,
        "roles": _lanes(rows),
        "largest": _largest(own),
        "rows": rows,
    }


def _own(connection: sqlite3.Connection, idents: Sequence[str]) -> list[sqlite3.Row]:
    marks = ", ".join("?" * len(idents))
    return connection.execute(f"SELECT * FROM token_usage WHERE span IN ({marks})", idents).fetchall()


def _ambient(connection: sqlite3.Connection, spans: Sequence[Mapping[str, Any]]) -> list[sqlite3.Row]:
    """Calls of nobody within the spans, each once."""
    found = {}
    for span in spans:
        window = (span["opened"], span["closed"] or _NOW)
        for row in connection.execute(
            "SELECT * FROM token_usage WHERE task_id IS NULL AND began BETWEEN ? AND ?", window
        ):
            found[row["id"]] = row
    return list(found.values())


def _row(row: sqlite3.Row, background: Mapping[str, Sequence[str]], ambient: bool) -> dict[str, Any]:
    counts = [row[kind] for kind in KINDS if kind != "reasoning"]
    known = row["input"] is not None and row["output"] is not None
    return {
        "id": row["id"],
        "turn": None,
        "ambient": ambient,
        "role": roles.role_of(row["process"] or "", background),
        "process": row["process"],
        "model": row["model"],
        "provider": row["provider"],
        "status": row["status"],
        "state": row["state"],
        **{f"{kind}_tokens": row[kind] for kind in KINDS},
        "total_tokens": sum(filter(None, counts)) if known else None,
        "tools": json.loads(row["tools"]) if row["tools"] else [],
        "began": row["began"],
        "first_byte_seconds": _between(row["began"], row["first_byte"]),
        "seconds": _between(row["began"], row["ended"]),
        "source": row["source"],
        "note": row["note"],
    }


def _largest(rows: Sequence[sqlite3.Row]) -> dict[str, Any] | None:
    """The call with the largest request: its ``id``, and ``bytes`` of each part of the context; None where no call has
    been looked at."""
    sized = [(json.loads(row["sizes"]), row["id"]) for row in rows if row["sizes"]]
    if not sized:
        return None
    sizes, ident = max(sized, key=lambda one: (sum(one[0].values()), one[1]))
    return {"id": ident, "bytes": sizes}


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else max(end - start, 0.0)


def _lanes(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    lanes = {role: {"calls": 0, "tokens": 0, "ambient_calls": 0} for role in (roles.FOREGROUND, *roles.BACKGROUND)}
    for row in rows:
        lane = lanes[row["role"]]
        lane["calls"] += 1
        lane["tokens"] += row["total_tokens"] or 0
        lane["ambient_calls"] += row["ambient"]
    return lanes
