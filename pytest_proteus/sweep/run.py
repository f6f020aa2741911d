"""What tests see of a sweep: a finished ``Run`` and the whole ``Sweep``. Readers of artifacts; they change nothing."""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.adapter import ActionEvent, Surface
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import EvaluatorSpec
from pytest_proteus.core.ledger import CellRecord, ended_as, ledger, read_cell, within
from pytest_proteus.core.records import plain, read_records, read_rescores, read_trace, with_versions
from pytest_proteus.measure.metrics import RUN_NUMBERS, Metric, metric_of
from pytest_proteus.measure.strata import by_arm, by_stratum
from pytest_proteus.metering.totals import RunUsage, usage_of
from pytest_proteus.sweep.declare import AXES, nearest

if TYPE_CHECKING:
    from pytest_proteus.sweep.grid import Cell
    from pytest_proteus.sweep.plan import Plan


@dataclass(frozen=True)
class Run:
    """One cell of a sweep, run.

    Args:
        harness, arm: labels.
        seed: the number handed to the harness.
        model, task: labels, or None.
        axes: label of each further axis, by name.
        root: folder of the run's artifacts.
        episodes: episodes that were planned.
        episodes_complete: episodes whose snapshot and record are on disk, never more than ``episodes``.
        state: how the run ended: ``complete``, ``timeout``, ``abort``, ``skipped``, ``errored``, ``lost``, ``not_run``.
        error: one sentence; empty when there was none.
        counters: the adapter's counters, summed over episodes.
        evaluators: name → version of the attached evaluators; results of other versions are not theirs.
        usage: what the calls of its model used; None for a harness that calls none, or none that could be metered, and
            where a session ran more episodes than are planned now.
        seconds: wall time of all attempts; None where nobody took it of the planned episodes alone.
    """

    harness: str
    arm: str
    seed: int
    model: str | None
    task: str | None
    axes: Mapping[str, str]
    run_id: str
    root: Path
    episodes: int
    episodes_complete: int
    state: str
    error: str
    counters: Mapping[str, Any]
    evaluators: Mapping[str, str]
    usage: RunUsage | None = None
    seconds: float | None = None

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record an episode, oldest first, with the results of the attached evaluators, whenever they were made."""
        rescores = read_rescores(self.root)
        known = {name: version for name, version in self.evaluators.items() if version}
        return [with_versions(record, rescores, known) for record in self.stored_records()]

    def stored_records(self) -> list[dict[str, Any]]:
        """The records as they were written."""
        return [record for record in read_records(self.root) if record["episode"] <= self.episodes]

    def scores(self, name: str) -> list[float | None]:
        """An evaluator's score at each completed episode; None where it gave none.

        Raises:
            LookupError: no evaluator of that name is attached.
        """
        known = self._evaluator(name)
        return [_score(record, known) for record in self.records]

    def last(self, name: str) -> float | None:
        """The score at the last completed episode; None where there is none.

        Raises:
            LookupError: no evaluator of that name is attached.
        """
        scores = self.scores(name)
        return scores[-1] if scores else None

    def _evaluator(self, name: str) -> str:
        escaped = plain(name)
        for known in self.evaluators:
            if known in (escaped, escaped.partition("@")[0]):
                return known
        raise LookupError(
            f"no evaluator is called {name!r}; {nearest(name, [*self.evaluators] or ['(none is attached)'])}"
        )

    def trace(self, episode: int) -> Sequence[ActionEvent]:
        """What the agent did in an episode, one-based.

        Raises:
            LookupError: the episode is not complete.
        """
        self._require(episode, first=1)
        return read_trace(self.root, episode)

    @contextlib.contextmanager
    def checkpoint(self, episode: int) -> Iterator[Path]:
        """The harness as it was after an episode (0: as it was seeded), in a folder that is removed afterwards.

        Raises:
            LookupError: the episode is not complete.
        """
        from pytest_proteus.core import snapshot

        self._require(episode, first=0)
        work = self.root / "harness"
        commit = snapshot.commit_for_episode(work, episode)
        if commit is None:
            raise LookupError(f"{self.root} has no checkpoint of episode {episode}")
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            place = Path(folder) / "harness"
            snapshot.materialize(work, commit, place)
            yield place

    def _require(self, episode: int, first: int) -> None:
        if not first <= episode <= self.episodes_complete:
            raise LookupError(
                f"episode {episode} is not complete: this run has {self.episodes_complete} of {self.episodes} episodes"
            )


def _score(record: Mapping[str, Any], name: str) -> float | None:
    for result in record.get("results", ()):
        if result["name"] == name:
            score = result.get("score")
            usable = not result.get("error") and isinstance(score, (int, float)) and math.isfinite(score)
            return float(score) if usable else None
    return None


def make_run(plan: Plan, cell: Cell, out: Path, record: CellRecord, used: Mapping[str, RunUsage] | None = None) -> Run:
    """A ``Run`` from how its cell stands; ``used`` is what ``usage_of`` says, where that has been asked already."""
    labels = {axis: getattr(cell, axis) for axis in AXES}
    versions = {spec.name: spec.version for spec in plan.specs[cell.harness]}
    usage = (usage_of(out, [record.run_id]) if used is None else used).get(record.run_id)
    return _run({**labels, "axes": dict(cell.axes)}, out, record, plan.episodes, versions, usage)


def runs_of(out: Path, manifest: Mapping[str, Any]) -> list[Run]:
    """The runs that a sweep folder's manifest plans, as they stand on disk.

    Raises:
        RecordError: a cell's file, or the usage store, cannot be read.
    """
    used = usage_of(out)
    return [
        _run(
            {axis: cell.get(axis) for axis in (*AXES, "axes")},
            out,
            replace(record, state=ended_as(record, manifest["episodes"]))
            if record
            else CellRecord(cell["id"], "not_run"),
            manifest["episodes"],
            {name: str(entry.get("version") or "") for name, entry in manifest["evaluators"].items()},
            used.get(cell["id"]),
        )
        for cell in manifest["runs"]
        for record in [read_cell(out, cell["id"])]
    ]


def _run(
    labels: Mapping[str, Any],
    out: Path,
    record: CellRecord,
    episodes: int,
    evaluators: Mapping[str, str],
    usage: RunUsage | None,
) -> Run:
    root = out / "runs" / record.run_id
    if record.episodes_complete > episodes:  # by a session that planned more; what the later ones used is in the sum
        record, usage = within(record, episodes, read_records(root)), None
    error = record.error or {}
    message = str(error.get("message") or "")
    return Run(
        **labels,
        run_id=record.run_id,
        root=root,
        episodes=episodes,
        episodes_complete=record.episodes_complete,
        state=record.state,
        error=f"{error['type']}: {message}" if error.get("type") else message,
        counters=record.counters,
        evaluators=dict(evaluators),
        seconds=record.seconds,
        usage=usage,
    )


class Sweep:
    """A whole sweep, every cell brought to its end.

    Args:
        plan: what was planned.
        out: the sweep's folder.
        records: how each planned cell ended, in the plan's order.
    """

    def __init__(self, plan: Plan, out: Path, records: Sequence[CellRecord]) -> None:
        self.name = plan.name
        self.out = out
        self.episodes = plan.episodes
        used = usage_of(out)
        self.runs: list[Run] = [
            make_run(plan, cell, out, record, used) for cell, record in zip(plan.cells, records, strict=True)
        ]
        self._plan = plan
        self._records = {record.run_id: record for record in records}

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def by_arm(self) -> dict[str, list[Run]]:
        """Arm label → its runs, in the grid's order."""
        return by_arm(self.runs)

    def strata(self) -> dict[str, list[Run]]:
        """Stratum (harness, model, task, further axes, ``/`` between them) → its runs; statistics never pool them."""
        return by_stratum(self.runs)

    def of_runs(self, runs: Sequence[Run]) -> Sweep:
        """The same sweep with some of its runs only."""
        narrowed = copy.copy(self)
        narrowed.runs = list(runs)
        wanted = {run.run_id for run in runs}
        narrowed._records = {run_id: record for run_id, record in self._records.items() if run_id in wanted}
        return narrowed

    def surfaces_of(self, harness: str) -> list[Surface]:
        """The declared surfaces of one of the sweep's harnesses, by label."""
        return self._plan.surfaces[harness]

    def shares_seeds(self, harness: str) -> bool:
        """Whether a seed means the same start of this harness in every arm."""
        return harness in self._plan.harnesses_that_are("seeded")

    def copies(self) -> dict[str, str]:
        """Each identical copy of an arm → the arm that it copies."""
        return {label: of for label, (kind, of) in self._plan.controls().items() if kind == "aa"}

    @property
    def probes(self) -> dict[str, Any] | None:
        """``episode`` and ``runs`` (run id → id of its probe) of the probes; None where none are declared."""
        return self._plan.probes()

    def is_deterministic(self, harness: str) -> bool:
        """Whether the same seed always gives the same run of this harness."""
        return harness in self._plan.harnesses_that_are("deterministic")

    def metric(self, name: str) -> Metric:
        """The metric of that name; see ``measure.metrics``.

        Raises:
            LookupError: there is none.
        """
        found = metric_of(name, self._plan.evaluator_entries())
        if found is None:
            raise LookupError(f"no metric is called {name!r}; {nearest(name, [*self._plan.attached, *RUN_NUMBERS])}")
        return found

    def evaluator(self, name: str) -> EvaluatorSpec:
        """What an attached evaluator declares.

        Raises:
            LookupError: none of that name is attached.
        """
        known = next(iter(self.runs))._evaluator(name)
        return self._plan.attached[known].spec

    @property
    def surfaces(self) -> list[Surface]:
        """The declared surfaces of the sweep's harness.

        Raises:
            ConfigurationError: its harnesses declare different ones.
        """
        found = list(self._plan.surfaces.values())
        if any(other != found[0] for other in found[1:]):
            raise ConfigurationError(
                f"the harnesses of sweep {self.name!r} declare different surfaces; ask for those of one run's harness"
            )
        return found[0]

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest: what was planned, under which condition."""
        return self._plan.manifest()

    @property
    def condition(self) -> dict[str, Any]:
        """The experimental condition, as the manifest has it."""
        return self._plan.condition

    @property
    def ledger(self) -> dict[str, Any]:
        """How many cells were planned and how they ended, whole and ``by_arm``."""
        planned = [run for run in self._plan.manifest()["runs"] if run["id"] in self._records]
        return ledger(planned, dict(self._records))
