"""Has an episode history become part of the harness: do checkpoints, once their disposition is gone, still act alike?

A probe is a run that starts from a checkpoint under another disposition, mostly the neutral one. Its stream is compared
with those of the arms' endpoints. Probes are run elsewhere; only ``materialize_state`` writes, into the folder that it
is given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytest_proteus.core import snapshot
from pytest_proteus.core.adapter import HarnessAdapter
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import stream
from pytest_proteus.measure.divergence import Draws
from pytest_proteus.measure.stream import BetweenWithin, Stream
from pytest_proteus.measure.unavailable import Result, Unavailable

__all__ = [
    "Fidelity",
    "JointFidelity",
    "Mount",
    "arm_shift",
    "fidelity",
    "joint_assignment",
    "joint_fidelity",
    "materialize_state",
]

#: Assignments of probes to endpoints are enumerated up to so many probes.
ENUMERATED_PROBES = 8
_NEAR = 1e-12
_DISTANCES = {"freq": stream.freq_distance, "order": stream.order_distance, "ncd": stream.ncd}


@dataclass(frozen=True)
class Mount:
    """One probe to run: which run's checkpoint, and the disposition to run it under."""

    seed: str
    checkpoint: int
    disposition: Disposition


def materialize_state(
    evolved_root: Path, checkpoint: int, dest: Path, adapter: HarnessAdapter, disposition: Disposition
) -> Path:
    """Write the harness of an episode to ``dest/harness``, under another disposition; gives that folder.

    Args:
        evolved_root: root of the run; its snapshots are read and nothing of it is changed.
        checkpoint: the episode; 0 is the seeded state.
        dest: folder for the copy; made when missing.
        adapter: installs the disposition.
        disposition: what replaces the disposition of the run.

    Raises:
        ConfigurationError: the run has no such checkpoint, or ``dest`` holds a harness already.
    """
    work_tree, target = Path(evolved_root) / "harness", Path(dest) / "harness"
    commit = snapshot.commit_for_episode(work_tree, checkpoint)
    if commit is None:
        raise ConfigurationError(f"the run at {evolved_root} has no snapshot of episode {checkpoint}")
    if target.exists() and any(target.iterdir()):
        raise ConfigurationError(f"{target} holds something already; name another folder")
    snapshot.materialize(work_tree, commit, target)
    adapter.install_disposition(target, disposition)
    return target


@dataclass(frozen=True)
class Fidelity(Result):
    """Whether a probe acts like its own endpoint rather than like others.

    Args:
        to_own: distance to the own endpoint.
        to_others: mean distance to the others.
        ratio: to_own / to_others; below 1 is closer to its own.
        index: (to_others - to_own) / (to_others + to_own), -1 to 1: larger is more faithful.
        rank_p: (1 + others that are no farther than the own) / (others + 1).
        p_min: the smallest ``rank_p`` with so many others; 0.05 takes 19 of them.
        n_others: other endpoints compared.
        n_excluded: others left out because they were too short.
        level: level of the distances.
        others: the distance to each of them.
    """

    to_own: float
    to_others: float
    ratio: float | Unavailable
    index: float | Unavailable
    rank_p: float
    p_min: float
    n_others: int
    n_excluded: int
    level: str
    others: tuple[float, ...]


def fidelity(
    probe_stream: Stream, own_endpoint: Stream, other_endpoints: Sequence[Stream], *, level: str = "freq"
) -> Fidelity | Unavailable:
    """How close a probe's stream is to that of its own endpoint, beside its distance to other endpoints.

    Ratios to a distance of zero are unavailable (``to_others_zero``, ``endpoints_indistinguishable``), never a large
    number. Unavailable as a whole without an own or any other endpoint.
    """
    if level not in _DISTANCES:
        raise ConfigurationError(f"level {level!r} is not known; write one of {', '.join(_DISTANCES)}")
    distance = _DISTANCES[level]
    own = distance(probe_stream, own_endpoint)
    if isinstance(own, Unavailable):
        return own
    measured = [distance(probe_stream, other) for other in other_endpoints]
    others = [found for found in measured if not isinstance(found, Unavailable)]
    if not others:
        return Unavailable("no_other_endpoints", n=0)
    mean, count = math.fsum(others) / len(others), len(others)
    none = Unavailable("endpoints_indistinguishable" if own == mean == 0 else "to_others_zero", n=count)
    return Fidelity(
        to_own=own,
        to_others=mean,
        ratio=own / mean if mean > 0 else none,
        index=(mean - own) / (mean + own) if mean + own > 0 else none,
        rank_p=(1 + sum(other <= own + _NEAR for other in others)) / (count + 1),
        p_min=1 / (count + 1),
        n_others=count,
        n_excluded=len(measured) - count,
        level=level,
        others=tuple(others),
    )


@dataclass(frozen=True)
class JointFidelity(Result):
    """Whether probes, taken together, act like their own endpoints.

    Args:
        T: sum of each probe's distance to its own endpoint; smaller is more faithful.
        expected: mean of that sum over all assignments of probes to endpoints.
        p: share of the assignments whose sum is no larger.
        p_se: its Monte-Carlo error, 0 when exact.
        p_min: the smallest p of so many probes; 0.05 takes four.
        exact: whether all assignments were gone through.
        assignments: how many were.
        n: probes.
        seed: of the drawn assignments.
        to_own: each probe's distance to its own endpoint.
    """

    T: float
    expected: float
    p: float
    p_se: float
    p_min: float
    exact: bool
    assignments: int
    n: int
    seed: int
    to_own: tuple[float, ...]


def joint_fidelity(
    probes: Sequence[Stream],
    endpoints: Sequence[Stream],
    *,
    level: str = "freq",
    permutations: int = 10_000,
    seed: int = 0,
) -> JointFidelity | Unavailable:
    """``joint_assignment`` of the distances of probe i to endpoint j; endpoint i is probe i's own."""
    if len(probes) != len(endpoints):
        raise ConfigurationError(f"there are {len(probes)} probes and {len(endpoints)} endpoints; give each its own")
    if level not in _DISTANCES:
        raise ConfigurationError(f"level {level!r} is not known; write one of {', '.join(_DISTANCES)}")
    rows: list[list[float]] = []
    for probe in probes:
        row = [_DISTANCES[level](probe, endpoint) for endpoint in endpoints]
        for found in row:
            if isinstance(found, Unavailable):
                return found
        rows.append([float(found) for found in row])
    return joint_assignment(rows, permutations=permutations, seed=seed)


def joint_assignment(distances: ArrayLike, *, permutations: int = 10_000, seed: int = 0) -> JointFidelity | Unavailable:
    """Whether the sum of the diagonal is small among the sums over all assignments of rows to columns.

    Exact for up to eight probes, else (hits + 1) / (N + 1) over drawn assignments. It does not depend on the order of
    the probes, except through the draws.

    Args:
        distances: n × n, probe i to endpoint j, endpoint i being its own; finite and at least 0.
        permutations: assignments drawn when not all are gone through.
        seed: of those draws.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ConfigurationError("distances of probes to endpoints must be n × n finite numbers of at least 0")
    if permutations < 1:
        raise ConfigurationError(f"permutations is {permutations}; write 1 or more")
    n = len(matrix)
    if n < 2:
        return Unavailable("n_below_minimum", "one probe cannot be told from another", n)
    # whole numbers: sums of them are exact, and those that tie but for the rounding to the grid tie
    largest = float(matrix.max())
    scale = 2.0 ** (40 - math.frexp(largest)[1]) if largest else 1.0
    whole = np.rint(matrix * scale)
    actual = float(np.trace(whole)) + n
    exact = n <= ENUMERATED_PROBES
    if exact:
        every = np.array(list(itertools.permutations(range(n))), dtype=np.intp)
    else:
        every = np.argsort(Draws(seed).keys(permutations, n), axis=1, kind="stable")
    hits = int((whole[np.arange(n), every].sum(axis=1) <= actual).sum())
    p = float(Fraction(hits, len(every))) if exact else (hits + 1) / (len(every) + 1)
    p_min = float(Fraction(1, math.factorial(n)))
    own = matrix.diagonal().tolist()
    return JointFidelity(
        T=math.fsum(own),
        expected=math.fsum(matrix.ravel().tolist()) / n,
        p=p,
        p_se=0.0 if exact else math.sqrt(p * (1 - p) / len(every)),
        p_min=p_min if exact else max(p_min, 1 / (len(every) + 1)),
        exact=exact,
        assignments=len(every),
        n=n,
        seed=seed,
        to_own=tuple(own),
    )


def arm_shift(
    f0_streams: Mapping[str, Sequence[Stream | None]], level: str = "freq", **options: Any
) -> BetweenWithin | Unavailable:
    """Whether checkpoints of different arms act differently once all run under the neutral disposition.

    ``measure.stream.separation`` of the probes' streams, with its options. It says that arms differ, not in which
    direction: a claim that they moved where they were pushed needs a one-sided contrast of its own.
    """
    return stream.separation(f0_streams, level, **options)
