"""Probes: a run's checkpoint, mounted anew under the neutral disposition, and run for one episode.

A probe is a run of its own with its own opaque id, beside the run that it is of; it is no cell of the grid. What it
says about the checkpoint is the business of ``measure.crystallize``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import HarnessAdapter
from pytest_proteus.core.config import RunConfig
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.core.errors import ProteusError, RecordError
from pytest_proteus.core.goal import GoalConfig
from pytest_proteus.metering.spans import Meter
from pytest_proteus.sweep.execute import live_root, quiet_environment, run_config, task_id
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan


class Mounted:
    """An adapter whose seeded tree is a checkpoint of another run; everything else is the adapter's own.

    Args:
        adapter: the harness.
        evolved: folder of the run that the checkpoint is of.
        episode: its episode.
    """

    def __init__(self, adapter: HarnessAdapter, evolved: Path, episode: int) -> None:
        self._adapter = adapter
        self._evolved = evolved
        self._episode = episode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Seed the harness, then put the checkpoint in the tree's place."""
        from pytest_proteus.core import snapshot

        work = self._evolved / "harness"
        commit = snapshot.commit_for_episode(work, self._episode)
        if commit is None:
            raise RecordError(f"{self._evolved} has no checkpoint of episode {self._episode}")
        self._adapter.seed(harness_root, rng_seed)
        for path in Path(harness_root).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        snapshot.materialize(work, commit, Path(harness_root))


def probe_config(plan: Plan, cell: Cell, out: Path, should_stop: Callable[[], bool]) -> RunConfig:
    """What the episode transaction is told about the probe of a cell: its goal, model and budget, and no evaluator."""
    assert plan.probe_episode is not None
    probe_id = plan.probe_id(cell)
    config = run_config(plan, cell, out, should_stop)
    mounted: Any = Mounted(plan.adapter(cell), config.root, plan.probe_episode)
    return replace(
        config,
        adapter=mounted,
        disposition=NEUTRAL,
        goal=GoalConfig.of(plan.declaration.goal),
        root=out / "runs" / probe_id,
        episodes=1,
        progress_path=None,
        live_root=live_root(out, probe_id),
        evolves=True,
        meter=Meter(out, probe_id, f"{task_id(plan, cell, out)}-probe"),
    )


def run_probe(plan: Plan, cell: Cell, out: Path, *, should_stop: Callable[[], bool]) -> dict[str, Any]:
    """Run the probe of a cell, or continue it: ``state`` and ``error`` of how it ended."""
    from pytest_proteus.core.episode import run

    with quiet_environment():
        try:
            result = run(probe_config(plan, cell, out, should_stop), resume=True)
        except ProteusError as error:
            return {"state": "errored", "error": str(error)}
    return {"state": result.state, "error": result.error}
