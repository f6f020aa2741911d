"""Running evaluators: a broken one costs its own result and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_proteus.core import ActionEvent, EvalResult, EvaluatorSpec, GoalConfig, GoalContext
from pytest_proteus.core.evaluation import EvaluatorRunner, mean_score
from pytest_proteus.core.evaluators import tool_calls

CONTEXT = GoalContext("/nowhere", 1)
LONG = 60.0


@pytest.fixture
def evaluate() -> Iterator[Callable[..., list[EvalResult]]]:
    runners = []

    def run(*specs: EvaluatorSpec, trace: Any = (), changed: Any = ()) -> list[EvalResult]:
        runners.append(EvaluatorRunner(specs))
        return runners[-1].run(trace, CONTEXT, lambda: changed)

    yield run
    for runner in runners:
        runner.close()


def fine(trace: Any, ctx: GoalContext) -> EvalResult:
    return EvalResult("other", 1.5, True, f"{len(trace)} at {ctx.episode}")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raises(error: BaseException) -> Callable[[Any, Any], EvalResult]:
    def run(trace: Any, ctx: Any) -> EvalResult:
        raise error

    return run


BROKEN = {
    "exception": raises(ZeroDivisionError("oh")),
    "unprintable": raises(UnprintableError()),
    "test outcome": raises(pytest.fail.Exception("no")),
    "nothing": lambda t, c: None,
    "not a number": lambda t, c: EvalResult("x", float("nan")),
    "infinite": lambda t, c: EvalResult("x", np.float64("inf")),
    "missing": lambda t, c: EvalResult("x", None),  # type: ignore[arg-type]
    "text": lambda t, c: EvalResult("x", "12"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_evaluator_is_an_error_and_leaves_its_neighbours_alone(
    evaluate: Callable[..., list[EvalResult]], how: str, timeout: float | None
) -> None:
    first, broken, last = evaluate(
        EvaluatorSpec("a", fine, timeout=timeout),
        EvaluatorSpec("b", BROKEN[how], timeout=timeout),
        EvaluatorSpec("c", fine, timeout=timeout),
    )
    assert (broken.name, broken.score, broken.error) == ("b", 0.0, True)
    assert broken.detail.startswith("evaluator error: ")
    for name, result in (("a", first), ("c", last)):
        assert (result.name, result.score, result.passed, result.detail, result.error) == (
            name,
            1.5,
            True,
            "0 at 1",
            False,
        )


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize(
    ("bounds", "shown"), [((0.0, 1.0), "(0, 1)"), ((None, 1.0), "(none, 1)"), ((2, None), "(2, none)")]
)
def test_a_score_outside_of_its_declared_bounds_is_an_error_that_says_what_to_change(
    evaluate: Callable[..., list[EvalResult]], bounds: Any, shown: str, timeout: float | None
) -> None:
    (result,) = evaluate(EvaluatorSpec("a", fine, timeout=timeout, bounds=bounds))
    assert (result.score, result.error) == (0.0, True)
    assert f"its score 1.5 lies outside of its declared bounds {shown}; declare bounds=" in result.detail
    (result,) = evaluate(EvaluatorSpec("a", fine, timeout=timeout, bounds=(1.5, 1.5)))
    assert (result.score, result.error) == (1.5, False)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda t, c: os._exit(3), "exit status 3"),
        (lambda t, c: os.kill(os.getpid(), signal.SIGKILL), "signal 9"),
        (lambda t, c: sys.exit(2), "SystemExit"),
        (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    ],
)
def test_an_evaluator_that_ends_its_process_costs_its_own_result(
    evaluate: Callable[..., list[EvalResult]], run: Any, reason: str
) -> None:
    broken, other = evaluate(EvaluatorSpec("b", run, timeout=LONG), EvaluatorSpec("c", fine, timeout=LONG))
    assert broken.error
    assert reason in broken.detail
    assert other.score == 1.5


def test_an_evaluator_that_takes_for_ever_is_killed_with_what_it_started(
    evaluate: Callable[..., list[EvalResult]], tmp_path: Path
) -> None:
    def hang(trace: Any, ctx: Any) -> EvalResult:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        (tmp_path / "pid").write_text(f"{child.pid} ")
        with open(os.devnull, "rb"), open(fifo, "rb"):  # nobody ever writes to it
            return EvalResult("x", 1.0)

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    broken, other = evaluate(EvaluatorSpec("b", hang, timeout=0.5), EvaluatorSpec("c", fine, timeout=LONG))
    assert broken.error
    assert "longer than 0.5 s" in broken.detail
    assert other.score == 1.5
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def returns(trace: Any, ctx: Any) -> EvalResult:
    return EvalResult("x", 99.0)


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("copy", [returns, raises(ValueError("no")), lambda t, c: sys.exit(7)])
def test_only_the_process_that_was_asked_answers(
    evaluate: Callable[..., list[EvalResult]], copy: Any, timeout: float | None
) -> None:
    def forks(trace: Any, ctx: Any) -> Any:
        child = os.fork()
        if child == 0:
            return copy(trace, ctx)
        _, status = os.waitpid(child, 0)
        return EvalResult("x", float(os.waitstatus_to_exitcode(status)))

    first, other = evaluate(EvaluatorSpec("a", forks, timeout=timeout), EvaluatorSpec("c", fine, timeout=timeout))
    assert (first.score, first.error) == (0.0, False)
    assert other.score == 1.5


def test_one_process_serves_a_whole_run(evaluate: Callable[..., list[EvalResult]]) -> None:
    def pid(trace: Any, ctx: Any) -> EvalResult:
        return EvalResult("x", float(os.getpid()))

    runner = EvaluatorRunner([EvaluatorSpec("a", pid, timeout=LONG), EvaluatorSpec("b", pid, timeout=LONG)])
    scores = {result.score for _ in range(3) for result in runner.run([], CONTEXT, list)}
    runner.close()
    assert len(scores) == 1
    assert scores != {float(os.getpid())}
    assert not psutil.pid_exists(int(scores.pop()))


def test_without_a_timeout_an_evaluator_runs_here_and_closures_keep_working(
    evaluate: Callable[..., list[EvalResult]],
) -> None:
    seen = []

    def remember(trace: Any, ctx: Any) -> EvalResult:
        seen.append(os.getpid())
        return EvalResult("x", 1.0)

    evaluate(EvaluatorSpec("a", remember))
    assert seen == [os.getpid()]


def test_a_built_in_with_a_timeout_runs_here(evaluate: Callable[..., list[EvalResult]]) -> None:
    def revert() -> list[str]:
        raise AssertionError("a built-in needs no guard")

    runner = EvaluatorRunner([EvaluatorSpec("a", tool_calls(), timeout=LONG)])
    assert runner.run([ActionEvent(1, "act", "w")], CONTEXT, revert)[0].score == 1.0


@pytest.mark.parametrize("timeout", [None, LONG])
def test_an_evaluator_that_changed_the_tree_is_an_error_that_names_the_paths(
    evaluate: Callable[..., list[EvalResult]], timeout: float | None
) -> None:
    (result,) = evaluate(EvaluatorSpec("a", fine, timeout=timeout), changed=[f"p{n}" for n in range(8)])
    assert (result.score, result.error) == (0.0, True)
    assert "p0, p1, p2, p3, p4 and 3 more" in result.detail


def test_a_trace_that_cannot_be_sent_is_made_plain(evaluate: Callable[..., list[EvalResult]]) -> None:
    trace = [ActionEvent(1, "act", "w", params={"f": lambda: None})]
    assert evaluate(EvaluatorSpec("a", fine, timeout=LONG), trace=trace)[0].detail == "1 at 1"


def test_a_large_trace_and_a_long_detail_pass_through(evaluate: Callable[..., list[EvalResult]]) -> None:
    def long(trace: Any, ctx: Any) -> EvalResult:
        return EvalResult("x", float(len(trace[0].text)), detail="d" * 1_000_000)

    (result,) = evaluate(EvaluatorSpec("a", long, timeout=LONG), trace=[ActionEvent(1, "act", text="t" * 3_000_000)])
    assert result.score == 3_000_000
    assert len(result.detail) < 5_000


def test_the_child_prints_nothing_and_holds_none_of_our_files(
    evaluate: Callable[..., list[EvalResult]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def look(trace: Any, ctx: Any) -> EvalResult:
        print("noise", flush=True)
        os.write(1, b"noise")
        held = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{fd}")
        ]
        return EvalResult("x", float(sum(str(tmp_path) in path for path in held)))

    with open(tmp_path / "ours", "w"):
        (result,) = evaluate(EvaluatorSpec("a", look, timeout=LONG))
    assert result.score == 0.0
    assert "noise" not in "".join(capfd.readouterr())


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pytest_proteus.core import *\n"
        "from pytest_proteus.core.evaluation import EvaluatorRunner\n"
        "def run(t, c):\n"
        "    if c.episode == 1: return EvalResult('x', float(os.getpid()))\n"
        "    while True: time.sleep(1)\n"
        "runner = EvaluatorRunner([EvaluatorSpec('a', run, timeout=1000)])\n"
        "print(int(runner.run([], GoalContext('/', 1), list)[0].score), flush=True)\n"
        "runner.run([], GoalContext('/', 2), list)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    with parent.stdout:
        pid = int(parent.stdout.readline())
        child = psutil.Process(pid)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        psutil.wait_procs([child], timeout=0.05)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_selection_takes_the_unweighted_mean_with_errors_as_zero() -> None:
    assert mean_score([EvalResult("a", 3.0), EvalResult("b", 0.0, error=True)]) == 1.5
    assert mean_score([]) is None


# ----------------------------------------------------------------------------------------- what is left behind


def daemon(path: Path) -> None:
    """A process of nobody's: forked, in a session of its own, and forked again; its number is in ``path``."""
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid:
            path.with_suffix(".new").write_text(str(pid))
            path.with_suffix(".new").rename(path)
            os._exit(0)
        while True:
            time.sleep(1000)
    os.wait()


def is_gone(path: Path) -> bool:
    pid = int(path.read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_an_evaluator_leaves_behind_is_killed_and_makes_its_result_an_error(
    evaluate: Callable[..., list[EvalResult]], tmp_path: Path
) -> None:
    def leaves(trace: Any, ctx: Any) -> EvalResult:
        daemon(tmp_path / "pid")
        return EvalResult("x", 1.0)

    broken, other = evaluate(EvaluatorSpec("b", leaves, timeout=LONG), EvaluatorSpec("c", fine, timeout=LONG))
    assert (broken.error, other.error) == (True, False)
    assert "left a process behind" in broken.detail
    assert is_gone(tmp_path / "pid")


@pytest.mark.parametrize(
    ("then", "timeout"),
    [
        (lambda: os._exit(3), LONG),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), LONG),
        (lambda: signal.pause(), 0.5),
    ],
    ids=["exit", "signal", "time-out"],
)
def test_what_an_evaluator_started_ends_with_it_however_it_ends(
    evaluate: Callable[..., list[EvalResult]], tmp_path: Path, then: Callable[[], Any], timeout: float
) -> None:
    def leaves(trace: Any, ctx: Any) -> EvalResult:
        daemon(tmp_path / "pid")
        then()
        return EvalResult("x", 1.0)

    broken, other = evaluate(EvaluatorSpec("b", leaves, timeout=timeout), EvaluatorSpec("c", fine, timeout=LONG))
    assert (broken.error, other.error) == (True, False)
    assert is_gone(tmp_path / "pid")


def test_a_process_that_ended_by_itself_is_not_left_behind(evaluate: Callable[..., list[EvalResult]]) -> None:
    def unwaited(trace: Any, ctx: Any) -> EvalResult:
        child = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        return EvalResult("x", 1.0)

    assert not evaluate(EvaluatorSpec("b", unwaited, timeout=LONG))[0].error


def test_a_thread_that_an_evaluator_leaves_behind_ends_before_the_next_evaluation(
    evaluate: Callable[..., list[EvalResult]],
) -> None:
    def leaves(trace: Any, ctx: Any) -> EvalResult:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        return EvalResult("x", float(os.getpid()))

    def threads(trace: Any, ctx: Any) -> EvalResult:
        return EvalResult("x", float(threading.active_count()))

    first, second = evaluate(EvaluatorSpec("b", leaves, timeout=LONG), EvaluatorSpec("c", threads, timeout=LONG))
    assert (first.error, second.score) == (False, 1.0)
    assert not psutil.pid_exists(int(first.score))


# ------------------------------------------------------------------------------------------ what is handed out


def test_nothing_that_an_evaluator_does_to_what_it_is_given_reaches_another_or_the_caller() -> None:
    def spoils(trace: Any, ctx: Any) -> EvalResult:
        trace[0].params["list"].append(4)
        trace[0].params.clear()
        trace.clear()
        for table in (ctx.units, ctx.units["notes"]):
            with pytest.raises(AttributeError):
                table.clear()
        object.__setattr__(ctx, "episode", 99)
        return EvalResult("x", 1.0)

    def looks(trace: Any, ctx: Any) -> EvalResult:
        return EvalResult("x", len(trace[0].params["list"]) + ctx.episode + len(ctx.units["notes"]))

    tables = {"notes": {"a.md": "1"}}
    trace = [ActionEvent(1, "act", "w", params={"list": [1, 2, 3]})]
    ctx = GoalContext("/nowhere", 10, units=tables, previous_units=tables)
    specs = [EvaluatorSpec("a", spoils), EvaluatorSpec("b", looks)]
    for results in (EvaluatorRunner(specs).run(trace, ctx, list), GoalConfig.of("x", specs).evaluate(trace, ctx)):
        assert [result.score for result in results] == [1.0, 14.0], results
    assert trace == [ActionEvent(1, "act", "w", params={"list": [1, 2, 3]})]


@pytest.mark.parametrize("timeout", [None, LONG])
def test_an_evaluator_that_exits_is_an_error(evaluate: Callable[..., list[EvalResult]], timeout: float | None) -> None:
    (result,) = evaluate(EvaluatorSpec("a", raises(SystemExit(2)), timeout=timeout))
    assert (result.error, result.detail) == (True, "evaluator error: SystemExit: 2")


def test_an_interrupt_passes_through_an_evaluator_in_this_process(evaluate: Callable[..., list[EvalResult]]) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(EvaluatorSpec("a", raises(KeyboardInterrupt())))


def test_the_mean_of_huge_scores_is_a_number() -> None:
    assert mean_score([EvalResult("a", 1.7e308), EvalResult("b", 1.7e308)]) == 1.7e308
    assert mean_score([EvalResult("a", 0.1)] * 10) == 0.1
