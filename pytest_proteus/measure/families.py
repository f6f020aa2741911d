"""Several gates at once: p corrected for how many were tried. Decides nothing about a single one.

Overall a candidate passes when every gate passes, which needs no correction: a false pass of all is no more frequent
than a false pass of one. It fails when one gate fails, and of many one fails by chance; that is what is corrected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.gate import Comparison
from pytest_proteus.measure.unavailable import Unavailable

__all__ = ["METHODS", "adjust", "correct", "max_t"]

METHODS = ("holm", "bh")


def adjust(ps: Sequence[float | Unavailable | None], method: str = "holm") -> list[float | None]:
    """p corrected for the size of the family, in the order given; agrees with ``statsmodels`` ``multipletests``.

    Args:
        ps: p of each; one that is not known counts as 1 and stays unknown, so that a gate without data makes the
            others no easier.
        method: ``holm`` (Holm 1979: one wrong claim in the family with probability alpha at most, for gates) or ``bh``
            (Benjamini and Hochberg 1995: a share alpha of the claims is wrong at most; for exploring, not for gates).
    """
    if method not in METHODS:
        raise ConfigurationError(f"a correction by {method!r} is not known; write one of {', '.join(METHODS)}")
    known = [p if isinstance(p, (int, float)) else 1.0 for p in ps]
    if not all(0 <= p <= 1 for p in known):
        raise ConfigurationError(f"{ps!r} are not p-values; each lies between 0 and 1")
    n, out, last = len(ps), [1.0] * len(ps), 0.0 if method == "holm" else 1.0
    order = sorted(range(n), key=lambda i: known[i], reverse=method == "bh")
    for place, i in enumerate(order):
        if method == "holm":
            last = max(last, min(1.0, known[i] * (n - place)))
        else:
            last = min(last, known[i] * n / (n - place))
        out[i] = last
    return [value if isinstance(p, (int, float)) else None for value, p in zip(out, ps, strict=True)]


def correct(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one family with ``p_adjusted``; a fail that Holm's correction does not leave is undecided."""
    return [
        _corrected(comparison, p, len(comparisons))
        for comparison, p in zip(comparisons, adjust([one.p_fail for one in comparisons]), strict=True)
    ]


def _corrected(comparison: Comparison, p: float | None, size: int) -> Comparison:
    if p is None:
        return dataclasses.replace(comparison, p_adjusted=comparison.p_fail)
    if comparison.verdict != "fail" or p <= comparison.alpha:
        return dataclasses.replace(comparison, p_adjusted=p)
    said = f"p {comparison.p_fail:.4g} of a fail is {p:.4g} among {size} gates"
    return dataclasses.replace(
        comparison, p_adjusted=p, verdict="undecided", reason="not_significant_in_family", detail=said
    )


def max_t(family: Sequence[Mapping[Hashable, float]]) -> list[float]:
    """p of the claims that each mean is above zero, corrected by the largest statistic under flips that they share.

    Exact where values are symmetric about their mean, all of one run together; it knows how claims hang together, so
    that ten copies of one metric cost nothing. Stepping down from the largest (Westfall and Young 1993).

    Args:
        family: for each claim, key of a run → its value (such as minus the ``slack`` of its pair). A run that a claim
            has no value of adds nothing to it.
    """
    import numpy as np

    from pytest_proteus.measure import signflip

    keys = sorted({key for claim in family for key in claim}, key=repr)
    if not keys:
        return [1.0] * len(family)
    values = np.array([[claim.get(key, 0.0) for claim in family] for key in keys])
    # the sum of squares is the same under every flip, so dividing by its root makes claims of any unit comparable
    size = np.sqrt((values**2).sum(axis=0))
    values = values / np.where(size > 0, size, 1.0)
    actual = values.sum(axis=0)
    order = np.argsort(-actual, kind="stable")
    hits, count = np.zeros(len(family), dtype=np.int64), 0
    for subsets in signflip.subsets(len(keys)):
        flipped = actual - 2 * (subsets @ values)
        largest = np.maximum.accumulate(flipped[:, order[::-1]], axis=1)[:, ::-1]
        hits[order] += (largest >= actual[order] - 1e-9).sum(axis=0)
        count += len(subsets)
    drawn = 0 if len(keys) <= signflip.ENUMERATED else 1
    out, last = [1.0] * len(family), 0.0
    for i in order.tolist():
        last = max(last, (int(hits[i]) + drawn) / (count + drawn))
        out[i] = last
    return out
