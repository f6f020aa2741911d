"""Session and sweep folders written by hand, so that a report can be made from any state that a session may leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_proteus.core.ledger import CellRecord, cell_path
from pytest_proteus.core.records import EPISODES, private_record_dir, read_jsonl


def result(name: str, score: Any, *, error: bool = False, passed: bool = False, detail: str = "") -> dict[str, Any]:
    return {"name": name, "score": score, "passed": passed, "detail": detail, "error": error}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


class Folders:
    """One session over one sweep of two arms and two seeds, changed by the tests that need it otherwise."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.session = base / ".sessions" / "now"
        self.out = base / "demo" / "1"
        self.rows = [("run-a", "neutral", 0), ("run-b", "review", 0), ("run-c", "neutral", 1), ("run-d", "review", 1)]
        write(
            self.session / "session.json",
            {"id": "now", "started_at": 100.0, "argv": ["-q"], "workers": 2, "base": str(base), "rootdir": str(base)},
        )
        self.declare("demo", self.out)
        self.want({"test_demo.py::test_all": [run_id for run_id, *_ in self.rows]})

    def declare(self, name: str, out: Path, **changes: Any) -> None:
        write(self.session / "sweeps" / f"{name}.json", {"name": name, "out": str(out)})
        evaluator = {"spec": "", "kind": "measurement", "visibility": "hidden", "direction": "neutral", "bounds": None}
        manifest = {
            "format_version": 3,
            "name": name,
            "episodes": 2,
            "harnesses": ["minimal"],
            "arms": ["neutral", "review"],
            "seeds": [0, 1],
            "surfaces": {"minimal": [{"name": "notes", "subdir": "notes", "unit": "file"}]},
            "evaluators": {n: {**evaluator, "source_sha256": None, "thresholds": []} for n in ("calls", "step")},
            "sandbox": {"requested": None, "used": "none", "enforcement": None},
            "condition": {"goal": ""},
            "condition_sha256": "0" * 64,
            "measurement_sha256": "1" * 64,
            "runs": [
                {"id": run_id, "harness": "minimal", "arm": arm, "seed": seed, "model": None, "task": None, "axes": {}}
                for run_id, arm, seed in self.rows
            ],
            "plan": {"cells": len(self.rows)},
            "created_at": 99.0,
        }
        write(out / "manifest.json", {**manifest, **changes})

    def want(self, tests: dict[str, list[str]], sweep: str = "demo") -> None:
        write(self.session / "nodes.json", {nodeid: {"sweep": sweep, "runs": runs} for nodeid, runs in tests.items()})

    def cell(self, run_id: str, state: str = "complete", **changes: Any) -> None:
        record = CellRecord(run_id, state, attempts=1, session="now", settled_by="now", episodes_planned=2, seconds=1.5)
        write(cell_path(self.out, run_id), {**record.to_json(), **changes})

    def records(self, run_id: str, *episodes: list[dict[str, Any]], **changes: Any) -> None:
        folder = private_record_dir(self.out / "runs" / run_id)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            {"episode": number, "accepted": True, "results": results, "violations": [], "seconds": 0.5, **changes}
            for number, results in enumerate(episodes, start=1)
        ]
        (folder / EPISODES).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (self.out / "runs" / run_id).mkdir(parents=True, exist_ok=True)

    def complete(self) -> None:
        """Every cell complete, with calls 1, 2, 3, 4 and step 0.5 after the last episode."""
        for number, (run_id, *_) in enumerate(self.rows, start=1):
            self.cell(run_id)
            self.records(
                run_id,
                [result("calls", 9.0), result("step", 9.0)],
                [result("calls", float(number)), result("step", 0.5)],
            )

    def gate(self, worker: str = "main", **changes: Any) -> None:
        entry = {
            "nodeid": "test_demo.py::test_gate",
            "name": "calls",
            "sweep": "demo",
            "verdict": "pass",
            "blocking": True,
        }
        path = self.session / "gates" / f"{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**entry, **changes}) + "\n")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    # Which records count is settled by core from the run's repository; these folders have records only.
    monkeypatch.setattr(
        "pytest_proteus.report.runs.read_records", lambda root: read_jsonl(private_record_dir(root) / EPISODES)
    )
    return Folders(tmp_path)


@pytest.fixture
def finished(folders: Folders) -> Folders:
    folders.complete()
    return folders
