"""One number a run: an evaluator's score at one episode, or a number that every run has. Compares nothing.

Names of metrics are those of evaluators, ``episodes_complete``, ``seconds``, ``counters.<name>`` (nested names with
dots between them) and ``usage.<name>``. A run that did not get to the episode that is asked for has no value there and
says why; that is never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_proteus.core.errors import GRADED, ConfigurationError
from pytest_proteus.measure.summary import Bounds, number

__all__ = ["MeasuredRun", "Metric", "counter_names", "metric_of", "observe", "require_direction"]

#: Numbers that every run has → the direction in which they are better.
RUN_NUMBERS = {"episodes_complete": "higher", "seconds": "lower"}
#: What a threshold says about the direction of a metric that declares none.
_TOLD = {"at_least": "higher", "above": "higher", "at_most": "lower", "below": "lower"}


class MeasuredRun(Protocol):
    """What is needed of a run."""

    @property
    def harness(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def task(self) -> str | None: ...
    @property
    def run_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def episodes(self) -> int: ...
    @property
    def episodes_complete(self) -> int: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def counters(self) -> Mapping[str, Any]: ...
    @property
    def usage(self) -> Any: ...
    def scores(self, name: str) -> Sequence[float | None]: ...


@dataclass(frozen=True)
class Metric:
    """A metric of a sweep.

    Args:
        name: see the module.
        direction: ``higher``, ``lower`` or ``neutral``.
        bounds: smallest and largest possible value, where declared.
        evaluator: whether it is an evaluator's score.
    """

    name: str
    direction: str
    bounds: Bounds | None
    evaluator: bool

    @property
    def repeats(self) -> bool:
        """Whether a deterministic harness gives the same value each time, as it does of all but the time it takes."""
        return self.name != "seconds"


def metric_of(name: str, evaluators: Mapping[str, Mapping[str, Any]]) -> Metric | None:
    """The metric of that name; None where there is none.

    Args:
        name: see the module.
        evaluators: name → ``direction``, ``bounds`` and ``thresholds`` of each attached evaluator, as a manifest has
            them. An evaluator without a direction takes that of its thresholds, where they agree.
    """
    found = evaluators.get(name)
    if found is not None:
        bounds = found.get("bounds")
        return Metric(name, _direction(found), (bounds[0], bounds[1]) if bounds else None, True)
    if name in RUN_NUMBERS:
        return Metric(name, RUN_NUMBERS[name], (0, None), False)
    kind, _, rest = name.partition(".")
    if kind in ("counters", "usage") and rest:
        return Metric(name, "neutral" if kind == "counters" else "lower", (0, None) if kind == "usage" else None, False)
    return None


def require_direction(metric: Metric, where: str) -> None:
    """Refuse a metric of which nothing says what is worse.

    Raises:
        ConfigurationError: says what to declare.
    """
    if metric.direction == "neutral":
        told = "write an evaluator that reports it and declares its direction"
        if metric.evaluator:
            told = "declare direction='lower' or direction='higher' on its evaluator marker"
        raise ConfigurationError(f"{where}: {metric.name} has no direction, so nothing says what is worse; {told}")


def _direction(evaluator: Mapping[str, Any]) -> str:
    declared = str(evaluator.get("direction") or "neutral")
    told = {_TOLD.get(str(bound.get("op")), "neutral") for bound in evaluator.get("thresholds") or ()}
    return told.pop() if declared == "neutral" and len(told) == 1 else declared


def counter_names(counters: Mapping[str, Any], prefix: str = "counters.") -> list[str]:
    """The metrics that a run's counters give."""
    names = []
    for name, value in counters.items():
        if isinstance(value, Mapping):
            names += counter_names(value, f"{prefix}{name}.")
        elif number(value) is not None:
            names.append(f"{prefix}{name}")
    return names


def observe(run: MeasuredRun, metric: Metric, episode: int) -> tuple[float | None, str]:
    """The value of a run and no reason, or None and why there is none.

    Args:
        run: the run.
        metric: what is asked for.
        episode: one-based: scores are those of this episode; other numbers are those of runs of so many episodes.
    """
    if run.state not in GRADED:
        return None, f"the run is {run.state}"
    if metric.name == "episodes_complete":
        return float(min(run.episodes_complete, episode)), ""
    if run.episodes_complete < episode:
        return None, f"{run.state}: {run.episodes_complete} of {run.episodes} episodes"
    if metric.evaluator:
        scores = run.scores(metric.name)
        value = number(scores[episode - 1]) if episode <= len(scores) else None
        return value, "" if value is not None else "the evaluator gave no score"
    if run.episodes != episode:
        return None, f"{metric.name} is known of all {run.episodes} episodes together, not of the first {episode}"
    if metric.name == "seconds":
        value = number(run.seconds)
        return value, "" if value is not None else "nobody took the time of these episodes alone"
    kind, _, rest = metric.name.partition(".")
    if kind == "usage" and run.usage is None:
        return None, "no usage was metered"
    value = number(_inner(run.counters if kind == "counters" else run.usage, rest))
    return value, "" if value is not None else f"the run has no {metric.name}"


def _inner(values: Any, name: str) -> Any:
    """A value of nested mappings by its dotted name; names of single levels may have dots, too."""
    if not isinstance(values, Mapping):
        return getattr(values, name, None)
    if name in values:
        return values[name]
    for at, letter in enumerate(name):
        if letter == "." and isinstance(values.get(name[:at]), Mapping):
            found = _inner(values[name[:at]], name[at + 1 :])
            if found is not None:
                return found
    return None
