"""Ten thousand stored runs: how long an index takes, and a comparison of one task. Run by hand; asserts nothing.

python tests/benchmarks/bench_experiments.py [RUNS]
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_proteus import NEUTRAL
from pytest_proteus.core.config import RunConfig
from pytest_proteus.core.episode import run
from pytest_proteus.core.goal import GoalConfig
from pytest_proteus.core.ledger import CellRecord, cell_path
from pytest_proteus.core.records import EPISODES, private_record_dir, read_records
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.measure.ranking import rank, task_hash
from pytest_proteus.sweep.experiments import Store, index

#: What docs/benchmarks.md claims.
RUNS, INDEX_SECONDS, COMPARE_SECONDS = 10_000, 30.0, 0.2
EVALUATOR = {"spec": "", "visibility": "hidden", "direction": "higher", "bounds": [0, 1], "thresholds": []}
KINDS = {"tests": "gate", "judge:rubric": "judge", "route:loop_count": "route"}


def template(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A run of one episode: its folder and its record; all runs share its history."""
    run(RunConfig("one", MinimalHarness(), NEUTRAL, GoalConfig.no_goal(), folder / "one", "mock", episodes=1))
    return folder / "one", read_records(folder / "one")[0]


def make(base: Path, runs: int, sweeps: int = 10) -> str:
    """Sweep folders with as many runs, all of one task; the task's hash."""
    chance, goal = random.Random(0), "Fix add()."
    first, recorded = template(base / ".template")
    for number in range(sweeps):
        out = base / "bench" / f"{number:04d}"
        cells = []
        for at in range(runs // sweeps):
            run_id = f"run-{number:04d}{at:08d}"
            arm = f"arm{at % 20}"
            cells.append(
                {"id": run_id, "harness": "agent", "arm": arm, "seed": at // 20, "model": "m", "task": None, "axes": {}}
            )
            results = [
                {"name": "tests", "score": 1.0, "passed": chance.random() < 0.7, "detail": "", "error": False},
                {
                    "name": "judge:rubric",
                    "score": chance.random(),
                    "passed": True,
                    "detail": "",
                    "error": False,
                    "data": {"state": "scored", "goal_aligned_ratio": chance.random(), "labels": {"toward": 3}},
                },
                {"name": "route:loop_count", "score": 1.0, "passed": False, "detail": "", "error": False},
            ]
            record = {**recorded, "results": results}
            folder = private_record_dir(out / "runs" / run_id)
            folder.mkdir(parents=True)
            (folder / EPISODES).write_text(json.dumps(record) + "\n", encoding="utf-8")
            (out / "runs" / run_id).mkdir()
            (out / "runs" / run_id / ".snapshot.git").symlink_to(first / ".snapshot.git")
            path = cell_path(out, run_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            cell = CellRecord(run_id, "complete", episodes_planned=1, episodes_complete=1, seconds=chance.random() * 60)
            path.write_text(json.dumps(cell.to_json()), encoding="utf-8")
        manifest = {
            "name": "bench",
            "episodes": 1,
            "goal": goal,
            "evaluators": {name: {**EVALUATOR, "kind": kind} for name, kind in KINDS.items()},
            "runs": cells,
        }
        (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return task_hash(goal)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        task = make(base, RUNS)
        began = time.perf_counter()
        done = index(base)
        indexed = time.perf_counter() - began
        print(f"index of {done.runs:,} runs: {indexed:.1f} s (claim: < {INDEX_SECONDS:g} s)")
        store, took = Store(base), []
        for _ in range(5):
            began = time.process_time()
            found = rank(store.attempts(task), task, rank_by="score")
            took.append(time.process_time() - began)
        compared = statistics.median(took)
        told = f"comparison of {done.runs:,} runs of {len(found.ranked)} variants"
        print(f"{told}: {compared * 1000:.0f} ms of CPU time (claim: < {COMPARE_SECONDS * 1000:g} ms)")
    return 0 if indexed < INDEX_SECONDS and compared < COMPARE_SECONDS and len(found.ranked) == 20 else 1


if __name__ == "__main__":
    sys.exit(main())
