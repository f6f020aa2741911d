"""Statistics that users write: a function of the sweep becomes a fixture and an entry of the report.

The function is trusted with nothing: it is called twice, and held to plain data, to the same answer, and to artifacts
that are as they were. Whatever goes wrong makes the statistic unavailable, with its reason, and costs nothing else.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.strata import by_arm

if TYPE_CHECKING:
    from pytest_proteus.measure.statistic import Statistic
    from pytest_proteus.measure.unavailable import Unavailable
    from pytest_proteus.sweep.run import Run, Sweep

DIRECTIONS = ("higher", "lower", "neutral")
#: Fixtures of our own that a statistic may not take the place of.
TAKEN = frozenset(
    {"run", "sweep", "gate", "scores", "contrast", "structure", "travel", "reliability", "separation", "baseline"}
    | {"crystallization", "audit", "ranking", "harness", "arm", "seed", "model", "task"}
)
_DEPTH = 20


def statistic(
    *, direction: str, scale: str, min_seeds: int = 1, min_arms: int = 1
) -> Callable[[Callable[[Sweep], Any]], Any]:
    """Make a session-scoped fixture of a function of ``sweep``, recorded in the report under the function's name.

    The function is called with the runs of one stratum at a time (harness, model, task, further axes) and returns plain
    data, an ``Estimate`` or another result of ``pytest_proteus.measure``, or a mapping of them by arm. Its docstring's
    first paragraph is the interpretation that readers of the report get. The value is ``Unavailable`` when the function
    raises, when it returns what JSON cannot hold, when a second call over the same artifacts differs, when it changed
    an artifact, or when there are too few seeds or arms.

    Args:
        direction: ``higher`` or ``lower`` when that is better, ``neutral`` when it is only more.
        scale: what the number counts, and its bounds, in words.
        min_seeds: complete runs of different seeds that every arm must have.
        min_arms: arms that there must be.

    Raises:
        ConfigurationError: one of these is wrong, or the function is no function of ``sweep`` alone.
    """
    if direction not in DIRECTIONS:
        raise ConfigurationError(f"statistic: direction={direction!r} is not one of {', '.join(DIRECTIONS)}")
    if not isinstance(scale, str) or not scale.strip():
        raise ConfigurationError(
            "statistic: scale= must say in words what the number counts, such as 'files, 0 or more'"
        )
    for name, value in (("min_seeds", min_seeds), ("min_arms", min_arms)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"statistic: {name}={value!r} must be a whole number of 1 or more")

    def decorate(function: Callable[[Sweep], Any]) -> Any:
        name = _checked_name(function)

        def computed(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
            session: Any = request.config.pluginmanager.get_plugin("proteus-session")
            return session.statistic(sweep, _statistic(function, name, direction, scale, min_seeds, min_arms))

        # not functools.wraps: pytest would take the arguments of the wrapped function
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(computed, attribute, getattr(function, attribute))
        computed.proteus_statistic = True  # type: ignore[attr-defined]
        return pytest.fixture(scope="session")(computed)

    return decorate


def _checked_name(function: Any) -> str:
    if not inspect.isfunction(function):
        raise ConfigurationError(
            f"statistic: {function!r} is no function; decorate a function of sweep, below no other"
        )
    if list(inspect.signature(function).parameters) != ["sweep"]:
        raise ConfigurationError(
            f"statistic {function.__name__}: it is called with the sweep alone; write def {function.__name__}(sweep)"
        )
    if function.__name__ in TAKEN:
        raise ConfigurationError(f"statistic {function.__name__}: a fixture has that name already; choose another")
    return function.__name__


def _statistic(
    function: Callable[[Sweep], Any], name: str, direction: str, scale: str, min_seeds: int, min_arms: int
) -> Statistic:
    from pytest_proteus.measure.statistic import Statistic

    def compute(runs: Sequence[Run], sweep: Any) -> Any:
        too_few = _too_few(runs, min_seeds, min_arms)
        return _checked(function, runs, sweep) if too_few is None else too_few

    told = inspect.getdoc(function) or ""
    interpretation = " ".join(told.split("\n\n")[0].split())
    return Statistic(name, compute, direction, scale, interpretation, lists_runs=True)


def _too_few(runs: Sequence[Run], min_seeds: int, min_arms: int) -> Unavailable | None:
    from pytest_proteus.measure.unavailable import Unavailable

    seeds = {arm: {run.seed for run in found if run.state == "complete"} for arm, found in by_arm(runs).items()}
    if len(seeds) < min_arms:
        return Unavailable("n_below_minimum", f"it takes {min_arms} arms and there are {len(seeds)}", len(seeds))
    for arm, found in seeds.items():
        if len(found) < min_seeds:
            told = f"it takes complete runs of {min_seeds} seeds an arm, and arm {arm} has {len(found)}"
            return Unavailable("n_below_minimum", told, len(found))
    return None


def _checked(function: Callable[[Sweep], Any], runs: Sequence[Run], sweep: Sweep) -> Any:
    """The function's value, or why it is none that a report could stand for."""
    from pytest_proteus.measure.statistic import as_json
    from pytest_proteus.measure.unavailable import Unavailable

    count = len(runs)
    before, values, failure = dict(_artifacts(sweep.out)), [], ""
    try:
        values = [function(sweep.of_runs(runs)) for _ in range(2)]
    except (KeyboardInterrupt, GeneratorExit, pytest.exit.Exception):
        raise
    except BaseException as error:  # also ``sys.exit`` and what pytest.fail and pytest.skip raise
        failure = f"{type(error).__name__}: {error}"
    changed = _changed(before, dict(_artifacts(sweep.out)))
    if changed:
        return Unavailable("changed_artifacts", f"it changed {_listed(changed)}", count)
    if failure:
        return Unavailable("failed", failure, count)
    for value in values:
        problem = _problem(value)
        if problem:
            return Unavailable("not_json", problem, count)
    first, second = (json.dumps(as_json(value), sort_keys=True) for value in values)
    if first != second:
        return Unavailable("not_deterministic", "two calls over the same artifacts gave different values", count)
    if values[0] is None:
        return Unavailable("no_values", "it returned None", count)
    return values[0]


def register(collector: pytest.Module) -> None:
    """Make fixtures of what ``pytest_proteus_register_statistics`` gives for a module; its own take precedence.

    Raises:
        ConfigurationError: an implementation failed, or gave something else than statistics.
    """
    hook = collector.ihook.pytest_proteus_register_statistics
    try:
        found = [item for listed in hook(config=collector.config) for item in listed or ()]
    except Exception as error:
        raise ConfigurationError(
            f"pytest_proteus_register_statistics failed: {type(error).__name__}: {error}"
        ) from error
    for item in found:
        function: Any = getattr(item, "_get_wrapped_function", lambda: None)()
        if not hasattr(function, "proteus_statistic"):
            raise ConfigurationError(
                f"pytest_proteus_register_statistics returned {item!r}; return functions decorated with "
                f"pytest_proteus.statistic(...)"
            )
        pytest.register_fixture(name=function.__name__, func=function, node=collector, scope="session")


# --- plain data -------------------------------------------------------------------------------------------------------


def _problem(value: Any, place: str = "the value", depth: int = 0) -> str:
    """What keeps a value from being JSON; empty when nothing does."""
    if value is None or isinstance(value, str) or hasattr(value, "to_json"):
        return ""
    if isinstance(value, Real):
        try:
            return "" if math.isfinite(value) else f"{place} is {value}; return None where there is no number"
        except OverflowError:
            return f"{place} is too large for a number of a report; return its logarithm, or a text"
    if depth >= _DEPTH:
        return f"{place} is nested too deeply"
    items: Any = None
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            return f"{place} has the key {wrong[0]!r}; use texts for keys"
        items = [(f"{place}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    if items is None:
        return f"{place} is a {type(value).__name__}; return numbers, texts, lists and mappings"
    return next((said for where, item in items if (said := _problem(item, where, depth + 1))), "")


# --- artifacts --------------------------------------------------------------------------------------------------------


def _artifacts(out: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path, what a change to it changes) for everything in a sweep's folder; locks are no artifacts."""
    for folder, names, files in os.walk(out):
        for name in (*names, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 (a path object for each file costs more than looking at it)
            if not name.endswith(".lock"):
                found = os.lstat(path)
                is_folder = name in names
                told = (0, 0) if is_folder else (found.st_size, found.st_ctime_ns)
                yield path.removeprefix(f"{out}/"), (found.st_mode, *told)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - 3
    return ", ".join(paths[:3]) + (f" and {more} more" if more > 0 else "")
