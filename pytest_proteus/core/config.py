"""What a run and a sweep are told, and what a run gives back. Plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import PHASES, HarnessAdapter
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.goal import GoalConfig


@dataclass(frozen=True)
class RunConfig:
    """One run: one harness under one disposition with one seed, for a number of episodes.

    Args:
        name: label of the run in progress lines and records; kept from the agent.
        adapter: the harness.
        disposition: what makes this arm differ.
        goal: objective, evaluators, selection.
        root: folder of the run's artifacts; its private records lie beside it in ``.proteus-records/<name of root>``.
        model: logical model name.
        episodes: episodes to complete.
        max_turns, min_turns_per_phase, phase_turns, hard_max_turns, checkpoint_turns, announce_budget: see
            ``TurnBudget``.
        seed: random seed handed to the harness.
        task: an object that seeds a task folder, or None.
        grader_sandbox: where graders run, or None.
        progress_path: JSON-lines file that gets one line an episode, or None.
        phases: the phases of an episode, in order.
        phase_timeout: wall-clock limit of a phase in seconds.
        live_root: where the live trees lie while the run goes on, when that is not ``root``; removed at its end, when
            ``root / "harness"`` has the last accepted state.
        should_stop: asked before each episode; True ends the run as ``abort`` with what it has.
        extra_env: environment variables for the agent's processes.
        evolves: False for a control: no episode's candidate is kept, and each starts from the seeded harness, told
            nothing of the ones before it.
    """

    name: str
    adapter: HarnessAdapter
    disposition: Disposition
    goal: GoalConfig
    root: Path
    model: str
    episodes: int = 30
    max_turns: int = 100
    min_turns_per_phase: int = 0
    phase_turns: Mapping[str, int] = field(default_factory=dict)
    hard_max_turns: int = 0
    checkpoint_turns: int = 0
    seed: int = 0
    task: Any = None
    grader_sandbox: Any = None
    announce_budget: bool = False
    progress_path: Path | None = None
    phases: Sequence[str] = PHASES
    phase_timeout: float = 1800.0
    live_root: Path | None = None
    should_stop: Callable[[], bool] | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)
    evolves: bool = True
    meter: Any = None


@dataclass
class RunResult:
    """How a run ended.

    Args:
        name: as in ``RunConfig``.
        episodes_complete: episodes whose snapshot and record are both on disk.
        root: folder of the artifacts.
        error: one sentence; empty when the run is complete.
        eval_history: one record an episode (see ``core.records``).
        counters: the adapter's numeric counters, summed over episodes.
        state: ``complete``, ``timeout``, ``abort`` or ``errored``.
        error_class: as in ``EpisodeResult.error_class``, or ``storage`` when the artifacts could not be written; empty
            when complete.
    """

    name: str
    episodes_complete: int
    root: str
    error: str = ""
    eval_history: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    state: str = "complete"
    error_class: str = ""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep for callers without pytest: arms × seeds of one harness, run one after the other.

    Args:
        name: name of the sweep.
        adapter_factory: gives a fresh adapter for each run.
        arms: dispositions; their labels must differ.
        seeds: number of seeds; they are 0 … seeds − 1.
        goal, model, episodes, max_turns, task, grader_sandbox, min_turns_per_phase, phase_turns, hard_max_turns,
        checkpoint_turns, announce_budget: as in ``RunConfig``.
        root: folder of the sweep's artifacts.
        on_existing: ``refuse``, ``resume`` or ``overwrite``.
        condition_metadata: further JSON data that belongs to the experimental condition.
    """

    name: str
    adapter_factory: Callable[[], HarnessAdapter]
    arms: Sequence[Disposition]
    seeds: int
    goal: GoalConfig
    root: Path
    model: str = "mock"
    episodes: int = 30
    max_turns: int = 100
    task: Any = None
    grader_sandbox: Any = None
    min_turns_per_phase: int = 0
    phase_turns: Mapping[str, int] = field(default_factory=dict)
    hard_max_turns: int = 0
    checkpoint_turns: int = 0
    announce_budget: bool = False
    on_existing: str = "refuse"
    condition_metadata: Mapping[str, Any] = field(default_factory=dict)
