"""Distances between all pairs of many streams at once, and between resamples of them. Knows no arms and no verdicts.

Streams arrive as arrays of token numbers. Streams of one distribution are made one before anything is computed, in an
order that depends on their content alone: equal pairs get equal bits, whichever arm or position they stand in.
"""

from __future__ import annotations

import bz2
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEVELS = ("freq", "order", "ncd")
COMPRESSOR = "bz2"
#: Numbers of cells of one step's arrays: beyond it resamples are counted one by one, without tables.
_CELLS = 4_000_000
#: Numbers drawn and counted at a time: they stay in the cache.
_CACHED = 1 << 16


def encode(streams: Sequence[Sequence[str]]) -> tuple[list[Ints], list[str]]:
    """Streams as arrays of numbers, and the sorted tokens that the numbers stand for."""
    names = sorted(set().union(*streams))
    number = {name: i for i, name in enumerate(names)}
    return [np.array(list(map(number.__getitem__, stream)), dtype=np.int64) for stream in streams], names


def counted(codes: Ints, level: str, vocabulary: int) -> Ints:
    """What a level counts in a stream: its tokens, or its pairs of neighbours."""
    return codes if level == "freq" else codes[:-1] * vocabulary + codes[1:]


# -- compression -------------------------------------------------------------------------------------------------------


def compressed(data: bytes) -> int:
    """Length of ``data`` compressed, in bytes. Up to 100 kB level 1 gives bz2 the same block as level 9, faster."""
    return len(bz2.compress(data, 1 if len(data) < 99_000 else 9))


def as_text(stream: Sequence[str]) -> bytes:
    """A stream as the bytes that are compressed: one token a line."""
    return "\n".join(stream).encode("utf-8", "surrogateescape")


def compression_distance(a: bytes, b: bytes, size_a: int, size_b: int) -> float:
    """Normalised compression distance, the mean of both orders of joining."""
    joined = (compressed(a + b"\n" + b) + compressed(b + b"\n" + a)) / 2
    return (joined - min(size_a, size_b)) / max(size_a, size_b)


def compression_matrix(texts: Sequence[bytes]) -> Floats:
    """``compression_distance`` of all pairs of two runs; 0 on the diagonal, which is no pair."""
    sizes = {text: compressed(text) for text in texts}
    known: dict[tuple[bytes, bytes], float] = {}
    out = np.zeros((len(texts), len(texts)))
    for i, a in enumerate(texts):
        for j in range(i):
            pair = (a, texts[j]) if a < texts[j] else (texts[j], a)
            if pair not in known:
                known[pair] = compression_distance(*pair, sizes[pair[0]], sizes[pair[1]])
            out[i, j] = out[j, i] = known[pair]
    return out


# -- Jensen-Shannon ----------------------------------------------------------------------------------------------------


def divergence_matrix(rows: Sequence[Ints]) -> Floats:
    """Jensen-Shannon divergence, base 2, of the distributions of numbers in all pairs of rows; none may be empty."""
    kinds: dict[tuple[bytes, bytes], int] = {}
    parts: list[tuple[Ints, Ints]] = []
    member = []
    for row in rows:
        columns, counts = _distinct(row)
        counts //= np.gcd.reduce(counts)
        key = (columns.tobytes(), counts.tobytes())
        if key not in kinds:
            kinds[key] = len(parts)
            parts.append((columns, counts))
        member.append(kinds[key])
    order = [kinds[key] for key in sorted(kinds)]
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    small = _matrix_of_distinct([parts[i] for i in order])
    index = place[member]
    out: Floats = small[np.ix_(index, index)]
    return out


def _distinct(row: Ints) -> tuple[Ints, Ints]:
    """The distinct numbers of a row in order, and how often each occurs."""
    if row.max() > 4 * len(row):
        columns, often = np.unique(row, return_counts=True)
        return columns, often.astype(np.int64)
    counts = np.bincount(row)
    columns = np.flatnonzero(counts)
    return columns, counts[columns]


def _ranks(numbers: Ints) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each number's place among the distinct ones in order, and how often each of these occurs."""
    if numbers.max() > 4 * len(numbers):
        _, inverse, often = np.unique(numbers, return_inverse=True, return_counts=True)
        return inverse.reshape(-1), often
    counts = np.bincount(numbers)
    seen = counts > 0
    return (np.cumsum(seen) - 1)[numbers], counts[seen]


def _matrix_of_distinct(parts: Sequence[tuple[Ints, Ints]]) -> Floats:
    n = len(parts)
    totals = np.array([counts.sum() for _, counts in parts], dtype=np.float64)
    inverse, seen_in = _ranks(np.concatenate([own for own, _ in parts]))
    common = seen_in > 1  # what one row alone has is far from every other row by its whole share
    place = np.cumsum(common) - 1
    table = np.zeros((int(common.sum()), n), dtype=np.int32)
    cuts = np.cumsum([0, *(len(own) for own, _ in parts)])
    own_columns: list[NDArray[np.intp]] = []
    for i, (_, counts) in enumerate(parts):
        where = inverse[cuts[i] : cuts[i + 1]]
        kept = common[where]
        own_columns.append(place[where[kept]])
        table[own_columns[i], i] = counts[kept]
    out = np.zeros((n, n))
    shares = table / totals
    logs = _x_log_x(shares)
    for i, mine in enumerate(own_columns[:-1]):
        part, part_logs = shares[mine, i:], logs[mine, i:]
        both = part[:, :1] + part[:, 1:]
        shared = both * np.log2(both) - part_logs[:, :1] - part_logs[:, 1:]  # 0 where the other has none
        out[i, i + 1 :] = 1 - shared.sum(axis=0) / 2
    np.clip(out, 0.0, 1.0, out=out)
    symmetric: Floats = out + out.T
    return symmetric


def _x_log_x(x: Floats) -> Floats:
    """x · log2 x, 0 at 0."""
    out: Floats = x * np.log2(np.where(x > 0, x, 1.0))
    return out


def cross_mean(rows: Sequence[Ints], others: Sequence[Ints]) -> float:
    """Mean divergence of row i from other j over all i ≠ j."""
    n = len(rows)
    both = divergence_matrix([*rows, *others])[:n, n:]
    np.fill_diagonal(both, 0.0)
    return math.fsum(both.ravel().tolist()) / (n * (n - 1))


# -- resamples ---------------------------------------------------------------------------------------------------------


class Draws:
    """Numbers below a bound from a seed: the same on every platform and version of numpy."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def below(self, bound: int, size: int) -> Ints:
        """``size`` numbers, uniform on 0 … bound - 1 (with a bias of bound / 2**32, which is nothing)."""
        raw = np.asarray(self._bits.random_raw(size), dtype=np.uint64)
        raw >>= np.uint64(32)
        raw *= np.uint64(bound)
        raw >>= np.uint64(32)
        return raw.view(np.int64)

    def keys(self, *shape: int) -> NDArray[np.uint64]:
        """Raw 64-bit numbers."""
        out: NDArray[np.uint64] = np.asarray(self._bits.random_raw(math.prod(shape)), dtype=np.uint64).reshape(shape)
        return out

    def shuffled(self, row: Ints) -> Ints:
        """The numbers of ``row`` in another order."""
        out: Ints = row[np.argsort(self.keys(len(row)), kind="stable")]
        return out


def null_means(codes: Sequence[Ints], level: str, vocabulary: int, draws: int, seed: int) -> Floats:
    """Mean distance of all pairs of runs, for each of ``draws`` sets of runs of the same lengths from the common pool.

    Tokens are drawn independently and with replacement: what a policy of that composition without any order would do.
    """
    lengths = np.array([len(code) for code in codes])
    pool, random = np.concatenate(codes), Draws(seed)
    n, total = len(codes), int(lengths.sum())
    width = vocabulary if level == "freq" else vocabulary * vocabulary
    step = max(1, min(draws, _CELLS // max(total, n * width)))
    tabled = n * width <= _CELLS
    equal = bool((lengths == lengths[0]).all())
    out = []
    for start in range(0, draws, step):
        size = min(step, draws - start)
        if not tabled:
            cuts = np.cumsum(lengths)[:-1]
            for _ in range(size):
                parts = np.split(pool[random.below(total, total)], cuts)
                out.append(_pair_mean([counted(part, level, vocabulary) for part in parts]))
            continue
        few = max(1, _CACHED // total)
        tables = np.concatenate(
            [
                _tables(pool[random.below(total, k * total)].reshape(k, total), lengths, level, vocabulary, width)
                for k in (min(few, size - done) for done in range(0, size, few))
            ]
        )
        length = int(tables[0, 0].sum())
        out += (_equal_sums(tables, length) if equal else _unequal_sums(tables)).tolist()
    pairs = n * (n - 1) / 2  # a sum of zeros may have come out below zero by rounding
    means: Floats = np.maximum(np.array(out), 0.0) / pairs
    return means


def _pair_mean(rows: Sequence[Ints]) -> float:
    return math.fsum(divergence_matrix(rows).ravel().tolist()) / 2


def _tables(drawn: Ints, lengths: Ints, level: str, vocabulary: int, width: int) -> Ints:
    """Counts by (draw, run, column); ``drawn`` is used up."""
    size, n = len(drawn), len(lengths)
    run = np.repeat(np.arange(n), lengths)
    if level == "order":
        inside = run[:-1] == run[1:]
        drawn = (drawn[:, :-1] * vocabulary + drawn[:, 1:])[:, inside]
        run = run[:-1][inside]
    drawn += run * width
    drawn += np.arange(size)[:, None] * (n * width)
    return np.bincount(drawn.ravel(), minlength=size * n * width).reshape(size, n, width)


def _equal_sums(tables: Ints, length: int) -> Floats:
    """Sum over all pairs of runs of one length, for each draw, from how often each count occurs in a column.

    Σ_{i<j} g(c_i, c_j) = (h'Gh - Σ_v h_v g(v, v)) / 2 for h the histogram of a column's counts c. Whole numbers
    stand for g, so that neither the order of a sum nor the number of threads can change it.
    """
    size, n, width = tables.shape
    most = int(tables.max()) + 1
    column = (np.arange(size)[:, None, None] * width + np.arange(width)) * most
    histogram = np.bincount((column + tables).ravel(), minlength=size * width * most).reshape(-1, most)
    histogram[:, 0] = 0  # a column that a run has not is common to no pair
    value = np.arange(most, dtype=np.float64)
    sums = value[:, None] + value
    together = _x_log_x(sums) - _x_log_x(value)[:, None] - _x_log_x(value)
    np.fill_diagonal(together, 2 * value)
    grid = 2.0 ** (51 - math.ceil(math.log2(2 * length * n * n)))  # g is at most 2 · length
    whole, weights = np.rint(together * grid), histogram.astype(np.float64)
    shared = ((weights @ whole) * weights).sum(axis=1) - weights @ np.diag(whole)
    by_draw = shared.reshape(size, width).sum(axis=1) / (2 * grid)
    out: Floats = n * (n - 1) / 2 - by_draw / (2 * length)
    return out


def _unequal_sums(tables: Ints) -> Floats:
    """Sum over all pairs of runs, for each draw; columns last."""
    shares = tables / tables.sum(axis=2, keepdims=True)
    logs = _x_log_x(shares)
    size, n, _ = tables.shape
    own = logs.sum(axis=2)
    total = np.zeros(size)
    for i in range(n - 1):
        both = shares[:, i : i + 1] + shares[:, i + 1 :]
        joined = _x_log_x(both).reshape(size, -1).sum(axis=1)
        total += (n - 1 - i) * (own[:, i] + 2) / 2 + own[:, i + 1 :].sum(axis=1) / 2 - joined / 2
    return total


def null_compression(streams: Sequence[Sequence[str]], draws: int, seed: int) -> Floats:
    """``null_means`` for the compression distance; slow: two compressions a pair and draw."""
    pool = [token for stream in streams for token in stream]
    cuts = np.cumsum([len(stream) for stream in streams])[:-1]
    random, n, out = Draws(seed), len(streams), []
    for _ in range(draws):
        picked = np.split(random.below(len(pool), len(pool)), cuts)
        matrix = compression_matrix([as_text([pool[i] for i in run]) for run in picked])
        out.append(math.fsum(matrix.ravel().tolist()) / (n * (n - 1)))
    return np.array(out)
