"""Running the evaluators of a run: in this process, or in a child that can be killed; the tree put back after each.

One broken evaluator costs its own result and no other's. What they measure is the business of ``core.evaluators`` and
of users.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.evaluators import is_built_in
from pytest_proteus.core.goal import EvalResult, EvaluatorSpec, GoalContext, call_evaluator, error_result, own_view
from pytest_proteus.core.records import action_to_json, plain

#: Longest detail that is kept, in characters.
DETAIL_LIMIT = 4_000
#: Longest JSON of a result's data that is kept, in characters.
DATA_LIMIT = 1 << 20
_HEADER = struct.Struct("!Q")
_SHOWN_PATHS = 5

#: How long processes that do not die are waited for.
_KILL_SECONDS = 5.0
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # of prctl


def mean_score(results: Sequence[EvalResult]) -> float | None:
    """What selection compares: the unweighted mean of all scores, larger is better; None without results.

    An evaluator error counts with its 0.0: selection needs a number for every candidate.
    """
    if not results:
        return None
    try:
        return math.fsum(result.score for result in results) / len(results)
    except OverflowError:  # the sum is too large for a number; the mean never is
        return math.fsum(result.score / len(results) for result in results)


class EvaluatorRunner:
    """Runs the evaluators of one run, episode after episode.

    An evaluator with a ``timeout`` that is not built in runs in a child process, forked when it is first needed and
    kept for the run, so that an endless loop, ``os._exit`` or a crash costs its own result; a child that was lost is
    forked anew. No process that an evaluator there started outlives its evaluation. All others are called in this
    process; those that are not built in get a trace and tables of their own.

    Args:
        specs: the attached evaluators, in order.
    """

    def __init__(self, specs: Sequence[EvaluatorSpec]) -> None:
        self._specs = tuple(specs)
        self._child: _Child | None = None

    def run(
        self, trace: Sequence[ActionEvent], ctx: GoalContext, revert: Callable[[], Sequence[str]]
    ) -> list[EvalResult]:
        """Every evaluator's result, in order.

        Args:
            trace: the episode's actions.
            ctx: what evaluators may look at.
            revert: puts the harness tree back as the episode left it and names the paths that had changed.
        """
        results = []
        for index, spec in enumerate(self._specs):
            if is_built_in(spec.run):
                result = call_evaluator(spec, trace, ctx)
            else:
                result = self._call(index, spec, trace, ctx)
                changed = list(revert())
                if changed:
                    result = error_result(spec.name, f"it changed the harness, which was put back: {_listed(changed)}")
            results.append(replace(result, detail=_bounded(result.detail), data=_bounded_data(result.data)))
        return results

    def _call(self, index: int, spec: EvaluatorSpec, trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        if spec.timeout is None:
            return call_evaluator(spec, *own_view(trace, ctx))
        if self._child is None:
            try:
                self._child = _Child(self._specs)
            except OSError as error:
                return error_result(spec.name, f"no process could be started for it: {error.strerror}")
        answer = self._child.ask(index, trace, ctx, spec.timeout)
        if isinstance(answer, str):
            self.close()
            return error_result(spec.name, answer)
        if answer.pop("last"):
            self.close()
        return EvalResult(name=spec.name, **answer)

    def close(self) -> None:
        """End the child and whatever it started."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN_PATHS
    return ", ".join(paths[:_SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")


def _bounded_data(data: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Plain data that is not too large for a record; None, and so missing, where it is."""
    kept: dict[str, Any] | None = plain(data) if isinstance(data, Mapping) else None
    return kept if kept is None or len(json.dumps(kept)) <= DATA_LIMIT else None


def _bounded(text: str) -> str:
    kept: str = plain(text, limit=DETAIL_LIMIT)
    return kept


class _Child:
    """A forked copy of this process that answers requests over a pipe and dies with its parent.

    It is two processes: a keeper, and the worker that it forks and in which evaluators run. What the worker leaves when
    it ends, however it ends, becomes the keeper's, which kills it.
    """

    def __init__(self, specs: Sequence[EvaluatorSpec]) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            with warnings.catch_warnings():
                # The child runs evaluators and nothing else; threads of this process do not matter to it.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
        except OSError:
            for fd in (requests, self._requests, self._answers, answers):
                os.close(fd)
            raise
        if self._pid == 0:
            _keep(specs, requests, answers)
        os.close(requests)
        os.close(answers)
        os.set_blocking(self._requests, False)

    def ask(self, index: int, trace: Sequence[ActionEvent], ctx: GoalContext, timeout: float) -> dict[str, Any] | str:
        """The fields of the result, or the reason why there is none; after a reason the child is of no more use."""
        deadline = time.monotonic() + timeout
        try:
            self._send(_request(index, trace, ctx), deadline)
            (size,) = _HEADER.unpack(self._receive(_HEADER.size, deadline))
            answer: dict[str, Any] = json.loads(self._receive(size, deadline))
            return answer
        except TimeoutError:
            return f"it took longer than {timeout:g} s"
        except (EOFError, BrokenPipeError):
            return f"its process ended ({self._ending()})"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _send(self, data: bytes, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLOUT)
        view = memoryview(_HEADER.pack(len(data)) + data)
        while view:
            _wait(poll, deadline)
            view = view[os.write(self._requests, view[:65_536]) :]

    def _receive(self, size: int, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        data = b""
        while len(data) < size:
            _wait(poll, deadline)
            block = os.read(self._answers, size - len(data))
            if not block:
                raise EOFError
            data += block
        return data

    def _ending(self) -> str:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        for _ in range(1000):
            if pid:
                break
            time.sleep(0.001)  # its end of the pipe closes before what it left is killed
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return "it closed its side"
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        return f"exit status {code}" if code >= 0 else f"signal {-code}"

    def kill(self) -> None:
        """SIGKILL for it and for every process that descends from it."""
        os.close(self._requests)
        os.close(self._answers)
        if self._pid:
            _kill_descent(self._pid)
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _wait(poll: select.poll, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError


def _request(index: int, trace: Sequence[ActionEvent], ctx: GoalContext) -> bytes:
    sent = replace(ctx, units=None, previous_units=None)
    try:
        return pickle.dumps((index, list(trace), sent))
    except Exception:  # an adapter put something into its events that cannot be sent as it is
        events = [ActionEvent(**action_to_json(event)) for event in trace]
        return pickle.dumps((index, events, replace(sent, grader_sandbox=None)))


# ------------------------------------------------------------------------------------------------ descendants


def _kill_descent(root: int) -> int:
    """SIGKILL for every process that descends from ``root``, which takes in orphans; returns how many there were."""
    met: set[int] = set()
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        caught: set[int] = set()
        # a stopped process forks no more: when a look finds no new one, all are caught
        while (new := _descent(root) - caught) and time.monotonic() < deadline:
            _signal(new, signal.SIGSTOP)
            caught |= new
        if not caught:
            break
        _signal(caught, signal.SIGKILL)
        met |= caught
        time.sleep(0.001)
    return len(met)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descent(root: int) -> set[int]:
    """Every living process that descends from ``root``; none where the system does not tell."""
    found: set[int] = set()
    todo = [root]
    while todo:
        for pid in _children(todo.pop()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return {pid for pid in found if _lives(pid)}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_bytes().split())
    return found


def _lives(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        # a process whose first thread has ended looks dead, whatever its others do
        return state not in (b"Z", b"X") or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def _reap() -> bool:
    """Bury every dead child; True when there is no child left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


# --------------------------------------------------------------------------------------- inside of the child


def _keep(specs: Sequence[EvaluatorSpec], requests: int, answers: int) -> None:
    """The keeper's whole life: until the worker ends or the parent does; never returns."""
    code = 1
    try:
        parent = os.getppid()
        _detach(requests, answers)
        signal.signal(signal.SIGTERM, _stop)
        _prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        _prctl(_CHILD_SUBREAPER, 1)
        worker = os.fork()
        if worker == 0:
            _serve(specs)
        os.close(3)
        os.close(4)
        pid = 0
        while pid != worker and os.getppid() == parent:
            pid, status = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(status)
    finally:
        try:
            _kill_descent(os.getpid())
            if code < 0:  # end as the worker did
                with contextlib.suppress(Exception):
                    signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
        finally:
            os._exit(code & 255)


def _stop(number: int, frame: object) -> None:
    """The keeper's parent is gone. Raises nothing: that could get out into this copy of the parent's code."""
    signal.signal(number, signal.SIG_IGN)
    try:
        _kill_descent(os.getpid())
    finally:
        os._exit(1)


def _serve(specs: Sequence[EvaluatorSpec]) -> None:
    """The worker's whole life; never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _prctl(_CHILD_SUBREAPER, 1)
        while True:
            (size,) = _HEADER.unpack(_read(3, _HEADER.size))
            index, trace, ctx = pickle.loads(_read(3, size))
            answer = _answer(specs[index], trace, ctx)
            left = 0 if _reap() else _kill_descent(os.getpid())
            if left:
                _reap()
                processes = "a process" if left == 1 else f"{left} processes"
                answer = _fields(error_result(specs[index].name, f"it left {processes} behind, killed"))
            # a thread that goes on, or a module that misses its helper process, ends with the worker
            answer["last"] = bool(left) or len(sys._current_frames()) > 1
            data = json.dumps(answer, allow_nan=False).encode()
            data = _HEADER.pack(len(data)) + data
            while data:
                data = data[os.write(4, data) :]
    finally:
        os._exit(0)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _detach(requests: int, answers: int) -> None:
    """Nothing of the parent is left to the child but its two pipes, which become descriptors 3 and 4."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (requests, answers)]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # Overlaid instead of closed: locks and pipes of the parent are let go, and no number gets a second meaning.
    for fd in _open_descriptors():
        if fd not in (*kept, null):
            os.dup2(null, fd, inheritable=fd < 3)
    os.dup2(kept[0], 3, inheritable=False)
    os.dup2(kept[1], 4, inheritable=False)
    for fd in kept:
        os.dup2(null, fd, inheritable=False)
    # what the parent has buffered for its own output is not the child's to write
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            found = {int(name) for name in os.listdir(folder)}  # noqa: PTH208
            return sorted({fd for fd in found if _is_open(fd)} | {0, 1, 2})
    return [fd for fd in range(1024) if fd < 3 or _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = os.read(fd, size - len(data))
        if not block:
            os._exit(0)  # the parent has no more use for it
        data += block
    return data


def _answer(spec: EvaluatorSpec, trace: Sequence[ActionEvent], ctx: GoalContext) -> dict[str, Any]:
    try:
        return _fields(call_evaluator(spec, trace, ctx))
    except KeyboardInterrupt:  # its own: nobody else's reaches this process
        return _fields(error_result(spec.name, "KeyboardInterrupt"))


def _fields(result: EvalResult) -> dict[str, Any]:
    return {
        "score": result.score,
        "passed": result.passed,
        "detail": _bounded(result.detail),
        "error": result.error,
        "data": _bounded_data(result.data),
    }
