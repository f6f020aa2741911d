"""Betting against a mean: a test for values within known bounds, whatever their distribution. Knows no margins.

A bettor stakes a fixed share of the capital on each value being above zero. Against a mean of zero or less no such
bettor gains on average, so a capital of 1 / alpha is seen with probability alpha at most, at whatever point one looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_proteus.core.errors import ConfigurationError

__all__ = ["BETS", "log_capital", "p_greater", "p_min", "smallest_mean", "values_needed"]

#: The bettors: their share of the first capital, and what they stake as a share of what can be staked.
BETS = ((0.5, 1.0), (0.25, 0.5), (0.125, 0.25), (0.0625, 0.125), (0.03125, 0.0625), (0.03125, 0.03125))


def log_capital(values: Sequence[float], lowest: float) -> float:
    """Logarithm of the capital after all values, from a capital of 1: Σ_j w_j Π_i (1 + b_j x_i / |lowest|).

    The mixture is fixed, so the order of the values does not matter (after Waudby-Smith and Ramdas 2024).

    Args:
        values: none below ``lowest``.
        lowest: the smallest possible value, below zero: what a bettor can lose.
    """
    import numpy as np

    weights, bets = np.array(BETS).T
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    factors = 1 - bets[:, None] + bets[:, None] * ((ordered - lowest) / -lowest)
    with np.errstate(divide="ignore"):
        logs = np.log(weights) + np.log(np.maximum(factors, 0.0)).sum(axis=1)
    top = float(logs.max())
    return top if top == -math.inf else top + math.log(math.fsum(np.exp(logs - top)))


def p_greater(values: Sequence[float], lowest: float) -> float:
    """p of the claim that the mean is above zero: one over the capital.

    Raises:
        ConfigurationError: a value below ``lowest``, or a ``lowest`` that is not below zero.
    """
    if not lowest < 0:
        raise ConfigurationError(f"the smallest possible value is {lowest:g}, so the mean is never below zero")
    low = min(values, default=0.0)
    if low < lowest - 1e-9 * abs(lowest):
        raise ConfigurationError(f"a value of {low!r} is below {lowest!r}, which is declared the smallest possible one")
    capital = log_capital([max(value, lowest) for value in values], lowest)
    return math.exp(-capital) if capital > 0 else 1.0


def p_min(n: int, lowest: float, highest: float) -> float:
    """The smallest p that n values between ``lowest`` and ``highest`` can have."""
    return p_greater([highest] * n, lowest)


def values_needed(values: Sequence[float], lowest: float, alpha: float) -> float:
    """How many values are needed for a p of ``alpha`` if further ones are like these; infinity if no number is."""
    growths = []
    for weight, bet in BETS:
        factors = [1 - bet + bet * (value - lowest) / -lowest for value in values]
        if min(factors) > 0:
            growths.append((math.log(weight), math.fsum(math.log(factor) for factor in factors) / len(factors)))
    if max((growth for _, growth in growths), default=0.0) <= 1e-12:
        return math.inf

    def enough(n: int) -> bool:
        logs = [weight + n * growth for weight, growth in growths]
        top = max(logs)
        return top + math.log(math.fsum(math.exp(one - top) for one in logs)) >= -math.log(alpha)

    few, many = 0, 1
    while not enough(many):
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def smallest_mean(n: int, lowest: float, highest: float, alpha: float) -> float | None:
    """The value that n times over gives a p of ``alpha``; None if even ``highest`` does not."""
    if p_greater([highest] * n, lowest) > alpha:
        return None
    few, many = 0.0, highest
    while many - few > 1e-9 * highest:
        middle = (few + many) / 2
        few, many = (few, middle) if p_greater([middle] * n, lowest) <= alpha else (middle, many)
    return many
