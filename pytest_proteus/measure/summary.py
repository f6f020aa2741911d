"""Numbers about numbers: summaries, and intervals by kind of data. No verdicts; those compare two sides with a margin.

Missing values are counted and left out, never read as zero. Values that do not vary give no interval of width zero:
unless their bounds or their determinism are declared, they give none and say so.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import student
from pytest_proteus.measure.betting import log_capital
from pytest_proteus.measure.unavailable import Result, Unavailable

__all__ = [
    "DIRECTIONS",
    "Estimate",
    "Interval",
    "Observation",
    "Summary",
    "betting_interval",
    "bootstrap_interval",
    "clopper_pearson_interval",
    "clustered_interval",
    "clustered_stderr",
    "deciding",
    "estimate",
    "missing_bounds",
    "number",
    "p_beyond",
    "summarise",
    "t_interval",
    "wilson_interval",
]

DIRECTIONS = ("higher", "lower", "neutral")
KINDS = ("auto", "binary", "bounded", "continuous", "bootstrap", "deterministic")
#: Smallest and largest possible value; None where there is none.
Bounds = tuple["float | None", "float | None"]
#: Resamples of a bootstrap are enumerated when there are at most so many values, and drawn otherwise.
ENUMERATED = 9


@dataclass(frozen=True)
class Observation:
    """One value of a statistic's input and the run it came from; None where the run has none."""

    value: float | None
    harness: str | None = None
    arm: str | None = None
    seed: Any = None
    run_id: str | None = None
    reason: str = ""
    task: str | None = None


@dataclass(frozen=True)
class Interval(Result):
    """A two-sided interval for a mean or a rate.

    Args:
        method: how it was made, as the report names it.
        level: coverage aimed at, 0 to 1.
        low: lower end, -inf when open.
        high: upper end, inf when open.
        note: what a reader must know to believe it; empty when nothing.
    """

    method: str
    level: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class Summary(Result):
    """Description of the values that are there.

    Args:
        mean: arithmetic mean.
        stddev: sample standard deviation, divided by n - 1.
        stderr: stddev / sqrt(n).
        median: middle value, or the mean of the two middle ones.
        min: smallest value.
        max: largest value.
        n: values that are finite numbers.
        n_missing: all others.
    """

    mean: float | Unavailable
    stddev: float | Unavailable
    stderr: float | Unavailable
    median: float | Unavailable
    min: float | Unavailable
    max: float | Unavailable
    n: int
    n_missing: int


@dataclass(frozen=True)
class Estimate(Result):
    """A mean or a rate with its interval and everything it came from.

    Args:
        value: the estimate.
        interval: its interval, or why there is none.
        n: runs (or clusters of runs) that the interval counts as independent.
        n_missing: runs that were planned and have no value.
        observations: the values, one a run, missing ones included.
        direction: ``higher`` or ``lower`` when that is better, ``neutral`` when it is only more.
        scale: the unit or range in words, for readers.
        bounds: smallest and largest possible value, where declared.
        summary: description of the values.
        with_missing: the interval when every missing value is taken to be the worst for its lower end and the best for
            its upper end; equals ``interval`` when nothing is missing, unavailable without bounds.
        warnings: sentences that belong beside the number.
    """

    value: float
    interval: Interval | Unavailable
    n: int
    n_missing: int
    observations: tuple[Observation, ...]
    direction: str
    scale: str
    bounds: Bounds | None
    summary: Summary
    with_missing: Interval | Unavailable
    warnings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        raise TypeError("an Estimate is neither true nor false; compare its .value, or give it to a gate")


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None: text, NaN, infinities and everything else count as missing."""
    kind = type(value)
    if kind is not float and kind is not int and kind is not bool:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
            return None
        if getattr(value, "shape", ()) != ():
            return None
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if math.isfinite(converted) else None


def summarise(values: Iterable[Any]) -> Summary:
    """Mean, sample standard deviation, standard error, median, min and max of the numbers among ``values``.

    Agrees with ``statistics.fmean``, ``stdev`` and ``median``. A single value has no spread: ``stddev`` and ``stderr``
    are unavailable for n < 2, everything but the counts is for n = 0.
    """
    given = [number(value) for value in values]
    known = [value for value in given if value is not None]
    n = len(known)
    none = Unavailable("no_values", n=0)
    spread: float | Unavailable = statistics.stdev(known) if n > 1 else Unavailable("n_below_minimum", n=n)
    return Summary(
        mean=_mean(known) if n else none,
        stddev=spread,
        stderr=spread / math.sqrt(n) if not isinstance(spread, Unavailable) else spread,
        median=statistics.median(known) if n else none,
        min=min(known) if n else none,
        max=max(known) if n else none,
        n=n,
        n_missing=len(given) - n,
    )


def _mean(values: Sequence[float]) -> float:
    """The mean, never outside the values by rounding."""
    return min(max(statistics.fmean(values), min(values)), max(values))


# -- intervals ---------------------------------------------------------------------------------------------------------


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigurationError(f"the level of an interval is {level!r}; write a number between 0 and 1, such as 0.9")


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval | Unavailable:
    """Wilson's score interval for a rate, without continuity correction (Wilson 1927)."""
    _check_level(level)
    if not 0 <= successes <= max(n, 0):
        raise ConfigurationError(f"{successes} successes of {n} is no rate")
    if n == 0:
        return Unavailable("no_values", n=0)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate, z2 = successes / n, z * z
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return Interval("wilson", level, low, high)


def clopper_pearson_interval(successes: int, n: int, level: float = 0.95) -> Interval | Unavailable:
    """The exact interval for a rate: covers at least at its level for every rate and n (Clopper and Pearson 1934)."""
    _check_level(level)
    if not 0 <= successes <= max(n, 0):
        raise ConfigurationError(f"{successes} successes of {n} is no rate")
    if n == 0:
        return Unavailable("no_values", n=0)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return Interval("clopper-pearson", level, low, high)


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval | Unavailable:
    """Student's interval for a mean; assumes that means of so many values are nearly normal."""
    _check_level(level)
    n = len(values)
    if n < 2:
        return Unavailable("n_below_minimum", "an interval from t needs two values", n)
    if min(values) == max(values):
        return Unavailable("identical_values", n=n)
    return student_interval(_mean(values), statistics.stdev(values) / math.sqrt(n), n - 1, level, "t")


def student_interval(mean: float, stderr: float, freedom: float, level: float, method: str) -> Interval:
    half = student.quantile(0.5 + level / 2, freedom) * stderr
    return Interval(method, level, mean - half, mean + half)


def fieller_terms(tops: Sequence[float], bottoms: Sequence[float], level: float) -> tuple[float, float, float]:
    """The ratios r for which Student's t does not refute that ``tops - r * bottoms`` has mean zero (Fieller 1954) are
    those with a r² - 2 b r + c <= 0: a, b and c. Where a is not positive the mean of ``bottoms`` is not told from zero.

    Args:
        tops, bottoms: two values or more each, pair by pair.
        level: coverage of those ratios.
    """
    n = len(tops)
    top, bottom = math.fsum(tops) / n, math.fsum(bottoms) / n
    above, below = [value - top for value in tops], [value - bottom for value in bottoms]
    q = student.quantile(0.5 + level / 2, n - 1) ** 2 / (n - 1) / n

    def told(first: Sequence[float], second: Sequence[float]) -> float:
        return q * math.fsum(x * y for x, y in zip(first, second, strict=True))

    return bottom**2 - told(below, below), top * bottom - told(above, below), top**2 - told(above, above)


def betting_interval(values: Sequence[float], bounds: Bounds, level: float = 0.95) -> Interval:
    """Interval for the mean of values that lie within ``bounds``, whatever their distribution and however few.

    The means against which no bettor of a fixed mixture gets rich: valid at every n, also when it is looked at after
    each value (after Waudby-Smith and Ramdas 2024). It does not depend on the values' order, and it is wide.

    Raises:
        ConfigurationError: the bounds are none, or a value lies outside them.
    """
    _check_level(level)
    closed = closed_bounds(bounds)
    if closed is None:
        raise ConfigurationError(f"bounds {bounds!r} are open; betting needs two finite numbers")
    _refuse_outside(values, bounds)
    low, high = closed
    rich = math.log(2 / (1 - level))
    lower = _betting_end([value - low for value in values], high - low, rich)
    upper = _betting_end([high - value for value in values], high - low, rich)
    return Interval("betting", level, low + lower, high - upper)


def _ends(bounds: Bounds) -> tuple[float, float]:
    low = -math.inf if bounds[0] is None else float(bounds[0])
    high = math.inf if bounds[1] is None else float(bounds[1])
    if not low < high:
        raise ConfigurationError(f"bounds {bounds!r} are no range; write (smallest, largest) possible value")
    return low, high


def closed_bounds(bounds: Bounds | None) -> tuple[float, float] | None:
    """The bounds when both are finite numbers."""
    if bounds is None:
        return None
    low, high = _ends(bounds)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def outside_bounds(values: Iterable[float], bounds: Bounds | None) -> float | None:
    """The first value that lies outside of the bounds; None where none does."""
    if bounds is None:
        return None
    low, high = _ends(bounds)
    return next((value for value in values if not low <= value <= high), None)


def told_outside(value: float, bounds: Bounds | None, place: str = "") -> str:
    """The sentence about such a value; ``place`` says where it comes from."""
    low, high = _ends(bounds or (None, None))
    return (
        f"a value of {value!r}{place} lies outside of the declared bounds [{low:g}, {high:g}]; declare bounds= that "
        f"every value lies within, or correct what gives it"
    )


def _refuse_outside(values: Sequence[float], bounds: Bounds | None) -> None:
    outside = outside_bounds(values, bounds)
    if outside is not None:
        raise ConfigurationError(told_outside(outside, bounds))


def _betting_end(heights: Sequence[float], width: float, rich: float) -> float:
    """The largest mean above the lower bound that betting on more refutes; the capital falls as that mean rises."""
    refuted, kept = 0.0, width
    while True:
        mean = (refuted + kept) / 2
        if not refuted < mean < kept or kept - refuted <= 1e-13 * width:
            return refuted
        if log_capital([height - mean for height in heights], -mean) >= rich:
            refuted = mean
        else:
            kept = mean


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, method: str = "bca", *, resamples: int = 9999, seed: int = 0
) -> Interval | Unavailable:
    """Bootstrap interval for a mean; too narrow below about 20 values, which its note says.

    Up to nine values all resamples are enumerated, with no Monte-Carlo error. Agrees with ``scipy.stats.bootstrap``.

    Args:
        method: ``bca`` (bias-corrected and accelerated, Efron 1987) or ``percentile``.
        resamples: how many are drawn when they are not enumerated.
        seed: of those draws.
    """
    _check_level(level)
    if method not in ("bca", "percentile"):
        raise ConfigurationError(f"a bootstrap interval by {method!r} is not known; write 'bca' or 'percentile'")
    n = len(values)
    if n < 2:
        return Unavailable("n_below_minimum", "a bootstrap needs two values", n)
    if min(values) == max(values):
        return Unavailable("identical_values", n=n)
    sums, weights = _all_resamples(values) if n <= ENUMERATED else _some_resamples(values, resamples, seed)
    tail = (1 - level) / 2
    tails = (tail, 1 - tail) if method == "percentile" else _bca_tails(values, sums, weights, tail)
    low, high = (_quantile(sums, weights, q) / n for q in tails)
    note = "" if n >= 20 else f"a bootstrap of {n} values covers less often than its level says"
    return Interval(f"bootstrap-{method}", level, low, high, note)


_Weighted = tuple[list[float], list[int]]


def _all_resamples(values: Sequence[float]) -> _Weighted:
    n = len(values)
    weighted: dict[float, int] = {}
    for chosen in itertools.combinations_with_replacement(range(n), n):
        ways = math.factorial(n)
        for _, same in itertools.groupby(chosen):
            ways //= math.factorial(len(list(same)))
        total = math.fsum(values[i] for i in chosen)
        weighted[total] = weighted.get(total, 0) + ways
    return _merged(sorted(weighted.items()))


def _some_resamples(values: Sequence[float], resamples: int, seed: int) -> _Weighted:
    import numpy as np

    n, bits, ordered = len(values), np.random.PCG64(seed), np.asarray(sorted(values))
    sums: list[float] = []
    for _ in range(0, resamples, 1000):
        raw = bits.random_raw(1000 * n)
        # the high 32 bits, scaled: the same on every version of numpy; a bias of n / 2**32 is nothing
        index = ((raw >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
        sums += map(math.fsum, ordered[index.astype(np.intp)].reshape(1000, n).tolist())
    return _merged([(total, 1) for total in sorted(sums[:resamples])])


def _merged(pairs: Sequence[tuple[float, int]]) -> _Weighted:
    """Equal sums put together; sums that differ by rounding only are equal."""
    sums: list[float] = []
    weights: list[int] = []
    scale = max(abs(pairs[0][0]), abs(pairs[-1][0]))
    for total, weight in pairs:
        if sums and total - sums[-1] <= 1e-13 * scale:
            weights[-1] += weight
        else:
            sums.append(total)
            weights.append(weight)
    return sums, weights


def _quantile(sums: Sequence[float], weights: Sequence[int], q: float) -> float:
    """The smallest sum at or below which a share of at least q lies."""
    wanted, seen = q * sum(weights) * (1 - 1e-12), 0
    for total, weight in zip(sums, weights, strict=True):
        seen += weight
        if seen >= wanted:
            return total
    return sums[-1]


def _bca_tails(
    values: Sequence[float], sums: Sequence[float], weights: Sequence[int], tail: float
) -> tuple[float, float]:
    normal = NormalDist()
    observed, everything = math.fsum(values), sum(weights)
    near = 1e-12 * max(abs(sums[0]), abs(sums[-1]))
    below = sum(w for s, w in zip(sums, weights, strict=True) if s < observed - near)
    equal = sum(w for s, w in zip(sums, weights, strict=True) if abs(s - observed) <= near)
    bias = normal.inv_cdf(min(max((below + equal / 2) / everything, 1e-16), 1 - 1e-16))
    mean = _mean(values)
    far = max(abs(value - mean) for value in values)
    pulls = [(value - mean) / far for value in values]  # leaving a value out moves the mean by its pull, in proportion
    square = math.fsum(pull * pull for pull in pulls)
    bend = math.fsum(pull**3 for pull in pulls) / (6 * square**1.5)

    def moved(q: float) -> float:
        z = bias + normal.inv_cdf(q)
        return normal.cdf(bias + z / (1 - bend * z))

    return moved(tail), moved(1 - tail)


# -- runs within seeds -------------------------------------------------------------------------------------------------


def clustered_stderr(values: Sequence[float], clusters: Sequence[Hashable]) -> float | Unavailable:
    """Standard error of the mean of values that come in clusters (tasks or episodes within seeds).

    The square root of G/(G-1) · Σ_g (Σ_i (x_gi - mean))² / N² for G clusters and N values (Liang and Zeger 1986, with
    the small-sample factor); for clusters of one size it is the standard error of the clusters' means.
    """
    if len(values) != len(clusters):
        raise ConfigurationError(
            f"there are {len(values)} values and {len(clusters)} clusters; give one for each value"
        )
    totals: dict[Hashable, list[float]] = {}
    mean = _mean(values) if values else 0.0
    for value, cluster in zip(values, clusters, strict=True):
        totals.setdefault(cluster, []).append(value - mean)
    groups = len(totals)
    if groups < 2:
        return Unavailable("n_below_minimum", "values of one cluster say nothing about other clusters", groups)
    square = math.fsum(math.fsum(parts) ** 2 for parts in totals.values())
    return math.sqrt(groups / (groups - 1) * square) / len(values)


def clustered_interval(
    values: Sequence[float], clusters: Sequence[Hashable], level: float = 0.95
) -> Interval | Unavailable:
    """Student's interval with ``clustered_stderr`` and one degree of freedom less than there are clusters."""
    _check_level(level)
    stderr = clustered_stderr(values, clusters)
    if isinstance(stderr, Unavailable):
        return stderr
    groups = len(set(clusters))
    if stderr <= 1e-15 * max(map(abs, values)):
        return Unavailable("identical_values", "the clusters' means are all equal", groups)
    return student_interval(_mean(values), stderr, groups - 1, level, "clustered-t")


# -- estimates ---------------------------------------------------------------------------------------------------------


def estimate(
    values: Iterable[Any],
    *,
    kind: str = "auto",
    bounds: Bounds | None = None,
    level: float = 0.9,
    direction: str = "neutral",
    scale: str = "",
    clusters: Sequence[Hashable] | None = None,
    observations: Sequence[Observation] | None = None,
    seed: int = 0,
) -> Estimate | Unavailable:
    """The mean of ``values`` with the interval that its kind of data has.

    Args:
        values: one a run; whatever is no finite number is missing.
        kind: ``binary`` (0 or 1: Wilson), ``bounded`` (betting), ``continuous`` (t), ``bootstrap`` (BCa),
            ``deterministic`` (the same inputs give the same value: a point), or ``auto``: binary when the bounds are
            (0, 1) and all values 0 or 1, bounded when two finite bounds are declared, else continuous.
        bounds: smallest and largest possible value; None or an infinity for an open end.
        level: coverage of the two-sided interval; 0.9 goes with one-sided tests at 0.05.
        direction: ``higher``, ``lower`` or ``neutral``.
        scale: unit or range in words.
        clusters: the seed of each value when several values come from one seed; the interval then counts seeds.
        observations: where each value came from; made from ``values`` when left out.
        seed: of the bootstrap's draws.

    Raises:
        ConfigurationError: an unknown kind or direction, or values that contradict the declared kind. Values that
            contradict the bounds make it unavailable.
    """
    if direction not in DIRECTIONS:
        raise ConfigurationError(f"direction {direction!r} is not known; write one of {', '.join(DIRECTIONS)}")
    if kind not in KINDS:
        raise ConfigurationError(f"kind {kind!r} is not known; write one of {', '.join(KINDS)}")
    given = [number(value) for value in values]
    known = [value for value in given if value is not None]
    missing = len(given) - len(known)
    if not known:
        return Unavailable("no_values", f"none of {missing} runs has a value" if missing else "", 0, missing)
    if clusters is not None and len(clusters) != len(given):
        raise ConfigurationError(f"there are {len(given)} values and {len(clusters)} clusters; give one for each value")
    outside = outside_bounds(known, bounds)
    if outside is not None:
        of = next((item.run_id for item in observations or () if item.value == outside and item.run_id), None)
        place = f" ({scale})" * bool(scale) + (f" in run {of}" if of else "")
        return Unavailable("outside_bounds", told_outside(outside, bounds, place), len(known), missing)
    plan = _Plan(_kind_of(kind, known, bounds), closed_bounds(bounds), level, clusters, seed)
    interval = plan.interval(given)
    warnings = [interval.note] if isinstance(interval, Interval) and interval.note else []
    if isinstance(interval, Unavailable):
        warnings.append(f"there is no interval: {interval.as_dict()['detail']}")
    seen = tuple(observations) if observations is not None else tuple(Observation(value) for value in given)
    return Estimate(
        value=_mean(known),
        interval=interval,
        n=plan.independent(given),
        n_missing=missing,
        observations=seen,
        direction=direction,
        scale=scale,
        bounds=bounds,
        summary=summarise(given),
        with_missing=plan.with_missing(given, interval) if missing else interval,
        warnings=tuple(warnings),
    )


def _kind_of(kind: str, known: Sequence[float], bounds: Bounds | None) -> str:
    binary = all(value in (0.0, 1.0) for value in known)
    if kind == "binary" and not binary:
        raise ConfigurationError("values declared binary must be 0 or 1; write kind='bounded' for scores between them")
    if kind == "bounded" and closed_bounds(bounds) is None:
        raise ConfigurationError("kind='bounded' needs bounds=(smallest, largest) possible value")
    if kind != "auto":
        return kind
    closed = closed_bounds(bounds)
    if closed is None:
        return "continuous"
    return "binary" if binary and closed == (0.0, 1.0) else "bounded"


@dataclass(frozen=True)
class _Plan:
    """How an estimate's intervals are made, whichever values are filled in for the missing ones."""

    kind: str
    bounds: tuple[float, float] | None
    level: float
    clusters: Sequence[Hashable] | None
    seed: int

    def _means(self, values: Sequence[float | None]) -> list[float]:
        """One mean a cluster that has a value, the values themselves without clusters."""
        if self.clusters is None:
            return [value for value in values if value is not None]
        groups: dict[Hashable, list[float]] = {}
        for value, cluster in zip(values, self.clusters, strict=True):
            if value is not None:
                groups.setdefault(cluster, []).append(value)
        return [_mean(group) for group in groups.values()]

    def independent(self, values: Sequence[float | None]) -> int:
        return len(self._means(values))

    def interval(self, values: Sequence[float | None]) -> Interval | Unavailable:
        known = [value for value in values if value is not None]
        if self.kind == "deterministic":
            return _point(known, self.level)
        if self.kind == "bounded" and self.bounds is not None:
            return betting_interval(self._means(values), self.bounds, self.level)
        if self.clusters is not None:
            groups = [c for c, value in zip(self.clusters, values, strict=True) if value is not None]
            found = clustered_interval(known, groups, self.level)
            # clusters of rates that are all alike have no spread, and bounds that tell something all the same
            alike = self.kind == "binary" and isinstance(found, Unavailable)
            return betting_interval(self._means(values), (0, 1), self.level) if alike else found
        if self.kind == "binary":
            return wilson_interval(round(sum(known)), len(known), self.level)
        if self.kind == "bootstrap":
            return bootstrap_interval(known, self.level, seed=self.seed)
        return t_interval(known, self.level)

    def with_missing(self, values: Sequence[float | None], known: Interval | Unavailable) -> Interval | Unavailable:
        """From the lower end with the missing at their worst to the upper at their best, never inside ``known``."""
        bounds = (0.0, 1.0) if self.kind == "binary" else self.bounds
        if bounds is None:
            return Unavailable("no_bounds", "a missing value could be anything, since no two bounds are declared")
        worst, best = (self._filled(values, end, bounds) for end in bounds)
        for ends in (known, worst, best):
            if isinstance(ends, Unavailable):
                return ends
        low, high = min(worst.low, known.low), max(best.high, known.high)
        return Interval(f"{worst.method}, missing values at their worst and best", self.level, low, high)

    def _filled(
        self, values: Sequence[float | None], fill: float, bounds: tuple[float, float]
    ) -> Interval | Unavailable:
        filled = self._means([fill if value is None else value for value in values])
        if self.kind == "binary" and self.clusters is None:
            return wilson_interval(round(sum(filled)), len(filled), self.level)
        return betting_interval(filled, bounds, self.level)


def _point(values: Sequence[float], level: float) -> Interval | Unavailable:
    if min(values) != max(values):
        return Unavailable("not_deterministic", n=len(values))
    return Interval(
        "deterministic", level, values[0], values[0], "a point, because the values are declared deterministic"
    )


def deciding(found: Estimate) -> Estimate:
    """The same with the intervals that a verdict takes: those of a rate are exact ones in place of Wilson's.

    Wilson's interval is centred well and covers at its level on average over rates; a single end of it misses the true
    rate in up to one case of seven. Each end of Clopper and Pearson's does so at its level at most.
    """
    if not isinstance(found.interval, Interval) or found.interval.method != "wilson":
        return found
    values = [item.value for item in found.observations if item.value is not None]
    successes, n, level = round(sum(values)), len(values), found.interval.level
    known = clopper_pearson_interval(successes, n, level)
    worst = clopper_pearson_interval(successes, n + found.n_missing, level)
    best = clopper_pearson_interval(successes + found.n_missing, n + found.n_missing, level)
    if isinstance(known, Unavailable) or isinstance(worst, Unavailable) or isinstance(best, Unavailable):
        return found
    filled = f"{known.method}, missing values at their worst and best" if found.n_missing else known.method
    return replace(
        found,
        interval=known,
        with_missing=Interval(filled, level, min(worst.low, known.low), max(best.high, known.high)),
    )


def p_beyond(found: Estimate, bound: float, *, above: bool) -> float | None:
    """The smallest alpha at which the deciding interval of level 1 - 2 alpha lies wholly on one side of ``bound``.

    That is the p of the one-sided test that the interval's end is; of a rate the exact one. 1 where no alpha below one
    half does it; None where the interval is of a kind that cannot be made anew from the values.

    Args:
        found: the estimate.
        bound: the number.
        above: which side.
    """
    values = [item.value for item in found.observations if item.value is not None]
    method = found.interval.method if isinstance(found.interval, Interval) else ""
    if method == "deterministic":
        return 0.0 if (found.value > bound if above else found.value < bound) else 1.0

    if method not in ("t", "wilson", "betting") or len(values) != found.n:
        return None
    if method == "t":
        distance = found.value - bound if above else bound - found.value
        p = student.beyond(distance * math.sqrt(found.n) / statistics.stdev(values), found.n - 1)
        return p if p < 0.5 else 1.0

    if method == "wilson":
        p = _p_of_rate(round(sum(values)), len(values), bound, above)
        return p if p < 0.5 else 1.0
    bounds = found.bounds
    assert bounds is not None

    def beyond(alpha: float) -> bool:
        ends = betting_interval(values, bounds, 1 - 2 * alpha)
        return ends.low > bound if above else ends.high < bound

    near, far = -12.0, math.log10(0.5)  # of alpha, in powers of ten; a level closer to 1 has no digits left
    if not beyond(0.4999999):
        return 1.0
    while far - near > 1e-9:
        middle = (near + far) / 2
        near, far = (near, middle) if beyond(10**middle) else (middle, far)
    return float(10**far)


def _p_of_rate(successes: int, n: int, rate: float, above: bool) -> float:
    """P(so many successes or more) at this rate, or so many or fewer: the exact binomial test."""
    from scipy.special import betainc

    if not above:
        successes, rate = n - successes, 1 - rate
    if not 0 < rate < 1:
        return 0.0 if rate <= 0 < successes else 1.0
    return float(betainc(successes, n - successes + 1, rate)) if successes else 1.0


def missing_bounds(values: Iterable[Any], bounds: Bounds | None) -> tuple[float, float] | Unavailable:
    """The smallest and largest mean that the values can have once the missing ones are known (Manski 1989).

    Args:
        values: the values, missing ones included.
        bounds: smallest and largest possible value; without both a missing value could be anything.
    """
    given = [number(value) for value in values]
    known = [value for value in given if value is not None]
    if not given:
        return Unavailable("no_values", n=0)
    _refuse_outside(known, bounds)
    if len(known) == len(given):
        return _mean(known), _mean(known)
    closed = closed_bounds(bounds)
    if closed is None:
        return Unavailable("no_bounds", n=len(known))
    low, high = ([end if value is None else value for value in given] for end in closed)
    return _mean(low), _mean(high)
