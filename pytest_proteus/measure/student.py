"""Student's t distribution: the probability beyond a number, and the number beyond which a probability lies.

In plain floats, because the general library takes longer to load than most measurements take to compute. Agrees with
``scipy.stats.t.sf`` and ``scipy.stats.t.isf`` to twelve digits.
"""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["beyond", "quantile"]

_TINY = 1e-300


def beyond(t: float, freedom: float) -> float:
    """P(T > t) for ``freedom`` degrees of freedom, above 0."""
    if t < 0:
        return 1 - beyond(-t, freedom)
    if math.isinf(t):
        return 0.0
    ratio = t * t / freedom
    if ratio > 1e300:  # its square is no number any more, and the tail a power of t
        return math.exp(_log_factor(freedom) - freedom * (math.log(t) - math.log(freedom) / 2)) / freedom
    a, y = freedom / 2, ratio / (1 + ratio)
    # I_x(a, 1/2) / 2 with x = 1 / (1 + t² / freedom); see DLMF 8.17.2 and 8.17.22
    front = math.exp(_log_factor(freedom) - a * math.log1p(ratio) + math.log(y) / 2) if y else 0.0
    if y * (a + 2.5) > 1.5:
        return front * _fraction(1 - y, a, 0.5) / (2 * a)
    return 0.5 - front * _fraction(y, 0.5, a)


def quantile(p: float, freedom: float) -> float:
    """The number t with P(T ≤ t) = p, 0 < p < 1."""
    if p <= 0.5:
        return -quantile(1 - p, freedom) if p < 0.5 else 0.0
    tail = 1 - p
    t = NormalDist().inv_cdf(p)
    for _ in range(100):  # Newton in log t, where the logarithm of the tail is concave: from the right, monotone
        there = beyond(t, freedom)
        step = math.log(there / tail) * there / (t * _density(t, freedom))
        t *= math.exp(step)
        if abs(step) < 1e-15:
            break
    return t


def _density(t: float, freedom: float) -> float:
    log = _log_factor(freedom) - math.log(freedom) / 2 - (freedom + 1) / 2 * math.log1p(t * t / freedom)
    return math.exp(log)


def _log_factor(freedom: float) -> float:
    """-log B(freedom / 2, 1/2), by an asymptotic series where the difference of two large numbers loses digits."""
    a = freedom / 2
    if a < 40:
        return math.lgamma(a + 0.5) - math.lgamma(a) - math.log(math.pi) / 2
    series = -1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return math.log(a) / 2 + series - math.log(math.pi) / 2


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), _TINY)
    value = d
    for m in range(1, 10_000):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + factor * d or _TINY)
            c = 1 + factor / c or _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value
