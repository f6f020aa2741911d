"""A metric of one arm beside another arm, or beside the same arm of an earlier sweep: from runs to a verdict.

Runs of one seed are pairs. Which test is made of the pairs is ``measure.gate``'s business; here the values are looked
up and named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.gate import Comparison, compare
from pytest_proteus.measure.metrics import MeasuredRun, Metric, observe, require_direction
from pytest_proteus.measure.sequential import Sequential, in_sequence, sooner_in_sequence
from pytest_proteus.measure.summary import outside_bounds, told_outside
from pytest_proteus.measure.unavailable import Unavailable

__all__ = ["Contrast", "contrast", "read_margin", "sequence", "sequenced"]


@dataclass(frozen=True)
class Contrast(Comparison):
    """A ``Comparison`` that knows what was compared.

    Args:
        metric: name of the metric.
        arm: the arm that is judged.
        against: the arm, or the baseline, that it is held against.
        missing: why values are missing, each reason once.
    """

    metric: str
    arm: str
    against: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return super().__str__() + (f". Missing: {'; '.join(self.missing)}" if self.missing else "")


def read_margin(margin: float | str, where: str, *, zero: bool = False) -> tuple[float, bool]:
    """A margin and whether it is a share of the baseline: ``2`` → (2.0, False), ``"20%"`` → (0.2, True).

    Args:
        margin: what was written.
        where: what it was written for.
        zero: whether 0 is a margin, as it is for a gain that is asked for.

    Raises:
        ConfigurationError: neither a number above 0 nor a percentage above 0.
    """
    text = str(margin).strip()
    if not isinstance(margin, bool) and re.fullmatch(r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?%?", text, re.IGNORECASE):
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
        if 0 < value < math.inf or (zero and value == 0):
            return value, text.endswith("%")
    raise ConfigurationError(f"{where}: the margin {margin!r} must be above 0, such as 2 or '20%'")


def contrast(
    candidate: Sequence[MeasuredRun],
    baseline: Sequence[MeasuredRun],
    metric: Metric,
    *,
    arm: str,
    against: str,
    episode: int,
    margin: float,
    relative: bool,
    kind: str = "noninferior",
    scale: str = "difference",
    deterministic: bool = False,
    alpha: float = 0.05,
) -> Contrast:
    """Compare a metric of two groups of runs at one episode; runs of one seed are pairs.

    Args:
        candidate, baseline: runs of one stratum, one a seed.
        metric: what is compared.
        arm, against: names of the two.
        episode: one-based; see ``metrics.observe``.
        margin, relative, kind, scale: see ``gate.compare``.
        deterministic: whether the same seed always gives the same run; values are then compared as they are, but for
            the time that runs took.
        alpha: level of a pass and of a fail, each.

    Raises:
        ConfigurationError: what ``gate.compare`` raises, or a direction that the metric does not have.
    """
    if kind != "equivalent":
        require_direction(metric, f"{arm} against {against}")
    values, missing = _values((baseline, candidate), metric, episode)
    made = compare(
        values[0],
        values[1],
        direction=metric.direction,
        margin=margin,
        kind=kind,
        relative=relative and scale != "log",
        scale=scale,
        assume="deterministic" if deterministic and metric.repeats else "symmetric",
        bounds=metric.bounds,
        alpha=alpha,
    )
    kept: dict[str, Any] = {item.name: getattr(made, item.name) for item in fields(Comparison)}
    if made.reason == "outside_bounds":
        named = Unavailable(made.reason, _outside(values, metric, against, arm), made.n)
        kept = {
            key: named if isinstance(item, Unavailable) and item.reason == made.reason else item
            for key, item in kept.items()
        }
        kept["detail"] = named.detail
    return Contrast(**kept, metric=metric.name, arm=arm, against=against, missing=tuple(missing))


_Values = dict[Hashable, "float | None"]


def _outside(values: Sequence[_Values], metric: Metric, *labels: str) -> str:
    """Which run has the value that lies outside of the metric's bounds."""
    for found, label in zip(values, labels, strict=True):
        for seed, value in found.items():
            if value is not None and outside_bounds([value], metric.bounds) is not None:
                return told_outside(value, metric.bounds, f" ({metric.name} in the run of {label} with seed {seed})")
    return ""


def _values(
    sides: Sequence[Sequence[MeasuredRun]], metric: Metric, episode: int
) -> tuple[list[_Values], dict[str, None]]:
    """Seed → value of each side, and the reasons why values are missing."""
    values: list[_Values] = []
    missing: dict[str, None] = {}
    for runs in sides:
        found: _Values = {}
        for run in runs:
            found[run.seed], reason = observe(run, metric, episode)
            if reason:
                missing[reason] = None
        values.append(found)
    return values, missing


def sequence(
    candidate: Sequence[MeasuredRun],
    baseline: Sequence[MeasuredRun],
    metric: Metric,
    *,
    episode: int,
    n_max: int,
    fewest: int,
    gates: int,
    margin: float,
    relative: bool,
    deterministic: bool = False,
    alpha: float = 0.05,
) -> Sequential:
    """The same comparison, not worse than the margin, looked at after each seed; see ``sequential.sooner_in_sequence``.

    Args:
        candidate: the runs so far, seed after seed in the order that was planned.
        baseline: runs of the same seeds, in any order.
        n_max: seeds in the end.
        fewest: the first look comes after so many.
        gates: how many are decided together.

    The other arguments are those of ``contrast``.
    """
    (before, now), _ = _values((baseline, candidate), metric, episode)
    asked: dict[str, Any] = {
        "order": [run.seed for run in candidate],
        "n_max": n_max,
        "direction": metric.direction,
        "margin": margin,
        "relative": relative,
        "bounds": metric.bounds,
        "alpha": alpha,
        "looks": range(min(fewest, n_max), n_max + 1),
        "gates": gates,
    }
    if deterministic and metric.repeats:
        return in_sequence(before, now, assume="deterministic", **asked)
    return sooner_in_sequence(before, now, **asked)


def sequenced(found: Contrast, verdict: Sequential) -> Contrast:
    """A contrast with the verdict of the look that decided; p and interval are those of one look and left out."""
    none = Unavailable("not_measured", "there was more than one look", found.n)
    return replace(
        found,
        verdict=verdict.verdict,
        reason=verdict.reason,
        detail=verdict.told,
        interval=none,
        interval_percent=none,
        p_pass=none,
        p_fail=none,
        p_adjusted=none,
        p_min=none,
        rare_event_bound=1 - verdict.alpha ** (1 / found.n) if verdict.verdict == "pass" and found.n else none,
        method=verdict.method,
        assumption=verdict.assumption,
    )
