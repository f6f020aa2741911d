"""How many runs it takes, before any is made: what n pairs can decide at all, and what they will probably decide.

Formulas for means of normally distributed differences; nothing here looks at data.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import betting
from pytest_proteus.measure.claims import Question
from pytest_proteus.measure.summary import Bounds
from pytest_proteus.measure.unavailable import Result

__all__ = ["POWER", "Attainable", "attainable", "detectable", "pairs_needed"]

#: The power that is planned for.
POWER = 0.8
#: The search for the smallest number of pairs ends here.
_MOST = 1 << 20


@dataclass(frozen=True)
class Attainable(Result):
    """What so many pairs can decide, whatever they turn out to be.

    Args:
        n: the pairs.
        can_pass: whether any outcome passes.
        can_fail: whether any outcome fails.
        p_pass_min: the smallest p of a pass.
        p_fail_min: the smallest p of a fail.
        n_pass: the fewest pairs with which an outcome can pass.
        n_fail: the fewest pairs with which an outcome can fail.
    """

    n: int
    can_pass: bool
    can_fail: bool
    p_pass_min: float
    p_fail_min: float
    n_pass: int
    n_fail: int


def attainable(
    n: int,
    *,
    direction: str,
    margin: float,
    kind: str = "noninferior",
    relative: bool = False,
    scale: str = "difference",
    assume: str = "symmetric",
    bounds: Bounds | None = None,
    alpha: float = 0.05,
) -> Attainable:
    """Whether a comparison of n pairs can pass at all, and whether it can fail; arguments as those of ``gate.compare``.

    A gate that cannot pass, or cannot fail, is none: it is better known before anything runs.
    """
    if n < 0:
        raise ConfigurationError(f"n is {n}; write 0 or more")
    question = Question(direction, kind, float(margin), relative, scale, assume, bounds, alpha)
    p_pass, p_fail = _smallest(question, n)
    return Attainable(
        n=n,
        can_pass=p_pass <= alpha,
        can_fail=p_fail <= alpha,
        p_pass_min=p_pass,
        p_fail_min=p_fail,
        n_pass=_fewest(question, 0),
        n_fail=_fewest(question, 1),
    )


def _smallest(question: Question, n: int) -> tuple[float, float]:
    """The smallest p of a pass and of a fail that n pairs can give."""
    claims = question.claims
    if question.assume == "deterministic":
        return (0.0, 0.0) if n else (1.0, 1.0)
    if question.assume == "normal":
        return (0.0, 0.0) if n > 1 else (1.0, 1.0)
    if question.assume == "bounded":
        ranges = [question.slack_range(claim) for claim in claims]
        fail = min(betting.p_min(n, -high, -low) for low, high in ranges)
        return max(betting.p_min(n, low, high) for low, high in ranges), min(1.0, len(claims) * fail)
    from pytest_proteus.measure import signflip

    smallest = signflip.p_min(n)
    return smallest, min(1.0, len(claims) * smallest)


def _fewest(question: Question, side: int) -> int:
    few, many = 0, 1
    while _smallest(question, many)[side] > question.alpha:
        few, many = many, 2 * many
        if many > _MOST:
            raise ConfigurationError(f"no number of pairs below {_MOST} can decide at alpha={question.alpha:g}")
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _smallest(question, middle)[side] <= question.alpha else (middle, many)
    return many


def reach(alpha: float = 0.05, power: float = POWER, claims: int = 1) -> float:
    """How many standard errors from the margin a mean has to be to be told from it: z(1 - alpha) + z(power).

    With two claims both have to be told with the power asked for: z((1 + power) / 2).
    """
    normal = statistics.NormalDist()
    return normal.inv_cdf(1 - alpha) + normal.inv_cdf(power if claims == 1 else (1 + power) / 2)


def detectable(stddev: float, n: int, *, alpha: float = 0.05, power: float = POWER, claims: int = 1) -> float:
    """How far from the margin a true effect has to be for n pairs to tell with this power, in units of the metric.

    Args:
        stddev: standard deviation of the differences of pairs, margin in percent included.
        n: pairs, 1 or more.
        alpha: level of the one-sided test.
        power: probability of the right verdict.
        claims: 2 for an equivalence, whose both sides have to be told.
    """
    return reach(alpha, power, claims) * stddev / math.sqrt(n)


def pairs_needed(stddev: float, distance: float, *, alpha: float = 0.05, power: float = POWER, claims: int = 1) -> int:
    """Pairs that tell an effect at this distance from the margin with this power: ((z + z) stddev / distance)².

    For the sign-flip test it is at least the number with which any outcome can have a p of ``alpha``.

    Args:
        stddev: standard deviation of the differences of pairs.
        distance: of the true effect from the margin, not 0; the margin itself for a candidate that changed nothing.
    """
    if distance == 0:
        raise ConfigurationError("an effect that is the margin itself is not told from it by any number of pairs")
    return max(1, math.ceil((reach(alpha, power, claims) * stddev / abs(distance)) ** 2))
