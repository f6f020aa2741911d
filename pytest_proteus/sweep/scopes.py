"""The sweeps that collected tests belong to: scopes, their declarations, their cells, and what is wrong with them.

From pytest's collection to plans. Opens no folder and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.sweep import attainable, declare, declared, grid, options, statistic
from pytest_proteus.sweep.declare import AXES, Declaration, EvaluatorMark
from pytest_proteus.sweep.declared import DeclaredGate, Family
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan, Setting, make_plan
from pytest_proteus.sweep.run import Sweep
from pytest_proteus.sweep.store import CellStore

#: Of a collected test: which of ``run``, ``sweep`` and ``gate`` it asks for; its scope; its cell.
WANTED: pytest.StashKey[set[str]] = pytest.StashKey()
SCOPE: pytest.StashKey[Scope] = pytest.StashKey()
CELL: pytest.StashKey[Cell] = pytest.StashKey()
#: The gates that its markers declare.
GATES: pytest.StashKey[list[DeclaredGate]] = pytest.StashKey()


@dataclass
class Scope:
    """A module or class that declares a sweep, or several that share one by name.

    Args:
        key: node id of the first of them.
        node: its collector.
        declaration: what it declares.
        more: cells that single tests have, perhaps beyond the visible grid.
        shared: axes that some test takes from where the scope sees them.
        overridden: axes that some test parametrizes itself.
        family: the gates that markers declare, whichever tests are selected.
        plan: the plan, once every test is collected.
        store: the cells, once the folder is allocated.
        whole: the whole sweep, once some test asked for it.
    """

    key: str
    node: Any
    declaration: Declaration
    more: list[Cell] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    overridden: set[str] = field(default_factory=set)
    family: Family = field(default_factory=lambda: Family("", []))
    plan: Plan | None = None
    store: CellStore | None = None
    whole: Sweep | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of its cells, in the order of node ids."""
        return (*AXES, *self.declaration.axes)

    def planned(self) -> Plan:
        """The plan; there is one when tests run."""
        assert self.plan is not None
        return self.plan

    def cells(self) -> CellStore:
        """The store; there is one when tests run."""
        assert self.store is not None
        return self.store


class Scopes:
    """Every sweep that some collected test belongs to.

    Args:
        config: pytest's.
        ours: which of ``run``, ``sweep`` and ``gate`` a test asks for, given its fixture definitions by name.
    """

    def __init__(self, config: pytest.Config, ours: Callable[[Mapping[str, Sequence[Any]]], set[str]]) -> None:
        self.config = config
        self.by_key: dict[str, Scope] = {}
        self.problems: list[str] = []
        self._ours = ours
        self._supplied: set[str] = set()
        self._adjusted: set[int] = set()

    # --- declaring ----------------------------------------------------------------------------------------------------

    def supply_axes(self, collector: pytest.Module | pytest.Class) -> None:
        """Turn the axes that a sweep marker lists into fixtures of its module or class."""
        if collector.nodeid in self._supplied:
            return
        self._supplied.add(collector.nodeid)
        with self.noting():
            mark = declare.sweep_mark(collector.obj)
            if mark is None:
                return
            for axis in AXES:
                if axis not in mark.kwargs:
                    continue
                values = declare._listed(axis, mark.kwargs[axis], collector.nodeid)
                known = grid.visible_definition(collector.session, collector, axis)
                if known is not None and not grid.is_supplied(known) and known.baseid == collector.nodeid:
                    raise ConfigurationError(
                        f"{collector.nodeid}: the sweep marker lists {axis}=… and a fixture {axis!r} stands in the "
                        f"same place; keep one of them"
                    )
                grid.supply(collector, axis, values)

    def register_statistics(self, collector: pytest.Module) -> None:
        """Make fixtures of the statistics that conftests and plugins give for a module."""
        with self.noting():
            statistic.register(collector)

    def explain(self, collector: pytest.Module, report: pytest.CollectReport) -> None:
        """Note what is behind a module that could not be collected, where a bare callable in a marker is."""
        told = str(report.longrepr)
        called = re.search(r"TypeError: (?:.*\.)?(\w+)\(\) ", told)
        source = collector.path.read_text(encoding="utf-8", errors="replace") if called else ""
        if "instead of Mark" in told or (called and re.search(rf"mark\.evaluator\(\s*{called[1]}\b", source)):
            self.problems.append(
                f"{collector.nodeid}: evaluator(callable) needs a name; write evaluator(callable, name='…'): "
                f"without name= pytest takes the callable for the test that is marked"
            )

    def scope_of(self, node: pytest.Item | pytest.Collector) -> Scope:
        """The sweep that a test belongs to: that of the nearest class with a marker of its own, else of the module.

        Raises:
            ConfigurationError: its markers are wrong, or another module gives a sweep of that name differently.
        """
        chain = [part for part in reversed(node.listchain()) if isinstance(part, (pytest.Class, pytest.Module))]
        if not chain:
            raise ConfigurationError(f"{node.nodeid}: run, sweep and gate need a test in a Python module")
        holder = next(
            (part for part in chain if isinstance(part, pytest.Class) and declare.sweep_mark(part.obj) is not None),
            chain[-1],
        )
        known = self.by_key.get(holder.nodeid)
        if known is not None:
            return known
        declaration = self._declare(holder, chain[-1])
        users = declared.users_near(holder)
        gates = declared.gather_gates(holder.obj, holder.nodeid, users, of_module=holder is chain[-1])
        for scope in self.by_key.values():
            if scope.declaration.name == declaration.name:
                self._require_alike(scope.declaration, declaration)
                self.by_key[holder.nodeid] = scope
                scope.family.gates += gates
                return scope
        scope = self.by_key[holder.nodeid] = Scope(
            holder.nodeid, holder, declaration, family=Family(f"gates of {declaration.name}", gates)
        )
        return scope

    def _declare(self, holder: Any, module: Any) -> Declaration:
        where = holder.nodeid
        found = [declare.sweep_mark(module.obj)]
        marks = declare.gather_marks(module.obj, module.nodeid, of_module=True) if holder is module else []
        if holder is not module:
            marks = [
                declare.read_evaluator(mark, module.nodeid)
                for mark in declare.own_marks(module.obj)
                if mark.name == "evaluator"
            ]
            marks += declare.gather_marks(holder.obj, where, of_module=False)
            found.append(declare.sweep_mark(holder.obj))
        name = where.removesuffix(".py").replace(".py::", ".").replace("::", ".").replace("/", ".").lstrip(".")
        return declare.read_sweep([mark for mark in found if mark], name or "sweep", where, marks)

    def _require_alike(self, one: Declaration, other: Declaration) -> None:
        for name in ("episodes", "goal", "selection", "phases", "budget", "phase_timeout", "probes", "axes", "lists"):
            if getattr(one, name) != getattr(other, name):
                raise ConfigurationError(
                    f"{other.where}: the sweep {other.name!r} is declared in {one.where} too, with another {name}; "
                    f"declare it alike in both, or give one of them another name"
                )

    # --- collecting ---------------------------------------------------------------------------------------------------

    def generate(self, metafunc: pytest.Metafunc, wanted: Collection[str]) -> None:
        """Make a test depend on its sweep's axes, in their order, or on the sweep itself.

        Args:
            metafunc: the test.
            wanted: which of ``run``, ``sweep`` and ``gate`` it asks for.
        """
        if wanted == {"gate"}:
            return
        with self.noting():
            scope = self.scope_of(metafunc.definition)
            if "sweep" in wanted:
                metafunc.parametrize("sweep", [scope.key], indirect=True, scope="session", ids=[pytest.HIDDEN_PARAM])
            if "run" in wanted:
                grid.extend_closure(metafunc, scope.axes)
                for axis in scope.axes:
                    self._adjust(axis, grid.visible_definition(metafunc.definition.session, metafunc.definition, axis))

    def _adjust(self, axis: str, definition: Any) -> None:
        """Give an axis fixture the params that the command line and the ini file ask for; once for each definition."""
        if definition is None or id(definition) in self._adjusted:
            return
        self._adjusted.add(id(definition))
        if axis == "seed":
            count, _ = options.seeds(self.config)
            by_command = self.config.getoption("proteus_seeds") is not None
            if count and (by_command or grid.is_supplied(definition)):
                grid.set_params(definition, range(count))
        elif axis in ("harness", "arm", "model"):
            wanted = options.listed(self.config, axis)
            if wanted and grid.is_supplied(definition) and definition.baseid == "":
                grid.set_params(definition, wanted)
            elif wanted:
                grid.narrow(definition, axis, wanted, f"--proteus-{axis}")

    def plan(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Plan every sweep that some collected test belongs to; what is declared wrongly is noted."""
        for item in grid.iter_functions(items):
            with self.noting():
                self._place(item)
        for scope in self.distinct():
            with self.noting():
                self._plan_scope(session, scope)
        self._leave_out(items)

    def measures(self, item: pytest.Item) -> bool:
        """Whether a test belongs to a sweep or holds something against a gate."""
        return item.stash.get(WANTED, None) is not None

    def distinct(self) -> list[Scope]:
        """Every sweep once, also where several modules share it."""
        return list({id(scope): scope for scope in self.by_key.values()}.values())

    def _place(self, item: pytest.Function) -> None:
        """Note what an item asks for, its scope, and its cell if it has one."""
        wanted = self._ours(item._fixtureinfo.name2fixturedefs)
        if wanted:
            item.stash[WANTED] = wanted
        gates = item.stash[GATES] = declared.gates_on(item.function, item.nodeid, declared.users_near(item))
        for gate in gates:
            if "sweep" not in wanted:
                raise ConfigurationError(f"{item.nodeid}: the gate on {gate.name} needs a test that belongs to a sweep")
        if not wanted - {"gate"}:
            return
        scope = item.stash[SCOPE] = self.scope_of(item)
        for mark in getattr(getattr(item, "callspec", None), "marks", ()):
            if mark.name in ("evaluator", "sweep"):
                raise ConfigurationError(
                    f"{item.nodeid}: pytest.param(marks={mark.name}) would hold for one cell only; put the marker on "
                    f"the module, class or function"
                )
        if "run" in wanted:
            cell = item.stash[CELL] = grid.cell_of(item, scope.axes)
            if cell not in scope.more:
                scope.more.append(cell)
            for axis in scope.axes:
                visible = grid.visible_definition(item.session, scope.node, axis)
                own = item._fixtureinfo.name2fixturedefs[axis][-1] is not visible
                (scope.overridden if own else scope.shared).add(axis)

    def _plan_scope(self, session: pytest.Session, scope: Scope) -> None:
        declaration = scope.declaration
        for axis in scope.axes:
            self._adjust(axis, grid.visible_definition(session, scope.node, axis))
        if scope.overridden - scope.shared:  # what the scope sees of such an axis is what no test asks for
            cells = list(scope.more)
        else:
            cells = grid.grid_of(session, scope.node, scope.axes, declaration.where)
            known = set(cells)
            cells += [cell for cell in scope.more if cell not in known]
        marks = [*declaration.marks, *self._hooked_evaluators(scope)]
        scope.plan = make_plan(declaration, cells, marks, self._setting(scope))
        for gate in scope.family.gates:
            with self.noting():
                declared.check_gate(gate, scope.plan)
                attainable.check_attainable(gate, scope.plan, scope.family.gates)

    def _setting(self, scope: Scope) -> Setting:
        extra: dict[str, Any] = {}
        for found in self._hooked(scope, "register_harnesses"):
            if found is not None and not isinstance(found, Mapping):
                raise ConfigurationError(
                    f"pytest_proteus_register_harnesses returned a {type(found).__name__}; return a mapping of names"
                )
            extra.update(found or {})
        return Setting(
            root=self.config.rootpath,
            episodes=options.number(self.config, "episodes"),
            sandbox=options.sandbox(self.config),
            hidden=(self.config.rootpath, self.config.invocation_params.dir, options.base_folder(self.config)),
            own=options.own_folders(self.config),
            endpoints=options.endpoints(self.config),
            agents=options.agents(self.config),
            harnesses=extra,
        )

    def _hooked(self, scope: Scope, name: str, **given: Any) -> list[Any]:
        """What the implementations of a hook near a scope return."""
        hook = getattr(scope.node.ihook, f"pytest_proteus_{name}")
        try:
            return list(hook(config=self.config, **given))
        except Exception as error:
            raise ConfigurationError(f"pytest_proteus_{name} failed: {type(error).__name__}: {error}") from error

    def _hooked_evaluators(self, scope: Scope) -> list[EvaluatorMark]:
        found = self._hooked(scope, "register_evaluators", sweep=scope.declaration.name)
        where = f"pytest_proteus_register_evaluators for {scope.declaration.name}"
        return [EvaluatorMark(spec, {}, (), where) for specs in found for spec in specs or ()]

    def _leave_out(self, items: list[pytest.Item]) -> None:
        """Deselect the tests of cells that ``exclude`` leaves out."""
        gone = [
            item
            for item in items
            if CELL in item.stash
            and (plan := item.stash[SCOPE].plan) is not None
            and item.stash[CELL] not in plan.run_ids
        ]
        if gone:
            self.config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item not in gone]

    def arrange(self, items: list[pytest.Item]) -> None:
        """Order a sweep's tests as its cells start, whole-sweep tests last, in the places that they hold."""
        for scope in self.distinct():
            if scope.plan is None:
                continue
            rank = {cell: number for number, cell in enumerate(scope.plan.in_order())}
            places = [number for number, item in enumerate(items) if item.stash.get(SCOPE, None) is scope]
            last = len(rank)
            ordered = sorted(
                places,
                key=lambda place: last if CELL not in items[place].stash else rank[items[place].stash[CELL]],
            )
            for place, item in zip(places, [items[place] for place in ordered], strict=True):
                items[place] = item

    def noting(self) -> Noting:
        """A context in which a user's error becomes a noted problem."""
        return Noting(self.problems)


class Noting:
    """Turns a user's error into a noted problem, so that one session tells all of them."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, (ConfigurationError, RecordError)):
            self._problems.append(str(error))
            return True
        if isinstance(error, OSError) and error.filename:
            self._problems.append(f"{error.filename}: {error.strerror}; make room there or get the right to write")
            return True
        return False
