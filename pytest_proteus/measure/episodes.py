"""Do arms differ at every episode, not only at the last: effects along the runs with one error rate for all of them.

Runs are compared at the same episode. All episodes share their relabelings, so what is common to the episodes of a run
is not taken for independent evidence. Which episode matters is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.divergence import Floats
from pytest_proteus.measure.relabel import arm_sums, on_grid, welch
from pytest_proteus.measure.stream import Stream, distances, relabeling, same_length_distances
from pytest_proteus.measure.unavailable import Result, Unavailable

__all__ = ["EpisodeSeparation", "SeparationCourse", "separation_by_episode"]


@dataclass(frozen=True)
class EpisodeSeparation(Result):
    """How far arms are apart at one episode.

    Args:
        episode: one-based.
        R: mean distance between arms / within arms.
        index: (between - within) / (between + within), -1 to 1; larger is farther apart.
        welch: W_d, of stretches of one length where runs differ in length.
        critical: what ``welch`` would have to reach so that any episode reaching its own counts, with the error rate
            alpha for all episodes together.
        p: p of this episode alone: that of ``welch``, or R's where an arm's runs do not differ and it has none.
        p_adjusted: p that holds for all episodes together.
        n: runs compared.
        n_missing: runs without this episode.
    """

    episode: int
    R: float | Unavailable
    index: float | Unavailable
    welch: float | Unavailable
    critical: float | Unavailable
    p: float | Unavailable
    p_adjusted: float | Unavailable
    n: int
    n_missing: int


@dataclass(frozen=True)
class SeparationCourse(Result):
    """``EpisodeSeparation`` of each episode, and what they share.

    Args:
        episodes: one for each episode of the longest run.
        p: the smallest adjusted p: of "the arms differ at no episode".
        p_min: the smallest p that any outcome could have.
        alpha: error rate of ``critical``.
        level: level of the distances.
        scheme: ``unrestricted`` or ``within_seed``.
        exact: whether all relabelings were gone through.
        relabelings: how many were.
        seed: of the drawn ones.
        warnings: sentences that belong beside the numbers.
    """

    episodes: tuple[EpisodeSeparation, ...]
    p: float | Unavailable
    p_min: float
    alpha: float
    level: str
    scheme: str
    exact: bool
    relabelings: int
    seed: int
    warnings: tuple[str, ...]

    @property
    def finding(self) -> str:
        """At which episodes the arms differ, in a sentence."""
        if isinstance(self.p, Unavailable):
            return f"by episode: {self.p.as_dict()['detail']}"
        apart = [one.episode for one in self.episodes if _at_most(one.p_adjusted, self.alpha)]
        missing = [one.episode for one in self.episodes if isinstance(one.p, Unavailable)]
        lacking = f"; not compared: {_ranges(missing)}" if missing else ""
        if self.p_min > self.alpha:
            return f"by episode: so few runs can show no difference at {self.alpha:g}{lacking}"
        where = f"at episodes {_ranges(apart)}" if apart else "at no episode"
        return f"by episode: arms differ {where} (p for all episodes together {self.p:.3g}){lacking}"


def _at_most(p: float | Unavailable, alpha: float) -> bool:
    return not isinstance(p, Unavailable) and p <= alpha


@dataclass
class _Episode:
    streams: list[Stream]
    missing: int
    whole: Floats | None = None
    plain: Floats | None = None
    why: Unavailable | None = None
    weighed: bool = True  # by the Welch distance; else by R, because an arm has no dispersion


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as ``1, 3-5``."""
    parts: list[list[int]] = []
    for one in numbers:
        if parts and one == parts[-1][-1] + 1:
            parts[-1].append(one)
        else:
            parts.append([one])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def separation_by_episode(
    runs: Mapping[str, Sequence[Sequence[Stream | None]]],
    level: str = "freq",
    permutations: int = 10_000,
    seed: int = 0,
    *,
    seeds: Mapping[str, Sequence[Hashable]] | None = None,
    shared_seeds: bool = True,
    alpha: float = 0.05,
) -> SeparationCourse | Unavailable:
    """The Welch distance of arms at each episode, with a p for each and one for all together.

    The latter is that of the smallest p over the same relabelings of whole runs (Westfall and Young 1993). An episode
    that not every run has, or at which a run did too little for the level, is unavailable: which runs are
    missing may depend on what they did.

    Args:
        runs: arm → runs → the stream of each episode in order, None where there is none.
        level: ``freq``, ``order`` or ``ncd``.
        permutations: relabelings drawn when not all are gone through.
        seed: of those draws.
        seeds: arm → the seed of each run.
        shared_seeds: whether a seed means the same start in every arm; see ``measure.stream.between_within``.
        alpha: error rate for all episodes together.
    """
    arms = [arm for arm in runs if len(runs[arm])]
    if len(arms) < 2:
        return Unavailable("fewer_than_two_labels", n=len(arms))
    sizes = [len(runs[arm]) for arm in arms]
    if min(sizes) < 2:
        return Unavailable("welch_needs_dispersion", "an arm has one run only", sum(sizes))
    if permutations < 1:
        raise ConfigurationError(f"permutations is {permutations}; write 1 or more")
    every = [run for arm in arms for run in runs[arm]]
    codes = np.repeat(np.arange(len(arms)), sizes).astype(np.int16)
    listed: list[Hashable] = [None] * len(every)
    if seeds is not None:
        listed = [one for arm in arms for one in seeds[arm]]
        pairs = list(zip(codes.tolist(), listed, strict=True))
        if len(set(pairs)) < len(pairs):
            raise ConfigurationError("a seed appears twice in one arm, but the run is the unit: join its episodes")
    warnings: list[str] = []
    design, seed_of = relabeling(listed, sizes, shared_seeds and seeds is not None, alpha, warnings)
    found = [_episode(every, at, level, seed) for at in range(max(map(len, every)))]
    usable = [one for one in found if one.why is None]
    wholes = [one.whole for one in usable if one.whole is not None]
    for one, (inside, _) in zip(usable, arm_sums(wholes, codes[None, :], len(arms)), strict=True):
        one.weighed = bool((inside > 0).all())

    def apart(labels: NDArray[np.int16]) -> Floats:
        """How far apart the arms are: episodes × labelings."""
        sums = arm_sums(wholes, labels, len(arms))
        return np.array([_apart(one, *found, sizes) for one, found in zip(usable, sums, strict=True)])

    blocks = [apart(codes[None, :])]
    blocks += [apart(labels) for labels in design.batches(codes, seed_of, permutations, seed)] if usable else []
    table = np.concatenate(blocks[1:] if design.exact else blocks, axis=1) if usable else np.zeros((0, 0))
    p, adjusted, critical = _together(table, blocks[0][:, 0] if usable else np.zeros(0), alpha)
    where = {id(one): row for row, one in enumerate(usable)}
    rows: list[EpisodeSeparation] = []
    for at, one in enumerate(found):
        row = where.get(id(one))
        rows.append(
            _row(
                at + 1,
                one,
                codes,
                sizes,
                None if row is None else (blocks[0][row, 0], p[row], adjusted[row], critical[row]),
            )
        )
    return SeparationCourse(
        episodes=tuple(rows),
        p=float(min(adjusted)) if usable else Unavailable("n_below_minimum", "no episode can be compared", len(every)),
        p_min=max(design.p_min, 0.0 if design.exact else 1 / (permutations + 1)),
        alpha=alpha,
        level=level,
        scheme=design.scheme,
        exact=design.exact,
        relabelings=design.labelings if design.exact else permutations,
        seed=seed,
        warnings=tuple(warnings),
    )


def _episode(runs: Sequence[Sequence[Stream | None]], at: int, level: str, seed: int) -> _Episode:
    streams = [run[at] for run in runs if len(run) > at and run[at] is not None]
    kept = [stream for stream in streams if stream is not None]
    missing, shortest = len(runs) - len(kept), 2 if level == "order" else 1
    if missing:
        return _Episode(kept, missing, why=Unavailable("missing_runs", f"{missing} runs lack this episode", len(kept)))
    if min(map(len, kept)) < shortest:
        return _Episode(kept, 0, why=Unavailable("empty_stream" if shortest == 1 else "fewer_than_two_actions"))
    plain = distances(kept, level)
    whole = on_grid(same_length_distances(kept, level, seed + at))
    return _Episode(kept, 0, whole, plain)


def _apart(episode: _Episode, inside: Floats, between: Floats, sizes: Sequence[int]) -> Floats:
    """How far apart the arms of each labeling are: W_d; without dispersion, R, which grows as those within shrink."""
    return welch(inside, between, sizes) if episode.weighed else -inside.sum(axis=0)


def _together(table: Floats, actual: Floats, alpha: float) -> tuple[list[float], list[float], list[float]]:
    """p, p for all episodes together, and the critical value, of each row (episode) of a table of labelings."""
    count = table.shape[1] if table.size else 0
    if not count:
        return [], [], []
    smallest = np.ones(count)
    places = [np.argsort(row) for row in table]
    ordered = [row[place] for row, place in zip(table, places, strict=True)]
    shares = [_share(known, known) for known in ordered]
    for place, share in zip(places, shares, strict=True):
        smallest[place] = np.minimum(smallest[place], share)
    own = [float(_share(known, np.array([value]))[0]) for known, value in zip(ordered, actual, strict=True)]
    adjusted = [float((smallest <= p * (1 + 1e-12)).mean()) for p in own]
    reached = np.sort(smallest)
    # the largest p of an episode that no more than alpha of the labelings reach at any of theirs
    levels = [level for level in sorted(set(reached.tolist())) if (reached <= level).mean() <= alpha]
    limit = levels[-1] if levels else 0.0
    critical = []
    for known, share in zip(ordered, shares, strict=True):
        far = known[share <= limit]
        critical.append(float(far[0]) if len(far) else math.inf)
    return own, adjusted, critical


def _share(known: Floats, values: Floats) -> Floats:
    """Share of the sorted ``known`` that is at least as large as each value, but for rounding."""
    out: Floats = (len(known) - np.searchsorted(known, values - 1e-9 * np.abs(values), side="left")) / len(known)
    return out


def _row(
    number: int,
    episode: _Episode,
    codes: NDArray[np.int16],
    sizes: Sequence[int],
    found: tuple[float, float, float, float] | None,
) -> EpisodeSeparation:
    why = Unavailable("not_measured") if episode.why is None else episode.why
    ratio: float | Unavailable = why
    index: float | Unavailable = why
    if episode.plain is not None:
        same = codes[:, None] == codes
        pairs = sum(size * (size - 1) // 2 for size in sizes)
        within = float(episode.plain[same].sum()) / 2 / pairs
        between = float(episode.plain[~same].sum()) / 2 / (len(codes) * (len(codes) - 1) // 2 - pairs)
        none = Unavailable("within_zero" if between > 0 else "all_streams_identical", n=len(codes))
        ratio = between / within if within > 0 else none
        index = (between - within) / (between + within) if between + within > 0 else none
    value, p, adjusted, critical = found or (why, why, why, why)
    if found and not episode.weighed:
        value = critical = Unavailable("welch_needs_dispersion", "p is R's", len(codes))
    if isinstance(critical, float) and critical == math.inf:
        critical = Unavailable("p_min_above_alpha", n=len(codes))
    return EpisodeSeparation(
        episode=number,
        R=ratio,
        index=index,
        welch=value if isinstance(value, Unavailable) else float(value),
        critical=critical,
        p=p,
        p_adjusted=adjusted,
        n=len(episode.streams),
        n_missing=episode.missing,
    )
