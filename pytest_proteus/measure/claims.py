"""What a gate claims about the mean of paired differences, as sums that are above zero when the claim is true.

Only the algebra: margins, directions and scales. Which sums are convincing is decided elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.summary import DIRECTIONS, Bounds, closed_bounds

__all__ = ["ASSUMPTIONS", "GATES", "LARGEST", "SCALES", "Claim", "Question"]

GATES = ("noninferior", "superior", "equivalent")
SCALES = ("difference", "log")
#: Larger numbers are refused: their squares and sums leave the range of floating point.
LARGEST = 1e100
ASSUMPTIONS = ("symmetric", "normal", "bounded", "deterministic")


@dataclass(frozen=True)
class Claim:
    """One side of a question.

    Args:
        orientation: 1 when larger values of the candidate speak for the claim, -1 when smaller ones do.
        allowed: 1 when the margin is granted to the candidate, -1 when it has to be gained.
    """

    orientation: int
    allowed: int


@dataclass(frozen=True)
class Question:
    """What a gate asks; see ``gate.compare`` for the meaning of its fields."""

    direction: str
    kind: str
    margin: float
    relative: bool
    scale: str
    assume: str
    bounds: Bounds | None
    alpha: float

    def __post_init__(self) -> None:
        for name, value, known in (
            ("direction", self.direction, DIRECTIONS),
            ("kind", self.kind, GATES),
            ("scale", self.scale, SCALES),
            ("assume", self.assume, ASSUMPTIONS),
        ):
            if value not in known:
                raise ConfigurationError(f"{name}={value!r} is not known; write one of {', '.join(known)}")
        if self.direction == "neutral" and self.kind != "equivalent":
            raise ConfigurationError(
                f"kind={self.kind!r} needs a metric that is better when higher or lower, and this one is neutral:"
                " write kind='equivalent'"
            )
        if isinstance(self.alpha, bool) or not 0 < self.alpha < 0.5:
            raise ConfigurationError(f"alpha is {self.alpha!r}; write a number above 0 and below 0.5, such as 0.05")
        self._check_margin()
        if self.assume == "bounded" and self.range is None:
            above = " above 0, since logarithms are compared" if self.scale == "log" else ""
            raise ConfigurationError(f"assume='bounded' needs bounds=(smallest, largest) possible value{above}")
        if self.range is not None and self.assume != "deterministic":
            for claim in self.claims:
                self.slack_range(claim)

    def _check_margin(self) -> None:
        if isinstance(self.margin, bool) or not 0 <= self.margin <= LARGEST:
            raise ConfigurationError(f"a margin of {self.margin!r} is none; write a number from 0 to {LARGEST:g}")
        if self.margin == 0 and self.kind != "superior" and self.assume != "deterministic":
            raise ConfigurationError(
                f"with a margin of 0 a gate of kind {self.kind!r} passes by chance only, however many runs there are;"
                " write a margin above 0"
            )
        if self.relative and self.direction != "lower" and self.scale == "difference" and self.margin >= 1:
            raise ConfigurationError(f"a margin of {self.margin:.0%} allows anything; write less than 100%")

    @property
    def range(self) -> tuple[float, float] | None:
        """Both declared bounds, on the scale of the question; None without them."""
        closed = closed_bounds(self.bounds)
        if closed is not None and max(map(abs, closed)) > LARGEST:
            raise ConfigurationError(
                f"bounds {self.bounds!r} are no bounds; leave them out, or write None for an open end"
            )
        if closed is None or self.scale == "difference":
            return closed
        return (math.log(closed[0]), math.log(closed[1])) if closed[0] > 0 else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that all have to hold for a pass; for a fail one of them has to be refuted."""
        better = -1 if self.direction == "lower" else 1
        if self.kind == "equivalent":
            return Claim(1, 1), Claim(-1, 1)
        return (Claim(better, 1 if self.kind == "noninferior" else -1),)

    def scaled(self, value: float) -> float:
        """The value on the scale of the question."""
        return math.log(value) if self.scale == "log" else value

    def of_candidate(self, claim: Claim, value: float) -> float:
        """What a candidate's (scaled) value adds to the claim's sum."""
        return claim.orientation * value

    def of_baseline(self, claim: Claim, value: float) -> float:
        """What a baseline's (scaled) value adds to the claim's sum, margin included.

        A margin in percent is that share of each baseline value: the mean of the sum is above zero exactly when the
        ratio of the two means is on the right side.
        """
        margin = self.margin
        if self.scale == "log":
            margin = math.log1p(margin)
        elif self.relative:
            margin *= value
        return claim.allowed * margin - claim.orientation * value

    def slack(self, claim: Claim, baseline: float, candidate: float) -> float:
        """How far a pair of (scaled) values is on the claim's side of the margin."""
        return self.of_candidate(claim, candidate) + self.of_baseline(claim, baseline)

    def filled(self, claim: Claim, baseline: float | None, candidate: float | None, best: bool) -> tuple[float, float]:
        """What two (scaled) values add to the claim's sum, one that is missing at its worst or at its best."""
        choose = max if best else min

        def part(of: Callable[[Claim, float], float], value: float | None) -> float:
            ends = self.range or (0.0, 0.0)
            return of(claim, value) if value is not None else choose(of(claim, end) for end in ends)

        return part(self.of_baseline, baseline), part(self.of_candidate, candidate)

    def slack_range(self, claim: Claim) -> tuple[float, float]:
        """The smallest and the largest slack within the declared bounds."""
        assert self.range is not None
        corners = [self.slack(claim, b, c) for b, c in itertools.product(self.range, repeat=2)]
        low, high = min(corners), max(corners)
        if not low < 0 < high:
            outcome = "fail" if low >= 0 else "pass"
            raise ConfigurationError(
                f"within bounds {self.bounds!r} no outcome can {outcome} at a margin of {self.margin:g}; write a"
                " smaller margin"
            )
        return low, high
