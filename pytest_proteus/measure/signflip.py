"""The sign-flip test of a mean and the interval that goes with it. Knows nothing of margins, metrics and verdicts.

Values that are symmetric about their mean could as well have had the other sign, each of them; so all 2^n choices of
signs are equally probable when that mean is zero, however the values are distributed otherwise. Up to 16 values every
choice is gone through; above that some are drawn, always the same ones. Sums are of whole numbers, so that choices that
tie do tie, on any platform and in any order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_proteus.measure.summary import Interval
from pytest_proteus.measure.unavailable import Unavailable

__all__ = ["ENUMERATED", "RESAMPLES", "interval", "p_greater", "p_min", "ratio_interval", "subsets", "whole"]

Floats = NDArray[np.float64]

#: Choices of signs are gone through up to so many values, and drawn above.
ENUMERATED = 16
#: How many choices are drawn.
RESAMPLES = 9999
#: Drawn choices are handled so many at a time.
_BATCH = 2048
#: Those of so many values are kept for the next call: unpacking them takes longer than using them.
_KEPT = 64


def p_min(n: int) -> float:
    """The smallest p that n values can have."""
    return math.ldexp(1.0, -n) if n <= ENUMERATED else 1 / (RESAMPLES + 1)


def p_greater(values: Sequence[float], magnitude: float = 0.0) -> float:
    """p of the claim that the mean is above zero, against a mean of zero or less.

    The share of choices of signs whose sum is at least the actual one (Fisher 1935); agrees with
    ``scipy.stats.permutation_test(permutation_type="samples")``. Among drawn choices the actual one is counted too:
    (hits + 1) / (draws + 1) (Phipson and Smyth 2010).

    Args:
        values: one or more.
        magnitude: of the numbers that the values are differences of, whose rounding decides which sums tie; that of the
            values themselves when it is smaller.
    """
    if not values:
        return 1.0
    # flipping the subset S lowers the sum by twice its own: a choice reaches the actual sum when its S sums to 0 or
    # less. Every value may be off by less than one unit, so each is taken one unit lower: what may tie counts as a tie.
    units = np.sort(whole(values, magnitude)) - 1
    if len(units) <= ENUMERATED:
        return math.ldexp(int((_subset_sums(units) <= 0).sum()), -len(units))
    hits = sum(int((chosen @ units <= 0).sum()) for chosen in _drawn_subsets(len(units)))
    return (hits + 1) / (RESAMPLES + 1)


def whole(values: Sequence[float], magnitude: float = 0.0) -> Floats:
    """The values as whole numbers of one unit, so small that n of them add up without rounding, as floats."""
    given = np.asarray(values, dtype=np.float64)
    largest = max(float(np.abs(given).max(initial=0.0)), magnitude)
    if largest == 0:
        return np.zeros_like(given)
    bits = 51 - math.ceil(math.log2(len(given) + 1))
    return np.rint(np.ldexp(given, bits - math.frexp(largest)[1]))


def interval(values: Sequence[float], level: float = 0.9) -> Interval | Unavailable:
    """The means that the sign-flip test does not refute at (1 - level) / 2 on either side.

    Its lower end is the m-th smallest mean of the 2^n - 1 subsets of the values, m = ⌊(1 - level) / 2 · 2^n⌋
    (Hartigan 1969), its upper end the m-th largest. Unavailable when the values are too few for that level.
    """
    return ratio_interval(values, [1.0] * len(values), level)


def ratio_interval(tops: Sequence[float], bottoms: Sequence[float], level: float = 0.9) -> Interval | Unavailable:
    """The same for the ratio of two means, both of the same runs: the r that ``tops - r * bottoms`` does not refute.

    Args:
        tops: one value a run.
        bottoms: at least 0, one a run; a subset whose bottoms are all 0 counts against either end.
        level: coverage aimed at, of both ends together.
    """
    n, tail = len(tops), (1 - level) / 2
    exact = n <= ENUMERATED
    rank = math.floor(tail * (2**n if exact else RESAMPLES + 1) * (1 + 1e-12))
    if rank < 1:
        return Unavailable("p_min_above_alpha", n=n)
    order = sorted(range(n), key=lambda i: (tops[i], bottoms[i]))
    above, below = (np.array([side[i] for i in order], dtype=np.float64) for side in (tops, bottoms))
    if exact:
        up, down = _subset_sums(above)[1:], _subset_sums(below)[1:]
    else:
        up = np.concatenate([chosen @ above for chosen in _drawn_subsets(n)])
        down = np.concatenate([chosen @ below for chosen in _drawn_subsets(n)])
    known = down > 0
    ratios = np.divide(up, down, out=np.full(len(up), -np.inf), where=known)
    low = float(np.partition(ratios, rank - 1)[rank - 1])
    ratios[~known] = np.inf
    high = float(np.partition(ratios, -rank)[-rank])
    note = "" if exact else f"from {RESAMPLES} of the 2^{n} choices of signs"
    return Interval("sign-flip", level, low, high, note)


def _subset_sums(values: Floats) -> Floats:
    """The sum of each of the 2^n subsets, the empty one first."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def subsets(n: int) -> Iterator[Floats]:
    """The subsets of n values, as batches of rows of 0 and 1: all of them, or the drawn ones."""
    if n > ENUMERATED:
        yield from _drawn_subsets(n)
        return
    for start in range(0, 2**n, _BATCH):
        numbers = np.arange(start, min(start + _BATCH, 2**n))
        yield (numbers[:, None] >> np.arange(n) & 1).astype(np.float64)


def _drawn_subsets(n: int) -> Iterable[Floats]:
    """Random subsets of n values, as rows of 0 and 1; the same ones for every call."""
    return _kept_subsets(n) if n <= _KEPT else _unpacked_subsets(n)


@functools.lru_cache(maxsize=4)
def _kept_subsets(n: int) -> tuple[Floats, ...]:
    return tuple(_unpacked_subsets(n))


def _unpacked_subsets(n: int) -> Iterator[Floats]:
    packed = _packed_subsets(n)
    for start in range(0, RESAMPLES, _BATCH):
        yield np.unpackbits(packed[start : start + _BATCH], axis=1, count=n).astype(np.float64)


@functools.lru_cache(maxsize=8)
def _packed_subsets(n: int) -> NDArray[np.uint8]:
    words = -(-n // 64)
    # raw numbers of the generator: the same in every version of numpy, and byte by byte on every platform
    raw = np.random.PCG64(n).random_raw(RESAMPLES * words).astype("<u8")
    return raw.view(np.uint8).reshape(RESAMPLES, 8 * words)
