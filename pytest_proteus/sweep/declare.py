"""What a module or class declares: the ``sweep``, ``evaluator`` and threshold markers, checked and turned into data.

Reads the markers of imported objects, not of collected items, so that the declaration is the same whichever tests a
session selects. Knows nothing of grids and cells.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.adapter import PHASES, Surface
from pytest_proteus.core.budget import TurnBudget
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import SELECTIONS, EvaluatorSpec, Visibility
from pytest_proteus.core.records import plain

if TYPE_CHECKING:
    import pytest

#: The axes of a cell's identity, in the order of node ids; declared further ones follow.
AXES = ("harness", "arm", "seed", "model", "task")

SWEEP_KEYWORDS = (
    "name",
    "episodes",
    "goal",
    "selection",
    "phases",
    "budget",
    "phase_timeout",
    "probes",
    "exclude",
    "axes",
    "repo",
    "ref",
    "test_command",
    "held_out",
    "task_class",
    *AXES,
)
THRESHOLDS = ("at_least", "at_most", "above", "below", "equals")
EVALUATOR_KEYWORDS = ("name", "kind", "visibility", "direction", "bounds", "timeout", "checks", "when", *THRESHOLDS)
DIRECTIONS = ("higher", "lower", "neutral")


def _judge(*form: Any) -> Any:
    from pytest_proteus.scoring.judge import judge_form

    return judge_form(*form)


def _route(*form: Any) -> Any:
    from pytest_proteus.scoring.routes import route_evaluator

    return route_evaluator(*form)


#: First word of an evaluator's form → what reads it, beside the forms that ``core.evaluators`` has.
FORMS = {"judge": _judge, "route": _route}
WHENS = ("last", "every")
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Threshold:
    """One bound on an evaluator's scores: ``op`` of ``THRESHOLDS``, ``when`` of ``WHENS``."""

    op: str
    bound: float
    when: str = "last"


@dataclass(frozen=True)
class EvaluatorMark:
    """One ``evaluator`` marker, checked but not yet resolved against surfaces.

    Args:
        spec: the marker's first argument.
        options: the keywords that were given, thresholds left out.
        thresholds: the bounds that were given.
        where: file and object that carries the marker.
    """

    spec: Any
    options: Mapping[str, Any]
    thresholds: tuple[Threshold, ...]
    where: str


@dataclass(frozen=True)
class Declaration:
    """What one sweep scope declares.

    Args:
        name: name of the sweep.
        where: file (and class) that declares it.
        options: the ``sweep`` keywords that shape runs, axes' lists left out.
        repo, ref: repository and commit of the task that the cells' agents are given; none without ``repo``.
        test_command: words of the command that decides whether an attempt succeeded.
        held_out: tests that only the command sees: ``Files``.
        task_class: class of the task; by its goal's words when not given.
        lists: axis → values given by the marker.
        marks: evaluator markers of the module, its classes and its functions.
    """

    name: str
    where: str
    episodes: int | None = None
    goal: str = ""
    selection: str = "none"
    phases: tuple[str, ...] = PHASES
    budget: TurnBudget = field(default_factory=TurnBudget)
    phase_timeout: float = 1800.0
    probes: int | str | None = None
    exclude: Callable[[Any], bool] | None = None
    axes: tuple[str, ...] = ()
    repo: str | os.PathLike[str] | None = None
    ref: str = "HEAD"
    test_command: tuple[str, ...] = ()
    held_out: Any = None
    task_class: str | None = None
    lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    marks: tuple[EvaluatorMark, ...] = ()


def nearest(word: str, known: Sequence[str]) -> str:
    """`` Did you mean 'x'?`` for the closest of ``known``, or the list of all."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"write one of {', '.join(known)}."


# --- reading markers off imported objects ---------------------------------------------------------------------------


def own_marks(obj: Any) -> list[pytest.Mark]:
    """Markers that stand on ``obj`` itself, as they were written."""
    found = vars(obj).get("pytestmark", []) if hasattr(obj, "__dict__") else []
    listed = found if isinstance(found, (list, tuple)) else [found]
    marks = [getattr(mark, "mark", mark) for mark in listed]
    import pytest  # not with the module: readers of finished sweeps need no pytest

    return [mark for mark in marks if isinstance(mark, pytest.Mark)]


def _class_marks(cls: type) -> list[pytest.Mark]:
    return [mark for base in cls.__mro__ for mark in own_marks(base)]


def sweep_mark(obj: Any) -> pytest.Mark | None:
    """The ``sweep`` marker of a module or class; a class has that of the nearest class that it inherits from.

    Raises:
        ConfigurationError: one of them carries more than one.
    """
    for holder in obj.__mro__ if isinstance(obj, type) else (obj,):
        marks = [mark for mark in own_marks(holder) if mark.name == "sweep"]
        if len(marks) > 1:
            raise ConfigurationError(f"{holder.__name__} carries {len(marks)} sweep markers; write one")
        if marks:
            return marks[0]
    return None


def _tests_of(holder: Any, *, of_module: bool) -> Iterator[tuple[str, Any]]:
    """Functions and classes whose markers may belong to the sweep of ``holder``."""
    spaces = [vars(holder)] if of_module else [vars(base) for base in holder.__mro__ if base is not object]
    for space in spaces:
        for name, value in list(space.items()):
            if name.startswith("__"):
                continue
            yield name, getattr(value, "__func__", value)


def gather_marks(holder: Any, where: str, *, of_module: bool) -> list[EvaluatorMark]:
    """Evaluator markers of ``holder``, of its functions, and of its classes that declare no sweep of their own."""
    marks = own_marks(holder) if of_module else _class_marks(holder)
    found = [read_evaluator(mark, where) for mark in marks if mark.name == "evaluator"]
    for name, value in _tests_of(holder, of_module=of_module):
        place = f"{where}::{name}"
        if isinstance(value, type):
            if sweep_mark(value) is None and (own_marks(value) or _looks_like_tests(value)):
                found += gather_marks(value, place, of_module=False)
        elif callable(value) and hasattr(value, "pytestmark"):
            found += [read_evaluator(mark, place) for mark in own_marks(value) if mark.name == "evaluator"]
            if any(mark.name == "sweep" for mark in own_marks(value)):
                raise ConfigurationError(f"{place}: a sweep marker belongs on a module or a class, not on a function")
    return found


def _looks_like_tests(cls: type) -> bool:
    return any(name.startswith("test") for base in cls.__mro__ for name in vars(base))


# --- the evaluator marker ---------------------------------------------------------------------------------------------


def read_thresholds(given: Mapping[str, Any], where: str) -> tuple[Threshold, ...]:
    """The bounds among keywords.

    Raises:
        ConfigurationError: a bound that is no finite number, ``when`` without a bound, or an unknown ``when``.
    """
    when = given.get("when", "last")
    if when not in WHENS:
        raise ConfigurationError(f"{where}: when={when!r} is not one of {', '.join(map(repr, WHENS))}")
    bounds = []
    for op in THRESHOLDS:
        if op in given:
            bound = given[op]
            if isinstance(bound, bool) or not isinstance(bound, Real) or not math.isfinite(bound):
                raise ConfigurationError(f"{where}: {op}={bound!r} must be a finite number")
            bounds.append(Threshold(op, float(bound), when))
    if "when" in given and not bounds:
        raise ConfigurationError(f"{where}: when={when!r} without a threshold; add one of {', '.join(THRESHOLDS)}")
    return tuple(bounds)


def read_evaluator(mark: pytest.Mark, where: str) -> EvaluatorMark:
    """One ``evaluator`` marker as data.

    Raises:
        ConfigurationError: a wrong number of arguments, an unknown keyword or a value that cannot be.
    """
    place = f"{where}: evaluator marker"
    if not mark.args:
        raise ConfigurationError(
            f"{place} has no spec. Write evaluator('units:<surface>'), or for a callable evaluator(fn, name='…'): "
            f"without name= pytest takes the callable for the test that is marked"
        )
    if len(mark.args) > 1:
        raise ConfigurationError(f"{place} takes one spec; write one marker for each evaluator")
    for keyword in mark.kwargs:
        if keyword not in EVALUATOR_KEYWORDS:
            raise ConfigurationError(f"{place}: unknown keyword {keyword!r}; {nearest(keyword, EVALUATOR_KEYWORDS)}")
    spec, options = mark.args[0], dict(mark.kwargs)
    thresholds = read_thresholds(options, place)
    options = {key: value for key, value in options.items() if key not in (*THRESHOLDS, "when")}
    _check_options(spec, options, place)
    return EvaluatorMark(spec, options, thresholds, where)


def _check_options(spec: Any, options: dict[str, Any], place: str) -> None:
    if not isinstance(spec, (str, EvaluatorSpec)) and not callable(spec):
        raise ConfigurationError(f"{place}: {spec!r} is neither a spec, an EvaluatorSpec nor a callable")
    if callable(spec) and not options.get("name"):
        raise ConfigurationError(f"{place}: a callable needs a name; write evaluator({_called(spec)}, name='…')")
    if options.get("direction", "neutral") not in DIRECTIONS:
        raise ConfigurationError(f"{place}: direction={options['direction']!r} is not one of {', '.join(DIRECTIONS)}")
    if "visibility" in options:
        try:
            options["visibility"] = Visibility(options["visibility"])
        except ValueError:
            raise ConfigurationError(
                f"{place}: visibility={options['visibility']!r} is neither 'hidden' nor 'observe'"
            ) from None
    timeout = options.get("timeout", DEFAULT_TIMEOUT)
    if timeout is not None and not _is_positive(timeout):
        raise ConfigurationError(f"{place}: timeout={timeout!r} must be seconds above 0, or None for no limit")
    if "bounds" in options:
        options["bounds"] = _bounds(options["bounds"], place)
    if "checks" in options and (not isinstance(options["checks"], str) or not options["checks"]):
        raise ConfigurationError(f"{place}: checks={options['checks']!r} must be the name of a visible evaluator")


def _is_positive(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real) and 0 < float(value) < math.inf


def _bounds(value: Any, place: str) -> tuple[float | None, float | None]:
    try:
        low, high = value
        ends = tuple(None if end is None else float(end) for end in (low, high))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{place}: bounds={value!r} must be a pair (lowest, highest); None where open"
        ) from None
    if None not in ends and not ends[0] < ends[1]:  # type: ignore[operator]
        raise ConfigurationError(f"{place}: bounds={value!r}: the lowest must be below the highest")
    return ends[0], ends[1]


def _called(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


# --- resolving evaluators ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attached:
    """An evaluator that is attached to every run of a sweep, with the thresholds of each place that declared one.

    ``checks`` names the visible evaluator that this hidden one keeps an eye on, where it does.
    """

    spec: EvaluatorSpec
    thresholds: tuple[Threshold, ...] = ()
    checks: str | None = None


def resolve_evaluator(mark: EvaluatorMark, surfaces: Sequence[Surface]) -> EvaluatorSpec:
    """The evaluator that a marker names, for harnesses with ``surfaces``, under the name that records have it by.

    Raises:
        ConfigurationError: an unknown form or surface; names the place and the nearest valid spelling.
    """
    spec = _resolved(mark, surfaces)
    return replace(spec, name=plain(spec.name))


def _resolved(mark: EvaluatorMark, surfaces: Sequence[Surface]) -> EvaluatorSpec:
    from pytest_proteus.core.evaluators import is_built_in, parse_evaluator

    options = {key: value for key, value in mark.options.items() if key != "checks"}
    if isinstance(mark.spec, EvaluatorSpec):
        return replace(mark.spec, **options)
    if isinstance(mark.spec, str):
        try:
            parsed = parse_evaluator(mark.spec, surfaces, FORMS)
        except ConfigurationError as error:
            raise ConfigurationError(f"{mark.where}: evaluator {mark.spec!r}: {error}") from error
        if is_built_in(parsed.run):
            options.pop("timeout", None)  # the built-ins are bounded and run in process
        else:
            options.setdefault("timeout", DEFAULT_TIMEOUT)
        options.setdefault("name", parsed.name if parsed.kind in FORMS else parsed.spec or parsed.name)
        return replace(parsed, **options)
    options.setdefault("timeout", DEFAULT_TIMEOUT)
    options.setdefault("kind", "measurement")
    return EvaluatorSpec(run=mark.spec, spec=_called(mark.spec), **options)


def attach(marks: Sequence[EvaluatorMark], surfaces: Sequence[Surface]) -> dict[str, Attached]:
    """Every evaluator of a sweep by name; markers that agree in spec and options are one, their thresholds add.

    Raises:
        ConfigurationError: two different evaluators of one name, or what ``resolve_evaluator`` raises.
    """
    attached: dict[str, Attached] = {}
    named = []
    for mark in marks:
        spec, checks = resolve_evaluator(mark, surfaces), mark.options.get("checks")
        named.append((mark, spec.name))
        known = attached.get(spec.name)
        if known is None:
            attached[spec.name] = Attached(spec, mark.thresholds, checks)
            continue
        if not same_evaluator(known.spec, spec) or known.checks != checks:
            raise ConfigurationError(
                f"{mark.where}: an evaluator called {spec.name!r} with another spec or other options is declared "
                f"already; give one of them name='…'"
            )
        more = tuple(bound for bound in mark.thresholds if bound not in known.thresholds)
        attached[spec.name] = replace(known, thresholds=known.thresholds + more)
    for mark, name in named:
        _check_what_is_checked(attached[name], attached, mark.where)
    return attached


def _check_what_is_checked(item: Attached, attached: Mapping[str, Attached], where: str) -> None:
    if item.checks is None:
        return
    place = f"{where}: evaluator {item.spec.name!r}: checks={item.checks!r}"
    if item.checks not in attached:
        raise ConfigurationError(f"{place}: no such evaluator is attached; {nearest(item.checks, list(attached))}")
    other = attached[item.checks].spec
    if (other.visibility, item.spec.visibility) != (Visibility.OBSERVE, Visibility.HIDDEN):
        raise ConfigurationError(
            f"{place}: a hidden evaluator checks one that is shown; give {other.name!r} visibility='observe'"
        )


def same_evaluator(one: EvaluatorSpec, other: EvaluatorSpec) -> bool:
    """Whether two specs say the same; built-ins compare by their text, callables by identity."""
    from pytest_proteus.core.evaluators import is_built_in

    same_code = one.run is other.run or (is_built_in(one.run) and is_built_in(other.run))
    return same_code and replace(one, run=other.run) == other


# --- the sweep marker -------------------------------------------------------------------------------------------------


def read_sweep(marks: Sequence[pytest.Mark], name: str, where: str, evaluators: Sequence[EvaluatorMark]) -> Declaration:
    """A declaration from the sweep markers of a module and, after it, of a class; later keywords win.

    Args:
        marks: zero to two ``sweep`` markers.
        name: name where no marker gives one.
        where: place, for errors.
        evaluators: the scope's evaluator markers.

    Raises:
        ConfigurationError: positional arguments, an unknown keyword, or a value that cannot be.
    """
    given: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise ConfigurationError(f"{where}: the sweep marker takes keywords only, such as sweep(episodes=8)")
        for keyword in mark.kwargs:
            if keyword not in SWEEP_KEYWORDS:
                raise ConfigurationError(
                    f"{where}: sweep marker: unknown keyword {keyword!r}; {nearest(keyword, SWEEP_KEYWORDS)}"
                )
        given.update(mark.kwargs)
    lists = {axis: _listed(axis, given.pop(axis), where) for axis in AXES if axis in given}
    _check_sweep(given, where)
    given["phases"] = tuple(given.get("phases", PHASES))
    given["axes"] = tuple(given.get("axes", ()))
    if "test_command" in given:
        from pytest_proteus.scoring.evidence import check_command

        given["test_command"] = check_command(given["test_command"], f"{where}: sweep marker")
    return Declaration(**{"name": name, **given}, where=where, lists=lists, marks=tuple(evaluators))


def _listed(axis: str, values: Any, where: str) -> list[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ConfigurationError(f"{where}: sweep marker: {axis}={values!r} must be a list of values")
    listed = list(values)
    if not listed:
        raise ConfigurationError(f"{where}: sweep marker: {axis}=[] leaves no cell; give at least one value")
    return listed


def _check_sweep(given: Mapping[str, Any], where: str) -> None:
    def fail(keyword: str, wanted: str) -> None:
        raise ConfigurationError(f"{where}: sweep marker: {keyword}={given[keyword]!r} must be {wanted}")

    name = given.get("name", "x")
    if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\\0") or name[0] == ".":
        fail("name", "a name that can be a folder's: no slash, no leading dot")
    episodes = given.get("episodes", 1)
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        fail("episodes", "a whole number of 1 or more")
    if not isinstance(given.get("goal", ""), str):
        fail("goal", "a text; leave it out for no goal")
    if given.get("selection", "none") not in SELECTIONS:
        fail("selection", f"one of {', '.join(map(repr, SELECTIONS))}")
    phases = given.get("phases", PHASES)
    if isinstance(phases, str) or not phases or not all(isinstance(phase, str) and phase for phase in phases):
        fail("phases", "a list of phase names such as ['task']")
    if len(set(phases)) != len(list(phases)):
        fail("phases", "a list without repetitions")
    if not isinstance(given.get("budget", TurnBudget()), TurnBudget):
        fail("budget", "a TurnBudget(...)")
    problem = given.get("budget", TurnBudget()).problem(list(phases))
    if problem:
        raise ConfigurationError(f"{where}: sweep marker: budget: {problem}")
    timeout = given.get("phase_timeout", 1.0)
    if not _is_positive(timeout):
        fail("phase_timeout", "seconds above 0")
    probes = given.get("probes", "last")
    if probes != "last" and (isinstance(probes, bool) or not isinstance(probes, int) or probes < 1):
        fail("probes", "'last' or the number of an episode, 1 or more")
    if not callable(given.get("exclude", len)):
        fail("exclude", "a function of a cell that says True for the cells to leave out")
    _check_task(given, fail)
    axes = given.get("axes", ())
    if isinstance(axes, str) or not all(isinstance(axis, str) and axis not in AXES for axis in axes):
        fail("axes", f"a list of names of further parametrized fixtures, none of {', '.join(AXES)}")


def _check_task(given: Mapping[str, Any], fail: Callable[[str, str], None]) -> None:
    from pytest_proteus.sweep.arms import Files
    from pytest_proteus.sweep.task import TASK_CLASSES

    if not isinstance(given.get("repo", ""), (str, os.PathLike)):
        fail("repo", "the path of a git repository")
    for keyword in ("ref", "test_command", "held_out", "task_class"):
        if keyword in given and given.get("repo") is None:
            fail(keyword, "given with repo=, the git repository of the task")
    if not isinstance(given.get("ref", "HEAD"), str) or not given.get("ref", "HEAD"):
        fail("ref", "a branch, a tag or a commit")
    held_out = given.get("held_out")
    if "held_out" in given and not (isinstance(held_out, Files) and held_out.paths and given.get("test_command")):
        fail("held_out", "Files(folder or ref, paths=[…]) of tests that test_command runs and the agent never sees")
    if given.get("task_class") not in (None, *TASK_CLASSES):
        fail("task_class", f"one of {', '.join(TASK_CLASSES)}")
