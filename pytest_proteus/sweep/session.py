"""A session's sweeps while it runs: folders, tests to cells, gates, the controller's watch, and the end.

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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import RUNNING, CellRecord, read_cell, read_json
from pytest_proteus.core.records import append_jsonl, as_path, plain, read_jsonl, write_json_atomic
from pytest_proteus.metering import budget, prices, spans, tap
from pytest_proteus.sweep import declare, options
from pytest_proteus.sweep.attainable import p_min, power, power_lines
from pytest_proteus.sweep.baseline import Against
from pytest_proteus.sweep.declare import Threshold
from pytest_proteus.sweep.execute import BUDGET, check_configured, check_priced
from pytest_proteus.sweep.folder import SessionFolder, allocate, is_live, let_go, may_use, note_finished
from pytest_proteus.sweep.gates import Gates
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.orphan import end_with_parent
from pytest_proteus.sweep.plan import plan_entry, plan_lines
from pytest_proteus.sweep.progress import Progress, Watched
from pytest_proteus.sweep.run import Run, Sweep, make_run
from pytest_proteus.sweep.scopes import CELL, GATES, SCOPE, WANTED, Scope, Scopes
from pytest_proteus.sweep.store import CONTINUED, POLL, STORAGE, CellStore, Stopped, settle_lost

if TYPE_CHECKING:
    from pytest_proteus.measure.statistic import Statistic
    from pytest_proteus.plugin import SessionIdentity

#: What to do about a disk that cannot be written.
KEPT = "make room or get the right to write there and run the same command again: every complete episode is kept"

#: Of a test that was skipped because its cell was not run, and not because the user skips it.
NOT_BEGUN = ("proteus", "cell not run")

#: Of a test that failed because of its gates alone.
BY_GATE = ("proteus", "failed by its gates")

#: What a verdict in a test's body has to say where seeds are run until the declared gates are decided.
_NOT_FIXED = "the number of seeds was not fixed in advance, which only gates that markers declare allow for"

_gates: pytest.StashKey[Gates] = pytest.StashKey()


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
        self.identity = identity
        self.folder = SessionFolder(options.base_folder(config), identity.session)
        self.scopes = Scopes(config, ours)
        self.against = Against(config)
        self.report: dict[str, Any] | None = None
        self.progress = Progress(self._write_line)
        self._failures = 0
        self._failed_otherwise = False
        self._current: pytest.Item | None = None
        self._expected: set[str] = set()
        self._reported: set[str] = set()
        self._whole: set[str] = set()
        self._left_out: set[str] = set()
        self._opened = False
        self._held: list[Path] = []
        self._budget: dict[str, Any] = {}
        self._old_sigterm: Any = None

    # --- collecting ---------------------------------------------------------------------------------------------------

    def plan(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Plan every sweep that some collected test belongs to.

        Raises:
            pytest.UsageError: something is declared wrongly; in a worker the controller raises it.
        """
        self.scopes.plan(session, items)
        self._raise_problems(items)

    def _raise_problems(self, items: list[pytest.Item]) -> None:
        if not self.scopes.problems:
            return
        told = list(dict.fromkeys(self.scopes.problems))
        if not self.identity.is_worker:
            raise pytest.UsageError("\n".join(told))
        try:
            self.folder.open()
            write_json_atomic(self.folder.path / "problems.json", told)
        except (ConfigurationError, OSError):  # the controller hears of it when this worker ends, which is at once
            self.config.workeroutput["proteus_problems"] = told  # type: ignore[attr-defined]
            items.clear()

    # --- opening folders ----------------------------------------------------------------------------------------------

    def open(self, session: pytest.Session) -> None:
        """Allocate the folder of every sweep that a selected test needs, and write down which test needs which cells.

        Raises:
            pytest.UsageError: a folder may not be used; in a worker the controller raises it.
        """
        wanted = {id(item.stash[SCOPE]) for item in session.items if SCOPE in item.stash}
        scopes = [scope for scope in self.scopes.distinct() if id(scope) in wanted and scope.plan is not None]
        with self.scopes.noting():
            options.max_missing(self.config)
            options.one_of(self.config, "undecided", options.UNDECIDED)
            if options.text(self.config, "prices"):
                prices.read(Path(self.config.invocation_params.dir, options.text(self.config, "prices")))
            self._limits()
        self._raise_problems(session.items)
        only_shown = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")
        if self.scopes.problems or any(getattr(self.config.option, name, False) for name in only_shown):
            return
        if scopes:
            with self.scopes.noting():
                self.against.check([scope.planned().manifest() for scope in scopes])
                self._look_in_order(scopes)
            self._raise_problems(session.items)
            if self.scopes.problems:
                return
        if self.config.getoption("proteus_plan") or self.config.getini("proteus_plan"):
            self._print_plans(scopes)
        if not any(self.scopes.measures(item) for item in session.items):
            return
        for scope in scopes:
            with self.scopes.noting():
                self._check_folder(scope)
        self._raise_problems(session.items)
        if self.scopes.problems:
            return
        with self.scopes.noting():
            self.folder.open()
            limits = self._limits()
            if limits:
                spans.set_budget(self.folder.path / budget.NAME, limits)
            for scope in scopes:
                self._open_scope(scope)
                if not options.flag(self.config, "no-run"):
                    needed = _needed(scope, session.items)
                    check_configured(scope.planned(), scope.cells().out, needed)
                    if limits.max_usd is not None:
                        check_priced(scope.planned(), scope.cells().out, needed)
            self._write_session(session.items)
        self._raise_problems(session.items)
        if self.scopes.problems:
            return
        self._opened = True
        if self.identity.is_worker:
            end_with_parent()
        self._catch_sigterm()
        if not self.identity.is_worker:
            self._announce()

    def _look_in_order(self, scopes: Sequence[Scope]) -> None:
        """Where seeds are run until they decide: have the declared gates looked at after each one.

        Raises:
            ConfigurationError: there is no declared gate, or one that cannot be looked at more than once.
        """
        fewest = self.against.fewest
        if fewest is None:
            return
        if not self.against.expressions and not any(scope.family.gates for scope in scopes):
            options.refuse(
                "--proteus-seeds=auto:… stops once every declared gate is decided, and there is none; declare one with "
                "@pytest.mark.gate, add --proteus-compare=NAME and --proteus-compare-fail=METRIC:MARGIN, or write a "
                "number of seeds"
            )
        for scope in scopes:
            scope.family.look_in_order(fewest, scope.planned())

    def _limits(self) -> budget.Limits:
        """What the session may spend.

        Raises:
            ConfigurationError: options that say no amount, or calls of models that cannot be metered here.
        """
        limits = budget.Limits(options.number(self.config, "max-tokens"), options.dollars(self.config, "max-usd"))
        if limits and (missing := tap.missing()):
            raise ConfigurationError(f"--proteus-max-tokens and --proteus-max-usd: {missing}")
        return limits

    def _check_folder(self, scope: Scope) -> None:
        """Refuse a folder that the user named and that may not be used, before anything is written."""
        named = options.sweep_folder(self.config) or (
            self.folder.base / scope.declaration.name if options.text(self.config, "out") else None
        )
        if named is not None and read_json(self.folder.path / "sweeps" / f"{scope.declaration.name}.json") is None:
            policy = options.one_of(self.config, "on-existing", options.ON_EXISTING)
            try:
                may_use(named, scope.planned().manifest(), policy)
            except ConfigurationError:
                if not (self.identity.is_worker and is_live(named)):  # another worker of this session may be faster
                    raise

    def _open_scope(self, scope: Scope) -> None:
        plan = scope.planned()
        found = allocate(
            self.folder,
            plan.name,
            plan.manifest,
            policy=options.one_of(self.config, "on-existing", options.ON_EXISTING),
            numbered=not options.text(self.config, "out"),
            exactly=options.sweep_folder(self.config),
        )
        self._held.append(found.out)
        named = options.text(self.config, "prices")
        if named:
            prices.keep(Path(self.config.invocation_params.dir, named), found.out)
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
            retry=options.retry(self.config),
            no_run=options.flag(self.config, "no-run"),
            tick=self._tick,
            fewest=self.against.fewest,
            enough=lambda cells: self._is_decided(scope, cells),
        )
        self.progress.watched.append(_watched(found.out, found.manifest))

    def _is_decided(self, scope: Scope, cells: Sequence[Cell]) -> bool:
        """Whether the first seeds decide every declared gate; if so, the report is told which cells that spares."""
        plan, store = scope.planned(), scope.cells()
        kept = {plan.run_ids[cell] for cell in cells}
        whole = Sweep(plan, store.out, [store.standing(cell) for cell in plan.cells])
        sweep = whole.of_runs([run for run in whole.runs if run.run_id in kept])
        runs = sweep.runs
        if not (self.against.is_decided(plan.manifest(), runs) and scope.family.is_decided(sweep)):
            return False
        spared = sorted(set(plan.run_ids.values()) - kept)
        (self.folder.path / "spared").mkdir(exist_ok=True)
        told = {"sweep": plan.name, "seeds": len({run.seed for run in runs}), "runs": spared}
        write_json_atomic(self.folder.path / "spared" / f"{plan.name}.json", told)
        return True

    def _write_session(self, items: Sequence[pytest.Item]) -> None:
        nodes = {}
        for item in items:
            scope = item.stash.get(SCOPE, None)
            if scope is None or scope.plan is None:
                continue
            plan = scope.plan
            whole = _is_whole(item)
            cells = plan.cells if whole else [item.stash[CELL]]
            nodes[item.nodeid] = {
                "sweep": plan.name,
                "whole": whole,
                "runs": [plan.run_ids[cell] for cell in cells],
                "group": f"{plan.name}/{plan.run_ids[item.stash[CELL]]}" if CELL in item.stash else None,
            }
        write_json_atomic(self.folder.path / "nodes.json", nodes)
        plans = [scope.plan for scope in self.scopes.distinct() if scope.plan is not None]
        told = {plan.name: {"p_min": p_min(plan), **self.against.told_before(plan.manifest())} for plan in plans}
        write_json_atomic(self.folder.path / "plans.json", told)
        if not self.identity.is_worker:
            self._write_identity()

    def _write_identity(self, budget: Mapping[str, Any] | None = None) -> None:
        write_json_atomic(
            self.folder.path / "session.json",
            {
                "id": self.identity.session,
                "started_at": self.identity.started_at,
                "argv": list(self.config.invocation_params.args),
                "workers": self.identity.workers,
                "base": str(self.folder.base),
                "rootdir": str(self.config.rootpath),
                "budget": budget,
            },
        )

    # --- the plan, printed --------------------------------------------------------------------------------------------

    def _print_plans(self, scopes: Sequence[Scope]) -> None:
        target = str(self.config.getoption("proteus_plan") or self.config.getini("proteus_plan"))
        plans = [scope.planned() for scope in scopes]
        if target not in ("-", "true", "1"):
            entries = [
                {**plan_entry(plan), **power(plan), **self.against.told_before(plan.manifest())} for plan in plans
            ]
            write_json_atomic(Path(self.config.invocation_params.dir, target), entries)
            pytest.exit(f"the plan of {len(plans)} sweeps was written to {target}", returncode=0)
        for plan in plans:
            for text in [*plan_lines(plan), *power_lines(plan)]:
                self._write_line(text, asked=True)
        for text in self.against.power_lines([plan.manifest() for plan in plans]):
            self._write_line(text, asked=True)
        pytest.exit("the plan was printed, nothing was run", returncode=0)

    # --- running ------------------------------------------------------------------------------------------------------

    def run_of(self, item: Any) -> Run:
        """The run of an item's cell; runs it if nobody has."""
        scope, cell = item.stash[SCOPE], item.stash[CELL]
        (record,) = self._demand(scope, [cell])
        run = make_run(scope.planned(), cell, scope.cells().out, record)
        if record.error and record.error["class"] == STORAGE:
            pytest.fail(f"{run.error}; {KEPT}", pytrace=False)
        if record.state in ("errored", "lost"):
            pytest.fail(f"{cell} ended as {record.state}: {run.error}", pytrace=False)
        if record.state in ("skipped", "not_run"):
            item.user_properties.append(NOT_BEGUN)
            pytest.skip(f"{cell} was not run" + (f": {record.reason}" if record.reason else ""))
        return run

    def sweep_of(self, key: str) -> Sweep:
        """The whole sweep of a scope; runs every cell that nobody has."""
        scope = self.scopes.by_key[key]
        if scope.whole is None:
            plan = scope.planned()
            self.folder.want_whole(plan.name)
            whole = Sweep(plan, scope.cells().out, self._demand(scope, plan.cells))
            spared = {plan.run_ids[cell] for cell in scope.cells().spared}
            kept = [run for run in whole.runs if run.run_id not in spared]
            scope.whole = whole.of_runs(kept) if spared else whole
        return scope.whole

    def statistic(self, sweep: Sweep, statistic: Statistic) -> Any:
        """A statistic of a whole sweep, per stratum, computed here and written down for the report.

        Returns:
            The value; with several strata a mapping of ``(stratum, arm)`` or of ``stratum`` to values.
        """
        from pytest_proteus.measure.statistic import joined

        return joined(self.by_stratum(sweep, statistic))

    def by_stratum(self, sweep: Sweep, statistic: Statistic) -> dict[str, Any]:
        """Stratum → value of a statistic, written down for the report."""
        from pytest_proteus.measure.statistic import by_stratum

        found = list(by_stratum(statistic, sweep))
        for computed in found:
            self._write_statistic(sweep, computed.entry(several=len(found) > 1))
        return {computed.stratum: computed.value for computed in found}

    def ranking(self, sweep: Sweep) -> Any:
        """The comparison of the sweep's variants; with several tasks a mapping of tasks to comparisons."""
        from pytest_proteus.measure.ranking import entry, rankings

        found = rankings(sweep.runs, sweep.manifest)
        for task, ranking in found.items():
            self._write_statistic(sweep, entry(task, ranking))
        return found if set(found) != {None} else found[None]

    def _write_statistic(self, sweep: Sweep, entry: Mapping[str, Any]) -> None:
        folder = self.folder.path / "statistics"
        folder.mkdir(exist_ok=True)
        append_jsonl(folder / f"{self.identity.worker}.jsonl", {"sweep": sweep.name, **entry})

    def _demand(self, scope: Scope, cells: Sequence[Cell]) -> list[CellRecord]:
        store = scope.cells()
        try:
            with self._untimed():
                records = store.demand(cells)
        except Stopped:
            if self._current is not None:
                self._current.user_properties.append(NOT_BEGUN)
            pytest.skip("the session was asked to stop before this cell was begun")
        except OSError as error:
            told = f"{error.filename or store.out}: {error.strerror or error}; {KEPT}"
            raise pytest.fail.Exception(told, pytrace=False) from None
        except (RecordError, ConfigurationError) as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        self._tell_finished(scope)
        return records

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Escape lone surrogates in what a test fails or is skipped with."""
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, (pytest.fail.Exception, pytest.skip.Exception)) and error.msg:
            error.msg = plain(str(error.msg))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        """Escape them wherever a report of a worker has them: pytest-xdist cannot send any, and the session ends."""
        return _escaped((yield))

    def _tell_finished(self, scope: Scope) -> None:
        plan, store = scope.planned(), scope.cells()
        while store.begun_here:
            cell = store.begun_here.pop(0)
            run = make_run(plan, cell, store.out, store.standing(cell))
            scope.node.ihook.pytest_proteus_run_finished(config=self.config, run=run)

    def help_others(self, items: Sequence[pytest.Item]) -> None:
        """In a worker with no test left: run the cells that a test of another worker waits for."""
        whole = {id(item.stash[SCOPE]): item.stash[SCOPE] for item in items if _is_whole(item)}
        scopes = [scope for scope in whole.values() if scope.store is not None]
        while scopes and self.folder.needs_help and not self.folder.stopped:
            for scope in [scope for scope in scopes if self.folder.is_wanted_whole(scope.declaration.name)]:
                try:
                    if scope.cells().settle_free(scope.planned().in_order()):
                        scopes.remove(scope)
                except (Stopped, OSError, RecordError, ConfigurationError):  # who needs the cells says what is wrong
                    scopes.remove(scope)
                self._tell_finished(scope)
            time.sleep(POLL)

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
            scope = item.stash.get(SCOPE, None)
            cell = item.stash.get(CELL, None)
            gates = item.stash[_gates] = Gates(
                nodeid=item.nodeid,
                sweep=scope.declaration.name if scope else None,
                arm=cell.arm if cell else None,
                write=self._write_gate,
                caveat="" if self.against.fewest is None else _NOT_FIXED,
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
        own = item.stash[GATES]
        if own:
            family = item.stash[SCOPE].family
            family.hold(own, self.gates_of(item), item._request.getfixturevalue, blocking=passed)
        gates = item.stash.get(_gates, None)
        if gates is None:
            return
        del item.stash[_gates]  # a test that is run again decides anew
        policy = options.one_of(self.config, "undecided", options.UNDECIDED)
        failures = gates.failures(undecided=policy == "fail")
        if passed and failures:
            item.user_properties.append(BY_GATE)
            pytest.fail("\n".join(failures), pytrace=False)
        if passed and policy == "skip" and gates.failures():
            pytest.skip("\n".join(gates.failures()))

    def _thresholds(self, item: pytest.Function) -> dict[str, list[Threshold]]:
        """Evaluator name → the bounds of every marker in the item's scope, each once."""
        scope = item.stash[SCOPE]
        plan = scope.planned()
        surfaces = plan.surfaces[item.stash[CELL].harness]
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
        with self.scopes.noting():
            self.against.load()
        if self.scopes.problems:
            self.close()
        self._raise_problems([])
        self._opened = True
        self.folder.open()
        self._write_identity()
        nodes = read_json(self.folder.path / "nodes.json") or {}
        self._whole = {nodeid for nodeid, node in nodes.items() if node["whole"]}
        self.folder.ask_for_help(bool(self._whole))
        for _, out in self._sweeps():
            manifest = read_json(out / "manifest.json")
            if manifest:
                self.progress.watched.append(_watched(out, manifest))
        self._announce()
        self._catch_sigterm()
        self.progress.start()

    def _sweeps(self) -> list[tuple[str, Path]]:
        notes = [read_json(path) for path in sorted((self.folder.path / "sweeps").glob("*.json"))]
        return [(note["name"], as_path(note["out"])) for note in notes]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test was reported, and stop the workers when ``-x`` or ``--maxfail`` says so."""
        if report.when in ("teardown", "???"):
            self._reported.add(report.nodeid)
            if report.nodeid in self._whole:
                self._whole.discard(report.nodeid)
                self.folder.ask_for_help(bool(self._whole))
        if report.when == "setup" and report.skipped and NOT_BEGUN not in report.user_properties:
            self._left_out.add(report.nodeid)
        self._failed_otherwise |= report.failed and BY_GATE not in report.user_properties
        if report.failed and self._opened:
            self._failures += 1
            limit = self.config.getvalue("maxfail")
            if limit and self._failures >= limit:
                self.folder.stop()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C: no process begins a further cell or episode. ``-x`` comes by here, too, under xdist."""
        if self._opened:
            self.folder.stop()
            if not str(excinfo.value).startswith("stopping after"):
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
        self._forget_skipped()
        spared = self._forget_spared()
        self._note_budget()
        status = session.exitstatus
        if status == pytest.ExitCode.INTERRUPTED and self._failures and not self._interrupted:
            status = pytest.ExitCode.TESTS_FAILED  # -x under xdist, which alone calls that an interrupt
        self.against.record(self.folder, [out for _, out in self._sweeps()], spared, self._write_gate)
        report = build(
            self.folder.path,
            exitstatus=int(status),
            finished_at=time.time(),
            max_missing=limit,
            tests_failed=self._failed_otherwise,
        )
        if self.against.settle(report, time.time()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            report["session"]["exitstatus"] = int(session.exitstatus)
        try:
            self.config.hook.pytest_proteus_modify_report(config=self.config, report=report)
        except Exception as error:
            report["outcome_reasons"].append(f"pytest_proteus_modify_report failed: {type(error).__name__}: {error}")
        report = plain(report)
        write(report, max_missing=limit, comparisons=self.folder.base / "reports")
        self.report = report

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        """Add the ``proteus`` section to the file of pytest-json-report, and put its tests in an order that lasts."""
        if self.report is None:
            return
        json_report["proteus"] = self.report
        json_report.get("tests", []).sort(key=lambda test: test["nodeid"])

    @property
    def _interrupted(self) -> bool:
        return (self.folder.path / "interrupt").exists()

    def _settle_lost(self) -> None:
        """Account for cells whose worker died. After an interrupt they were only cut short: a later session goes on."""
        if self._interrupted:
            return
        for _, out in self._sweeps():
            with contextlib.suppress(OSError, RecordError):
                settle_lost(out, self.identity.session)

    def _forget_skipped(self) -> None:
        """Tests that the user skips want no cell."""
        path = self.folder.path / "nodes.json"
        nodes = read_json(path) or {}
        if self._left_out & nodes.keys():
            write_json_atomic(path, {nodeid: nodes[nodeid] for nodeid in nodes if nodeid not in self._left_out})

    def _forget_spared(self) -> frozenset[str]:
        """Cells that are not needed to decide the declared gates are wanted by no test; their run ids."""
        found = [read_json(path) for path in sorted((self.folder.path / "spared").glob("*.json"))]
        spared = frozenset(run_id for told in found for run_id in told["runs"])
        if spared:
            path = self.folder.path / "nodes.json"
            nodes = read_json(path) or {}
            for node in nodes.values():
                node["runs"] = [run_id for run_id in node["runs"] if run_id not in spared]
            write_json_atomic(path, nodes)
            self._budget |= {"stopped_by": "decided", "blocks_bought": max(told["seeds"] for told in found)}
        return spared

    def _note_budget(self) -> None:
        """Write down what might be spent and what was, for the report."""
        limits = self._limits()
        if limits:
            tokens, usd = budget.spent(self.folder.path / budget.NAME) or (0, 0.0)
            self._budget |= {"max_tokens": limits.max_tokens, "max_usd": limits.max_usd, "spent_tokens": tokens}
            self._budget["spent_usd"] = usd if limits.max_usd is not None else None
            records = [found for _, out in self._sweeps() for found in map(read_json, (out / "cells").glob("*.json"))]
            if any(found["reason"] == BUDGET or (found["error"] or {}).get("class") == BUDGET for found in records):
                self._budget["stopped_by"] = BUDGET
                bought = [self._blocks_bought(out) for _, out in self._sweeps()]
                self._budget["blocks_bought"] = sum(bought)
        if self._budget:
            self._write_identity(self._budget)

    def _blocks_bought(self, out: Path) -> int:
        """How many seeds of a sweep have all their cells complete."""
        by_seed: dict[Any, list[bool]] = {}
        for cell in (read_json(out / "manifest.json") or {}).get("runs", ()):
            record = read_cell(out, cell["id"])
            by_seed.setdefault(cell["seed"], []).append(record is not None and record.state == "complete")
        return sum(all(states) for states in by_seed.values())

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
        spans.close()
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
            retry = () if options.flag(self.config, "no-run") else options.retry(self.config)
            self._write_line(_headline(watched, self.identity.session, retry))

    def _write_line(self, text: str, *, asked: bool = False) -> None:
        """Write a line to the terminal; not with ``-q``, but for what was ``asked`` for."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or (self.config.option.verbose < 0 and not asked):
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


def _escaped(value: Any) -> Any:
    """Plain data with the lone surrogates of its texts escaped."""
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_escaped, value))
    return plain(value) if type(value) is str else value


def _is_whole(item: pytest.Item) -> bool:
    """Whether a test needs every cell of its sweep."""
    return SCOPE in item.stash and "sweep" in item.stash[WANTED]


def _needed(scope: Scope, items: Sequence[pytest.Item]) -> Sequence[Cell]:
    """The cells that selected tests ask for."""
    cells: dict[Cell, None] = {}
    for item in items:
        if item.stash.get(SCOPE, None) is scope:
            if _is_whole(item):
                return scope.planned().cells
            cells[item.stash[CELL]] = None
    return list(cells)


def _watched(out: Path, manifest: Mapping[str, Any]) -> Watched:
    return Watched(
        str(manifest["name"]),
        out,
        [run["id"] for run in manifest["runs"]],
        int(manifest["episodes"]),
        str(manifest.get("measurement_sha256") or ""),
    )


def _headline(watched: Watched, session: str, retry: Sequence[str]) -> str:
    reported = {line.get("session") for line in read_jsonl(watched.out / "sessions.jsonl")}
    reused = kept = continued = retried = rescored = 0
    for run_id in watched.run_ids:
        with contextlib.suppress(RecordError):  # whoever needs the cell says what is wrong with its file
            record = read_cell(watched.out, run_id)
            if record is None or record.session == session:
                continue
            if record.state in retry:
                retried += 1
                continue
            ended = record.state not in (RUNNING, *CONTINUED)
            reused += ended and record.settled_by in reported
            kept += ended and record.settled_by not in reported
            continued += not ended
            rescored += ended and bool(record.measured) and record.measured != watched.measurement
    counts = {"reused": reused, "kept of an interrupted session": kept, "continued": continued, "retried": retried}
    counts["to be scored by new or changed evaluators"] = rescored
    told = "".join(f", {count} {word}" for word, count in counts.items() if count)
    return f"proteus: {watched.name}: {len(watched.run_ids)} cells × {watched.episodes} episodes{told} → {watched.out}"
