"""Statistics by name: what each computes from a finished sweep, which way is better, what its scale means.

The fixtures, the command line and the report take their numbers and their words from here, so that they cannot differ.
Computes per stratum and never pools strata; reads no sweep folder and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.errors import RecordError
from pytest_proteus.core.records import plain
from pytest_proteus.core.snapshot import SnapshotError
from pytest_proteus.measure import sweeps
from pytest_proteus.measure.metrics import Metric
from pytest_proteus.measure.strata import by_stratum as regrouped
from pytest_proteus.measure.summary import Bounds
from pytest_proteus.measure.sweeps import FinishedRun
from pytest_proteus.measure.unavailable import Unavailable


class FinishedSweep(Protocol):
    """What is needed of a sweep."""

    @property
    def out(self) -> Path: ...
    def strata(self) -> Mapping[str, Sequence[Any]]: ...
    def surfaces_of(self, harness: str) -> Sequence[Surface]: ...
    def shares_seeds(self, harness: str) -> bool: ...
    def copies(self) -> Mapping[str, str]: ...
    @property
    def probes(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True)
class Statistic:
    """One statistic of a whole sweep.

    Args:
        name: name in the report.
        compute: from the runs of one stratum, and the sweep, to a value, or to a mapping of arms to values.
        direction: which values are better: ``higher``, ``lower`` or ``neutral``.
        scale: what the number counts, and its bounds.
        interpretation: one sentence for a reader of the report; empty when nobody wrote one.
        lists_runs: whether the report lists the complete runs beside the value, which tells none itself.
        across_tasks: whether it is one of all tasks together, and not of each.
    """

    name: str
    compute: Callable[[Sequence[Any], FinishedSweep], Any]
    direction: str
    scale: str
    interpretation: str
    lists_runs: bool = False
    across_tasks: bool = False


def _structure(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
    return sweeps.structure(runs, sweep.surfaces_of(runs[0].harness))


def _travel(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
    return sweeps.travel(runs, sweep.surfaces_of(runs[0].harness))


def _separation(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
    shared = sweep.shares_seeds(runs[0].harness)
    return sweeps.arm_separation(runs, shared_seeds=shared, copies=sweep.copies())


def reliability_at(level: str) -> Statistic:
    """``reliability`` at a level of the distances: ``freq``, ``order`` or ``ncd``."""
    return Statistic(
        "reliability",
        lambda runs, _: sweeps.arm_reliability(runs, level),
        "lower",
        "distance within / distance of random draws, 0 or more; below 0.5 is reliable",
        "whether an arm reproduces itself; an arm that does not makes the size of R say little",
    )


def _audits(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
    return sweeps.audits(runs, (str(sweep.out.absolute()),))


def _crystallization(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
    probes = sweep.probes
    if probes is None:
        return Unavailable("not_measured", "the sweep plans no probes; write sweep(probes='last')", 0)
    shared = sweep.shares_seeds(runs[0].harness)
    return sweeps.crystallization(runs, probes["runs"], probes["episode"], shared_seeds=shared)


#: The built-in statistics by name.
STATISTICS: dict[str, Statistic] = {
    item.name: item
    for item in (
        Statistic(
            "structure",
            _structure,
            "neutral",
            "units",
            "units of each surface after the last planned episode; more is more, not better",
        ),
        Statistic(
            "travel",
            _travel,
            "neutral",
            "units changed",
            "units added, dropped and revised along all episodes, back and forth counted; movement, not quality",
        ),
        reliability_at("freq"),
        Statistic(
            "separation",
            _separation,
            "neutral",
            "R: distance between arms / within arms, 0 or more",
            "whether arms differ more than runs of one arm do; a p says that they differ in some way, not in which",
        ),
        Statistic(
            "crystallization",
            _crystallization,
            "neutral",
            "index: -1 to 1",
            "whether checkpoints act like their own endpoint under the neutral disposition (index, p), and whether "
            "those of the arms still differ then (shift); neither is better",
        ),
        Statistic(
            "audit",
            _audits,
            "neutral",
            "pieces of evidence",
            "what a run wrote and said that points outside or speaks of being tested: to be read, no verdict; finding "
            "nothing is no proof",
        ),
    )
}


def score_at(metric: str, arm: str | None, episode: int | str, *, direction: str, bounds: Bounds | None) -> Statistic:
    """``scores``: the mean of an evaluator's score over an arm's runs, or over all; see ``sweeps.score_estimate``."""

    def of(runs: Sequence[FinishedRun], sweep: FinishedSweep) -> Any:
        chosen = _pooled(runs, arm, sweep)
        return sweeps.score_estimate(chosen, metric, episode=episode, direction=direction, bounds=bounds)

    told = "mean score over runs at one episode; a run that did not get there is missing"
    name = f"scores {metric}[{arm}] at {episode}" if arm else f"scores {metric} at {episode}"
    return Statistic(name, of, direction, "score", told, across_tasks=True)


def _pooled(runs: Sequence[Any], arm: str | None, sweep: FinishedSweep) -> list[Any]:
    """The runs of an arm; without one those of all arms, but for identical copies, which say the same once more."""
    if arm is not None:
        return [run for run in runs if run.arm == arm]
    there, copies = {run.arm for run in runs}, sweep.copies()
    return [run for run in runs if copies.get(run.arm) not in there]


def number_over(metric: Metric, arm: str | None, episode: int | str) -> Statistic:
    """``scores`` of a number that every run has; see ``sweeps.number_estimate``."""

    def of(runs: Sequence[Any], sweep: FinishedSweep) -> Any:
        return sweeps.number_estimate(_pooled(runs, arm, sweep), metric, episode)

    told = "mean over whole runs; a run that does not have the number is missing"
    name = f"scores {metric.name}[{arm}] at {episode}" if arm else f"scores {metric.name} at {episode}"
    return Statistic(name, of, metric.direction, metric.name, told, across_tasks=True)


@dataclass(frozen=True)
class Computed:
    """The value of a statistic in one stratum, and how many seconds it took."""

    statistic: Statistic
    stratum: str
    runs: Sequence[FinishedRun]
    value: Any
    seconds: float

    def entry(self, *, several: bool) -> dict[str, Any]:
        """The report's entry.

        ``unavailable`` says why there is no value (``status``, ``reason``, ``detail``, ``n``); where only parts of it
        have none, it is ``{"status": "partly", "parts": {place: why}}``.

        Args:
            several: whether the sweep has further strata; the only one has no name.
        """
        parts = dict(_missing(self.value))
        listed = [{"run_id": run.run_id, "arm": run.arm, "seed": run.seed} for run in complete(self.runs)]
        return {
            "name": self.statistic.name,
            "stratum": self.stratum if several else None,
            "value": as_json(self.value),
            "unavailable": parts.get("") or ({"status": "partly", "parts": parts} if parts else None),
            "direction": self.statistic.direction,
            "scale": self.statistic.scale,
            "interpretation": self.statistic.interpretation or None,
            "observations": listed if self.statistic.lists_runs else None,
            "seconds": self.seconds,
        }


def complete(runs: Iterable[FinishedRun]) -> list[FinishedRun]:
    """Those that got through all their episodes."""
    return [run for run in runs if run.state == "complete"]


def by_stratum(statistic: Statistic, sweep: FinishedSweep) -> Iterator[Computed]:
    """A statistic of each stratum; artifacts that cannot be read make a value unavailable."""
    strata: Mapping[str, Sequence[Any]] = sweep.strata()
    if statistic.across_tasks:
        strata = regrouped([run for runs in strata.values() for run in runs], across_tasks=True)
    for stratum, runs in strata.items():
        began = time.perf_counter()
        try:
            value = statistic.compute(runs, sweep)
        except (RecordError, SnapshotError) as error:
            value = Unavailable("unreadable", str(error), len(runs))
        yield Computed(statistic, stratum, runs, value, time.perf_counter() - began)


def joined(values: Mapping[str, Any]) -> Any:
    """Stratum → value as one: the value of the only stratum, or mappings of ``(stratum, arm)`` or ``stratum``."""
    if len(values) == 1:
        return next(iter(values.values()))
    if all(type(value) is dict for value in values.values()):
        return {(stratum, arm): item for stratum, value in values.items() for arm, item in value.items()}
    return dict(values)


def entries(statistic: Statistic, sweep: FinishedSweep) -> list[dict[str, Any]]:
    """The report's entries of a statistic, one a stratum."""
    found = list(by_stratum(statistic, sweep))
    return [computed.entry(several=len(found) > 1) for computed in found]


def as_json(value: Any) -> Any:
    """A statistic's value as plain data."""
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    return plain(value.to_json()) if hasattr(value, "to_json") else plain(value)


def _missing(value: Any, path: str = "") -> Iterable[tuple[str, dict[str, Any]]]:
    """Dotted place → why, of each part of a value that is unavailable; the place of the whole is empty."""
    if value is None:
        value = Unavailable("no_values")
    if isinstance(value, Unavailable):
        yield path, value.as_dict()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _missing(item, f"{path}.{key}" if path else str(key))
