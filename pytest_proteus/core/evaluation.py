"""Running the evaluators of a run: in this process, or in a child that can be killed; the tree put back after each.

One broken evaluator costs its own result and no other's. What they measure is the business of ``core.evaluators`` and
of users.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.evaluators import is_built_in
from pytest_proteus.core.goal import EvalResult, EvaluatorSpec, GoalContext, call_evaluator, error_result
from pytest_proteus.core.records import action_to_json, plain

#: Longest detail that is kept, in characters.
DETAIL_LIMIT = 4_000
_HEADER = struct.Struct("!Q")
_SHOWN_PATHS = 5


def mean_score(results: Sequence[EvalResult]) -> float | None:
    """What selection compares: the unweighted mean of all scores, larger is better; None without results."""
    return sum(result.score for result in results) / len(results) if results else None


class EvaluatorRunner:
    """Runs the evaluators of one run, episode after episode.

    An evaluator with a ``timeout`` that is not built in runs in a child process, forked when it is first needed and
    kept for the run, so that an endless loop, ``os._exit`` or a crash costs its own result; a child that was lost is
    forked anew. All others are called in this process.

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
                result = _call_here(spec, trace, ctx)
            else:
                result = self._call(index, spec, trace, ctx)
                changed = list(revert())
                if changed:
                    result = error_result(spec.name, f"it changed the harness, which was put back: {_listed(changed)}")
            results.append(replace(result, detail=_bounded(result.detail)))
        return results

    def _call(self, index: int, spec: EvaluatorSpec, trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        if spec.timeout is None:
            return _call_here(spec, trace, ctx)
        if self._child is None:
            try:
                self._child = _Child(self._specs)
            except OSError as error:
                return error_result(spec.name, f"no process could be started for it: {error.strerror}")
        answer = self._child.ask(index, trace, ctx, spec.timeout)
        if isinstance(answer, str):
            self.close()
            return error_result(spec.name, answer)
        return EvalResult(name=spec.name, **answer)

    def close(self) -> None:
        """End the child and whatever it started."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def _call_here(spec: EvaluatorSpec, trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
    try:
        return call_evaluator(spec, trace, ctx)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a test library's outcome, or an error that cannot even be printed
        return error_result(spec.name, type(error).__name__)


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN_PATHS
    return ", ".join(paths[:_SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")


def _bounded(text: str) -> str:
    kept: str = plain(text, limit=DETAIL_LIMIT)
    return kept


class _Child:
    """A forked copy of this process that answers requests over a pipe and dies with its parent."""

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
            _serve(specs, requests, answers)
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
        for _ in range(100):
            if pid:
                break
            time.sleep(0.001)  # its end of the pipe closes a moment before it can be waited for
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return "it closed its side"
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        return f"exit status {code}" if code >= 0 else f"signal {-code}"

    def kill(self) -> None:
        """SIGKILL for it and its process group."""
        os.close(self._requests)
        os.close(self._answers)
        if self._pid:
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


# --------------------------------------------------------------------------------------- inside of the child


def _serve(specs: Sequence[EvaluatorSpec], requests: int, answers: int) -> None:
    """The child's whole life; never returns."""
    try:
        _detach(requests, answers)
        while True:
            (size,) = _HEADER.unpack(_read(3, _HEADER.size))
            index, trace, ctx = pickle.loads(_read(3, size))
            data = json.dumps(_answer(specs[index], trace, ctx), allow_nan=False).encode()
            data = _HEADER.pack(len(data)) + data
            while data:
                data = data[os.write(4, data) :]
    finally:
        os._exit(0)


def _detach(requests: int, answers: int) -> None:
    """Nothing of the parent is left to the child but its two pipes, which become descriptors 3 and 4."""
    os.setsid()
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
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
        result = call_evaluator(spec, trace, ctx)
    except BaseException as error:
        result = error_result(spec.name, type(error).__name__)
    return {
        "score": result.score,
        "passed": result.passed,
        "detail": _bounded(result.detail),
        "error": result.error,
    }
