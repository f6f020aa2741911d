"""The door to pytest: options, markers, fixtures, and hooks that call ``sweep.session`` once a sweep is there.

Nothing is imported here but pytest: a session without a sweep pays for argument parsing only.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_proteus.sweep.gates import Gates
    from pytest_proteus.sweep.run import Run, Sweep
    from pytest_proteus.sweep.session import SweepSession

#: Fixtures that make a test part of a sweep.
OURS = frozenset({"run", "sweep", "gate"})

_session: pytest.StashKey[SweepSession] = pytest.StashKey()

#: What was asked of a session that ran no sweep.
_unmet: pytest.StashKey[str] = pytest.StashKey()


class SessionIdentity(NamedTuple):
    """Which invocation of pytest this is, and which of its processes.

    Args:
        session: id that all processes of the invocation share.
        worker: ``main``, or xdist's name of the worker.
        workers: how many processes run tests.
        is_worker, is_controller: role under pytest-xdist; both False without it.
        started_at: seconds since the epoch.
    """

    session: str
    worker: str
    workers: int
    is_worker: bool
    is_controller: bool
    started_at: float


_identity: pytest.StashKey[SessionIdentity] = pytest.StashKey()

MARKERS = (
    "sweep(name, episodes, goal, selection, phases, budget, phase_timeout, probes, exclude, axes, repo, ref, "
    "test_command, held_out, task_class, harness, arm, seed, model, task): declare the sweep of a module or class",
    "evaluator(spec, name, kind, visibility, direction, bounds, timeout, at_least, at_most, above, below, equals, "
    "when): attach a per-episode evaluator to every run, with thresholds that tests of a run assert",
    "gate(what, at_least, at_most, above, below, equals): hold '<statistic>.<field>' of the sweep against a bound, "
    "after the body of the test",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line, each with an ini twin."""
    from pytest_proteus.sweep.options import add_options

    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """The hooks that conftests and plugins may implement."""
    from pytest_proteus import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers. A printed plan needs no workers."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("proteus_plan") and getattr(config.option, "tx", None):
        config.option.dist, config.option.tx = "no", []


def sweep_session(config: pytest.Config) -> SweepSession:
    """The session's sweeps; made when first asked for."""
    if _session not in config.stash:
        from pytest_proteus.sweep.session import SweepSession

        config.stash[_session] = SweepSession(config, identity(config), ours)
        config.pluginmanager.register(config.stash[_session], "proteus-session")
    return config.stash[_session]


def identity(config: pytest.Config) -> SessionIdentity:
    """Which session and process this is."""
    if _identity not in config.stash:
        told = getattr(config, "workerinput", None)
        workers = told["workercount"] if told else len(getattr(config.option, "tx", None) or ())
        config.stash[_identity] = SessionIdentity(
            session=told["proteus_session"] if told else f"{int(time.time()):x}-{secrets.token_hex(4)}",
            worker=told["workerid"] if told else "main",
            workers=max(workers, 1),
            is_worker=told is not None,
            is_controller=told is None and workers > 0,
            started_at=time.time(),
        )
    return config.stash[_identity]


def ours(definitions: Mapping[str, Sequence[Any]]) -> set[str]:
    """Which of ``OURS`` a test asks for, given its fixture definitions by name; another's ``run`` is not ours."""
    found = set()
    for name in OURS & definitions.keys():
        for definition in reversed(definitions[name]):
            if definition.func.__module__ == __name__:
                found.add(name)
            if name not in definition.argnames:
                break
    return found


def _active(config: pytest.Config) -> SweepSession | None:
    """The session's sweeps, if it has any."""
    return config.stash.get(_session, None)


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["minimal"])
def harness(request: pytest.FixtureRequest) -> Any:
    """The harness of this cell. Override it with a parametrized fixture of a module or conftest."""
    return request.param


@pytest.fixture(scope="session", params=["neutral"])
def arm(request: pytest.FixtureRequest) -> Any:
    """The arm of this cell. Override it with a parametrized fixture of a module or conftest."""
    return request.param


@pytest.fixture(scope="session", params=range(6), ids="s{}".format)
def seed(request: pytest.FixtureRequest) -> Any:
    """The seed of this cell. Override it with a parametrized fixture of a module or conftest."""
    return request.param


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest) -> Any:
    """The model of this cell; None where the sweep has no such axis."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def task(request: pytest.FixtureRequest) -> Any:
    """The task of this cell; None where the sweep has no such axis."""
    return getattr(request, "param", None)


@pytest.fixture
def run(request: pytest.FixtureRequest, harness: Any, arm: Any, seed: Any, model: Any, task: Any) -> Run:
    """This cell's run: run once a session, by whichever process gets to it first."""
    return sweep_session(request.config).run_of(request.node)


@pytest.fixture(scope="session")
def sweep(request: pytest.FixtureRequest) -> Sweep:
    """The whole sweep of this module or class: every cell is run, or waited for."""
    if not hasattr(request, "param"):
        pytest.fail(
            "sweep must be an argument of a test function or of a fixture that one asks for: getfixturevalue comes too "
            "late to plan the sweep, and tests of a unittest.TestCase take no part in one",
            pytrace=False,
        )
    return sweep_session(request.config).sweep_of(request.param)


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Gates:
    """Holds numbers against bounds: recorded at once, failed together after the test's body."""
    return sweep_session(request.config).gates_of(request.node)


@pytest.fixture(scope="session")
def scores(request: pytest.FixtureRequest, sweep: Sweep) -> Callable[..., Any]:
    """``scores(metric, arm=None, episode="last")``: an Estimate of the mean score of an arm's runs, or of all runs.

    All runs are those of all arms but identical copies (``arm.aa()``); where several have one seed, the interval counts
    seeds. ``episode`` is a number, ``"last"`` or ``"best"`` (of all planned ones). The mean is over all tasks, too.
    ``metric`` may also be a number of whole runs, such as ``usage.total_tokens``.
    """
    from pytest_proteus.measure.statistic import number_over, score_at
    from pytest_proteus.sweep.declare import nearest

    session = sweep_session(request.config)

    def score(metric: str, arm: str | None = None, episode: int | str = "last") -> Any:
        arms = list(sweep.by_arm())
        if arm is not None and arm not in arms:
            raise LookupError(f"scores of {metric!r}: no arm is called {arm!r}; {nearest(arm, arms)}")
        try:
            spec = sweep.evaluator(metric)
        except LookupError:
            return session.statistic(sweep, number_over(sweep.metric(metric), arm, episode))
        of = score_at(metric, arm, episode, direction=spec.direction, bounds=spec.bounds)
        return session.statistic(sweep, of)

    return score


def _statistic(request: pytest.FixtureRequest, sweep: Sweep, name: str) -> Any:
    from pytest_proteus.measure.statistic import STATISTICS

    return sweep_session(request.config).statistic(sweep, STATISTICS[name])


@pytest.fixture(scope="session")
def contrast(request: pytest.FixtureRequest, sweep: Sweep) -> Callable[..., Any]:
    """``contrast(metric, *, arm, against, margin, kind="noninferior", scale="difference")``: one arm beside another."""
    from pytest_proteus.sweep.contrasting import between_arms

    return between_arms(sweep, sweep_session(request.config).statistic)


@pytest.fixture(scope="session")
def baseline(request: pytest.FixtureRequest, sweep: Sweep) -> Callable[..., Any]:
    """``baseline(metric, *, margin, arm=None, kind="noninferior", scale="difference")``: an arm beside a saved one."""
    from pytest_proteus.sweep.contrasting import beside_baseline

    session = sweep_session(request.config)
    session.against.require()
    return beside_baseline(sweep, session.against, session.statistic)


@pytest.fixture(scope="session")
def structure(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """Arm → surface → Estimate of the units that were built by the last planned episode."""
    return _statistic(request, sweep, "structure")


@pytest.fixture(scope="session")
def travel(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """Arm → surface → Estimate of the path length over all episodes."""
    return _statistic(request, sweep, "travel")


@pytest.fixture(scope="session")
def reliability(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """Arm → whether its runs reproduce each other: ``ratio`` below 0.5 is reliable."""
    return _statistic(request, sweep, "reliability")


@pytest.fixture(scope="session")
def separation(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """Whether arms differ more than runs of one arm do: ``R``, ``index``, ``within``, ``between``, ``p``, ``p_min``."""
    return _statistic(request, sweep, "separation")


@pytest.fixture(scope="session")
def crystallization(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """Whether checkpoints act as before once their disposition is gone: ``index``, ``p``, ``shift_index``, ``shift_p``.

    Their probes are planned by ``sweep(probes=…)``; without it this is unavailable.
    """
    return _statistic(request, sweep, "crystallization")


@pytest.fixture(scope="session")
def audit(request: pytest.FixtureRequest, sweep: Sweep) -> Mapping[str, Any]:
    """Run id → the escape and awareness evidence in all that the run left, each piece quoted with its place."""
    from pytest_proteus.measure.statistic import STATISTICS

    found = sweep_session(request.config).by_stratum(sweep, STATISTICS["audit"])
    return {run_id: value for audits in found.values() for run_id, value in audits.items()}


@pytest.fixture(scope="session")
def ranking(request: pytest.FixtureRequest, sweep: Sweep) -> Any:
    """The sweep's variants (harness, arm, model, further axes) ranked, failed, ungated or unscored; a task each."""
    return sweep_session(request.config).ranking(sweep)


# --- collection -------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> None:
    """Axes that a sweep marker lists become fixtures of its module or class, before the first test is made.

    A test uses the statistics that its gate markers name.
    """
    holder = getattr(collector, "obj", None)
    for part in holder.__mro__ if isinstance(holder, type) else (holder,):
        if "sweep" in _mark_names(part):
            sweep_session(collector.config).scopes.supply_axes(collector)
    if "gate" in _mark_names(obj):
        from pytest_proteus.sweep.declared import ask_for_statistics, users_near

        sweep_session(collector.config)
        ask_for_statistics(obj, users_near(collector))


def _mark_names(obj: object) -> set[str]:
    """Names of the markers that stand on an object itself."""
    marks = getattr(obj, "__dict__", {}).get("pytestmark", ())
    return {getattr(mark, "name", "") for mark in (marks if isinstance(marks, (list, tuple)) else (marks,))}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Register statistics; explain what pytest makes of ``evaluator(callable)``: it takes it for a decorated test."""
    if isinstance(collector, pytest.Module) and collector.ihook.pytest_proteus_register_statistics.get_hookimpls():
        sweep_session(collector.config).scopes.register_statistics(collector)
    report = yield
    if report.failed and isinstance(collector, pytest.Module):
        sweep_session(collector.config).scopes.explain(collector, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of a sweep by its axes."""
    wanted = ours(metafunc._arg2fixturedefs)
    if wanted:
        sweep_session(metafunc.config).scopes.generate(metafunc, wanted)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Plan before tests are deselected, order after."""
    active = _active(config)
    if active is None:
        return (yield)
    active.plan(session, items)
    result = yield
    active.scopes.arrange(items)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Allocate the folders of what is going to run."""
    active = _active(session.config)
    if active is not None:
        active.open(session)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Thresholds and gates are asserted after a passing body, recorded after any other."""
    active = _active(pyfuncitem.config)
    if active is None or not active.scopes.measures(pyfuncitem):
        return (yield)
    try:
        result = yield
    except BaseException:
        active.after_body(pyfuncitem, passed=False)
        raise
    active.after_body(pyfuncitem, passed=True)
    return result


# --- the controller of pytest-xdist -----------------------------------------------------------------------------------


def _planned(config: pytest.Config) -> SweepSession | None:
    """In the controller: the session's sweeps, once a worker has left a plan or a complaint on disk."""
    from pytest_proteus.sweep.options import base_folder

    if _session in config.stash or (base_folder(config) / ".sessions" / identity(config).session).is_dir():
        return sweep_session(config)
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker which session it belongs to; let a command to one that has just died not end the session.

    What it was given comes back with the event of its end, which xdist has not seen yet.
    """
    node.workerinput["proteus_session"] = identity(node.config).session
    send = node.sendcommand

    def send_if_alive(name: str, **arguments: object) -> None:
        with contextlib.suppress(OSError):
            send(name, **arguments)

    node.sendcommand = send_if_alive


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """A worker that has run its last test helps the others."""
    result = yield
    active = _active(session.config)
    if active is not None and active.identity.is_worker:
        active.help_others(session.items)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """A worker has planned: raise what it found wrong, begin to show progress."""
    planned = _planned(node.config)
    if planned is not None:
        planned.worker_collected(ids)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker that could not write anything has told at its end what is wrong."""
    problems = getattr(node, "workeroutput", {}).get("proteus_problems")
    if problems:
        raise pytest.UsageError("\n".join(problems))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under ``--dist load``, hand out a sweep's tests cell by cell."""
    if config.getoption("dist") != "load":
        return None
    from pytest_proteus.sweep.scheduler import CellOrLoadScheduling

    def groups() -> Mapping[str, str]:
        planned = _planned(config)
        return planned.groups() if planned is not None else {}

    return CellOrLoadScheduling(config, log, groups)


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Write the report, in the one process that every session has."""
    active = _active(session.config)
    if active is not None and active.reports:
        from pytest_proteus.report.build import build_report, write_sweep_reports

        active.finish(session, build_report, write_sweep_reports)
    else:
        from pytest_proteus.sweep.options import unmet

        told = unmet(session.config, session.exitstatus)
        if told:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            session.config.stash[_unmet] = told
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of arms, gates and missing cells."""
    if _unmet in config.stash:
        terminalreporter.write_line(config.stash[_unmet], red=True)
    active = _active(config)
    if active is None or active.report is None:
        return
    from pytest_proteus.report.terminal import summary_lines

    terminalreporter.write_sep("=", "proteus")
    for line in summary_lines(active.report, terminalreporter._tw.fullwidth):
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the folders go."""
    active = _active(config)
    if active is not None:
        active.close()
