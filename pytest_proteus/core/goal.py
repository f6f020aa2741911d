"""Goals and per-episode evaluators: what an agent is asked for, what is measured, and who sees it.

Goal text and evaluators are independent: an empty text is a measured no-goal condition.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.records import plain

_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
SELECTIONS = ("none", "accept_reject")


class Visibility(str, Enum):
    """Who sees an evaluator's result: nobody but the experimenter, or also the agent in its next observe phase."""

    HIDDEN = "hidden"
    OBSERVE = "observe"


@dataclass(frozen=True)
class EvalResult:
    """What an evaluator says about one episode.

    Args:
        name: label; ``EvaluatorSpec.name`` is the identity and takes its place.
        score: finite number; larger is better where selection uses it.
        passed: verdict of the evaluator's own threshold; kept, never used by selection.
        detail: one short sentence for a reader.
        error: True when the evaluator failed and ``score`` only stands in for a number that is missing.
        data: further plain data behind the score, for records and reports; None for none.
    """

    name: str
    score: float
    passed: bool = False
    detail: str = ""
    error: bool = False
    data: Mapping[str, Any] | None = None

    def to_record(self) -> dict[str, Any]:
        """The fields as plain data; without ``data`` where there is none."""
        return {key: value for key, value in plain(asdict(self)).items() if key != "data" or value is not None}


@dataclass(frozen=True)
class GoalContext:
    """What an evaluator may look at beside the trace.

    Args:
        harness_root: path of the harness tree as the episode left it; read-only.
        episode: one-based number.
        grader_sandbox: where a benchmark's grader runs; None for measurements.
        units: surface → unit name → digest of the tree as the episode left it, where the caller has it at hand;
            None otherwise (a test's own context, an evaluator in a process of its own).
        previous_units: the same for the last accepted state.
    """

    harness_root: str
    episode: int
    grader_sandbox: Any = None
    units: Mapping[str, Mapping[str, str]] | None = None
    previous_units: Mapping[str, Mapping[str, str]] | None = None


Evaluator: TypeAlias = Callable[[Sequence[ActionEvent], GoalContext], EvalResult]


@dataclass(frozen=True)
class EvaluatorSpec:
    """One attached evaluator.

    Args:
        name: stable identity in records and reports.
        run: ``(trace, ctx) -> EvalResult``.
        kind: ``measurement``, ``benchmark``, ``judge`` or ``custom``.
        visibility: ``HIDDEN`` or ``OBSERVE``.
        timeout: seconds; when given, the evaluator runs in a process of its own that is killed when they are over.
        spec: the text it was declared by, such as ``units:notes``; empty for a bare callable.
        direction: ``higher``, ``lower`` or ``neutral``: which scores are better.
        bounds: lowest and highest possible score, where known; a score outside of them is an evaluator error.
        version: tells this evaluator from others that had its name; empty where nobody keeps account of them.
    """

    name: str
    run: Evaluator
    kind: str = "custom"
    visibility: Visibility = Visibility.HIDDEN
    timeout: float | None = None
    spec: str = ""
    direction: str = "neutral"
    bounds: tuple[float | None, float | None] | None = None
    version: str = ""


@dataclass(frozen=True)
class Goal:
    """A named objective with at most one evaluator of its own; ``GoalConfig.single`` and ``multi`` combine them."""

    name: str
    text: str = ""
    evaluator: Evaluator | None = None
    visibility: Visibility = Visibility.HIDDEN


def error_result(name: str, reason: str) -> EvalResult:
    """The result of an evaluator that gave none: score 0.0 for selection, read as missing everywhere else."""
    return EvalResult(name=name, score=0.0, passed=False, detail=f"evaluator error: {reason}", error=True)


def checked_result(name: str, value: Any) -> EvalResult:
    """``value`` as a plain ``EvalResult`` called ``name``, or an error result that says why it is none."""
    if not isinstance(value, EvalResult):
        return error_result(name, f"TypeError: returned {type(value).__name__}, not an EvalResult")
    given: Any = value.score  # whatever a user's code put there
    if isinstance(given, (str, bytes)):
        return error_result(name, f"TypeError: score {given!r} is not a number")
    try:
        score = float(given)
    except Exception:
        return error_result(name, f"TypeError: score of type {type(given).__name__} is not a number")
    if not math.isfinite(score):
        return error_result(name, f"ValueError: non-finite score {score}")
    try:
        passed = bool(value.passed)
    except Exception:
        return error_result(name, f"TypeError: passed of type {type(value.passed).__name__} is not a bool")
    return replace(value, name=name, score=score, passed=passed, detail=str(value.detail), error=bool(value.error))


def call_evaluator(spec: EvaluatorSpec, trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
    """Run one evaluator in this process; whatever it raises but KeyboardInterrupt becomes an error result.

    A copy of the process that the evaluator forked ends here: nobody asked it, and what follows is not its to do.
    """
    asked = os.getpid()
    try:
        return _within_bounds(spec, checked_result(spec.name, spec.run(trace, ctx)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also ``sys.exit`` and a test library's outcome
        return error_result(spec.name, _described(error))
    finally:
        if os.getpid() != asked:
            os._exit(0)


def _within_bounds(spec: EvaluatorSpec, result: EvalResult) -> EvalResult:
    """The result, or an error result where its score lies outside of what is declared possible."""
    if result.error or spec.bounds is None:
        return result
    low, high = spec.bounds
    if (low is None or low <= result.score) and (high is None or result.score <= high):
        return result
    shown = ", ".join("none" if end is None else f"{end:g}" for end in spec.bounds)
    return error_result(
        spec.name,
        f"its score {result.score!r} lies outside of its declared bounds ({shown}); declare bounds= that every score "
        f"lies within, or correct the score",
    )


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # it cannot even be printed
        return type(error).__name__


def own_view(trace: Sequence[ActionEvent], ctx: GoalContext) -> tuple[list[ActionEvent], GoalContext]:
    """A trace and context for one evaluator alone: nothing that it does to them reaches another or the record."""
    return [_own_event(event) for event in trace], replace(
        ctx, units=_read_only(ctx.units), previous_units=_read_only(ctx.previous_units)
    )


def _own_event(event: ActionEvent) -> ActionEvent:
    own = object.__new__(type(event))  # a quarter of the time of copy.copy, and it is frozen
    own.__dict__.update(event.__dict__, params=_own_value(event.params))
    return own


def _own_value(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in _ATOMS else _own_value(item) for key, item in value.items()}
    if kind is list:
        return [_own_value(item) for item in value]
    try:
        return copy.deepcopy(value)
    except Exception:  # an adapter put something there that has no copy
        return value


def _read_only(tables: Mapping[str, Mapping[str, str]] | None) -> Mapping[str, Mapping[str, str]] | None:
    if tables is None:
        return None
    return MappingProxyType({name: MappingProxyType(table) for name, table in tables.items()})


def task_hash(goal: str, task: str | None = None) -> str:
    """SHA-256 of the goal, with the task's label behind a NUL where there is one: what compared runs have in common."""
    text = goal if task is None else f"{goal}\0{task}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class GoalConfig:
    """A goal's text, its evaluators and the selection rule.

    Args:
        goals: named objectives (``single``, ``multi``).
        selection: ``none`` or ``accept_reject``: keep a candidate only when the unweighted mean of all evaluators'
            scores does not fall below that of the accepted state.
        text: objective shown to the agent; empty for a no-goal condition.
        evaluators: attached evaluators; their names must differ.

    Raises:
        ValueError: an unknown selection, or two evaluators of one name.
    """

    goals: tuple[Goal, ...] = ()
    selection: str = "none"
    text: str = ""
    evaluators: tuple[EvaluatorSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection={self.selection!r} is not one of {', '.join(SELECTIONS)}")
        names = [spec.name for spec in self.specs()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two evaluators are called {name!r}; give one of them another name")

    @staticmethod
    def no_goal() -> GoalConfig:
        """Nothing asked, nothing measured by evaluators."""
        return GoalConfig()

    @staticmethod
    def single(goal: Goal, *, selection: str = "none") -> GoalConfig:
        """One named objective."""
        return GoalConfig(goals=(goal,), selection=selection)

    @staticmethod
    def multi(goals: Sequence[Goal], *, selection: str = "none") -> GoalConfig:
        """Several named objectives at once."""
        return GoalConfig(goals=tuple(goals), selection=selection)

    @staticmethod
    def of(text: str = "", evaluators: Sequence[EvaluatorSpec] = (), *, selection: str = "none") -> GoalConfig:
        """A text and any number of evaluators."""
        return GoalConfig(text=text, evaluators=tuple(evaluators), selection=selection)

    @property
    def is_no_goal(self) -> bool:
        """Whether the agent is told no objective."""
        return not self.goal_text()

    def specs(self) -> tuple[EvaluatorSpec, ...]:
        """Every attached evaluator, those of named goals first."""
        own = tuple(
            EvaluatorSpec(goal.name, goal.evaluator, kind="goal", visibility=goal.visibility)
            for goal in self.goals
            if goal.evaluator is not None
        )
        return own + self.evaluators

    def goal_text(self) -> str:
        """The objective as the agent reads it; empty for none."""
        texts = [goal.text for goal in self.goals if goal.text]
        if self.text:
            texts.append(self.text)
        if len(texts) < 2:
            return "".join(texts)
        listed = "\n".join(f"  {number}. {text}" for number, text in enumerate(texts, start=1))
        return f"There are several objectives, all of them for you to pursue:\n{listed}"

    def evaluate(self, trace: Sequence[ActionEvent], ctx: GoalContext) -> list[EvalResult]:
        """Every evaluator's result, in order, each run in this process; no failure replaces another's result."""
        return [call_evaluator(spec, *own_view(trace, ctx)) for spec in self.specs()]

    def observe_feedback(self, results: Mapping[str, EvalResult]) -> str:
        """What the agent reads of ``results`` (evaluator name → result): the observed ones; empty when none are."""
        lines = []
        for spec in self.specs():
            if spec.visibility is not Visibility.OBSERVE or spec.name not in results:
                continue
            result = results[spec.name]
            if result.error:  # why is not the agent's business: a traceback may name what it must not see
                lines.append(f"- {spec.name}: no result")
            else:
                lines.append(f"- {spec.name}: {result.score:.3f}" + (f" ({result.detail})" if result.detail else ""))
        return "\n".join(["Results of your previous episode:", *lines]) if lines else ""

    def describe(self) -> list[dict[str, str]]:
        """Name, kind and visibility of every evaluator, as plain data."""
        return [{"name": spec.name, "kind": spec.kind, "visibility": spec.visibility.value} for spec in self.specs()]
