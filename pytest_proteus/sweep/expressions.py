"""``--proteus-compare-fail=METRIC[SELECTOR]:MARGIN``: what is held against a baseline, and where.

Turns an expression into groups of runs that both sides have. What one side lacks is an error, never a comparison that
is left out. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.contrasts import read_margin
from pytest_proteus.measure.metrics import RUN_NUMBERS, Metric, counter_names, metric_of, require_direction
from pytest_proteus.measure.strata import stratum_of
from pytest_proteus.sweep.declare import nearest

OPTION = "--proteus-compare-fail"
#: What of an evaluator has to be equal for its scores to be comparable.
COMPARABLE = ("spec", "kind", "source_sha256")


class Group(NamedTuple):
    """The runs of one arm in one stratum of one sweep: what is compared at once."""

    sweep: str
    stratum: str
    arm: str

    def __str__(self) -> str:
        return f"arm {self.arm!r} of {self.stratum} in sweep {self.sweep!r}"


@dataclass(frozen=True)
class Side:
    """A sweep as one of the two sides has it.

    Args:
        name: of the sweep.
        evaluators: name → entry, as a manifest has them.
        runs: whatever has ``harness``, ``arm``, ``seed``, ``model``, ``task``, ``axes``.
        counters: metrics that counters give; None where that is not known yet.
    """

    name: str
    evaluators: Mapping[str, Mapping[str, Any]]
    runs: Sequence[Any]
    counters: frozenset[str] | None = None

    def has(self, metric: str) -> bool:
        """Whether the sweep has a metric, as far as that is known."""
        if metric.startswith("counters.") and metric not in self.evaluators:
            return self.counters is None or metric in self.counters
        return metric_of(metric, self.evaluators) is not None

    @property
    def has_strata(self) -> bool:
        """Whether the sweep has more than one stratum."""
        return len({stratum_of(run) for run in self.runs}) > 1

    def groups(self) -> dict[Group, list[Any]]:
        """The runs, grouped as they are compared."""
        found: dict[Group, list[Any]] = {}
        for run in self.runs:
            found.setdefault(Group(self.name, stratum_of(run), run.arm), []).append(run)
        return found


@dataclass(frozen=True)
class Expression:
    """One comparison with a baseline, for every arm and stratum that the selector takes.

    Args:
        where: what asks for it, as error messages name it.
        metric: name of the metric.
        selector: axis (or ``sweep``) → label, in the order written.
        margin, relative, kind, scale: see ``measure.gate.compare``.
    """

    where: str
    metric: str
    selector: tuple[tuple[str, str], ...]
    margin: float
    relative: bool
    kind: str = "noninferior"
    scale: str = "difference"

    @property
    def shown_margin(self) -> str:
        """The margin as it is written."""
        return f"{self.margin * 100:.6g}%" if self.relative else f"{self.margin:.6g}"

    def takes(self, sweep: str, run: Any) -> bool:
        """Whether a run is meant."""
        return all(_label(sweep, run, key) == label for key, label in self.selector)

    def groups(self, side: Side) -> dict[Group, list[Any]]:
        """What the expression means of one side; empty where it does not have the metric."""
        if not side.has(self.metric):
            return {}
        kept = {group: [run for run in runs if self.takes(side.name, run)] for group, runs in side.groups().items()}
        return {group: runs for group, runs in kept.items() if runs}

    def metric_in(self, side: Side) -> Metric:
        """The metric of a side that has it."""
        found = metric_of(self.metric, side.evaluators)
        assert found is not None
        return found


def _label(sweep: str, run: Any, key: str) -> str | None:
    if key == "sweep":
        return sweep
    found = getattr(run, key) if key in ("harness", "arm", "model", "task") else run.axes.get(key)
    return None if found is None else str(found)


def parse_expressions(texts: Sequence[str]) -> list[Expression]:
    """The expressions of a session.

    Raises:
        ConfigurationError: one that is none, or two that say the same.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], Expression] = {}
    for text in texts:
        expression = _parse(text)
        place = (expression.metric, frozenset(expression.selector))
        if place in found:
            raise ConfigurationError(f"{OPTION}={text} compares what {found[place].where} compares; keep one of them")
        found[place] = expression
    return list(found.values())


def _parse(text: str) -> Expression:
    head, colon, margin = text.strip().rpartition(":")
    metric, selector = head, ""
    if head.endswith("]") and "[" in head:
        metric, _, selector = head[:-1].rpartition("[")
    if not colon or not metric:
        raise ConfigurationError(
            f"{OPTION}={text}: write METRIC:MARGIN or METRIC[arm=LABEL]:MARGIN, such as tool-calls:10% or units:notes:2"
        )
    share, relative = read_margin(margin, f"{OPTION}={text}")
    pairs: list[tuple[str, str]] = []
    for part in selector.split(",") if selector or metric != head else ():
        key, equals, label = (word.strip() for word in part.partition("="))
        if not equals or not key or not label:
            raise ConfigurationError(f"{OPTION}={text}: write the selector as [arm=LABEL] or [harness=LABEL,arm=LABEL]")
        if key in dict(pairs):
            raise ConfigurationError(f"{OPTION}={text}: the selector names {key} twice")
        if key == "seed":
            raise ConfigurationError(f"{OPTION}={text}: seeds are what is compared; select by sweep, harness or arm")
        pairs.append((key, label))
    return Expression(f"{OPTION}={text.strip()}", metric, tuple(pairs), share, relative)


# --- what both sides have to have ------------------------------------------------------------------------------------


def check(expression: Expression, baseline: Sequence[Side], own: Sequence[Side], allowed: Sequence[str]) -> None:
    """Refuse an expression that cannot be compared as it says, in whole.

    Args:
        expression: one expression.
        baseline: the sweeps of the baseline.
        own: the sweeps of this session.
        allowed: keys of the condition that may differ.

    Raises:
        ConfigurationError: one sentence that says what is missing on which side, and what to write.
    """
    _check_names(expression, baseline, own)
    before = [group for side in baseline for group in expression.groups(side)]
    now = [group for side in own for group in expression.groups(side)]
    for group in before:
        if group not in now:
            raise ConfigurationError(
                f"{expression.where}: the baseline has {group}, and this session does not have it with "
                f"{expression.metric}; name what to compare, such as {expression.metric}[arm=LABEL] or "
                f"{expression.metric}[sweep=NAME], or save the baseline again"
            )
    for group in now:
        if group not in before:
            raise ConfigurationError(
                f"{expression.where}: the baseline does not have {group} with {expression.metric}; name what to "
                f"compare, such as {expression.metric}[arm=LABEL], or save the baseline again"
            )
    saved = {side.name: side for side in baseline}
    for side in own:
        if expression.groups(side):
            _check_evaluator(expression, saved[side.name], side, allowed)


def _check_names(expression: Expression, baseline: Sequence[Side], own: Sequence[Side]) -> None:
    sides = [*baseline, *own]
    metric = expression.metric
    known = dict.fromkeys(name for side in sides for name in side.evaluators)
    known.update(dict.fromkeys(RUN_NUMBERS))
    known.update(dict.fromkeys(name for side in baseline for name in sorted(side.counters or ())))
    for told, group in (("the baseline has", baseline), ("this session has", own)):
        if not any(side.has(metric) for side in group):
            near = nearest(metric, [name for name in known if name != metric])
            raise ConfigurationError(f"{expression.where}: {told} no metric {metric!r}; {near}")
    further = {axis for side in sides for run in side.runs for axis in run.axes}
    keys = {"sweep", "harness", "arm", "model", "task", *further}
    for key, label in expression.selector:
        if key not in keys:
            raise ConfigurationError(f"{expression.where}: no axis is called {key!r}; {nearest(key, sorted(keys))}")
        labels = {_label(side.name, run, key) for side in own for run in side.runs}
        if label not in labels:
            near = nearest(label, sorted(known for known in labels if known))
            raise ConfigurationError(f"{expression.where}: this session has no {key} {label!r}; {near}")
    if not any(expression.groups(side) for side in own):
        raise ConfigurationError(f"{expression.where}: the selector takes no run of this session")


def _check_evaluator(expression: Expression, saved: Side, own: Side, allowed: Sequence[str]) -> None:
    metric = expression.metric_in(own)
    if expression.kind != "equivalent":
        require_direction(metric, expression.where)
    key = f"evaluators.{metric.name}"
    if metric.evaluator and key not in allowed and "evaluators" not in allowed:
        before, now = saved.evaluators[metric.name], own.evaluators[metric.name]
        differs = [name for name in COMPARABLE if before.get(name) != now.get(name)]
        if differs:
            raise ConfigurationError(
                f"{expression.where}: the evaluator {metric.name!r} has another {' and '.join(differs)} than in the "
                f"baseline; save the baseline again, or compare all the same with --proteus-compare-allow={key}"
            )


def side_of_baseline(sweep: Any, runs: Sequence[Any]) -> Side:
    """A saved sweep as a side."""
    counters = frozenset(name for run in runs for name in counter_names(run.counters))
    return Side(sweep["name"], sweep["evaluators"], runs, counters)
