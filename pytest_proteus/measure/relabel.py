"""Relabelings of runs, and the sums of distances within and between arms under each of them. Knows no streams.

All relabelings are gone through when they are few, else some are drawn. Distances are put on a grid of whole numbers
first: sums of them are exact, so that labelings that tie do tie, in any order of summing and on any number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pytest_proteus.measure.divergence import Draws, Floats

Codes = NDArray[np.int16]

#: Relabelings are enumerated up to so many.
ENUMERATED = 50_000
UNRESTRICTED, WITHIN_SEED = "unrestricted", "within_seed"
#: Bytes of one arm's marks at a time: they are read several times over and should stay in the cache.
#: Numbers in the work space of one product for many matrices.
_PRODUCT = 1 << 16
_BATCH_BYTES = 256 << 10


@dataclass(frozen=True)
class Design:
    """How runs may be relabeled.

    Args:
        sizes: runs of each arm, in the order of the arms' codes.
        seeds: number of seeds that every arm has a run of, when labels move within seeds only; else None.
    """

    sizes: tuple[int, ...]
    seeds: int | None = None

    @property
    def scheme(self) -> str:
        """``unrestricted`` or ``within_seed``."""
        return UNRESTRICTED if self.seeds is None else WITHIN_SEED

    @property
    def labelings(self) -> int:
        """Distinct ways to give the runs their labels."""
        if self.seeds is not None:
            return int(math.factorial(len(self.sizes)) ** self.seeds)
        ways = math.factorial(sum(self.sizes))
        for size in self.sizes:
            ways //= math.factorial(size)
        return ways

    @property
    def partitions(self) -> int:
        """Labelings that differ by more than the names of arms of one size: each gives another statistic."""
        if self.seeds is not None:
            return self.labelings // math.factorial(len(self.sizes))
        same = math.prod(math.factorial(self.sizes.count(size)) for size in set(self.sizes))
        return self.labelings // same

    @property
    def p_min(self) -> float:
        """The smallest p that any outcome could have."""
        return float(Fraction(1, self.partitions))

    @property
    def exact(self) -> bool:
        """Whether all labelings are gone through."""
        return self.labelings <= ENUMERATED

    def batches(self, codes: Codes, seed_of: NDArray[np.intp] | None, draws: int, seed: int) -> Iterator[Codes]:
        """Labelings, one a row: all of them, the actual one included, or ``draws`` random ones.

        Args:
            codes: the actual arm of each run.
            seed_of: number of each run's seed; None when labels move freely.
            draws: how many are drawn when not all are gone through.
            seed: of those draws.
        """
        n = len(codes)
        rows = max(64, _BATCH_BYTES // (8 * n))
        places = None if seed_of is None else np.argsort(seed_of, kind="stable").reshape(self.seeds or 1, -1)
        if self.exact:
            whole = self._all(n) if places is None else self._all_within(places, n)
            for start in range(0, len(whole), rows):
                yield whole[start : start + rows]
            return
        random = Draws(seed)
        for start in range(0, draws, rows):
            size = min(rows, draws - start)
            if places is None:
                yield _shuffled(codes, random.keys(size, n))
            else:
                out = np.empty((size, n), dtype=np.int16)
                mixed = _shuffled(codes[places], random.keys(size, *places.shape))
                out[:, places.ravel()] = mixed.reshape(size, n)
                yield out

    def _all(self, n: int) -> Codes:
        out = np.full((1, n), len(self.sizes) - 1, dtype=np.int16)
        free = np.arange(n, dtype=np.intp)[None, :]
        for code, size in enumerate(self.sizes[:-1]):
            left = free.shape[1]
            chosen = np.array(list(itertools.combinations(range(left), size)), dtype=np.intp)
            rest = np.ones((len(chosen), left), dtype=bool)
            rest[np.arange(len(chosen))[:, None], chosen] = False
            others = np.nonzero(rest)[1].reshape(len(chosen), left - size)
            taken = free[:, chosen].reshape(-1, size)
            out = np.repeat(out, len(chosen), axis=0)
            out[np.arange(len(out))[:, None], taken] = code
            free = free[:, others].reshape(-1, left - size)
        return out

    def _all_within(self, places: NDArray[np.intp], n: int) -> Codes:
        orders = np.array(list(itertools.permutations(range(len(self.sizes)))), dtype=np.int16)
        number = np.arange(self.labelings)
        out = np.empty((self.labelings, n), dtype=np.int16)
        for block in places:
            number, which = np.divmod(number, len(orders))
            out[:, block] = orders[which]
        return out


def _shuffled(codes: Codes, keys: NDArray[np.uint64]) -> Codes:
    """The codes in the order of the keys, along the last axis; the keys are used up."""
    # a code rides in its key's lowest bits: sorting numbers is far faster than sorting their positions
    low = np.uint64(0xFFFF)
    keys &= ~low
    keys |= codes.astype(np.uint64)
    keys.sort(axis=-1)
    return keys.astype(np.uint16).view(np.int16)


def on_grid(distances: Floats) -> Floats:
    """Distances as whole numbers of one unit: any sum of all of them is below 2**53."""
    n, most = len(distances), float(distances.max(initial=0.0))
    if most == 0:
        return np.zeros_like(distances)
    top = math.frexp(most)[1]  # most < 2**top
    bits = min(40, 52 - math.ceil(math.log2(n * n)))
    out: Floats = np.rint(np.ldexp(distances, bits - top))
    return out


def arm_sums(wholes: Sequence[Floats], labels: Codes, arms: int) -> Iterator[tuple[Floats, Floats]]:
    """Sums of distances over pairs of runs, for many labelings and as many matrices of the same runs as there are.

    Args:
        wholes: n × n symmetric distances on the grid, one for each result.
        labels: labelings × n codes of arms.
        arms: how many arms there are.

    Returns:
        For each matrix the sums within each arm (arms × labelings), and between each pair of arms (pairs × labelings),
        pairs in the order of ``itertools.combinations``.
    """
    size, n = labels.shape
    marks = (np.ascontiguousarray(labels.T) == np.arange(arms, dtype=np.int16)[:, None, None]).astype(np.float64)
    together, pairs = max(1, _PRODUCT // (n * size)), list(itertools.combinations(range(arms), 2))
    for start in range(0, len(wholes), together):
        stack = np.stack(wholes[start : start + together])
        inside, between = np.empty((len(stack), arms, size)), np.empty((len(stack), len(pairs), size))
        for g in range(arms):
            reach = (stack.reshape(-1, n) @ marks[g]).reshape(len(stack), n, size)
            inside[:, g] = np.einsum("enb,nb->eb", reach, marks[g]) / 2
            for h in range(g):
                between[:, pairs.index((h, g))] = np.einsum("enb,nb->eb", reach, marks[h])
        yield from zip(inside, between, strict=True)


def welch(inside: Floats, between: Floats, sizes: Sequence[int]) -> Floats:
    """The Welch distance W_d of each labeling (Alekseyenko 2016, for D a squared distance): larger is farther apart.

    For two arms and D = (x_i - x_j)² it is the square of Welch's t. An arm without dispersion counts as one with next
    to none: its labeling then lies far out, as it should.
    """
    count = np.asarray(sizes, dtype=np.float64)[:, None]
    own = inside / (count * count * (count - 1))  # s_g² / n_g
    everything = inside.sum(axis=0) + between.sum(axis=0)
    spread = np.maximum(own, np.maximum(1e-15 * everything, 1e-300))
    least = spread.min(axis=0)
    weight = least / spread  # in units of the largest one, so that no product overflows
    whole = weight.sum(axis=0)
    share = weight / count
    one, other = np.array(list(itertools.combinations(range(len(sizes)), 2))).T
    # w_g w_h c_gh over all pairs: what is within an arm that has dispersion comes to n_g - 1, whatever the weights
    apart: Floats = (share[one] * share[other] * between).sum(axis=0) / (least * whole)
    others = 1 - weight / whole
    apart -= ((count - 1) * (own / spread) * others).sum(axis=0)
    arms = len(sizes)
    if arms == 2:
        return apart
    uneven = (others * others / (count - 1)).sum(axis=0)
    out: Floats = apart / ((arms - 1) * (1 + 2 * (arms - 2) / (arms**2 - 1) * uneven))
    return out
