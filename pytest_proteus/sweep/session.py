"""A session's sweeps: from collected tests to plans, from tests to cells, from cells to the report.

The one place that knows pytest's items on the one side and the store on the other. Every process of a session has one:
the only process, each worker of pytest-xdist, and its controller, which collects nothing but reports.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import CellRecord, read_json
from pytest_proteus.core.records import write_json_atomic
from pytest_proteus.sweep import declare, grid, options
from pytest_proteus.sweep.declare import AXES, Declaration, EvaluatorMark, Threshold
from pytest_proteus.sweep.folder import SessionFolder, allocate, let_go, note_finished
from pytest_proteus.sweep.gates import Gates
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan, Setting, make_plan
from pytest_proteus.sweep.progress import Progress, Watched
from pytest_proteus.sweep.run import Run, Sweep, make_run
from pytest_proteus.sweep.store import STORAGE, CellStore, Stopped, settle_lost

if TYPE_CHECKING:
    from pytest_proteus.plugin import SessionIdentity

#: What to do about a disk that cannot be written.
KEPT = "make room or get the right to write there and run the same command again: every complete episode is kept"

_wanted: pytest.StashKey[set[str]] = pytest.StashKey()
_cell: pytest.StashKey[Cell] = pytest.StashKey()
_scope: pytest.StashKey[Scope] = pytest.StashKey()
_gates: pytest.StashKey[Gates] = pytest.StashKey()


@dataclass
class Scope:
    """A module or class that declares a sweep, or several that share one by name.

    Args:
        key: node id of the first of them.
        node: its collector.
        declaration: what it declares.
        more: cells that single tests have beyond the visible grid.
        plan: the plan, once every test is collected.
        store: the cells, once the folder is allocated.
        whole: the whole sweep, once some test asked for it.
    """

    key: str
    node: Any
    declaration: Declaration
    more: list[Cell] = field(default_factory=list)
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


class SweepSession:
    """The sweeps of one process of a session.

    Args:
        config: pytest's.
        identity: the session's id, and which of its processes this is.
        ours: which of ``run``, ``sweep`` and ``gate`` a test asks for, given its fixture definitions by name.
    """

    def __init__(
        self,
        config: pytest.Config,
        identity: SessionIdentity,
        ours: Callable[[Mapping[str, Sequence[Any]]], set[str]],
    ) -> None:
        self.config = config
        self._ours = ours
        self.identity = identity
        self.folder = SessionFolder(options.base_folder(config), identity.session)
        self.scopes: dict[str, Scope] = {}
        self.problems: list[str] = []
        self.report: dict[str, Any] | None = None
        self.progress = Progress(self._write_line)
        self._supplied: set[str] = set()
        self._adjusted: set[int] = set()
        self._failures = 0
        self._current: pytest.Item | None = None
        self._expected: set[str] = set()
        self._reported: set[str] = set()
        self._opened = False
        self._held: list[Path] = []
        self._old_sigterm: Any = None

    # --- declaring ----------------------------------------------------------------------------------------------------

    def supply_axes(self, collector: pytest.Module | pytest.Class) -> None:
        """Turn the axes that a sweep marker lists into fixtures of its module or class."""
        if collector.nodeid in self._supplied:
            return
        self._supplied.add(collector.nodeid)
        with self._noting():
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

    def explain(self, collector: pytest.Module, report: pytest.CollectReport) -> None:
        """Note what is behind a module that could not be collected, where a bare callable in a marker is."""
        told = str(report.longrepr)
        if "instead of Mark" in told or ("TypeError" in told and "mark.evaluator(" in told):
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
        known = self.scopes.get(holder.nodeid)
        if known is not None:
            return known
        declaration = self._declare(holder, chain[-1])
        for scope in self.scopes.values():
            if scope.declaration.name == declaration.name:
                self._require_alike(scope.declaration, declaration)
                self.scopes[holder.nodeid] = scope
                return scope
        scope = self.scopes[holder.nodeid] = Scope(holder.nodeid, holder, declaration)
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
        for name in ("episodes", "goal", "selection", "phases", "budget", "phase_timeout", "axes", "lists"):
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
        with self._noting():
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
            count = self._option(options.number, "seeds")
            by_command = self.config.getoption("proteus_seeds") is not None
            if count and (by_command or grid.is_supplied(definition)):
                grid.set_params(definition, range(count))
        elif axis in ("harness", "arm", "model"):
            wanted = options.listed(self.config, axis)
            if wanted and grid.is_supplied(definition) and definition.baseid == "":
                grid.set_params(definition, wanted)
            elif wanted:
                grid.narrow(definition, axis, wanted, f"--proteus-{axis}")

    def _option(self, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(self.config, *arguments)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    def plan(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Plan every sweep that some collected test belongs to.

        Raises:
            pytest.UsageError: something is declared wrongly; in a worker the controller raises it.
        """
        for item in grid.iter_functions(items):
            with self._noting():
                self._place(item)
        for scope in self._distinct():
            with self._noting():
                self._plan_scope(session, scope)
        self._leave_out(items)
        self._raise_problems()

    def measures(self, item: pytest.Item) -> bool:
        """Whether a test belongs to a sweep or holds something against a gate."""
        return item.stash.get(_wanted, None) is not None

    def _distinct(self) -> list[Scope]:
        return list({id(scope): scope for scope in self.scopes.values() if scope.declaration}.values())

    def _place(self, item: pytest.Function) -> None:
        """Note what an item asks for, its scope, and its cell if it has one."""
        wanted = self._ours(item._fixtureinfo.name2fixturedefs)
        if wanted:
            item.stash[_wanted] = wanted
        if not wanted - {"gate"}:
            return
        scope = item.stash[_scope] = self.scope_of(item)
        for mark in getattr(getattr(item, "callspec", None), "marks", ()):
            if mark.name in ("evaluator", "sweep"):
                raise ConfigurationError(
                    f"{item.nodeid}: pytest.param(marks={mark.name}) would hold for one cell only; put the marker on "
                    f"the module, class or function"
                )
        if "run" in wanted:
            cell = item.stash[_cell] = grid.cell_of(item, scope.axes)
            if cell not in scope.more:
                scope.more.append(cell)

    def _plan_scope(self, session: pytest.Session, scope: Scope) -> None:
        declared = scope.declaration
        for axis in scope.axes:
            self._adjust(axis, grid.visible_definition(session, scope.node, axis))
        cells = grid.grid_of(session, scope.node, scope.axes, declared.where)
        known = set(cells)
        cells += [cell for cell in scope.more if cell not in known]
        marks = [*declared.marks, *self._hooked_evaluators(scope)]
        scope.plan = make_plan(declared, cells, marks, self._setting(scope))

    def _setting(self, scope: Scope) -> Setting:
        extra: dict[str, Any] = {}
        for found in scope.node.ihook.pytest_proteus_register_harnesses(config=self.config):
            extra.update(found or {})
        return Setting(
            root=self.config.rootpath,
            episodes=self._option(options.number, "episodes"),
            sandbox=self._option(options.one_of, "sandbox", options.SANDBOXES),
            endpoints=self._option(options.endpoints),
            agents=self._option(options.agents),
            harnesses=extra,
        )

    def _hooked_evaluators(self, scope: Scope) -> list[EvaluatorMark]:
        found = scope.node.ihook.pytest_proteus_register_evaluators(config=self.config, sweep=scope.declaration.name)
        where = f"pytest_proteus_register_evaluators for {scope.declaration.name}"
        return [EvaluatorMark(spec, {}, (), where) for specs in found for spec in specs or ()]

    def _leave_out(self, items: list[pytest.Item]) -> None:
        """Deselect the tests of cells that ``exclude`` leaves out."""
        gone = [
            item
            for item in items
            if _cell in item.stash
            and (plan := item.stash[_scope].plan) is not None
            and item.stash[_cell] not in plan.run_ids
        ]
        if gone:
            self.config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item not in gone]

    def arrange(self, items: list[pytest.Item]) -> None:
        """Order a sweep's tests as its cells start, whole-sweep tests last, in the places that they hold."""
        for scope in self._distinct():
            if scope.plan is None:
                continue
            rank = {cell: number for number, cell in enumerate(scope.plan.in_order())}
            places = [number for number, item in enumerate(items) if item.stash.get(_scope, None) is scope]
            last = len(rank)
            ordered = sorted(
                places,
                key=lambda place: last if _cell not in items[place].stash else rank[items[place].stash[_cell]],
            )
            for place, item in zip(places, [items[place] for place in ordered], strict=True):
                items[place] = item

    # --- problems -----------------------------------------------------------------------------------------------------

    def _noting(self) -> _Noting:
        return _Noting(self.problems)

    def _raise_problems(self) -> None:
        if not self.problems:
            return
        told = list(dict.fromkeys(self.problems))
        if self.identity.is_worker:
            self.folder.open()
            write_json_atomic(self.folder.path / "problems.json", told)
        else:
            raise pytest.UsageError("\n".join(told))

    # --- opening folders ----------------------------------------------------------------------------------------------

    def open(self, session: pytest.Session) -> None:
        """Allocate the folder of every sweep that a selected test needs, and write down which test needs which cells.

        Raises:
            pytest.UsageError: a folder may not be used; in a worker the controller raises it.
        """
        wanted = {id(item.stash[_scope]) for item in session.items if _scope in item.stash}
        scopes = [scope for scope in self._distinct() if id(scope) in wanted and scope.plan is not None]
        with self._noting():
            self._option(options.max_missing)
        self._raise_problems()
        if self.problems or self.config.option.collectonly:
            return
        if self.config.getoption("proteus_plan") or self.config.getini("proteus_plan"):
            self._print_plans(scopes)
        if not any(self.measures(item) for item in session.items):
            return
        with self._noting():
            self.folder.open()
            self._opened = True
            for scope in scopes:
                self._open_scope(scope)
        self._raise_problems()
        if self.problems:
            return
        self._write_session(session.items)
        if not self.identity.is_worker:
            self._announce()
            self._catch_sigterm()

    def _open_scope(self, scope: Scope) -> None:
        plan = scope.planned()
        exactly = self.config.getoption("proteus_sweep_dir")
        found = allocate(
            self.folder,
            plan.name,
            plan.manifest,
            policy=self._option(options.one_of, "on-existing", options.ON_EXISTING),
            numbered=not options.text(self.config, "out"),
            exactly=Path(self.config.invocation_params.dir, exactly) if exactly else None,
        )
        self._held.append(found.out)
        mine = {plan.run_ids[cell] for cell in plan.cells}
        theirs = {run["id"] for run in found.manifest["runs"]}
        if mine != theirs:
            raise ConfigurationError(
                f"the processes of this session plan different cells for the sweep {plan.name!r}; make the axis "
                f"fixtures' params the same wherever they are imported (no sets, no randomness, no clock)"
            )
        scope.store = CellStore(
            plan,
            found.out,
            self.folder,
            workers=self.identity.workers,
            retry=self._option(options.retry),
            no_run=options.flag(self.config, "no-run"),
            tick=self._tick,
        )
        self.progress.watched.append(_watched(found.out, found.manifest))

    def _write_session(self, items: Sequence[pytest.Item]) -> None:
        nodes = {}
        for item in items:
            scope = item.stash.get(_scope, None)
            if scope is None or scope.plan is None:
                continue
            plan = scope.plan
            whole = "sweep" in item.stash[_wanted]
            cells = plan.cells if whole else [item.stash[_cell]]
            nodes[item.nodeid] = {
                "sweep": plan.name,
                "runs": [plan.run_ids[cell] for cell in cells],
                "group": f"{plan.name}/{plan.run_ids[item.stash[_cell]]}" if _cell in item.stash else None,
            }
        write_json_atomic(self.folder.path / "nodes.json", nodes)
        if not self.identity.is_worker:
            self._write_identity()

    def _write_identity(self) -> None:
        write_json_atomic(
            self.folder.path / "session.json",
            {
                "id": self.identity.session,
                "started_at": self.identity.started_at,
                "argv": list(self.config.invocation_params.args),
                "workers": self.identity.workers,
                "base": str(self.folder.base),
                "rootdir": str(self.config.rootpath),
            },
        )

    # --- the plan, printed --------------------------------------------------------------------------------------------

    def _print_plans(self, scopes: Sequence[Scope]) -> None:
        target = str(self.config.getoption("proteus_plan") or self.config.getini("proteus_plan"))
        plans = [scope.planned() for scope in scopes]
        if target not in ("-", "true", "1"):
            write_json_atomic(Path(self.config.invocation_params.dir, target), [_plan_entry(plan) for plan in plans])
            pytest.exit(f"the plan of {len(plans)} sweeps was written to {target}", returncode=0)
        for plan in plans:
            for text in plan_lines(plan):
                self._write_line(text)
        pytest.exit("the plan was printed, nothing was run", returncode=0)

    # --- running ------------------------------------------------------------------------------------------------------

    def run_of(self, item: Any) -> Run:
        """The run of an item's cell; runs it if nobody has."""
        scope, cell = item.stash[_scope], item.stash[_cell]
        (record,) = self._demand(scope, [cell])
        run = make_run(scope.planned(), cell, scope.cells().out, record)
        if record.error and record.error["class"] == STORAGE:
            pytest.fail(f"{run.error}; {KEPT}", pytrace=False)
        if record.state in ("errored", "lost"):
            pytest.fail(f"{cell} ended as {record.state}: {run.error}", pytrace=False)
        if record.state in ("skipped", "not_run"):
            pytest.skip(f"{cell} was not run" + (f": {record.reason}" if record.reason else ""))
        return run

    def sweep_of(self, key: str) -> Sweep:
        """The whole sweep of a scope; runs every cell that nobody has."""
        scope = self.scopes[key]
        if scope.whole is None:
            plan = scope.planned()
            scope.whole = Sweep(plan, scope.cells().out, self._demand(scope, plan.cells))
        return scope.whole

    def _demand(self, scope: Scope, cells: Sequence[Cell]) -> list[CellRecord]:
        store = scope.cells()
        try:
            with self._untimed():
                records = store.demand(cells)
        except Stopped:
            pytest.skip("the session was asked to stop before this cell was begun")
        except OSError as error:
            pytest.fail(
                f"{error.filename or store.out}: {error.strerror or error}; {KEPT}",
                pytrace=False,
            )
        except (RecordError, ConfigurationError) as error:
            pytest.fail(str(error), pytrace=False)
        for cell, record in zip(cells, records, strict=True):
            if record.run_id in store.begun_here:
                store.begun_here.discard(record.run_id)
                run = make_run(scope.planned(), cell, store.out, record)
                scope.node.ihook.pytest_proteus_run_finished(config=self.config, run=run)
        return records

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which test is being run."""
        self._current = item

    @contextlib.contextmanager
    def _untimed(self) -> Iterator[None]:
        """A time limit of pytest-timeout is one for tests: it does not cut a running cell, and begins anew after it."""
        item = self._current
        if item is None or not self.config.pluginmanager.has_plugin("timeout"):
            yield
            return
        import pytest_timeout

        item.ihook.pytest_timeout_cancel_timer(item=item)
        try:
            yield
        finally:
            settings = pytest_timeout._get_item_settings(item)
            if settings.timeout and settings.timeout > 0 and not settings.func_only:
                item.ihook.pytest_timeout_set_timer(item=item, settings=settings)

    # --- gates and thresholds -----------------------------------------------------------------------------------------

    def gates_of(self, item: Any) -> Gates:
        """The gates of one test."""
        if _gates not in item.stash:
            scope = item.stash.get(_scope, None)
            cell = item.stash.get(_cell, None)
            gates = item.stash[_gates] = Gates(
                nodeid=item.nodeid,
                sweep=scope.declaration.name if scope else None,
                arm=cell.arm if cell else None,
                write=self._write_gate,
            )
            return gates
        known: Gates = item.stash[_gates]
        return known

    def _write_gate(self, entry: dict[str, Any]) -> None:
        if not self._opened:
            self.folder.open()
            self._opened = True
        line = json.dumps(entry, allow_nan=False)
        with (self.folder.path / "gates" / f"{self.identity.worker}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def after_body(self, item: pytest.Function, *, passed: bool) -> None:
        """Hold the run's scores against the thresholds in scope; fail the test for every verdict that is no pass."""
        run = item.funcargs.get("run")
        if isinstance(run, Run):
            wanted = self._thresholds(item)
            if wanted:
                self.gates_of(item).thresholds(run, wanted, blocking=passed)
        gates = item.stash.get(_gates, None)
        if gates is None:
            return
        failures = gates.failures()
        del item.stash[_gates]  # a test that is run again decides anew
        if passed and failures:
            pytest.fail("\n".join(failures), pytrace=False)

    def _thresholds(self, item: pytest.Function) -> dict[str, list[Threshold]]:
        """Evaluator name → the bounds of every marker in the item's scope, each once."""
        scope = item.stash[_scope]
        plan = scope.planned()
        surfaces = plan.surfaces[item.stash[_cell].harness]
        wanted: dict[str, list[Threshold]] = {}
        for mark in item.iter_markers("evaluator"):
            read = declare.read_evaluator(mark, item.nodeid)
            if read.thresholds:
                bounds = wanted.setdefault(declare.resolve_evaluator(read, surfaces).name, [])
                bounds += [bound for bound in read.thresholds if bound not in bounds]
        return wanted

    # --- the controller -----------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, str]:
        """Node id → group for the scheduler; empty when no test belongs to a sweep."""
        nodes = read_json(self.folder.path / "nodes.json") or {}
        return {nodeid: node["group"] for nodeid, node in nodes.items() if node["group"]}

    def worker_collected(self, ids: Sequence[str]) -> None:
        """A worker has planned.

        Raises:
            pytest.UsageError: it found something wrong.
        """
        self._expected.update(ids)
        problems = read_json(self.folder.path / "problems.json")
        if problems:
            self.close()
            raise pytest.UsageError("\n".join(problems))
        if self._opened or not (self.folder.path / "nodes.json").exists():
            return
        self._opened = True
        self.folder.open()
        self._write_identity()
        for _, out in self._sweeps():
            manifest = read_json(out / "manifest.json")
            if manifest:
                self.progress.watched.append(_watched(out, manifest))
        self._announce()
        self._catch_sigterm()
        self.progress.start()

    def _sweeps(self) -> list[tuple[str, Path]]:
        notes = [read_json(path) for path in sorted((self.folder.path / "sweeps").glob("*.json"))]
        return [(note["name"], Path(note["out"])) for note in notes]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test was reported, and stop the workers when ``-x`` or ``--maxfail`` says so."""
        if report.when in ("teardown", "???"):
            self._reported.add(report.nodeid)
        if report.failed and self._opened:
            self._failures += 1
            limit = self.config.getvalue("maxfail")
            if limit and self._failures >= limit:
                self.folder.stop()

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: no process begins a further cell or episode."""
        if self._opened:
            self.folder.stop()
            (self.folder.path / "interrupt").touch()

    def _catch_sigterm(self) -> None:
        """SIGTERM is Ctrl-C, so that a cancelled CI job still leaves its report."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:

            def interrupted(number: int, frame: object) -> None:
                raise KeyboardInterrupt

            self._old_sigterm = signal.signal(signal.SIGTERM, interrupted)

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def reports(self) -> bool:
        """Whether this process is the one that reports, and there is something to report on."""
        return self._opened and not self.identity.is_worker

    def finish(self, session: pytest.Session, build: Callable[..., dict[str, Any]], write: Callable[..., None]) -> None:
        """Build the report and write it; set the session's exit status.

        Args:
            session: pytest's.
            build: ``report.build.build_report``.
            write: ``report.build.write_sweep_reports``.
        """
        self.progress.stop()
        self._wait_for_workers()
        self._settle_lost()
        missing = self._expected - self._reported
        if missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            self._write_line(f"proteus: {len(missing)} tests have no result, {sorted(missing)[0]} among them")
        limit = options.max_missing(self.config)
        report = build(self.folder.path, exitstatus=int(session.exitstatus), finished_at=time.time(), max_missing=limit)
        if report["outcome"] in ("fail", "incomplete") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            report["session"]["exitstatus"] = int(session.exitstatus)
        self.config.hook.pytest_proteus_modify_report(config=self.config, report=report)
        write(report, max_missing=limit)
        self.report = report

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        """Add the ``proteus`` section to the file of pytest-json-report, and put its tests in an order that lasts."""
        if self.report is None:
            return
        json_report["proteus"] = self.report
        json_report.get("tests", []).sort(key=lambda test: test["nodeid"])

    def _settle_lost(self) -> None:
        """Account for cells whose worker died. After an interrupt they were only cut short: a later session goes on."""
        if (self.folder.path / "interrupt").exists():
            return
        for _, out in self._sweeps():
            with contextlib.suppress(OSError, RecordError):
                settle_lost(out, self.identity.session)

    def _wait_for_workers(self) -> None:
        """After an interrupt, give workers a moment to write how their cells ended."""
        if not self.folder.stopped:
            return
        until = time.monotonic() + 3.0
        while time.monotonic() < until and any(self._running(out) for _, out in self._sweeps()):
            time.sleep(0.05)

    def _running(self, out: Path) -> bool:
        records = [read_json(path) for path in (out / "cells").glob("*.json")]
        return any(
            record and record["state"] == "running" and record["session"] == self.identity.session for record in records
        )

    def close(self) -> None:
        """Let the folders go; remove the session's own."""
        self.progress.stop()
        if self._old_sigterm is not None:
            signal.signal(signal.SIGTERM, self._old_sigterm)
            self._old_sigterm = None
        if self.report is not None:
            self._note_reported()
        for out in self._held:
            let_go(out)
        if not self.identity.is_worker and self.folder.path.exists():
            self.folder.close()
        else:
            let_go(self.folder.path)

    def _note_reported(self) -> None:
        """From here on the cells count as reused: every report of this session has been written."""
        for _, out in self._sweeps():
            with contextlib.suppress(OSError):  # the report has said already that nothing can be written there
                note_finished(out, self.identity.session)

    # --- writing to the terminal --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.identity.is_worker:
            self.progress.tick()

    def _announce(self) -> None:
        for watched in self.progress.watched:
            self._write_line(_headline(watched, self.identity.session))

    def _write_line(self, text: str) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or self.config.option.verbose < 0:
            return
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None and not self.identity.is_controller:
            with capture.global_and_fixture_disabled():
                terminal.ensure_newline()
                terminal.write_line(text)
                sys.stdout.flush()
        else:
            terminal.ensure_newline()
            terminal.write_line(text)


class _Noting:
    """Turns a user's error into a noted problem, so that one session tells all of them."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, (ConfigurationError, RecordError)):
            self._problems.append(str(error))
            return True
        return False


def _watched(out: Path, manifest: Mapping[str, Any]) -> Watched:
    return Watched(str(manifest["name"]), out, [run["id"] for run in manifest["runs"]], int(manifest["episodes"]))


def _headline(watched: Watched, session: str) -> str:
    from pytest_proteus.core.ledger import read_cell

    records = [read_cell(watched.out, run_id) for run_id in watched.run_ids]
    done = sum(record is not None and record.state == "complete" and record.settled_by != session for record in records)
    begun = sum(record is not None and record.state in ("running", "abort") for record in records)
    kept = (f", {done} reused" if done else "") + (f", {begun} continued" if begun else "")
    return f"proteus: {watched.name}: {len(watched.run_ids)} cells × {watched.episodes} episodes{kept} → {watched.out}"


def plan_lines(plan: Plan) -> list[str]:
    """A plan for readers: the axes, the evaluators, and the order in which cells start."""
    declared = plan.declaration
    lines = [
        f"sweep {plan.name} ({declared.where})",
        f"  {len(plan.cells)} cells × {plan.episodes} episodes = {len(plan.cells) * plan.episodes} episodes",
    ]
    for axis in (*AXES, *declared.axes):
        labels = list(dict.fromkeys(str(_label(cell, axis)) for cell in plan.cells if _label(cell, axis) is not None))
        if labels:
            lines.append(f"  {axis:<10} {len(labels):>4}  {', '.join(labels)}")
    for name, item in plan.attached.items():
        bounds = ", ".join(f"{bound.op} {bound.bound:g} ({bound.when})" for bound in item.thresholds)
        lines.append(f"  evaluator  {name} ({item.spec.visibility.value})" + (f": {bounds}" if bounds else ""))
    lines.append(
        "  order      " + " ".join(str(cell) for cell in plan.in_order()[:12]) + (" …" if len(plan.cells) > 12 else "")
    )
    return lines


def _label(cell: Cell, axis: str) -> Any:
    return getattr(cell, axis) if axis in AXES else dict(cell.axes)[axis]


def _plan_entry(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "episodes": plan.episodes,
        "evaluators": list(plan.attached),
        "cells": [
            {
                "harness": cell.harness,
                "arm": cell.arm,
                "seed": cell.seed,
                "model": cell.model,
                "task": cell.task,
                "axes": dict(cell.axes),
            }
            for cell in plan.in_order()
        ],
    }
