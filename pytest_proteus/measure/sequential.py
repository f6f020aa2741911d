"""Verdicts while seeds come in: as soon as the data say it, with the error rates of a test that looks once.

Whoever tests after each seed until something is significant is wrong far more often than alpha. Here the level is spent
over the looks, or a test is used that holds at every look. Nothing is run; what a verdict stops is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import betting
from pytest_proteus.measure.claims import Claim, Question
from pytest_proteus.measure.gate import ASSUMED, MISSING, decide
from pytest_proteus.measure.samples import Given, Row, most_equal
from pytest_proteus.measure.summary import Bounds, Observation, closed_bounds
from pytest_proteus.measure.unavailable import REASONS, Result

__all__ = [
    "TOLERATED", "Look", "Sequential", "betting_crossing", "crossing", "fewest", "in_sequence", "mean_in_sequence",
    "sooner_in_sequence",
]  # fmt: skip

#: The share of runs that may fail rarely, so that a pass waits for enough runs to have seen one.
TOLERATED = 0.25


@dataclass(frozen=True)
class Look(Result):
    """What the first ``n`` seeds say: ``pass``, ``fail`` or ``undecided``, and why it is undecided."""

    n: int
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Sequential(Result):
    """A verdict in the making.

    Args:
        verdict: that of the look that decided, or ``undecided``; ``unavailable`` where nothing can be compared.
        reason: why it is undecided or unavailable, one of ``REASONS``; empty otherwise.
        n: seeds at the look that decided; all seeds so far otherwise.
        n_max: seeds in the end, fixed before the first.
        n_saved: seeds that need not be run.
        n_missing: pairs so far of which one value or both are missing.
        pass_from: values that a pass takes at least.
        alpha: level of the pass and of the fail, each, over all looks together.
        method: ``sign-flip``, ``betting`` or ``deterministic``.
        assumption: what has to hold for the error rates to do so.
        looks: every look until the one that decided.
    """

    verdict: str
    reason: str
    n: int
    n_max: int
    n_saved: int
    n_missing: int
    pass_from: int
    alpha: float
    method: str
    assumption: str
    looks: tuple[Look, ...]

    @property
    def told(self) -> str:
        """After how many seeds it was decided, and if it was not, why."""
        told = f"after {self.n} of {self.n_max} seeds"
        if self.reason == "straddles":
            return f"{told}: neither a pass nor a fail could be told"
        return told if not self.reason else f"{told}: {REASONS.get(self.reason, self.reason)}"


def fewest(alpha: float = 0.05, tolerated: float = TOLERATED) -> int:
    """Runs among which a failure of this share is seen with probability 1 - alpha: ⌈ln alpha / ln(1 - tolerated)⌉."""
    if not 0 < tolerated < 1:
        raise ConfigurationError(f"a tolerated share of {tolerated!r} is none; write a number between 0 and 1")
    return math.ceil(math.log(alpha) / math.log1p(-tolerated) * (1 - 1e-12))


def crossing(
    values: Sequence[float],
    *,
    n_max: int,
    looks: Collection[int] | None = None,
    alpha: float = 0.05,
    magnitude: float = 0.0,
) -> int | None:
    """The first look at which the mean of the values is above zero; None if there was none so far.

    The group-sequential sign-flip test. Given the values' sizes all choices of their signs are equally probable, so
    that at look k those with the largest sums, ⌊alpha k / n_max⌋ of all of them so far, may cross (linear spending,
    Lan and DeMets 1983; Mehta and others 1994). Choices that tie cross together or not at all. The values cross when
    their own signs are among them: over all looks with probability alpha at most, when they are symmetric about 0.

    Args:
        values: in the order in which they came; 0 for one that is missing.
        n_max: how many there are in the end.
        looks: after which numbers of values one looks, fixed before the first; after each by default.
        alpha: level of all looks together.
        magnitude: as in ``signflip.p_greater``.
    """
    import numpy as np

    from pytest_proteus.measure import signflip

    chosen = _looks(looks, n_max)
    if len(values) > n_max:
        raise ConfigurationError(f"there are {len(values)} values, and at most {n_max} were planned")
    units = signflip.whole(values, magnitude)
    flips, own = np.concatenate(list(signflip.subsets(n_max))), 0
    if n_max <= signflip.ENUMERATED:
        own = sum(1 << i for i, value in enumerate(units) if value < 0)
    else:  # the actual choice is one of them, and among drawn ones it has to be put there
        flips = np.concatenate([np.zeros((1, n_max)), flips])
        flips[0, : len(units)] = units < 0
    sums, alive, crossed = np.zeros(len(flips)), np.ones(len(flips), dtype=bool), 0
    for k, size in enumerate(np.abs(units), start=1):
        sums += np.where(flips[:, k - 1] > 0, -size, size)
        if k not in chosen:
            continue
        budget = math.floor(alpha * k / n_max * len(flips) * (1 + 1e-12)) - crossed
        bar = _bar(sums[alive], budget, 2 * k)
        if bar is None:
            continue
        over = alive & (sums >= bar)
        if over[own]:
            return k
        alive &= ~over
        crossed += int(over.sum())
    return None


def _bar(sums: Any, budget: int, apart: float) -> float | None:
    """The lowest bar that ``budget`` of the sums reach at most, with no other sum closer below it than ``apart``."""
    import numpy as np

    if budget < 1:
        return None
    if budget >= len(sums):
        return -math.inf
    top = np.sort(np.partition(sums, len(sums) - budget - 1)[len(sums) - budget - 1 :])[::-1]
    gaps = np.nonzero(top[:-1] - top[1:] > apart)[0]
    return float(top[gaps[-1]]) if len(gaps) else None


def betting_crossing(
    values: Sequence[float], lowest: float, *, looks: Collection[int] | None = None, alpha: float = 0.05
) -> int | None:
    """The first look at which a bettor's capital has reached 1 / alpha: the mean is above zero.

    Valid for values of ``lowest`` or more, whatever their distribution, and however many follow (Ville 1939).
    """
    for k in range(1, len(values) + 1):
        if (looks is None or k in looks) and betting.p_greater(values[:k], lowest) <= alpha:
            return k
    return None


def _looks(looks: Collection[int] | None, n_max: int) -> set[int]:
    if n_max < 1:
        raise ConfigurationError(f"n_max is {n_max}; write 1 or more")
    chosen = set(range(1, n_max + 1)) if looks is None else set(looks)
    if not chosen or min(chosen) < 1 or max(chosen) > n_max:
        raise ConfigurationError(f"looks {sorted(chosen)} do not lie between 1 and n_max = {n_max}")
    return chosen


def in_sequence(
    baseline: Mapping[Hashable, Any],
    candidate: Mapping[Hashable, Any],
    *,
    order: Iterable[Hashable],
    n_max: int,
    direction: str,
    margin: float,
    kind: str = "noninferior",
    relative: bool = False,
    scale: str = "difference",
    assume: str = "symmetric",
    bounds: Bounds | None = None,
    alpha: float = 0.05,
    clusters: Mapping[Hashable, Hashable] | None = None,
    looks: Collection[int] | None = None,
    tolerated: float = TOLERATED,
    gates: int = 1,
) -> Sequential:
    """Compare a candidate with a baseline after each seed, by what is there so far.

    A fail may come at any look, a pass not before ``fewest(alpha, tolerated)`` seeds: early passes are blind to what
    fails rarely. Betting, which no distribution deceives, passes at any look. A pair without a value adds nothing, or,
    with both bounds declared, its worst for a pass and its best for a fail. While more than a fifth of the pairs is
    missing, or more than half of the differences are equal, a look decides nothing (unless by betting).

    Args:
        baseline: as in ``gate.compare``.
        candidate: the same.
        order: the keys of the pairs that were run, in the order that was planned; those on neither side are missing.
        n_max: seeds in the end; fixed before the first one runs.
        clusters: key → seed, where a seed has several pairs: looks count seeds.
        looks: after how many seeds one looks; after each by default.
        tolerated: share of rare failures that a pass has to have had the chance to see.
        gates: how many gates are decided together, this one included: a fail of one has to be told at alpha / gates, so
            that one of them fails by chance with probability alpha (Bonferroni).

    The other arguments are those of ``gate.compare``; ``assume="normal"`` has no test that may look again.

    Raises:
        ConfigurationError: arguments that contradict each other, or more seeds than ``n_max``.
    """
    question = Question(direction, kind, float(margin), relative, scale, assume, bounds, alpha)
    if assume == "normal":
        raise ConfigurationError("assume='normal' cannot look again; write 'symmetric', or 'bounded' with bounds")
    if gates < 1:
        raise ConfigurationError(f"gates is {gates}; write 1 or more")
    chosen, keys = _looks(looks, n_max), list(order)
    left, right = ({key: side.get(key) for key in keys} for side in (baseline, candidate))
    given = Given.of(question, left, right, clusters or {})
    seeds: dict[Hashable, list[Row]] = {}
    for row in given.rows:
        seeds.setdefault(row.cluster, []).append(row)
    if len(seeds) > n_max:
        raise ConfigurationError(f"there are {len(seeds)} seeds, and at most {n_max} were planned")
    floor = 1 if assume in ("bounded", "deterministic") else min(fewest(alpha, tolerated), n_max)
    stages = _Stages(given, list(seeds.values()), n_max, chosen, floor, gates)
    seen: list[Look] = []
    for n in sorted(k for k in chosen if k <= len(seeds)):
        seen.append(stages.look(n))
        if seen[-1].verdict != "undecided":
            break
    return _made(given, stages.method, n_max, len(seeds), floor, seen)


def sooner_in_sequence(
    baseline: Mapping[Hashable, Any],
    candidate: Mapping[Hashable, Any],
    *,
    bounds: Bounds | None,
    alpha: float = 0.05,
    **asked: Any,
) -> Sequential:
    """``in_sequence`` by sign flips, and where both bounds are declared by betting as well, each at half the level.

    Values of few kinds (solved or not) are what sign flips cannot decide and betting can; values that vary are decided
    much sooner by sign flips. Which of them a metric needs is not known before, and asking both costs half the level.

    Args:
        baseline, candidate, bounds: as for ``in_sequence``.
        alpha: level of both together.
        asked: the other arguments of ``in_sequence``, but for ``assume``.

    Returns:
        That of the test which decides first; of sign flips where neither does.
    """
    if closed_bounds(bounds) is None:
        return in_sequence(baseline, candidate, bounds=bounds, alpha=alpha, **asked)
    flips, bets = (
        in_sequence(baseline, candidate, bounds=bounds, alpha=alpha / 2, assume=assume, **asked)
        for assume in ("symmetric", "bounded")
    )
    decided = [found for found in (flips, bets) if found.verdict in ("pass", "fail")]
    return dataclasses.replace(min(decided, key=lambda found: found.n, default=flips), alpha=alpha)


def mean_in_sequence(
    observations: Sequence[Observation],
    bound: float,
    *,
    above: bool,
    order: Sequence[Hashable],
    n_min: int,
    bounds: Bounds | None = None,
    alpha: float = 0.05,
    gates: int = 1,
) -> Sequential:
    """Hold a mean against a bound after each seed: it passes when it is on the right side of it, fails on the other.

    The test of ``in_sequence`` on the differences between the values and the bound. Without declared bounds it holds
    its error rates for values that are symmetric about their mean, and a missing value, which could be anything, leaves
    it undecided.

    Args:
        observations: the values, one a run; runs of one seed (its tasks) are one cluster.
        bound: what the mean is held against.
        above: whether the right side is above the bound.
        order: all seeds that are planned, in the order in which they are run.
        n_min: seeds before the first look.
        bounds: smallest and largest possible value; with both it is ``sooner_in_sequence``.
        alpha, gates: as for ``in_sequence``.

    Raises:
        ConfigurationError: as ``in_sequence``.
    """
    place = {seed: number for number, seed in enumerate(order)}
    in_order = sorted(observations, key=lambda seen: place[seen.seed])
    values: dict[Hashable, Any] = {(seen.seed, seen.task): seen.value for seen in in_order}
    found = sooner_in_sequence(
        dict.fromkeys(values, bound),
        values,
        order=values,
        n_max=len(order),
        direction="higher" if above else "lower",
        margin=0.0,
        kind="superior",
        bounds=bounds,
        alpha=alpha,
        clusters={(seen.seed, seen.task): seen.seed for seen in in_order},
        looks=range(min(n_min, len(order)), len(order) + 1),
        gates=gates,
    )
    if found.verdict in ("pass", "fail") and found.n_missing and closed_bounds(bounds) is None:
        return dataclasses.replace(found, verdict="undecided", reason="no_bounds", n=len(values), n_saved=0)
    return found


def _made(given: Given, method: str, n_max: int, n: int, floor: int, seen: Sequence[Look]) -> Sequential:
    last = seen[-1] if seen else Look(0, "undecided")
    verdict, reason = last.verdict, last.reason
    decided = verdict != "undecided"
    if given.unusable is not None:
        verdict, reason = "unavailable", given.unusable.reason
    elif not decided and n < n_max:
        reason = "more_runs_to_come"
    return Sequential(
        verdict=verdict,
        reason=reason,
        n=last.n if decided else n,
        n_max=n_max,
        n_saved=n_max - last.n if decided else 0,
        n_missing=given.n_missing,
        pass_from=floor,
        alpha=given.question.alpha,
        method=method,
        assumption=ASSUMED[method].format(given.question.bounds),
        looks=tuple(seen),
    )


class _Stages:
    """The looks at the seeds of one comparison."""

    def __init__(
        self,
        given: Given,
        seeds: Sequence[Sequence[Row]],
        n_max: int,
        looks: set[int],
        floor: int,
        gates: int,
    ) -> None:
        self._given, self._seeds, self._n_max, self._floor = given, seeds, n_max, floor
        self._question = question = given.question
        # a fail of one claim of two is one of two chances to fail, and so is a fail of one gate of two
        self._alpha_of_fail = question.alpha / (len(question.claims) * gates)
        self.method = {"bounded": "betting", "deterministic": "deterministic"}.get(question.assume, "sign-flip")
        self._passes = [self._first(claim, False, {k for k in looks if k >= floor}) for claim in question.claims]
        self._fails = [self._first(claim, True, looks) for claim in question.claims]

    def _first(self, claim: Claim, refuted: bool, looks: set[int]) -> int | None:
        """The first look at which the claim holds, or is refuted."""
        values = self._values(claim, refuted)
        alpha = self._alpha_of_fail if refuted else self._question.alpha
        if self.method == "deterministic":
            return None
        if self.method == "betting":
            low, high = self._question.slack_range(claim)
            return betting_crossing(values, -high if refuted else low, looks=looks, alpha=alpha)
        return crossing(values, n_max=self._n_max, looks=looks, alpha=alpha, magnitude=self._given.magnitude)

    def _values(self, claim: Claim, refuted: bool) -> list[float]:
        """One value a seed that is above zero where it speaks for the claim, or against it when ``refuted``."""
        sign = -1 if refuted else 1
        values = []
        for rows in self._seeds:
            known = [self._value(claim, refuted, row) for row in rows]
            there = [sign * value for value in known if value is not None]
            values.append(statistics.fmean(there) if there else 0.0)
        return values

    def _value(self, claim: Claim, refuted: bool, row: Row) -> float | None:
        if self._question.range is None and (row.baseline is None or row.candidate is None):
            return None
        return math.fsum(self._question.filled(claim, row.baseline, row.candidate, best=refuted))

    def look(self, n: int) -> Look:
        rows = [row for seed in self._seeds[:n] for row in seed]
        missing = sum(row.baseline is None or row.candidate is None for row in rows)
        if missing > MISSING * len(rows):
            return Look(n, "undecided", "missing_fraction")
        if self.method == "deterministic":
            found = decide(dataclasses.replace(self._given, rows=rows))
            return Look(n, found.verdict, found.reason)
        if self.method == "sign-flip" and self._one_value_prevails(n):
            return Look(n, "undecided", "degenerate_differences")
        claims = self._question.claims
        if any(self._holds(at, n, claim, True) for at, claim in zip(self._fails, claims, strict=True)):
            return Look(n, "fail")
        held = all(self._holds(at, n, claim, False) for at, claim in zip(self._passes, claims, strict=True))
        if held and self._known(n) >= self._floor:
            return Look(n, "pass")
        return Look(n, "undecided", "straddles")

    def _holds(self, at: int | None, n: int, claim: Claim, refuted: bool) -> bool:
        """Whether the claim crossed by now, and, if that was at a look that could not decide, still stands."""
        if at is None or at > n:
            return False
        if at == n or self.method == "betting":
            return True
        from pytest_proteus.measure import signflip

        values = self._values(claim, refuted)[:n]
        return signflip.p_greater(values, self._given.magnitude) <= (
            self._alpha_of_fail if refuted else self._question.alpha
        )

    def _known(self, n: int) -> int:
        """How many of the first seeds have a value on both sides; a missing one shows no rare failure."""
        return sum(any(None not in (row.baseline, row.candidate) for row in rows) for rows in self._seeds[:n])

    def _one_value_prevails(self, n: int) -> bool:
        differences = []
        for rows in self._seeds[:n]:
            there = [r.candidate - r.baseline for r in rows if r.candidate is not None and r.baseline is not None]
            if there:
                differences.append(statistics.fmean(there))
        return len(differences) > 1 and most_equal(differences, self._given.magnitude) > len(differences) / 2
