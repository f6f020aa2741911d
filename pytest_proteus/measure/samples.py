"""The values of a comparison: which run is whose pair, what is missing, and the tests that pairs and groups allow.

Nothing here gives a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_proteus.measure import betting, student
from pytest_proteus.measure.claims import LARGEST, Claim, Question
from pytest_proteus.measure.summary import (
    Interval,
    betting_interval,
    fieller_terms,
    number,
    outside_bounds,
    student_interval,
    told_outside,
)
from pytest_proteus.measure.unavailable import Result, Unavailable

__all__ = ["ROUNDING", "Given", "Pair", "Paired", "Row", "Unpaired", "most_equal"]

#: Values that differ by less than this share of the largest one are equal but for rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Pair(Result):
    """The two values of one key.

    Args:
        key: what the two runs have in common.
        baseline: None where the run has no value.
        candidate: None where the run has no value.
        difference: candidate - baseline, of logarithms on the log scale; None where one is missing.
        slack: how far the pair is on the good side of the margin, on the same scale; None where one is missing, and for
            an equivalence, which has two sides.
    """

    key: Any
    baseline: float | None
    candidate: float | None
    difference: float | None = None
    slack: float | None = None


@dataclass(frozen=True)
class Row:
    """A key's values on the scale of the question, None where there is none; and which sides have such a run."""

    cluster: Hashable
    baseline: float | None
    candidate: float | None
    in_baseline: bool
    in_candidate: bool

    @property
    def lacks_baseline(self) -> bool:
        return self.in_baseline and self.baseline is None

    @property
    def lacks_candidate(self) -> bool:
        return self.in_candidate and self.candidate is None


@dataclass(frozen=True)
class Given:
    """All values of a comparison, and what is the same for every method."""

    question: Question
    rows: list[Row]
    pairs: tuple[Pair, ...]
    paired: bool
    n_unpaired: int
    magnitude: float
    unusable: Unavailable | None

    @classmethod
    def of(
        cls,
        question: Question,
        baseline: Mapping[Hashable, Any],
        candidate: Mapping[Hashable, Any],
        clusters: Mapping[Hashable, Hashable],
    ) -> Given:
        left, right = ({key: number(value) for key, value in side.items()} for side in (baseline, candidate))
        both = [key for key in left if key in right]
        keys = both or [*left, *right]
        used = [(left.get(key), right.get(key)) for key in keys]
        unusable = _unusable(question, used)
        rows, pairs = [], []
        for key, (b, c) in zip(keys, used, strict=True):
            if unusable is not None:
                pairs.append(Pair(key, b, c))
                continue
            x, y = (None if value is None else question.scaled(value) for value in (b, c))
            rows.append(Row(clusters.get(key, (Row, key)), x, y, key in left, key in right))
            pairs.append(_pair(question, key, (b, c), (x, y)))
        known = [abs(value) for row in rows for value in (row.baseline, row.candidate) if value is not None]
        magnitude = max([question.margin, *known])
        return cls(question, rows, tuple(pairs), bool(both), len({*left, *right}) - len(keys), magnitude, unusable)

    @property
    def n_missing(self) -> int:
        return sum(row.lacks_baseline or row.lacks_candidate for row in self.rows)

    @property
    def share_missing(self) -> float:
        """Of the pairs; without pairs, of the side that lacks more."""
        if self.paired:
            return self.n_missing / len(self.rows)
        lacking = [
            (sum(row.lacks_baseline for row in self.rows), sum(row.in_baseline for row in self.rows)),
            (sum(row.lacks_candidate for row in self.rows), sum(row.in_candidate for row in self.rows)),
        ]
        return max(missing / planned if planned else 1.0 for missing, planned in lacking)

    def complete(self) -> list[tuple[Hashable, float, float]]:
        """Cluster, baseline and candidate of each pair that has both."""
        return [
            (row.cluster, row.baseline, row.candidate)
            for row in self.rows
            if row.baseline is not None and row.candidate is not None
        ]


def _unusable(question: Question, used: Sequence[tuple[float | None, float | None]]) -> Unavailable | None:
    """Why values cannot be put on the scale of the question."""
    known = [value for both in used for value in both if value is not None]
    outside = outside_bounds(known, question.bounds)
    if outside is not None:
        return Unavailable("outside_bounds", told_outside(outside, question.bounds))
    if max(map(abs, known), default=0.0) > LARGEST:
        return Unavailable("too_large", f"a value of {max(known, key=abs):g} is beyond what can be compared")
    if question.scale == "log" and min(known, default=1.0) <= 0:
        return Unavailable("not_positive", f"a value of {min(known):g} has no logarithm; write scale='difference'")
    lowest = min((b for b, _ in used if b is not None), default=0.0)
    if question.relative and question.scale == "difference" and lowest < 0:
        return Unavailable("not_positive", f"a margin in percent needs a baseline of 0 or more, and one is {lowest:g}")
    return None


def _pair(
    question: Question, key: Hashable, raw: tuple[float | None, float | None], scaled: tuple[float | None, float | None]
) -> Pair:
    x, y = scaled
    if x is None or y is None:
        return Pair(key, *raw)
    claims = question.claims
    return Pair(key, *raw, y - x, question.slack(claims[0], x, y) if len(claims) == 1 else None)


def _means(values: Iterable[tuple[Hashable, float]]) -> list[float]:
    """The mean of each cluster."""
    clusters: dict[Hashable, list[float]] = {}
    for cluster, value in values:
        clusters.setdefault(cluster, []).append(value)
    return [one[0] if len(one) == 1 else statistics.fmean(one) for one in clusters.values()]


# -- two ways to compare -----------------------------------------------------------------------------------------------


class Paired:
    """Runs beside their own pair: everything is about their differences."""

    def __init__(self, given: Given) -> None:
        self._given, self._question = given, given.question
        complete = given.complete()
        self.baseline = _means((cluster, b) for cluster, b, _ in complete)
        self.candidate = _means((cluster, c) for cluster, _, c in complete)
        self.differences = [c - b for b, c in zip(self.baseline, self.candidate, strict=True)]
        self.n = len(self.differences)

    def method(self) -> str:
        """The method that is asked for, or the one that these differences need."""
        asked = {"symmetric": "sign-flip", "normal": "t", "bounded": "betting"}[self._question.assume]
        return "betting" if self.one_value_prevails() and self._question.range is not None else asked

    def one_value_prevails(self) -> bool:
        """Whether more than half of the differences are equal: those then say nothing of how the others vary."""
        return self.n > 1 and most_equal(self.differences, self._given.magnitude) > self.n / 2

    def slacks(self, claim: Claim) -> list[float]:
        pairs = zip(self.baseline, self.candidate, strict=True)
        return [self._question.slack(claim, b, c) for b, c in pairs]

    def filled(self, claim: Claim, best: bool) -> list[float]:
        rows = self._given.rows
        return _means(
            (row.cluster, math.fsum(self._question.filled(claim, row.baseline, row.candidate, best))) for row in rows
        )

    def _p(self, method: str, claim: Claim, refuted: bool, values: Sequence[float]) -> float:
        """p of the claim, or of its opposite when ``refuted``."""
        signed = [-value for value in values] if refuted else list(values)
        if method == "betting":
            low, high = self._question.slack_range(claim)
            return betting.p_greater(signed, -high if refuted else low)
        if method == "t":
            return _p_of_t(statistics.fmean(signed), _stderr(signed), len(signed) - 1)
        from pytest_proteus.measure import signflip

        return signflip.p_greater(signed, self._given.magnitude)

    def p_of(self, method: str, claim: Claim, refuted: bool) -> float:
        return self._p(method, claim, refuted, self.slacks(claim))

    def p_filled(self, method: str, claim: Claim, refuted: bool) -> float:
        """The same with what is missing filled in to speak against it."""
        return self._p(method, claim, refuted, self.filled(claim, best=refuted))

    def p_min(self, method: str) -> float:
        if method == "t":
            return 0.0
        if method == "betting":
            return max(betting.p_min(self.n, *self._question.slack_range(claim)) for claim in self._question.claims)
        from pytest_proteus.measure import signflip

        return signflip.p_min(self.n)

    def effect(self) -> float:
        return statistics.fmean(self.differences)

    def d_z(self) -> float | Unavailable:
        if self.n < 2:
            return Unavailable("n_below_minimum", n=self.n)
        spread = statistics.stdev(self.differences)
        if spread <= ROUNDING * self._given.magnitude:
            return Unavailable("degenerate_differences", n=self.n)
        return self.effect() / spread

    def p_better(self) -> float:
        return _share_better(self.differences, self._given)

    def interval(self, method: str, level: float) -> Interval | Unavailable:
        if method == "betting":
            low, high = self._question.range or (0.0, 0.0)
            return betting_interval(self.differences, (low - high, high - low), level)
        if method == "t":
            return student_interval(self.effect(), _stderr(self.differences), self.n - 1, level, "t")
        from pytest_proteus.measure import signflip

        return signflip.interval(self.differences, level)

    def interval_of_ratio(self, method: str, level: float) -> Interval | Unavailable:
        """Of mean difference / mean of the baseline."""
        if method == "t":
            return _fieller(self.differences, self.baseline, level)
        if method == "betting":
            return Unavailable("no_ratio_interval", n=self.n)
        from pytest_proteus.measure import signflip

        return signflip.ratio_interval(self.differences, self.baseline, level)

    def stderr(self) -> float:
        """Of the claim's mean slack."""
        return _stderr(self.slacks(self._question.claims[0]))


class Unpaired:
    """Two groups of runs that have nothing in common: their means, by Welch's t."""

    def __init__(self, given: Given) -> None:
        self._given, self._question = given, given.question
        rows = given.rows
        self.baseline = _means((row.cluster, row.baseline) for row in rows if row.baseline is not None)
        self.candidate = _means((row.cluster, row.candidate) for row in rows if row.candidate is not None)
        self.n = min(len(self.baseline), len(self.candidate))

    def method(self) -> str:
        return "welch"

    def one_value_prevails(self) -> bool:
        sides = (self.baseline, self.candidate)
        return any(most_equal(side, self._given.magnitude) > len(side) / 2 for side in sides)

    def _p(self, refuted: bool, parts: tuple[Sequence[float], Sequence[float]]) -> float:
        sign = -1 if refuted else 1
        mean = sign * math.fsum(statistics.fmean(part) for part in parts)
        return _p_of_t(mean, *_welch(*parts))

    def p_of(self, method: str, claim: Claim, refuted: bool) -> float:
        return self._p(refuted, self._parts(claim))

    def _parts(self, claim: Claim) -> tuple[list[float], list[float]]:
        ask = self._question
        return [ask.of_baseline(claim, b) for b in self.baseline], [ask.of_candidate(claim, c) for c in self.candidate]

    def p_filled(self, method: str, claim: Claim, refuted: bool) -> float:
        filled = [
            (row, *self._question.filled(claim, row.baseline, row.candidate, refuted)) for row in self._given.rows
        ]
        baseline = _means((row.cluster, b) for row, b, _ in filled if row.in_baseline)
        candidate = _means((row.cluster, c) for row, _, c in filled if row.in_candidate)
        return self._p(refuted, (baseline, candidate))

    def p_min(self, method: str) -> float:
        return 0.0

    def effect(self) -> float:
        return statistics.fmean(self.candidate) - statistics.fmean(self.baseline)

    def d_z(self) -> float | Unavailable:
        return Unavailable("not_paired", n=self.n)

    def p_better(self) -> float:
        return _share_better([c - b for b in self.baseline for c in self.candidate], self._given)

    def interval(self, method: str, level: float) -> Interval | Unavailable:
        stderr, freedom = _welch(self.baseline, self.candidate)
        return student_interval(self.effect(), stderr, freedom, level, "welch")

    def interval_of_ratio(self, method: str, level: float) -> Interval | Unavailable:
        return Unavailable("no_ratio_interval", n=self.n)

    def stderr(self) -> float:
        return _welch(*self._parts(self._question.claims[0]))[0]


def most_equal(values: Sequence[float], magnitude: float) -> int:
    """How often the most frequent value occurs, equal but for rounding."""
    most = run = 0
    last = -math.inf
    for value in sorted(values):
        run = run + 1 if value - last <= ROUNDING * magnitude else 1
        most, last = max(most, run), value
    return most


def _share_better(differences: Sequence[float], given: Given) -> float:
    sign = -1 if given.question.direction == "lower" else 1
    near = ROUNDING * given.magnitude
    better = sum(1.0 if sign * d > near else 0.5 if abs(d) <= near else 0.0 for d in differences)
    return better / len(differences)


def _stderr(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Standard error of the difference of two means and its degrees of freedom (Welch 1947)."""
    a, b = _stderr(first) ** 2, _stderr(second) ** 2
    if a + b == 0:
        return 0.0, float(min(len(first), len(second)) - 1)
    return math.sqrt(a + b), (a + b) ** 2 / (a * a / (len(first) - 1) + b * b / (len(second) - 1))


def _p_of_t(mean: float, stderr: float, freedom: float) -> float:
    """p of the claim that a mean is above zero."""
    if stderr == 0:
        return 0.0 if mean > 0 else 1.0
    return student.beyond(mean / stderr, freedom)


def _fieller(tops: Sequence[float], bottoms: Sequence[float], level: float) -> Interval | Unavailable:
    a, b, c = fieller_terms(tops, bottoms, level)
    root = b * b - a * c
    if a <= 0 or root < 0:
        return Unavailable("no_ratio_interval", "the baseline's mean is not told from zero", len(tops))
    return Interval("t", level, (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a)
