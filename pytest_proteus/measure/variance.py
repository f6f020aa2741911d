"""Where a score's variance comes from: agent seeds, tasks, judge repeats; and what lowers the error of a mean the most.

A description of one metric, arms' own means left out. No tests and no verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.summary import number
from pytest_proteus.measure.unavailable import Finding, Result, Unavailable

__all__ = ["Purchase", "VarianceComponents", "variance_components"]

SOURCES = ("seed", "task", "seed x task", "repeat")


@dataclass(frozen=True)
class Purchase(Result):
    """What doubling one thing makes of the standard error of an arm's mean.

    Args:
        what: ``seeds``, ``tasks`` or ``repeats``.
        number: how many there would be for the cost of twice as many runs.
        stderr: the standard error then, smaller being better.
    """

    what: str
    number: float
    stderr: float


@dataclass(frozen=True)
class VarianceComponents(Finding):
    """The variance of single values, by where it comes from, in squared units of the metric.

    Args:
        seed: between seeds, over all tasks alike.
        task: between tasks, over all seeds alike.
        seed_task: of seed and task together: of one cell beside what its seed and its task make of it. Without repeats
            all that is left, the judge's share included.
        repeat: between repeats of one cell; unavailable without repeats.
        total: their sum, those below zero counted as zero.
        shares: source → share of ``total``, 0 to 1.
        negative: sources whose estimate came out below zero, which happens when they are small; reported as zero.
        raw: source → the estimate as it came out.
        stderr: of an arm's mean over these seeds, tasks and repeats, both seeds and tasks being samples.
        purchases: what to buy for as much again, the best first.
        seeds, tasks, repeats: numbers of them; repeats is a mean.
        n: values.
        n_missing: cells of the design without a value.
    """

    seed: float
    task: float
    seed_task: float
    repeat: float | Unavailable
    total: float
    shares: Mapping[str, float]
    negative: tuple[str, ...]
    raw: Mapping[str, float]
    stderr: float
    purchases: tuple[Purchase, ...]
    seeds: int
    tasks: int
    repeats: float
    n: int
    n_missing: int

    @property
    def finding(self) -> str:
        """Shares and the best purchase in a sentence."""
        if not self.total:
            return "nothing varies, so there is nothing to buy"
        parts = ", ".join(f"{source} {share:.0%}" for source, share in self.shares.items())
        below = f" (below zero and taken as zero: {', '.join(self.negative)})" if self.negative else ""
        best, *others = self.purchases
        rest = ", ".join(f"{one.what} to {one.stderr:.3g}" for one in others)
        return (
            f"variance: {parts}{below}; what to buy next: {best.what}. Twice the runs as {best.what} take the standard "
            f"error of an arm's mean from {self.stderr:.3g} to {best.stderr:.3g}, as {rest}"
        )


def variance_components(
    values: Sequence[Any],
    *,
    seeds: Sequence[Hashable],
    tasks: Sequence[Hashable],
    arms: Sequence[Hashable] | None = None,
    repeat_cost: float = 1.0,
) -> VarianceComponents | Unavailable:
    """Variance components of seed × task, with repeats where a cell has several values, by the method of moments.

    Half the mean squared difference of two values of one arm estimates what they do not share: everything when they
    share neither seed nor task, all but the seed's part when they share the seed, and so on. In a complete design these
    are the estimates of a two-way analysis of variance with random effects (Searle, Casella and McCulloch 1992, ch. 4);
    cells that are missing are left out of all pairs.

    Args:
        values: whatever is no finite number is missing.
        seeds: the seed of each value; a seed of another arm is another one.
        tasks: the task of each value.
        arms: the arm of each value; one for all when left out.
        repeat_cost: what one more repeat of a value costs, in runs.
    """
    if len(seeds) != len(values) or len(tasks) != len(values) or (arms is not None and len(arms) != len(values)):
        raise ConfigurationError("variance_components needs a seed and a task for each value")
    if not repeat_cost > 0:
        raise ConfigurationError(f"repeat_cost is {repeat_cost!r}; write a number of runs above 0")
    rows: list[_Row] = []
    for at, value in enumerate(map(number, values)):
        if value is not None:
            rows.append((value, arms[at] if arms is not None else None, seeds[at], tasks[at]))
    missing = len(values) - len(rows)
    design = _Design(rows)
    if design.seeds < 2 or design.tasks < 2:
        few = "seed" if design.seeds < 2 else "task"
        return Unavailable("n_below_minimum", f"it takes two seeds of an arm and two tasks, and there is one {few}")
    parts = design.parts()
    if parts is None:
        return Unavailable("n_below_minimum", "no two values of an arm share a seed, or none share a task", len(rows))
    raw = dict(zip(SOURCES, parts, strict=False))
    kept = {source: max(0.0, part) for source, part in raw.items()}
    total = math.fsum(kept.values())
    near = 1e-12 * max(total, max(abs(part) for part in raw.values()))
    purchases = [
        Purchase(what, more[which], design.stderr(kept, more))
        for which, what in enumerate(("seeds", "tasks", "repeats"))
        if what != "repeats" or "repeat" in kept
        for more in [design.with_twice(which, repeat_cost)]
    ]
    return VarianceComponents(
        seed=kept["seed"],
        task=kept["task"],
        seed_task=kept["seed x task"],
        repeat=kept.get("repeat", Unavailable("not_measured", "no cell has two values", len(rows))),
        total=total,
        shares={source: part / total if total else 0.0 for source, part in kept.items()},
        negative=tuple(source for source, part in raw.items() if part < -near),
        raw=raw,
        stderr=design.stderr(kept, (design.seeds, design.tasks, design.repeats)),
        purchases=tuple(sorted(purchases, key=lambda one: one.stderr)),
        seeds=design.seeds,
        tasks=design.tasks,
        repeats=design.repeats,
        n=len(rows),
        n_missing=missing,
    )


_Row = tuple[float, Hashable, Hashable, Hashable]


class _Design:
    """Values by arm, seed and task; ``seeds`` and ``tasks`` are the most that an arm has."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = rows
        by_arm: dict[Hashable, tuple[set[Hashable], set[Hashable]]] = {}
        for _, arm, seed, task in rows:
            own = by_arm.setdefault(arm, (set(), set()))
            own[0].add(seed)
            own[1].add(task)
        self.seeds = max((len(own) for own, _ in by_arm.values()), default=0)
        self.tasks = max((len(own) for _, own in by_arm.values()), default=0)
        self.repeats = len(rows) / max(1, len({row[1:] for row in rows}))

    def _pairs(self, *shared: int) -> tuple[float, int]:
        """Sum of half the squared differences of pairs that have these columns in common, and how many there are."""
        groups: dict[tuple[Hashable, ...], list[float]] = {}
        for row in self._rows:
            groups.setdefault(tuple(row[column] for column in shared), []).append(row[0])
        total, count = [], 0
        for own in groups.values():
            middle = math.fsum(own) / len(own)
            # the sum over pairs of (x - y)² / 2 is n/2 times the sum of squares about the mean
            total.append(len(own) / 2 * math.fsum((value - middle) ** 2 for value in own))
            count += len(own) * (len(own) - 1) // 2
        return math.fsum(total), count

    def parts(self) -> tuple[float, ...] | None:
        """Seed, task, seed × task, and with repeats the repeat; None where no pair tells."""
        arm, seed, task = 1, 2, 3
        cell, by_seed, by_task, every = (
            self._pairs(arm, seed, task),
            self._pairs(arm, seed),
            self._pairs(arm, task),
            self._pairs(arm),
        )
        only_seed = (by_seed[0] - cell[0], by_seed[1] - cell[1])
        only_task = (by_task[0] - cell[0], by_task[1] - cell[1])
        neither = (every[0] - by_seed[0] - by_task[0] + cell[0], every[1] - by_seed[1] - by_task[1] + cell[1])
        if min(only_seed[1], only_task[1], neither[1]) < 1:
            return None
        differ_in_task, differ_in_seed, differ = (total / count for total, count in (only_seed, only_task, neither))
        repeat = cell[0] / cell[1] if cell[1] else 0.0
        found = (differ - differ_in_task, differ - differ_in_seed, differ_in_task + differ_in_seed - differ - repeat)
        return (*found, repeat) if cell[1] else found

    def with_twice(self, which: int, repeat_cost: float) -> tuple[float, float, float]:
        """The design for twice the cost, spent on seeds (0), tasks (1) or repeats (2)."""
        if which == 2:  # a run and its repeats cost 1 + (repeats - 1) · cost, and as much again is spent on repeats
            return self.seeds, self.tasks, self.repeats + (1 + (self.repeats - 1) * repeat_cost) / repeat_cost
        return (2 * self.seeds, self.tasks, self.repeats) if which == 0 else (self.seeds, 2 * self.tasks, self.repeats)

    @staticmethod
    def stderr(parts: Mapping[str, float], design: tuple[float, float, float]) -> float:
        """Standard error of a mean over a crossed design of seeds × tasks × repeats."""
        seeds, tasks, repeats = design
        cells = seeds * tasks
        return math.sqrt(
            parts["seed"] / seeds
            + parts["task"] / tasks
            + parts["seed x task"] / cells
            + parts.get("repeat", 0.0) / (cells * repeats)
        )
