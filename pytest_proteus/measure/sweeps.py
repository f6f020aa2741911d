"""Statistics of a finished sweep: from its runs to one value for each arm, or for the arms together.

Pure functions of runs; a run without a value stays in as missing, with its reason, and is never counted as zero. Knows
nothing of fixtures and reports: it takes whatever has the attributes of ``FinishedRun``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_proteus.core.adapter import ActionEvent, Surface
from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.records import ACTIONS, private_record_dir, read_records, read_trace
from pytest_proteus.core.snapshot import SnapshotError
from pytest_proteus.core.units import SurfaceDelta
from pytest_proteus.measure.audit import Audit, audit_run
from pytest_proteus.measure.crystallize import Fidelity, JointFidelity, arm_shift, fidelity, joint_fidelity
from pytest_proteus.measure.distance import path_length_of_run
from pytest_proteus.measure.episodes import SeparationCourse, separation_by_episode
from pytest_proteus.measure.metrics import MeasuredRun, Metric, observe
from pytest_proteus.measure.missing import bounded
from pytest_proteus.measure.strata import by_arm
from pytest_proteus.measure.stream import BetweenWithin, Reliability, Stream, reliability, separation, tool_stream
from pytest_proteus.measure.summary import Bounds, Estimate, Observation, estimate
from pytest_proteus.measure.unavailable import Result, Unavailable

#: Relabelings that are drawn at each episode, and for each way in which missing runs are put in, when not all are used.
_ALONG, _BOUNDING = 999, 1999


class FinishedRun(MeasuredRun, Protocol):
    """What is needed of a run whose artifacts are read, too."""

    @property
    def root(self) -> Path: ...
    @property
    def records(self) -> list[dict[str, Any]]: ...
    def trace(self, episode: int) -> Sequence[ActionEvent]: ...


def stream_of(run: FinishedRun) -> list[str]:
    """The tools of all completed episodes, in order."""
    return [tool for episode in range(1, run.episodes_complete + 1) for tool in tool_stream(run.trace(episode))]


def _whole_stream(run: FinishedRun) -> list[str] | None:
    """The stream of a complete run; None of any other: streams of unequal length are not comparable."""
    return stream_of(run) if run.state == "complete" else None


def arm_reliability(runs: Sequence[FinishedRun], level: str = "freq") -> dict[str, Reliability | Unavailable]:
    """Arm → whether its complete runs resemble each other: ``ratio`` below 0.5 is reliable; see ``stream.reliability``.

    Runs that are not complete are missing: their numbers are ``missing.Uncertain``.
    """

    def of(streams: Mapping[str, Sequence[Stream | None]]) -> Reliability | Unavailable:
        (own,) = streams.values()
        return reliability(own, level)

    found = {}
    for arm, listed in by_arm(runs).items():
        streams = {arm: [_whole_stream(run) for run in listed]}
        found[arm] = bounded(streams, level, of, of(streams))
    return found


def arm_separation(
    runs: Sequence[FinishedRun],
    level: str = "freq",
    *,
    shared_seeds: bool = False,
    copies: Mapping[str, str] | None = None,
) -> BetweenWithin | Unavailable:
    """Whether arms differ more than runs of one arm do, over the complete runs; see ``stream.separation``.

    Runs that are not complete are missing: numbers are ``missing.Uncertain`` then. Each episode is compared by itself,
    too, in those runs that have any.

    Args:
        runs: runs of one stratum.
        level: ``freq``, ``order`` or ``ncd``.
        shared_seeds: whether a seed means the same start in every arm.
        copies: identical copy of an arm → that arm. A copy is compared with its arm and takes no part in the comparison
            of the others, unless there are no two others.
    """
    episodes = {arm: [(run, _episode_streams(run)) for run in listed] for arm, listed in by_arm(runs).items()}
    copies = {copy: arm for copy, arm in (copies or {}).items() if copy in episodes and arm in episodes}
    others = [arm for arm in episodes if arm not in copies]
    compared = others if len(others) > 1 else list(episodes)
    found = _separated({arm: episodes[arm] for arm in compared}, level, shared_seeds)
    if isinstance(found, Unavailable):
        return found
    placebos = {
        copy: _separated({arm: episodes[arm] for arm in (arm, copy)}, level, shared_seeds)
        for copy, arm in copies.items()
    }  # fmt: skip
    course = _course({arm: episodes[arm] for arm in compared}, level, shared_seeds)
    return dataclasses.replace(found, placebos=placebos, by_episode=course)


_Read = Mapping[str, Sequence[tuple[FinishedRun, list[Stream]]]]


def _episode_streams(run: FinishedRun) -> list[Stream]:
    return [tool_stream(run.trace(episode)) for episode in range(1, run.episodes_complete + 1)]


def _separated(read: _Read, level: str, shared_seeds: bool) -> BetweenWithin | Unavailable:
    streams: dict[str, list[Stream | None]] = {
        arm: [[tool for part in parts for tool in part] if run.state == "complete" else None for run, parts in own]
        for arm, own in read.items()
    }
    seeds = {arm: [run.seed for run, _ in own] for arm, own in read.items()}

    def of(given: Mapping[str, Sequence[Stream | None]], permutations: int = _BOUNDING) -> BetweenWithin | Unavailable:
        return separation(given, level, permutations, seeds=seeds, shared_seeds=shared_seeds)

    return bounded(streams, level, of, of(streams, 10_000))


def _course(read: _Read, level: str, shared_seeds: bool) -> SeparationCourse | Unavailable:
    begun = {arm: [(run, parts) for run, parts in own if parts] for arm, own in read.items()}
    if max((run.episodes for own in begun.values() for run, _ in own), default=0) < 2:
        return Unavailable("n_below_minimum", "runs of one episode have no course")
    return separation_by_episode(
        {arm: [parts for _, parts in own] for arm, own in begun.items()},
        level,
        _ALONG,
        seeds={arm: [run.seed for run, _ in own] for arm, own in begun.items()},
        shared_seeds=shared_seeds,
    )


def score_estimate(
    runs: Sequence[FinishedRun],
    metric: str,
    *,
    episode: int | str = "last",
    direction: str = "neutral",
    bounds: Bounds | None = None,
) -> Estimate | Unavailable:
    """The mean of an evaluator's score over runs, at one episode.

    Where several runs share a seed (tasks, or arms that are pooled) they nest in it: the interval then counts seeds,
    not runs (Miller 2024).

    Args:
        runs: runs of one arm, or of several.
        metric: name of the evaluator.
        episode: one-based, or ``last``: the last planned one, so that runs are compared at the same episode. A run that
            did not get there is missing. Or ``best``: the best of all planned ones, of runs that have them all.
        direction: which scores are better.
        bounds: smallest and largest possible score, where declared.

    Raises:
        ConfigurationError: the best of an evaluator whose direction is neutral, or an episode that is none, or none of
            those that were planned.
    """
    if episode == "best" and direction not in ("higher", "lower"):
        raise ConfigurationError(f"evaluator {metric!r} has no best score; declare direction='higher' or 'lower'")
    if episode not in ("best", "last") and (isinstance(episode, (str, bool)) or episode < 1):
        raise ConfigurationError(f"episode={episode!r} is no episode; write a number from 1 on, 'last' or 'best'")
    planned = max((run.episodes for run in runs), default=0)
    if isinstance(episode, int) and 0 < planned < episode:
        raise ConfigurationError(f"scores of {metric!r}: episode={episode} was not planned; the last one is {planned}")
    best = max if direction == "higher" else min
    observations = []
    for run in runs:
        at = run.episodes if isinstance(episode, str) else episode
        scores = run.scores(metric)[:at]
        value = scores[-1] if len(scores) == at else None
        if episode == "best":
            known = [score for score in scores if score is not None]
            value = best(known) if len(known) == at else None
        reason = "" if value is not None else _why(run, at, "the evaluator gave no score")
        observations.append(_observation(run, value, reason))
    return _estimated(observations, direction, f"score of {metric}", bounds, _clusters(runs))


def number_estimate(runs: Sequence[MeasuredRun], metric: Metric, episode: int | str = "last") -> Estimate | Unavailable:
    """The mean over runs of a number that every run has, such as ``usage.total_tokens``; see ``measure.metrics``.

    Raises:
        ConfigurationError: another episode than ``last``: these numbers are of whole runs.
    """
    if episode != "last":
        raise ConfigurationError(f"{metric.name} is a number of whole runs: leave episode={episode!r} out")
    observations = []
    for run in runs:
        value, reason = observe(run, metric, run.episodes)
        observations.append(_observation(run, value, reason))
    return _estimated(observations, metric.direction, metric.name, metric.bounds, _clusters(runs))


def _clusters(runs: Sequence[MeasuredRun]) -> list[int] | None:
    """The seed of each run where several runs share one; None where each run has its own."""
    seeds = [run.seed for run in runs]
    return seeds if len(set(seeds)) < len(seeds) else None


def audits(runs: Sequence[FinishedRun], outside: Sequence[str] = ()) -> dict[str, Audit | Unavailable]:
    """Run id → the evidence in everything that the run left, quoted; see ``measure.audit``. No score and no verdict.

    Args:
        runs: any runs; one that has no episode is unavailable.
        outside: paths and other words that no harness has any business to name.
    """
    found: dict[str, Audit | Unavailable] = {}
    for run in runs:
        if not run.episodes_complete:
            found[run.run_id] = Unavailable("missing_runs", _why(run, 1, ""), 0)
            continue
        try:
            found[run.run_id] = _audit(run, outside)
        except (RecordError, SnapshotError) as error:
            found[run.run_id] = Unavailable("unreadable", str(error))
    return found


def _audit(run: FinishedRun, outside: Sequence[str]) -> Audit:
    if (private_record_dir(run.root) / ACTIONS).exists():
        return audit_run(run.root, outside=outside)
    traces, unread = {}, []
    for episode in range(1, run.episodes_complete + 1):
        try:
            traces[episode] = run.trace(episode)
        except RecordError as error:
            unread.append(str(error))
    found = audit_run(run.root, outside=outside, records=run.records, traces=traces)
    return dataclasses.replace(found, unread=(*found.unread, *unread))


def _probe_stream(run: FinishedRun, probes: Mapping[str, str]) -> list[str]:
    """The tools of a run's probe.

    Raises:
        RecordError: it has none that completed.
    """
    root = run.root.with_name(probes.get(run.run_id, "none"))
    if not read_records(root):
        raise RecordError("its probe was not run, or did not complete")
    return tool_stream(read_trace(root, 1))


@dataclass(frozen=True)
class Crystallization(Result):
    """Whether checkpoints act as they did, once they run under the neutral disposition.

    Args:
        episode: the checkpoints' episode. A probe's stream is compared with those of that episode of the runs.
        index: mean of the probes' fidelity index, -1 to 1; above 0 they are closer to their own endpoint than others.
        p: share of the assignments of probes to endpoints that fit no worse; see ``crystallize.joint_assignment``.
        p_min: the smallest p of so many probes; 0.05 takes four.
        shift_index: index of the separation of the arms' probes, -1 to 1; above 0 the arms' checkpoints still differ.
        shift_p: its p.
        n: runs with a probe and an endpoint.
        n_missing: all others.
        joint: all that is known of the assignment.
        arm_shift: all that is known of the separation; it says that arms differ, not in which direction.
        fidelity: run id → how close its probe is to its own endpoint, beside the others.
        missing: run id → why it has none.
    """

    episode: int
    index: float | Unavailable
    p: float | Unavailable
    p_min: float | Unavailable
    shift_index: float | Unavailable
    shift_p: float | Unavailable
    n: int
    n_missing: int
    joint: JointFidelity | Unavailable
    arm_shift: BetweenWithin | Unavailable
    fidelity: dict[str, Fidelity | Unavailable]
    missing: dict[str, str]


def crystallization(
    runs: Sequence[FinishedRun], probes: Mapping[str, str], episode: int, *, shared_seeds: bool = False
) -> Crystallization | Unavailable:
    """What probes say about the checkpoints of one stratum.

    Args:
        runs: the runs.
        probes: run id → id of its probe, whose folder lies beside the run's.
        episode: the episode of the checkpoints.
        shared_seeds: whether a seed means the same start in every arm.
    """
    kept: list[tuple[FinishedRun, list[str], list[str]]] = []
    missing: dict[str, str] = {}
    for run in runs:
        reason = _why(run, episode, "")
        try:
            if not reason:
                kept.append((run, _probe_stream(run, probes), tool_stream(run.trace(episode))))
        except RecordError as error:
            reason = str(error)
        if reason:
            missing[run.run_id] = reason
    if not kept:
        return Unavailable("missing_runs", f"no run has a complete probe: {next(iter(missing.values()), '')}", 0)
    ends = [end for _, _, end in kept]
    found = {
        run.run_id: fidelity(probe, end, [other for other in ends if other is not end]) for run, probe, end in kept
    }
    indices = [one.index for one in found.values() if isinstance(one, Fidelity) and isinstance(one.index, float)]
    joint = joint_fidelity([probe for _, probe, _ in kept], ends)
    by_label: dict[str, list[tuple[FinishedRun, list[str]]]] = {}
    for run, probe, _ in kept:
        by_label.setdefault(run.arm, []).append((run, probe))
    shift = arm_shift(
        {arm: [probe for _, probe in listed] for arm, listed in by_label.items()},
        seeds={arm: [run.seed for run, _ in listed] for arm, listed in by_label.items()},
        shared_seeds=shared_seeds,
    )
    return Crystallization(
        episode=episode,
        index=math.fsum(indices) / len(indices) if indices else Unavailable("no_values", n=len(kept)),
        p=joint.p,
        p_min=joint.p_min,
        shift_index=shift.index,
        shift_p=shift.p,
        n=len(kept),
        n_missing=len(missing),
        joint=joint,
        arm_shift=shift,
        fidelity=found,
        missing=missing,
    )


def structure(runs: Sequence[FinishedRun], surfaces: Sequence[Surface]) -> dict[str, dict[str, Any]]:
    """Arm → surface → units of the last planned episode's accepted state: more is more, not better."""
    return _per_surface(runs, surfaces, _units_of, "units")


def travel(runs: Sequence[FinishedRun], surfaces: Sequence[Surface]) -> dict[str, dict[str, Any]]:
    """Arm → surface → path length over the planned episodes: units added, dropped and revised, and back again."""

    def measured(run: FinishedRun, listed: Sequence[Surface]) -> dict[str, float]:
        moved: Mapping[str, SurfaceDelta] = path_length_of_run(run.root / "harness", listed, run.episodes)
        return {name: float(step.added + step.dropped + step.revised) for name, step in moved.items()}

    return _per_surface(runs, surfaces, measured, "units changed along the path")


def _units_of(run: FinishedRun, surfaces: Sequence[Surface]) -> dict[str, float]:
    from pytest_proteus.core import snapshot
    from pytest_proteus.core.snapshot import Reader, git_dir_of
    from pytest_proteus.core.units import UnitTables

    work = run.root / "harness"
    commit = snapshot.commit_for_episode(work, run.episodes)
    if commit is None:
        raise RecordError(f"{run.root} has no checkpoint of episode {run.episodes}")
    reader = Reader(git_dir_of(work))
    try:
        tables = UnitTables(surfaces, reader.read_blob)
        found = tables.from_entries(reader.tree_entries(commit), reader.read_blob)
    finally:
        reader.close()
    return {name: float(len(table)) for name, table in found.items()}


def _per_surface(
    runs: Sequence[FinishedRun],
    surfaces: Sequence[Surface],
    measured: Callable[[FinishedRun, Sequence[Surface]], Mapping[str, float]],
    scale: str,
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for arm, listed in by_arm(runs).items():
        observations: dict[str, list[Observation]] = {surface.name: [] for surface in surfaces}
        for run in listed:
            values: Mapping[str, float] = {}
            reason = _why(run, run.episodes, "")
            if not reason:
                try:
                    values = measured(run, surfaces)
                except (RecordError, SnapshotError) as error:
                    reason = str(error)
            for name, column in observations.items():
                column.append(_observation(run, values.get(name), reason))
        found[arm] = {name: _estimated(column, "neutral", scale, (0, None)) for name, column in observations.items()}
    return found


def _why(run: FinishedRun, episode: int, otherwise: str) -> str:
    if run.episodes_complete < episode:
        return f"{run.state}: {run.episodes_complete} of {run.episodes} episodes"
    return otherwise


def _observation(run: MeasuredRun, value: float | None, reason: str) -> Observation:
    return Observation(value, run.harness, run.arm, run.seed, run.run_id, reason, run.task)


def _estimated(
    observations: Sequence[Observation],
    direction: str,
    scale: str,
    bounds: Bounds | None,
    clusters: Sequence[int] | None = None,
) -> Estimate | Unavailable:
    return estimate(
        [item.value for item in observations],
        direction=direction,
        scale=scale,
        bounds=bounds,
        clusters=clusters,
        observations=observations,
    )
