"""The grid: which cells a sweep's visible axis fixtures span, and which cell a collected test belongs to.

The only module that looks into pytest's fixture definitions (their private registry), so that a change there is mended
in one place.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sweep.arms import Arm, as_arm
from pytest_proteus.sweep.declare import AXES, nearest

#: Module of the fixture functions that the plugin supplies, to know them from a user's.
SUPPLIER = "pytest_proteus.plugin"


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep, by its labels.

    Args:
        harness, arm: labels.
        seed: the number handed to the harness.
        model, task: labels, or None where the axis is not declared.
        axes: label of each further axis, by name.
        values: axis → value that the fixture gives; no part of the identity.
    """

    harness: str
    arm: str
    seed: int
    model: str | None = None
    task: str | None = None
    axes: tuple[tuple[str, str], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def arm_value(self) -> Arm:
        """The arm itself."""
        return as_arm(self.values["arm"])

    def __str__(self) -> str:
        parts = [self.harness, self.arm, f"s{self.seed}", self.model, self.task, *(label for _, label in self.axes)]
        return "-".join(str(part) for part in parts if part is not None)


# --- fixture definitions ----------------------------------------------------------------------------------------------


def visible_definition(session: pytest.Session, node: pytest.Item | pytest.Collector, name: str) -> Any:
    """The fixture definition called ``name`` that a test below ``node`` gets, or None."""
    definitions = session._fixturemanager.getfixturedefs(name, node)
    return definitions[-1] if definitions else None


def is_supplied(definition: Any) -> bool:
    """Whether a definition is the plugin's own default of an axis."""
    return getattr(definition.func, "__module__", None) == SUPPLIER


def supply(collector: pytest.Collector, axis: str, values: Sequence[Any]) -> None:
    """Make ``axis`` a fixture of a module or class, parametrized by ``values``."""

    def fixture(request: pytest.FixtureRequest) -> Any:
        return request.param

    pytest.register_fixture(
        name=axis,
        func=fixture,
        node=collector,
        scope="session",
        params=list(values),
        ids=lambda value: f"s{value}" if axis == "seed" else str(label_of(axis, value)),
    )


def extend_closure(metafunc: pytest.Metafunc, axes: Sequence[str]) -> None:
    """Make a test depend on ``axes`` and put them first, so that node ids name them in that order."""
    session = metafunc.definition.session
    for name in axes:
        if name in metafunc.fixturenames:
            continue
        definitions = session._fixturemanager.getfixturedefs(name, metafunc.definition)
        if definitions:
            metafunc._arg2fixturedefs[name] = definitions
            metafunc.fixturenames.append(name)
    rest = [name for name in metafunc.fixturenames if name not in axes]
    metafunc.fixturenames[:] = [name for name in axes if name in metafunc.fixturenames] + rest


def params_of(definition: Any) -> list[Any] | None:
    """The values of a definition's params, or None for a fixture without."""
    return None if definition.params is None else [_unwrapped(param) for param in definition.params]


def _unwrapped(param: Any) -> Any:
    """What ``pytest.param`` wraps; anything else as it is."""
    return param.values[0] if isinstance(param, type(pytest.param(None))) else param


def set_params(definition: Any, params: Sequence[Any]) -> None:
    """Give a definition other params. Ids that were listed one by one are kept for params that stay."""
    old = list(definition.params or ())
    if isinstance(definition.ids, (list, tuple)):
        kept = [next((i for i, item in enumerate(old) if item is param or item == param), None) for param in params]
        definition.ids = tuple(definition.ids[i] for i in kept if i is not None) if None not in kept else None
    definition.params = tuple(params)


def value_of(definition: Any, param: Any, others: Mapping[str, Any]) -> Any:
    """What an axis fixture gives for one param, called here without pytest's machinery.

    Args:
        definition: the fixture.
        param: what ``request.param`` is.
        others: values of the axes that it may ask for.

    Raises:
        ConfigurationError: it asks for anything but ``request`` and other axes, uses more of ``request`` than its
            ``param``, or raises.
    """
    given: dict[str, Any] = {}
    for name in definition.argnames:
        if name == "request":
            given[name] = types.SimpleNamespace(param=param)
        elif name in others:
            given[name] = others[name]
        else:
            raise ConfigurationError(
                f"{place_of(definition)}: the axis fixture {definition.argname!r} asks for {name!r}; an axis may use "
                f"only request.param and other axes, because the grid is known before any test runs"
            )
    function = definition.func
    if not inspect.ismethod(function) and next(iter(inspect.signature(function).parameters), "") == "self":
        function = types.MethodType(function, None)
    try:
        made = function(**given)
        if inspect.isgenerator(made):
            generator, made = made, next(made)
            generator.close()
    except Exception as error:
        raise ConfigurationError(
            f"{place_of(definition)}: the axis fixture {definition.argname!r} failed for param {param!r} "
            f"({type(error).__name__}: {error}); an axis may use only request.param and other axes"
        ) from error
    return made


def place_of(definition: Any) -> str:
    """File and line of a fixture; the declaring module or class for an axis that a marker lists."""
    if getattr(definition.func, "__module__", None) == __name__:
        return f"{definition.baseid}: sweep marker"
    code = getattr(definition.func, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else str(definition.baseid or "plugin")


# --- labels -----------------------------------------------------------------------------------------------------------


def label_of(axis: str, value: Any, definition: Any = None) -> Any:
    """The label of an axis' value: the number itself for a seed, None for an axis that is not used.

    Raises:
        ConfigurationError: a value that the axis cannot have.
    """
    place = f"{place_of(definition)}: " if definition is not None else ""
    if axis == "harness":
        from pytest_proteus.harnesses.registry import harness_label

        return harness_label(value)
    if axis == "arm":
        try:
            return as_arm(value).label
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}{error}") from error
    if axis == "seed":
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ConfigurationError(f"{place}seed {value!r} must be a whole number, such as range(6) gives")
        return int(value)
    if axis in ("model", "task"):
        return None if value is None else str(getattr(value, "name", value))
    return str(getattr(value, "label", None) or getattr(value, "name", None) or value)


def make_cell(values: Mapping[str, Any], definitions: Mapping[str, Any]) -> Cell:
    """A cell from the value of every axis."""
    labels = {axis: label_of(axis, value, definitions.get(axis)) for axis, value in values.items()}
    further = tuple((axis, labels[axis]) for axis in values if axis not in AXES)
    return Cell(**{axis: labels[axis] for axis in AXES}, axes=further, values=dict(values))


# --- grids ------------------------------------------------------------------------------------------------------------


def grid_of(session: pytest.Session, node: pytest.Collector, axes: Sequence[str], where: str) -> list[Cell]:
    """Every cell that the axis fixtures visible at ``node`` span, in the order of ``axes``.

    Raises:
        ConfigurationError: an axis that is missing, has no params, or has two params of one label.
    """
    definitions = {}
    for axis in axes:
        definition = visible_definition(session, node, axis)
        if definition is None:
            raise ConfigurationError(
                f"{where}: axes names {axis!r}, but no fixture of that name is visible here; "
                f"write @pytest.fixture(scope='session', params=[…]) def {axis}(request): return request.param"
            )
        require_params(definition, axis)
        definitions[axis] = definition
    options = [params_of(definitions[axis]) or [None] for axis in axes]
    cells = [
        make_cell(_values(dict(zip(axes, params, strict=True)), definitions), definitions)
        for params in itertools.product(*options)
    ]
    _refuse_twins(cells, where)
    return cells


def require_params(definition: Any, axis: str) -> None:
    """Refuse a user's axis fixture that is not parametrized: which cells it spans cannot be known."""
    if definition.params is None and not is_supplied(definition):
        raise ConfigurationError(
            f"{place_of(definition)}: the axis fixture {axis!r} has no params; write "
            f"@pytest.fixture(scope='session', params=[…]) and return request.param"
        )
    if definition.params is not None and not list(definition.params):
        raise ConfigurationError(
            f"{place_of(definition)}: the axis fixture {axis!r} has params=[], which leaves no cell"
        )


def _values(params: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all axes, those that ask for others after them."""
    values: dict[str, Any] = {}
    waiting = list(params)
    while waiting:
        ready = [axis for axis in waiting if not set(definitions[axis].argnames) & (set(waiting) - {axis})]
        if not ready:
            raise ConfigurationError(f"the axis fixtures {', '.join(waiting)} ask for each other in a circle")
        for axis in ready:
            values[axis] = value_of(definitions[axis], params[axis], values)
            waiting.remove(axis)
    return {axis: values[axis] for axis in params}


def _refuse_twins(cells: Sequence[Cell], where: str) -> None:
    seen: dict[Cell, Cell] = {}
    for cell in cells:
        if cell in seen:
            raise ConfigurationError(
                f"{where}: two cells are called {cell}; give arms, harnesses and axes different labels"
            )
        seen[cell] = cell


def cell_of(item: pytest.Function, axes: Sequence[str]) -> Cell:
    """The cell that a collected test runs in.

    Raises:
        ConfigurationError: an axis fixture that is not parametrized.
    """
    params = item.callspec.params if hasattr(item, "callspec") else {}
    definitions = {}
    for axis in axes:
        found = item._fixtureinfo.name2fixturedefs.get(axis)
        if not found:
            raise ConfigurationError(f"{item.nodeid}: the axis {axis!r} has no fixture here")
        definition = found[-1]
        if axis not in params:
            require_params(definition, axis)
        definitions[axis] = definition
    values = _values({axis: params.get(axis) for axis in axes}, definitions)
    return make_cell(values, definitions)


def seed_blocks(cells: Sequence[Cell]) -> list[Cell]:
    """The cells in the order in which they are started.

    Every cell of one seed comes before the next seed, so that an early end leaves balanced data; within a block the
    order is rotated by one from block to block, so that no arm is always first.
    """
    blocks: dict[int, list[Cell]] = {}
    for cell in cells:
        blocks.setdefault(cell.seed, []).append(cell)
    return [
        cell
        for number, block in enumerate(blocks.values())
        for cell in block[number % len(block) :] + block[: number % len(block)]
    ]


def narrow(definition: Any, axis: str, wanted: Sequence[str], option: str) -> None:
    """Keep only the params of an axis whose label is in ``wanted``.

    Raises:
        ConfigurationError: a label that the axis does not have.
    """
    params = params_of(definition) or []
    labels = [label_of(axis, value_of(definition, param, {}), definition) for param in params]
    for label in wanted:
        if label not in labels:
            known = [str(known) for known in labels]
            raise ConfigurationError(
                f"{option}={label}: the {axis} axis at {place_of(definition)} has no such label; "
                f"{nearest(label, known)}"
            )
    kept = [param for param, label in zip(definition.params, labels, strict=True) if label in wanted]
    set_params(definition, kept)


def iter_functions(items: Sequence[pytest.Item]) -> Iterator[pytest.Function]:
    """The collected test functions."""
    return (item for item in items if isinstance(item, pytest.Function))
