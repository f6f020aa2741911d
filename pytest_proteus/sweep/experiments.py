"""The store of experiments: what every run under a folder was, was scored and came to, for questions across sweeps.

It is made anew from the artifacts whenever somebody asks for it, in one go and by one process, and takes the place of
the one before it when it is whole. It holds nothing that the artifacts do not. Sessions do not write it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError, ProteusError
from pytest_proteus.core.records import plain
from pytest_proteus.measure.ranking import Attempt, attempt, kinds_of, last_results, task_hash, told_of
from pytest_proteus.scoring import TESTS
from pytest_proteus.sweep.finished import FinishedSweep, open_sweep

#: Name of the store in the folder of sweeps.
STORE = "experiments.sqlite"
_VERSION = 1
_SCHEMA = """
CREATE TABLE run (
    out TEXT NOT NULL, run_id TEXT NOT NULL, sweep TEXT NOT NULL, task_hash TEXT NOT NULL, goal TEXT NOT NULL,
    task TEXT, task_class TEXT, variant TEXT NOT NULL, labels TEXT NOT NULL, seed TEXT,
    state TEXT NOT NULL, metrics TEXT NOT NULL,
    PRIMARY KEY (out, run_id)
) WITHOUT ROWID;
CREATE TABLE score (
    out TEXT NOT NULL, run_id TEXT NOT NULL, evaluator TEXT NOT NULL, version TEXT NOT NULL, kind TEXT NOT NULL,
    state TEXT NOT NULL, judged REAL, override REAL, author TEXT, reason TEXT, overridden_at REAL, effective REAL,
    data TEXT,
    PRIMARY KEY (out, run_id, evaluator, version)
) WITHOUT ROWID;
CREATE TABLE outcome (
    out TEXT NOT NULL, run_id TEXT NOT NULL, gate TEXT NOT NULL, score_state TEXT NOT NULL, reason TEXT,
    exit_status INTEGER, tests_passed INTEGER, tests_failed INTEGER, files_changed INTEGER, lines_added INTEGER,
    lines_deleted INTEGER,
    PRIMARY KEY (out, run_id)
) WITHOUT ROWID;
CREATE INDEX run_by_task ON run (task_hash);
CREATE INDEX run_by_class ON run (task_class);
CREATE INDEX run_by_id ON run (run_id);
"""


@dataclass
class Indexed:
    """What an index was made of: sweeps, runs, and a sentence for each folder that could not be read."""

    sweeps: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)


def index(base: Path) -> Indexed:
    """Make the store of a folder of sweeps anew.

    Args:
        base: a folder whose ``<sweep>/`` or ``<sweep>/<number>/`` are folders of sweeps, such as ``.proteus``.

    Raises:
        ConfigurationError: no such folder, or the store cannot be written there.
    """
    if not base.is_dir():
        raise ConfigurationError(f"{base} is no folder; give one that holds sweeps, such as .proteus")
    done = Indexed()
    temporary = base / f".{STORE}.{os.getpid()}"
    try:
        temporary.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(temporary)) as connection:
            connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA user_version={_VERSION}; {_SCHEMA}")
            for out in _sweeps_below(base):
                try:
                    sweep = open_sweep(out)
                    with connection:
                        done.runs += _add(connection, sweep)
                    done.sweeps += 1
                except ProteusError as error:
                    done.problems.append(f"{out}: {error}")
            connection.commit()
        temporary.replace(base / STORE)
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"{base / STORE} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return done


def _sweeps_below(base: Path) -> list[Path]:
    found = [*base.glob("*/manifest.json"), *base.glob("*/*/manifest.json")]
    return sorted(path.parent for path in found if not path.parent.name.startswith("."))


def _add(connection: sqlite3.Connection, sweep: FinishedSweep) -> int:
    """The runs of one sweep as rows; how many there were."""
    kinds = kinds_of(sweep.manifest.get("evaluators"))
    goal = str(sweep.manifest.get("goal") or "")
    task = sweep.manifest.get("task") or {}
    out = str(sweep.out)
    runs, scores, outcomes = [], [], []
    for run in sweep.runs:
        results = last_results(run)
        one = attempt(told_of(run), results, kinds)
        labels, metrics = json.dumps(one.labels), json.dumps(one.metrics)
        where = (out, run.run_id)
        described = (
            task_hash(goal, run.task),
            goal,
            run.task,
            task.get("task_class"),
            one.variant,
            labels,
            json.dumps(plain(run.seed)),
            run.state,
            metrics,
        )
        runs.append((*where, sweep.name, *described))
        for name, result in results.items():
            kind = kinds.get(name, "")
            scores.append((*where, name, run.evaluators.get(name, ""), kind, *_score(result, kind)))
        told = results.get(TESTS) if task.get("test_command") else None
        outcomes.append((*where, one.gate, one.score_state, *_outcome(told)))
    for table, rows in (("run", runs), ("score", scores), ("outcome", outcomes)):
        if rows:  # texts that are no Unicode are escaped, as in reports
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", [plain(list(row)) for row in rows])
    return len(runs)


def _score(result: Mapping[str, Any], kind: str) -> tuple[Any, ...]:
    data = dict(result.get("data") or {})
    override = dict(data.pop("override", None) or {}) if kind == "judge" else {}  # of others it is a word like any
    judged = None if result.get("error") else result.get("score")
    state = str(data.get("state") or ("error" if result.get("error") else "scored"))
    effective = override.get("score", judged)
    told = json.dumps(data) if data else None
    return (
        state,
        judged,
        override.get("score"),
        override.get("author"),
        override.get("reason"),
        override.get("at"),
        effective,
        told,
    )


def _outcome(result: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """What the test command of a task said; None without one. Other gates have data of any form, which is not read."""
    data = (result or {}).get("data") or {}
    counts, stat = data.get("counts") or {}, data.get("diffstat") or {}
    return (
        data.get("reason"),
        data.get("exit_status"),
        *(counts.get(name) for name in ("passed", "failed")),
        *(stat.get(name) for name in ("changed", "added", "deleted")),
    )


# --- questions --------------------------------------------------------------------------------------------------------


class Store:
    """Reads a store.

    Args:
        base: the folder of sweeps that it is of.

    Raises:
        ConfigurationError: there is none, or one of another version.
    """

    def __init__(self, base: Path) -> None:
        self._path = Path(base) / STORE
        if not self._path.is_file():
            raise ConfigurationError(f"there is no {self._path}; make it with: proteus index {base}")
        try:
            with self._opened() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"{self._path} cannot be read ({error}): make it with: proteus index {base}"
            ) from error
        if version != _VERSION:
            raise ConfigurationError(f"{self._path} is of another version; make it anew with: proteus index {base}")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            yield connection

    def tasks(self, beginning: str = "") -> dict[str, str]:
        """Task hash → goal of every task whose hash begins so."""
        with self._opened() as connection:
            rows = connection.execute("SELECT DISTINCT task_hash, goal FROM run WHERE substr(task_hash, 1, ?) = ?",
                                      (len(beginning), beginning))  # fmt: skip
            return {row["task_hash"]: row["goal"] for row in rows}

    def attempts(self, task: str) -> list[Attempt]:
        """Every attempt at the task of a hash, for ``measure.ranking.rank``."""
        with self._opened() as connection:
            connection.row_factory = None
            rows = connection.execute(
                "SELECT labels, state, gate, score_state, metrics, run_id, seed "
                "FROM run JOIN outcome USING (out, run_id) WHERE task_hash = ? ORDER BY out, run_id",
                (task,),
            ).fetchall()
        labels = {text: json.loads(text) for text in {row[0] for row in rows}}
        metrics = json.loads(f"[{','.join([row[4] for row in rows])}]")  # one text is read faster than each by itself
        return [
            Attempt(labels[told], state.partition(":")[0], gate, score_state, measured, run_id, json.loads(seed))
            for (told, state, gate, score_state, _, run_id, seed), measured in zip(rows, metrics, strict=True)
        ]

    def runs(self, **wanted: str) -> list[dict[str, Any]]:
        """Every run with its outcome, by ``run_id``, ``task_hash``, ``task_class``, ``sweep``, ``variant`` or
        ``state``."""
        known = ("run_id", "task_hash", "task_class", "sweep", "variant", "state")
        return self._rows("run JOIN outcome USING (out, run_id)", known, wanted)

    def scores(self, **wanted: str) -> list[dict[str, Any]]:
        """Every score, by ``run_id``, ``evaluator``, ``kind`` or ``state``."""
        return self._rows("score", ("run_id", "evaluator", "kind", "state"), wanted)

    def _rows(self, table: str, known: Sequence[str], wanted: Mapping[str, str]) -> list[dict[str, Any]]:
        for name in wanted:
            if name not in known:
                raise ConfigurationError(f"the store is not asked by {name!r}; write one of {', '.join(known)}")
        where = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        with self._opened() as connection:
            rows: Sequence[Any] = connection.execute(
                f"SELECT * FROM {table} WHERE {where}", [*wanted.values()]
            ).fetchall()
        return [dict(row) for row in rows]
