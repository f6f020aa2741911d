"""Do runs act alike: distances of tool streams, whether an arm reproduces itself, whether arms differ.

Distances are about which tools are used and in which order, not about how well. The unit is the run of one seed;
episodes of one run are never counted as runs. p says only that the distributions differ somehow. Nothing is gated here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import divergence
from pytest_proteus.measure.divergence import COMPRESSOR, LEVELS, Draws, Floats
from pytest_proteus.measure.relabel import Design, arm_sums, on_grid, welch
from pytest_proteus.measure.unavailable import Finding, Result, Unavailable

if TYPE_CHECKING:
    from pytest_proteus.measure.episodes import SeparationCourse

__all__ = [
    "LEVELS",
    "TEXT_TOKEN",
    "Attainability",
    "BetweenWithin",
    "Ncd",
    "Reliability",
    "RunDistance",
    "attainability",
    "between_within",
    "distances",
    "freq_distance",
    "mean_distances",
    "ncd",
    "ncd_parts",
    "order_distance",
    "rarefied_distances",
    "reliability",
    "same_length_distances",
    "separation",
    "tool_stream",
]

Stream = Sequence[str]

#: What a turn of text without a tool call is in a stream.
TEXT_TOKEN = "<text>"
#: Below this ratio to the composition-matched null an arm counts as reproducing itself.
RELIABLE_BELOW = 0.5
_SHUFFLES = 20
_NOT_MEASURED = Unavailable("not_measured")
_RAREFIED = 10


def tool_stream(trace: Sequence[ActionEvent]) -> list[str]:
    """The tools of a trace in order; ``TEXT_TOKEN`` where there was text only."""
    return [event.tool or TEXT_TOKEN for event in trace]


# -- two streams -------------------------------------------------------------------------------------------------------


def _check_level(level: str) -> None:
    if level not in LEVELS:
        raise ConfigurationError(f"level {level!r} is not known; write one of {', '.join(LEVELS)}")


def _too_short(stream: Stream, level: str) -> str:
    """Why the stream has no place at this level; empty when it has."""
    if not len(stream):
        return "empty_stream"
    return "fewer_than_two_actions" if level == "order" and len(stream) < 2 else ""


def _divergence(a: Counter[Any], b: Counter[Any]) -> float:
    """Jensen-Shannon divergence, base 2, of two tables of counts; in this form equal shares give exactly 0."""
    total_a, total_b, terms = sum(a.values()), sum(b.values()), []
    for item in a.keys() | b.keys():
        p, q = a[item] / total_a, b[item] / total_b
        both = p + q
        terms.append((p * math.log2(2 * p / both) if p else 0.0) + (q * math.log2(2 * q / both) if q else 0.0))
    return min(1.0, max(0.0, math.fsum(terms) / 2))


def freq_distance(a: Stream, b: Stream) -> float | Unavailable:
    """How differently two streams mix their tools: Jensen-Shannon divergence of tool shares, base 2.

    Symmetric, 0 (same shares, whatever the order and length) to 1 (no tool in common); larger is farther apart. The
    square of ``scipy.spatial.distance.jensenshannon(p, q, base=2)``. Unavailable for an empty stream.
    """
    reason = _too_short(a, "freq") or _too_short(b, "freq")
    return Unavailable(reason) if reason else _divergence(Counter(a), Counter(b))


def order_distance(a: Stream, b: Stream) -> float | Unavailable:
    """``freq_distance`` of pairs of neighbouring actions: how differently two streams order their tools.

    0 to 1, larger is farther apart. Unavailable for a stream of fewer than two actions.
    """
    reason = _too_short(a, "order") or _too_short(b, "order")
    return (
        Unavailable(reason) if reason else _divergence(Counter(itertools.pairwise(a)), Counter(itertools.pairwise(b)))
    )


@dataclass(frozen=True)
class Ncd(Result):
    """A compression distance and what is needed to judge it.

    Args:
        symmetric: mean of both directions; the distance.
        directed_ab: with the streams joined as a, b.
        directed_ba: with the streams joined as b, a.
        floor_a: distance of ``a`` to itself; below about 200 actions much of any distance is such overhead.
        floor_b: the same of ``b``.
        compressor: name of the compressor; distances by different ones do not compare.
    """

    symmetric: float
    directed_ab: float
    directed_ba: float
    floor_a: float
    floor_b: float
    compressor: str


def ncd_parts(a: Stream, b: Stream) -> Ncd | Unavailable:
    """``ncd`` with both directions and the streams' distances to themselves."""
    reason = _too_short(a, "ncd") or _too_short(b, "ncd")
    if reason:
        return Unavailable(reason)
    text_a, text_b = divergence.as_text(a), divergence.as_text(b)
    size_a, size_b = divergence.compressed(text_a), divergence.compressed(text_b)
    small, large = min(size_a, size_b), max(size_a, size_b)
    ab, ba = divergence.compressed(text_a + b"\n" + text_b), divergence.compressed(text_b + b"\n" + text_a)
    return Ncd(
        symmetric=((ab + ba) / 2 - small) / large,
        directed_ab=(ab - small) / large,
        directed_ba=(ba - small) / large,
        floor_a=divergence.compression_distance(text_a, text_a, size_a, size_a),
        floor_b=divergence.compression_distance(text_b, text_b, size_b, size_b),
        compressor=COMPRESSOR,
    )


def ncd(a: Stream, b: Stream) -> float | Unavailable:
    """How little knowing one stream helps to write the other: normalised compression distance, by bz2.

    Symmetric (the mean of both orders of joining), about 0 to 1, larger is farther apart; the distance of a stream to
    itself is not 0, see ``ncd_parts``. Do not gate on it below about 200 actions. Unavailable for an empty stream.
    """
    parts = ncd_parts(a, b)
    return parts if isinstance(parts, Unavailable) else parts.symmetric


# -- many streams ------------------------------------------------------------------------------------------------------


def distances(streams: Sequence[Stream], level: str = "freq") -> Floats:
    """Distances of all pairs of streams: n × n, symmetric, 0 on the diagonal.

    Raises:
        ConfigurationError: an unknown level, or a stream that is too short for it.
    """
    _check_level(level)
    for i, stream in enumerate(streams):
        if _too_short(stream, level):
            raise ConfigurationError(f"stream {i} of {len(streams)} has {len(stream)} actions, too few for {level!r}")
    if not len(streams):
        return np.zeros((0, 0))
    if level == "ncd":
        return divergence.compression_matrix([divergence.as_text(stream) for stream in streams])
    codes, names = divergence.encode(streams)
    return divergence.divergence_matrix([divergence.counted(code, level, len(names)) for code in codes])


def mean_distances(runs: Sequence[Sequence[Stream]], level: str = "freq") -> Floats:
    """Distances of runs of several episodes each: the mean over all pairs of an episode of one and one of the other.

    n × n for n runs, to be given to ``between_within`` with labels: so the run stays the unit. Episodes that are too
    short are left out.

    Raises:
        ConfigurationError: an unknown level, or a run without any long enough episode.
    """
    _check_level(level)
    kept = [[stream for stream in run if not _too_short(stream, level)] for run in runs]
    for i, run in enumerate(kept):
        if not run:
            raise ConfigurationError(f"run {i} of {len(runs)} has no episode that is long enough for {level!r}")
    if not kept:
        return np.zeros((0, 0))
    matrix = distances([stream for run in kept for stream in run], level)
    starts = np.cumsum([0, *(len(run) for run in kept[:-1])])
    counts = np.array([len(run) for run in kept], dtype=np.float64)
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    out = np.triu(sums / np.outer(counts, counts), 1)
    symmetric: Floats = out + out.T
    return symmetric


def rarefied_distances(
    streams: Sequence[Stream], level: str = "freq", *, draws: int = _RAREFIED, seed: int = 0
) -> Floats:
    """``distances`` of what streams of the shortest one's length would have: the mean over random parts of that size.

    Short streams are farther from everything, whatever their policy; the means of these distances compare. Their spread
    does not, since the parts of long streams average out: relabel runs by them only with one draw. Parts are drawn
    without replacement, at level ``order`` from a stream's pairs of neighbours.

    Raises:
        ConfigurationError: level ``ncd``, whose order no random part keeps, and what ``distances`` refuses.
    """
    if level == "ncd":
        raise ConfigurationError("streams cannot be rarefied at level 'ncd'; write 'freq' or 'order'")
    if draws < 1:
        raise ConfigurationError(f"draws is {draws}; write 1 or more")
    plain = distances(streams, level)
    if len({len(stream) for stream in streams}) < 2:
        return plain
    codes, names = divergence.encode(streams)
    rows = [divergence.counted(code, level, len(names)) for code in codes]
    size, random = min(len(row) for row in rows), Draws(seed)
    total = np.zeros_like(plain)
    for _ in range(draws):
        parts = [row if len(row) == size else random.shuffled(row)[:size] for row in rows]
        total += divergence.divergence_matrix(parts)
    return total / draws


def same_length_distances(streams: Sequence[Stream], level: str = "freq", seed: int = 0) -> Floats:
    """``distances`` of one stretch of each stream, as long as the shortest stream, from a random place.

    One stretch each and no average of several: single stretches of one policy are exchangeable, however long the
    streams are, while averages over stretches of long streams vary less than those of short ones, so that arms of one
    policy and unlike lengths are told apart too often (20 % where 5 % are meant). The price is a p that differs from
    seed to seed. Of streams of one length it is ``distances``.
    """
    shortest, random = min(map(len, streams), default=0), Draws(seed + 1)
    starts = [int(random.below(len(stream) - shortest + 1, 1)[0]) for stream in streams]
    return distances([stream[at : at + shortest] for stream, at in zip(streams, starts, strict=True)], level)


# -- does an arm reproduce itself --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reliability(Result):
    """How alike the runs of one arm are, against runs without any common order.

    Args:
        within: mean distance of all pairs of runs; smaller is more alike.
        null: mean of ``within`` over sets of runs drawn from the arm's pooled tokens, lengths kept.
        null_sd: its standard deviation over those sets.
        null_se: Monte-Carlo error of ``null``.
        ratio: within / null; 0 is perfectly alike, 1 is what independent draws of one composition give.
        ratio_se: Monte-Carlo error of ``ratio``.
        reliable: whether ``ratio`` is below 0.5.
        p_structure: p of "no more alike than draws from the pool"; small when runs share more than their composition.
        p_heterogeneous: p of "no less alike than draws from the pool"; small when runs have unlike compositions.
        procedure_ratio: within / mean distance of a run to another run whose actions are shuffled: small for a shared
            procedure, near 1 without one, at any length. Only where order counts.
        level: ``freq``, ``order`` or ``ncd``.
        n_runs: runs that were compared.
        n_excluded: runs that were too short for this level.
        n_missing: runs without a stream.
        draws: sets drawn.
        seed: of the draws.
        to_others: mean distance of each compared run to the others, in the order given.
        compressor: its name at level ``ncd``, else empty.
        with_missing: number → its least and most with missing runs put in, see ``measure.missing``; empty without any.
    """

    within: float
    null: float
    null_sd: float | Unavailable
    null_se: float | Unavailable
    ratio: float
    ratio_se: float | Unavailable
    reliable: bool
    p_structure: float
    p_heterogeneous: float
    procedure_ratio: float | Unavailable
    level: str
    n_runs: int
    n_excluded: int
    n_missing: int
    draws: int
    seed: int
    to_others: tuple[float, ...]
    compressor: str
    with_missing: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)


def reliability(
    streams: Sequence[Stream | None], level: str = "freq", draws: int = 200, seed: int = 0
) -> Reliability | Unavailable:
    """Whether the runs of one arm resemble each other more than their common composition makes them.

    The null draws each run's tokens from the arm's pooled tokens. At level ``freq`` that null is the best a stable
    policy can do, so runs of one stochastic policy have a ratio near 1, and what ``ratio`` falls to with a shared order
    depends on the runs' length; ``procedure_ratio`` does not. Needs two runs and two different tools.

    Args:
        streams: one a run, all of one arm; None for a run that has none.
        level: ``freq``, ``order`` or ``ncd`` (slow).
        draws: sets drawn for the null.
        seed: of the draws; the same seed gives the same numbers everywhere.
    """
    _check_level(level)
    if draws < 1:
        raise ConfigurationError(f"draws is {draws}; write 1 or more")
    there = [stream for stream in streams if stream is not None]
    kept = [stream for stream in there if not _too_short(stream, level)]
    n, excluded, missing = len(kept), len(there) - len(kept), len(streams) - len(there)
    if n < 2:
        detail = f"{n} runs are long enough, {excluded} too short, {missing} missing" if excluded or missing else ""
        return Unavailable("fewer_than_two_runs", detail, n)
    # the draws must not depend on the order in which the runs are given
    kept_sorted = sorted(kept, key=list)
    codes, names = divergence.encode(kept_sorted)
    if len(names) < 2:
        return Unavailable("null_zero_single_tool", n=n)
    matrix = distances(kept, level)
    within = math.fsum(matrix.ravel().tolist()) / (n * (n - 1))
    if level == "ncd":
        nulls = divergence.null_compression(kept_sorted, draws, seed)
    else:
        nulls = divergence.null_means(codes, level, len(names), draws, seed)
    null = math.fsum(nulls.tolist()) / draws
    if null <= 1e-12:
        return Unavailable("null_zero_single_tool", "all draws from the pool are identical", n)
    spread: float | Unavailable = Unavailable("n_below_minimum", "one draw has no spread", draws)
    error = ratio_error = spread
    if draws > 1:
        spread = math.sqrt(math.fsum((x - null) ** 2 for x in nulls.tolist()) / (draws - 1))
        error = spread / math.sqrt(draws)
        ratio_error = within / null * error / null
    near = 1e-9  # draws that tie but for rounding tie
    return Reliability(
        within=within,
        null=null,
        null_sd=spread,
        null_se=error,
        ratio=within / null,
        ratio_se=ratio_error,
        reliable=within / null < RELIABLE_BELOW,
        p_structure=(1 + int((nulls <= within + near).sum())) / (draws + 1),
        p_heterogeneous=(1 + int((nulls >= within - near).sum())) / (draws + 1),
        procedure_ratio=_procedure_ratio(kept_sorted, level, within, min(draws, _SHUFFLES), seed),
        level=level,
        n_runs=n,
        n_excluded=excluded,
        n_missing=missing,
        draws=draws,
        seed=seed,
        to_others=tuple(math.fsum(row) / (n - 1) for row in matrix.tolist()),
        compressor=COMPRESSOR if level == "ncd" else "",
    )


def _procedure_ratio(
    streams: Sequence[Stream], level: str, within: float, shuffles: int, seed: int
) -> float | Unavailable:
    if level == "freq":
        return Unavailable("order_not_counted", n=len(streams))
    codes, names = divergence.encode(streams)
    random, means = Draws(seed + 1), []
    for _ in range(shuffles):
        shuffled = [random.shuffled(code) for code in codes]
        if level == "order":
            rows = [divergence.counted(code, level, len(names)) for code in codes]
            means.append(
                divergence.cross_mean(rows, [divergence.counted(code, level, len(names)) for code in shuffled])
            )
        else:
            texts = [divergence.as_text([names[i] for i in code]) for code in shuffled]
            means.append(_cross_compression([divergence.as_text(stream) for stream in streams], texts))
    mean = math.fsum(means) / shuffles
    return within / mean if mean > 1e-12 else Unavailable("null_zero_single_tool", "shuffling changes nothing")


def _cross_compression(texts: Sequence[bytes], others: Sequence[bytes]) -> float:
    sizes, other_sizes = [divergence.compressed(t) for t in texts], [divergence.compressed(t) for t in others]
    n = len(texts)
    found = [
        divergence.compression_distance(texts[i], others[j], sizes[i], other_sizes[j])
        for i in range(n)
        for j in range(n)
        if i != j
    ]
    return math.fsum(found) / len(found)


# -- do arms differ ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attainability(Result):
    """What any outcome of a design could show, before anything is run.

    Args:
        p_min: the smallest p that any outcome could have.
        attainable: whether that is no more than alpha; when not, "no difference was shown" says nothing.
        alpha: the level asked for.
        labelings: ways to give the runs their labels.
        partitions: those of them that differ by more than the names of arms of one size.
        scheme: ``unrestricted``, or ``within_seed`` when labels move among the runs of one seed only.
    """

    p_min: float
    attainable: bool
    alpha: float
    labelings: int
    partitions: int
    scheme: str


def attainability(sizes: Sequence[int], alpha: float = 0.05, *, shared_seeds: bool = False) -> Attainability:
    """The smallest p a comparison of arms of these sizes can have.

    Args:
        sizes: runs of each arm, at least two arms of at least one run.
        alpha: the level asked for.
        shared_seeds: whether each seed means the same start in every arm; then all sizes must be equal.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ConfigurationError(
            f"arms of {list(sizes)} runs cannot be compared; write two or more arms of one or more"
        )
    design = Design(tuple(sizes))
    if shared_seeds and len(set(sizes)) == 1:
        blocked = Design(tuple(sizes), sizes[0])
        design = blocked if blocked.p_min <= alpha else design
    return Attainability(design.p_min, design.p_min <= alpha, alpha, design.labelings, design.partitions, design.scheme)


@dataclass(frozen=True)
class RunDistance:
    """Mean distance of one run to the other runs of its arm, and to the runs of other arms."""

    arm: str
    seed: Any
    to_own: float | None
    to_others: float


@dataclass(frozen=True)
class BetweenWithin(Finding):
    """How much farther runs of different arms are apart than runs of one arm.

    Args:
        R: between / within; 1 without a difference, larger is farther apart, no upper bound.
        within: mean distance of pairs of runs of one arm.
        between: mean distance of pairs of runs of different arms.
        index: (between - within) / (between + within), -1 to 1: R on a bounded scale.
        p: the p that counts, as ``p_of`` says.
        p_of: ``R`` or ``welch``.
        p_R: share of relabelings whose R is at least the actual one. Arms of unequal size and dispersion, or of streams
            of unequal length, make it small without any difference of policy.
        p_R_se: its Monte-Carlo error, 0 when exact.
        welch: W_d, the Welch distance of the arms' centres: robust against unequal sizes and dispersions.
        p_welch: share of relabelings whose W_d is at least the actual one.
        p_welch_se: its Monte-Carlo error, 0 when exact.
        p_min: the smallest p that any outcome of this design could have.
        alpha: level that is asked for.
        attainable: whether ``p_min`` is no more than ``alpha``.
        exact: whether all relabelings were gone through.
        relabelings: how many were.
        labelings: how many there are.
        partitions: those that differ by more than the names of arms of one size.
        scheme: ``unrestricted``, or ``within_seed``.
        R_balanced: mean over pairs of arms of their mean distance / mean over arms of their mean distance within.
        level: level of the distances, or ``given``.
        cut_to: number of consecutive actions of each run that ``welch`` and its p were computed from; None for all.
        n: runs compared.
        sizes: arm → runs compared.
        n_excluded: runs left out because they were too short.
        n_missing: runs without a stream.
        seed: of the drawn relabelings.
        observations: one a run, arm by arm.
        warnings: sentences that belong beside the numbers.
        by_episode: the same at each episode, with one error rate for all of them; see ``measure.episodes``.
        placebos: identical copy of an arm → its separation from that arm, whose p is small by chance alone.
        with_missing: number → its least and most with missing runs put in, see ``measure.missing``; empty without any.
    """

    R: float | Unavailable
    within: float
    between: float
    index: float | Unavailable
    p: float
    p_of: str
    p_R: float  # noqa: N815
    p_R_se: float  # noqa: N815
    welch: float | Unavailable
    p_welch: float | Unavailable
    p_welch_se: float | Unavailable
    p_min: float
    alpha: float
    attainable: bool
    exact: bool
    relabelings: int
    labelings: int
    partitions: int
    scheme: str
    R_balanced: float | Unavailable
    level: str
    cut_to: int | None
    n: int
    sizes: dict[str, int]
    n_excluded: int
    n_missing: int
    seed: int
    observations: tuple[RunDistance, ...]
    warnings: tuple[str, ...] = ()
    by_episode: SeparationCourse | Unavailable = _NOT_MEASURED
    placebos: Mapping[str, BetweenWithin | Unavailable] = field(default_factory=dict)
    with_missing: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    @property
    def finding(self) -> str:
        """What was found along the episodes and of copies, in a sentence; empty where neither was looked at."""
        said = [self.by_episode.finding] if not isinstance(self.by_episode, Unavailable) else []
        for copy, placebo in self.placebos.items():
            if isinstance(placebo, Unavailable):
                said.append(f"{copy} cannot be compared with the arm that it copies: {placebo.as_dict()['detail']}")
            else:
                verdict = "no difference" if placebo.p > placebo.alpha else "a difference, which is chance"
                said.append(f"{copy} beside the arm that it copies: {verdict} (p {placebo.p:.3g})")
        return "; ".join(said)


@dataclass
class _Runs:
    """Runs in an order that does not depend on how they were given, as far as that can be."""

    arms: list[str]
    codes: NDArray[np.int16]
    seeds: list[Hashable]
    matrix: Floats
    level: str
    excluded: int
    missing: int
    warnings: list[str]
    streams: list[list[str]]


def between_within(
    streams: Mapping[str, Sequence[Stream | None]] | ArrayLike,
    level: str = "freq",
    permutations: int = 10_000,
    seed: int = 0,
    *,
    labels: Sequence[str] | None = None,
    seeds: Mapping[str, Sequence[Hashable]] | Sequence[Hashable] | None = None,
    shared_seeds: bool = True,
    alpha: float = 0.05,
) -> BetweenWithin | Unavailable:
    """R, the mean distance between arms over that within arms, and whether relabeling the runs gives as much.

    ``p`` is R's; ``separation`` returns the same with the p that gates by default. Exact when there are at most 50,000
    relabelings, else (hits + 1) / (N + 1) (Phipson and Smyth 2010). For arms of one size m, R = 1 + (F - 1) / m with
    PERMANOVA's F on the root of the divergence, so an R slightly below 1 is no sign of anything.

    Args:
        streams: arm → one stream a run, None for a run that has none; or the n × n symmetric matrix of the distances
            of all runs, with ``labels``.
        level: ``freq``, ``order`` or ``ncd``; not used with a matrix.
        permutations: relabelings drawn when not all are gone through.
        seed: of those draws.
        labels: the arm of each row of a matrix.
        seeds: the seed of each run, in the shape of ``streams`` or ``labels``. A run that appears twice is refused.
        shared_seeds: whether a seed means the same start in every arm. Labels then move among the runs of one seed
            only, provided that every seed has a run in every arm and that this can reach ``alpha``.
        alpha: level for ``attainable``.

    Raises:
        ConfigurationError: arms, seeds and labels that do not fit together, or two runs of one arm and seed.
    """
    runs = _runs(streams, level, labels, seeds)
    return _analysed(runs, permutations, seed, shared_seeds and seeds is not None, alpha)


def _analysed(runs: _Runs, permutations: int, seed: int, shared: bool, alpha: float) -> BetweenWithin | Unavailable:
    if permutations < 1:
        raise ConfigurationError(f"permutations is {permutations}; write 1 or more")
    sizes = np.bincount(runs.codes, minlength=len(runs.arms)).tolist() if len(runs.codes) else []
    if len(sizes) < 2:
        return Unavailable("fewer_than_two_labels", n=len(runs.codes))
    if max(sizes) < 2:
        return Unavailable("no_label_with_two_streams", n=len(runs.codes))
    design, seed_of = relabeling(runs.seeds, sizes, shared, alpha, runs.warnings)
    return _compared(runs, sizes, design, seed_of, permutations, seed, alpha)


def separation(
    streams: Mapping[str, Sequence[Stream | None]] | ArrayLike,
    level: str = "freq",
    permutations: int = 10_000,
    seed: int = 0,
    *,
    labels: Sequence[str] | None = None,
    seeds: Mapping[str, Sequence[Hashable]] | Sequence[Hashable] | None = None,
    shared_seeds: bool = True,
    alpha: float = 0.05,
    same_length: bool = True,
) -> BetweenWithin | Unavailable:
    """``between_within`` with the p that gates by default: the Welch distance's, R's where that is unavailable.

    Args:
        same_length: whether the Welch distance of runs of unequal length is that of one stretch of each, as long as the
            shortest run, from a random place that ``seed`` decides. Without it a difference in length alone passes for
            a difference.

    The other arguments are those of ``between_within``.
    """
    runs = _runs(streams, level, labels, seeds)
    shared = shared_seeds and seeds is not None
    found = _analysed(runs, permutations, seed, shared, alpha)
    if isinstance(found, Unavailable):
        return found
    unequal = len({len(stream) for stream in runs.streams}) > 1
    if unequal and same_length and not isinstance(found.p_welch, Unavailable):
        found = _cut(found, runs, permutations, seed, shared)
    if isinstance(found.p_welch, Unavailable):
        said = f"p is R's, which unequal arms distort: {found.p_welch.as_dict()['detail']}"
        return dataclasses.replace(found, warnings=(*found.warnings, said))
    return dataclasses.replace(found, p=found.p_welch, p_of="welch")


def _cut(found: BetweenWithin, runs: _Runs, permutations: int, seed: int, shared: bool) -> BetweenWithin:
    """The same with the Welch distance of stretches as long as the shortest run."""
    lengths = sorted(len(stream) for stream in runs.streams)
    shortest, middle = lengths[0], lengths[len(lengths) // 2]
    matrix = same_length_distances(runs.streams, runs.level, seed)
    other = _analysed(dataclasses.replace(runs, matrix=matrix, warnings=[]), permutations, seed, shared, found.alpha)
    if isinstance(other, Unavailable):
        return found
    said = (
        f"the Welch distance and p are those of {shortest} actions of each run in a row, from a random place: the "
        f"shortest run has no more of them"
    )
    return dataclasses.replace(
        found,
        welch=other.welch,
        p_welch=other.p_welch,
        p_welch_se=other.p_welch_se,
        cut_to=shortest,
        warnings=(*found.warnings, said) if shortest < 0.8 * middle else found.warnings,
    )


def _runs(
    streams: Mapping[str, Sequence[Stream | None]] | ArrayLike,
    level: str,
    labels: Sequence[str] | None,
    seeds: Mapping[str, Sequence[Hashable]] | Sequence[Hashable] | None,
) -> _Runs:
    if isinstance(streams, Mapping):
        if labels is not None or isinstance(seeds, Sequence):
            raise ConfigurationError("streams by arm have their labels; write seeds={arm: [seed, …]}, and no labels=")
        return _runs_of_streams(streams, level, seeds)
    if labels is None:
        raise ConfigurationError("a matrix of distances needs labels=[arm of each row, …]")
    if isinstance(seeds, Mapping):
        raise ConfigurationError("with a matrix, seeds is a list: the seed of each row")
    return _runs_of_matrix(streams, labels, seeds)


def _runs_of_matrix(given: ArrayLike, labels: Sequence[str], seeds: Sequence[Hashable] | None) -> _Runs:
    matrix = np.asarray(given, dtype=np.float64)
    n = len(labels)
    if matrix.shape != (n, n):
        raise ConfigurationError(f"distances of shape {matrix.shape} and {n} labels do not fit; give n × n and n")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or (matrix != matrix.T).any() or matrix.diagonal().any():
        raise ConfigurationError("distances must be finite, at least 0, symmetric, and 0 on the diagonal")
    if seeds is not None and len(seeds) != n:
        raise ConfigurationError(f"there are {len(seeds)} seeds and {n} labels; give one for each row")
    names = [str(label) for label in labels]
    arms = sorted(set(names))
    codes = np.array([arms.index(name) for name in names], dtype=np.int16)
    own: list[Hashable] = list(seeds) if seeds is not None else [None] * n
    _refuse_repeats([(name, seed) for name, seed in zip(names, own, strict=True) if seeds is not None])
    return _Runs(arms, codes, own, matrix, "given", 0, 0, [], [])


def _runs_of_streams(
    streams: Mapping[str, Sequence[Stream | None]], level: str, seeds: Mapping[str, Sequence[Hashable]] | None
) -> _Runs:
    _check_level(level)
    listed: list[tuple[list[str], str, Hashable]] = []
    excluded = missing = 0
    for arm, own in streams.items():
        own_seeds = seeds.get(arm, ()) if seeds is not None else [None] * len(own)
        if len(own_seeds) != len(own):
            raise ConfigurationError(
                f"arm {arm!r} has {len(own)} streams and {len(own_seeds)} seeds; give one for each"
            )
        if seeds is not None:
            _refuse_repeats([(str(arm), seed) for seed in own_seeds])
        for stream, seed in zip(own, own_seeds, strict=True):
            if stream is None:
                missing += 1
            elif _too_short(stream, level):
                excluded += 1
            else:
                listed.append((list(stream), str(arm), seed))
    # the drawn relabelings must depend neither on the order of arms and runs nor on the arms' names
    content = {str(arm): sorted(list(one) for one in own if one is not None) for arm, own in streams.items()}
    rank = {arm: i for i, arm in enumerate(sorted(content, key=lambda arm: content[arm]))}
    listed.sort(key=lambda run: (repr(run[2]), run[0], rank[run[1]]))
    warnings = [f"{excluded} runs are too short for level {level!r} and were left out"] if excluded else []
    if missing:
        warnings.append(f"{missing} runs are missing: which ones may depend on what they did")
    arms = sorted({arm for _, arm, _ in listed})
    if len(arms) < len(streams):
        warnings.append("an arm has no run that could be compared")
    if len(arms) > 1:
        warnings += _unequal_lengths(listed)
    return _Runs(
        arms,
        np.array([arms.index(arm) for _, arm, _ in listed], dtype=np.int16),
        [seed for _, _, seed in listed],
        distances([stream for stream, _, _ in listed], level),
        level,
        excluded,
        missing,
        warnings,
        [stream for stream, _, _ in listed],
    )


def _unequal_lengths(listed: Sequence[tuple[list[str], str, Hashable]]) -> list[str]:
    lengths: dict[str, list[int]] = {}
    for stream, arm, _ in listed:
        lengths.setdefault(arm, []).append(len(stream))
    means = [sum(own) / len(own) for own in lengths.values()]
    if max(means) <= 2 * min(means):
        return []
    return [
        f"streams of one arm are {max(means) / min(means):.1f} times as long as those of another: shorter streams are"
        " farther from everything, which R and its p take for a difference"
    ]


def _refuse_repeats(runs: Sequence[tuple[str, Hashable]]) -> None:
    for run, count in Counter(runs).items():
        if count > 1:
            raise ConfigurationError(
                f"arm {run[0]!r} has {count} streams of seed {run[1]!r}, but the run is the unit: join its episodes,"
                " or give mean_distances() of them with labels="
            )


def relabeling(
    seeds: Sequence[Hashable], sizes: Sequence[int], shared: bool, alpha: float, warnings: list[str]
) -> tuple[Design, NDArray[np.intp] | None]:
    """How the labels of runs may move, and the number of each run's seed when they move within seeds only.

    Args:
        seeds: the seed of each run.
        sizes: runs of each arm.
        shared: whether a seed means the same start in every arm.
        alpha: level that moving within seeds has to be able to reach.
        warnings: gets a sentence when labels move freely although seeds are shared.
    """
    free = Design(tuple(sizes))
    if not shared:
        return free, None
    names = sorted(set(seeds), key=repr)
    blocked = Design(tuple(sizes), len(names))
    if any(size != len(names) for size in sizes):
        warnings.append("labels moved freely, because not every seed has a run in every arm")
        return free, None
    if blocked.p_min > alpha and free.p_min < blocked.p_min:
        warnings.append(f"labels moved freely, because moving them within seeds cannot give p ≤ {alpha:g}")
        return free, None
    number = {name: i for i, name in enumerate(names)}
    return blocked, np.array([number[seed] for seed in seeds], dtype=np.intp)


def _compared(
    runs: _Runs,
    sizes: list[int],
    design: Design,
    seed_of: NDArray[np.intp] | None,
    permutations: int,
    seed: int,
    alpha: float,
) -> BetweenWithin:
    arms, codes = len(sizes), runs.codes
    whole = [on_grid(runs.matrix)]
    inside, outside = next(arm_sums(whole, codes[None, :], arms))
    robust = min(sizes) > 1 and bool((inside > 0).all())
    # each distance is off by up to half a unit of the grid: sums that tie but for that tie
    actual = float(inside.sum()) + sum(size * (size - 1) // 2 for size in sizes)
    far = float(welch(inside, outside, sizes)[0]) if robust else 0.0
    hits = far_hits = count = 0
    for labels in design.batches(codes, seed_of, permutations, seed):
        own, others = next(arm_sums(whole, labels, arms))
        hits += int((own.sum(axis=0) <= actual).sum())
        if robust:
            far_hits += int((welch(own, others, sizes) >= far - 1e-9 * abs(far)).sum())
        count += len(labels)
    missing = Unavailable("welch_needs_dispersion", n=len(codes))
    p, p_se = _p(hits, count, design.exact)
    p_far, p_far_se = _p(far_hits, count, design.exact) if robust else (missing, missing)
    p_min = max(design.p_min, 0.0 if design.exact else 1 / (count + 1))
    sums = _Sums(runs.matrix, codes, sizes)
    warnings = [*runs.warnings, *sums.warnings()]
    if p_min > alpha:
        warnings.append(f"no outcome of this design could give p ≤ {alpha:g}: the smallest is {p_min:.3g}")
    return BetweenWithin(
        R=sums.ratio(),
        within=sums.within,
        between=sums.between,
        index=sums.index(),
        p=p,
        p_of="R",
        p_R=p,
        p_R_se=p_se,
        welch=far if robust else missing,
        p_welch=p_far,
        p_welch_se=p_far_se,
        p_min=p_min,
        alpha=alpha,
        attainable=p_min <= alpha,
        exact=design.exact,
        relabelings=count,
        labelings=design.labelings,
        partitions=design.partitions,
        scheme=design.scheme,
        R_balanced=sums.balanced(),
        level=runs.level,
        cut_to=None,
        n=len(codes),
        sizes=dict(zip(runs.arms, sizes, strict=True)),
        n_excluded=runs.excluded,
        n_missing=runs.missing,
        seed=seed,
        observations=_observations(runs, sizes),
        warnings=tuple(warnings),
    )


def _p(hits: int, count: int, exact: bool) -> tuple[float, float]:
    """p and its Monte-Carlo error."""
    if exact:
        return float(Fraction(hits, count)), 0.0
    p = (hits + 1) / (count + 1)
    return p, math.sqrt(p * (1 - p) / count)


class _Sums:
    """Mean distances of the runs as they are labeled."""

    def __init__(self, matrix: Floats, codes: NDArray[np.int16], sizes: Sequence[int]) -> None:
        self._sizes, self._own, self._pairs = sizes, [], []
        members = [np.nonzero(codes == code)[0] for code in range(len(sizes))]
        for own in members:
            self._own.append(math.fsum(matrix[np.ix_(own, own)].ravel().tolist()) / 2)
        for a, b in itertools.combinations(members, 2):
            self._pairs.append(math.fsum(matrix[np.ix_(a, b)].ravel().tolist()))
        within_pairs = sum(size * (size - 1) // 2 for size in sizes)
        between_pairs = sum(a * b for a, b in itertools.combinations(sizes, 2))
        self.within = math.fsum(self._own) / within_pairs
        self.between = math.fsum(self._pairs) / between_pairs

    def _undefined(self) -> Unavailable:
        reason = "within_zero" if self.between > 0 else "all_streams_identical"
        return Unavailable(reason, n=sum(self._sizes))

    def ratio(self) -> float | Unavailable:
        return self.between / self.within if self.within > 0 else self._undefined()

    def index(self) -> float | Unavailable:
        total = self.between + self.within
        return (self.between - self.within) / total if total > 0 else self._undefined()

    def _dispersions(self) -> list[float]:
        return [s / (n * (n - 1) / 2) for s, n in zip(self._own, self._sizes, strict=True) if n > 1]

    def balanced(self) -> float | Unavailable:
        sizes = itertools.combinations(self._sizes, 2)
        apart = [s / (a * b) for s, (a, b) in zip(self._pairs, sizes, strict=True)]
        own = math.fsum(self._dispersions()) / len(self._dispersions())
        return math.fsum(apart) / len(apart) / own if own > 0 else self._undefined()

    def warnings(self) -> list[str]:
        own = self._dispersions()
        if len(set(self._sizes)) > 1 and max(own) > 2 * min(own):
            return ["arms have unequal sizes and unequal dispersion: R and its p mix the two up; read p_welch"]
        return []


def _observations(runs: _Runs, sizes: Sequence[int]) -> tuple[RunDistance, ...]:
    n, out = len(runs.codes), []
    for i in np.argsort(runs.codes, kind="stable").tolist():
        code = int(runs.codes[i])
        mine = runs.codes == code
        own = math.fsum(runs.matrix[i, mine].tolist())
        others = math.fsum(runs.matrix[i, ~mine].tolist())
        alone = sizes[code] < 2
        out.append(
            RunDistance(
                runs.arms[code], runs.seeds[i], None if alone else own / (sizes[code] - 1), others / (n - sizes[code])
            )
        )
    return tuple(out)
