"""How often would a gate fail a change that changes nothing? What two identical arms say of it.

An arm and its copy differ by chance alone, so either run of a pair could as well be the other's. The gate is decided
for every such swap. It says what the gate does at this number of runs with this scatter, not what it does elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_proteus.measure.divergence import Draws
from pytest_proteus.measure.gate import Comparison, compare
from pytest_proteus.measure.summary import Bounds
from pytest_proteus.measure.unavailable import Finding, Unavailable

__all__ = ["Placebo", "placebo"]

#: Swaps are gone through up to so many pairs, and as many are drawn above.
_PAIRS = 7


@dataclass(frozen=True)
class Placebo(Finding):
    """What a gate makes of a copy beside the arm that it copies.

    Args:
        verdict: of the runs as they are.
        failed: share of the swaps that the gate fails, 0 to 1; at most its alpha where its assumptions hold.
        undecided: share that it does not decide.
        passed: share that it passes: how likely a harmless change is to pass.
        swaps: how many there were, the runs as they are among them.
        exact: whether these are all.
        n: pairs.
        n_missing: pairs of which one value or both are missing.
    """

    verdict: str
    failed: float
    undecided: float
    passed: float
    swaps: int
    exact: bool
    n: int
    n_missing: int

    @property
    def finding(self) -> str:
        """How often the gate would have failed, in a sentence."""
        how = "all" if self.exact else "some"
        return (
            f"a copy that changes nothing: {self.verdict}; over {how} {self.swaps} swaps of identical runs this gate "
            f"fails {self.failed:.0%}, leaves {self.undecided:.0%} undecided, passes {self.passed:.0%} (n = {self.n})"
        )


def placebo(found: Comparison, bounds: Bounds | None = None, seed: int = 0) -> Placebo | Unavailable:
    """Decide the gate of a comparison of two identical arms again for swaps within pairs.

    Args:
        found: an arm's copy compared with the arm, by margin, kind and scale of the gate that is asked about.
        bounds: smallest and largest possible value, as they were given to that comparison.
        seed: of drawn swaps.
    """
    if not found.paired or found.verdict == "unavailable":
        return Unavailable("not_paired", "the copy's runs have no pairs to be swapped with", found.n)
    assume = "deterministic" if found.method == "deterministic" else "symmetric"
    pairs, verdicts = found.pairs, []
    for swapped in _swaps(len(pairs), seed):
        sides: list[dict[Any, float | None]] = [{}, {}]
        for at, (pair, swap) in enumerate(zip(pairs, swapped, strict=True)):
            sides[swap][at], sides[not swap][at] = pair.baseline, pair.candidate
        again = compare(
            *sides,
            direction=found.direction,
            margin=found.margin,
            kind=found.kind,
            relative=found.relative,
            scale=found.scale,
            assume=assume,
            bounds=bounds,
            alpha=found.alpha,
        )
        verdicts.append(again.verdict)
    count = len(verdicts)
    return Placebo(
        verdict=found.verdict,
        failed=verdicts.count("fail") / count,
        undecided=verdicts.count("undecided") / count,
        passed=verdicts.count("pass") / count,
        swaps=count,
        exact=len(pairs) <= _PAIRS,
        n=found.n,
        n_missing=found.n_missing,
    )


def _swaps(n: int, seed: int) -> Iterator[Sequence[bool]]:
    """For each swap, whether each pair is turned round; the first one turns none."""
    if n <= _PAIRS:
        yield from itertools.product((False, True), repeat=n)
        return
    yield [False] * n
    random = Draws(seed)
    for _ in range(2**_PAIRS - 1):
        yield [bool(bit) for bit in random.below(2, n)]
