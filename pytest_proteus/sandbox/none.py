"""The rung ``none``: an ordinary local process under a supervisor that leaves nothing alive.

It isolates nothing: the subject reads and writes whatever its user may. What it does is to bound time and output, to
give the environment whole instead of inheriting it, and to kill every descendant when the phase ends, however it ends:
also when pytest itself is killed. A subject may stop its supervisor, which then costs it the rest of its time, or kill
it, which ends the phase at once; what had left the command's session by then cannot be found. Needs Linux.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import marshal
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_proteus.core.errors import ApparatusError, ConfigurationError
from pytest_proteus.sandbox._supervisor import BOX_SECONDS, descendants, kill_round, session

_SUPERVISOR = Path(__file__).with_name("_supervisor.py")

#: Seconds that the supervisor may take to kill everything, after the stop signal's grace is over.
KILL_SECONDS = 10.0

#: Seconds after the time limit and its grace at which a supervisor that does not run is taken for stopped.
STOPPED_SECONDS = 1.0

#: What Python is started with.
_LOAD = "import marshal, sys\nwith open(int(sys.argv[1]), 'rb') as file:\n    code = marshal.load(file)\nexec(code)"

_NEEDS_LINUX = "running an agent as a supervised process needs Linux"


class SupervisorLost(ApparatusError):
    """Something killed the supervisor: the subject can do that, and no retry would make it stop."""


class BoxError(ApparatusError):
    """Bubblewrap could not build the box; says what bubblewrap said."""


@dataclass(frozen=True)
class Outcome:
    """How a supervised process ended. When there is one, no descendant of it is alive.

    Args:
        returncode: exit status, or minus the signal that ended it.
        timed_out: whether it was stopped because its time was over.
        stdout, stderr: what was kept of the output; bytes that are not UTF-8 are replaced.
        stdout_truncated, stderr_truncated: whether the middle of the output was left out.
        seconds: wall time from start to the death of the last descendant.
        left_over: how many descendants had to be killed after the process itself had ended; None where the kernel kills
            them uncounted.
        interrupted: whether it was cut short because somebody, such as the subject, sent its supervisor a signal.
        exceeded: which limit it was stopped for, as the end of a sentence; empty when for none.
        calls: how many calls of the model's endpoint were passed on; None where nothing counts them.
        refused: how many requests were not passed on.
    """

    returncode: int
    timed_out: bool
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    seconds: float
    left_over: int | None = 0
    interrupted: bool = False
    exceeded: str = ""
    calls: int | None = None
    refused: int | None = None


class LocalSandbox:
    """The rung ``none`` as an object: its name, what it enforces, and ``launch``."""

    name = "none"

    #: Property → ``enforced``, ``watchdog`` or ``absent``; recorded with every sweep.
    enforcement: Mapping[str, str] = MappingProxyType(
        {
            "writes_outside": "absent",
            "hidden_reads": "absent",
            "network": "absent",
            "processes": "absent",
            "file_size": "absent",
            "disk": "absent",
            "memory": "absent",
            "cpu": "absent",
            "time": "enforced",
            "output": "enforced",
            "processes_dead": "enforced",
        }
    )

    def address(self, url: str) -> str:
        """The base URL at which a subject reaches the endpoint ``url``."""
        return url

    def preflight(self, readable: Sequence[str | Path] = ()) -> str:
        """Why processes cannot be supervised here, in one sentence; empty when they can."""
        return "" if sys.platform.startswith("linux") else _NEEDS_LINUX

    def launch(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path,
        stdin: str = "",
        timeout: float = 1800.0,
        stop_signal: int = signal.SIGTERM,
        grace: float = 3.0,
        stdout_limit: int = 1 << 20,
        stderr_limit: int = 1 << 20,
        writable: Sequence[str | Path] = (),
        readable: Sequence[str | Path] = (),
        endpoint: str = "",
    ) -> Outcome:
        """Run a command to its end and return when it and all that it started are dead. May be called from any thread.

        Args:
            argv: the command; its first item is looked up on the ``PATH`` of ``env``.
            env: the whole environment; ``PWD`` is set besides.
            cwd: an existing folder.
            stdin: text that the command reads; then end of file.
            timeout: seconds until ``stop_signal`` is sent to the command, and ``grace`` more until all is killed.
            stdout_limit, stderr_limit: bytes that are kept, half of them from the end; the rest is read and dropped.
            writable, readable, endpoint: what the command needs besides; for rungs that give it nothing else.

        Raises:
            ConfigurationError: the command cannot be started.
            SupervisorLost: the supervisor was killed; what is left of the command's session has been killed as well.
            ApparatusError: something could not be killed.
        """
        order = {
            "name": str(argv[0]),
            "argv": [str(word) for word in argv],
            # programs take PWD for where they are
            "env": {**{str(name): str(value) for name, value in env.items()}, "PWD": str(cwd)},
            "cwd": str(cwd),
            "timeout": timeout,
            "stop_signal": int(stop_signal),
            "grace": grace,
            "box": None,
        }
        return supervise(order, stdin=stdin, stdout_limit=stdout_limit, stderr_limit=stderr_limit)


def supervise(
    order: Mapping[str, Any], *, stdin: str, stdout_limit: int, stderr_limit: int, descriptors: Sequence[int] = ()
) -> Outcome:
    """Have a supervisor carry out an order; returns and raises as ``LocalSandbox.launch``.

    Args:
        order: see ``_supervisor.py``.
        descriptors: what the supervisor inherits besides, under the same numbers.

    Raises:
        BoxError: bubblewrap could not build the box.
    """
    began = time.monotonic()
    command, cwd = order["name"], order["cwd"]
    # the supervisor is the same Python, and reads this faster than anything else
    data = marshal.dumps({**order, "kill_seconds": KILL_SECONDS})
    with _supervised(data, descriptors) as (supervisor, status):
        out, err = _Kept(stdout_limit), _Kept(stderr_limit)
        seconds = order["timeout"] + order["grace"] + (BOX_SECONDS if order["box"] else 0)
        report = _attend(supervisor, status, stdin.encode("utf-8", "surrogateescape"), out, err, seconds)
    if report is None:
        raise SupervisorLost(
            f"the process that supervises {command!r} ended without a report, as when the command kills it: "
            f"{err.text()[-300:]}".rstrip(": ")
        )
    if report.get("start_error"):
        raise ConfigurationError(f"{command!r} cannot be started in {cwd}: {report['start_error']}")
    if report.get("box_error"):
        raise BoxError(err.text()[-2000:].strip())
    if report["survivors"]:
        raise ApparatusError(f"processes {report['survivors']} that {command!r} started could not be killed")
    return Outcome(
        returncode=report["returncode"],
        timed_out=report["timed_out"],
        stdout=out.text(),
        stderr=err.text(),
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        seconds=time.monotonic() - began,
        left_over=report["left_over"],
        interrupted=report["interrupted"],
        exceeded=report["exceeded"],
    )


@contextlib.contextmanager
def _supervised(order: bytes, descriptors: Sequence[int] = ()) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running supervisor and the descriptor of its status pipe; it is gone when the block ends, however it ends."""
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(_NEEDS_LINUX)
    order_read, order_write = os.pipe()
    line_read, line_write = os.pipe()
    status_read, status_write = os.pipe()
    script = os.memfd_create("data")
    with os.fdopen(os.dup(script), "wb") as file:
        file.write(_program())
    os.lseek(script, 0, os.SEEK_SET)
    supervisor = None
    try:
        try:
            supervisor = subprocess.Popen(
                # by descriptor: the subject can read this command line, and the script's path names the framework
                [sys.executable, "-I", "-S", "-c", _LOAD, *map(str, (script, order_read, line_read, status_write))],
                pass_fds=(script, order_read, line_read, status_write, *descriptors),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        finally:
            for descriptor in (script, order_read, line_read, status_write):
                os.close(descriptor)
        with contextlib.suppress(BrokenPipeError), os.fdopen(order_write, "wb") as pipe:
            order_write = -1
            pipe.write(order)
        yield supervisor, status_read
    finally:
        if order_write >= 0:
            os.close(order_write)
        os.close(line_write)
        if supervisor is not None:
            _bury(supervisor)
        os.close(status_read)


@functools.lru_cache(maxsize=1)
def _program() -> bytes:
    """The supervisor's program, compiled: each of its starts would otherwise do that anew."""
    return marshal.dumps(compile(_SUPERVISOR.read_text(encoding="utf-8"), "supervisor", "exec"))


def _bury(supervisor: subprocess.Popen[bytes]) -> None:
    """Wait for the supervisor, which kills everything now that its lifeline is cut, and close its pipes."""
    deadline = time.monotonic() + KILL_SECONDS + 5
    while time.monotonic() < deadline and not _is_stopped(supervisor.pid):
        try:
            supervisor.wait(0.5)
            break
        except subprocess.TimeoutExpired:
            continue
    if supervisor.poll() is None:
        # stopped or stuck, but still the ancestor of all: do its work in its place
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline and kill_round(lambda: descendants(supervisor.pid), deadline):
            time.sleep(0.02)
        supervisor.kill()
        supervisor.wait()
    for pipe in (supervisor.stdin, supervisor.stdout, supervisor.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


#: The report of a supervisor that the subject keeps from reporting.
_OUT_OF_TIME = {
    "returncode": -int(signal.SIGKILL),
    "timed_out": True,
    "interrupted": False,
    "left_over": 0,
    "survivors": [],
    "exceeded": "",
}


class _Kept:
    """What is kept of an output: its beginning and its end, each at most half of the limit."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def truncated(self) -> bool:
        return self._dropped > 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        over = len(self._tail) - self._half
        if over > 0:
            self._dropped += over
            del self._tail[:over]

    def text(self) -> str:
        gap = f"\n[… {self._dropped} bytes left out …]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def _attend(
    supervisor: subprocess.Popen[bytes], status: int, stdin: bytes, out: _Kept, err: _Kept, seconds: float
) -> dict[str, Any] | None:
    """Feed and drain the pipes until the supervisor reports; None when it ends without. Nothing is fed before it has
    told that the command is started.

    One that has been stopped when its ``seconds`` are over reports nothing: then ours is that the time was over.
    """
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    assert supervisor.stderr is not None
    deadline = time.monotonic() + seconds + STOPPED_SECONDS
    last = deadline + KILL_SECONDS + 5
    report = bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, kept in ((supervisor.stdout, out), (supervisor.stderr, err)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe.fileno(), selectors.EVENT_READ, kept)
        selector.register(status, selectors.EVENT_READ)
        os.set_blocking(supervisor.stdin.fileno(), False)
        left = memoryview(stdin)
        while True:
            events = selector.select(max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                if _is_stopped(supervisor.pid) or time.monotonic() >= last:
                    return _OUT_OF_TIME
                deadline = time.monotonic() + STOPPED_SECONDS
            for key, _ in events:
                if key.data is not None:
                    if not _drain(key.fd, key.data):
                        selector.unregister(key.fd)
                elif key.fd == status:
                    data = os.read(status, 1 << 16)
                    if data and not report:
                        selector.register(supervisor.stdin.fileno(), selectors.EVENT_WRITE)
                    report += data
                    if not data:
                        _drain(supervisor.stdout.fileno(), out)
                        _drain(supervisor.stderr.fileno(), err)
                        return _report(bytes(report))
                else:
                    left = _feed(key.fd, left)
                    if not left:
                        selector.unregister(key.fd)
                        with contextlib.suppress(OSError):
                            supervisor.stdin.close()


def _report(told: bytes) -> dict[str, Any] | None:
    """What the supervisor has reported; None, and all killed that can be found, when it has not."""
    first, _, second = told.partition(b"\n")
    if second.endswith(b"\n") or first.startswith(b"{"):
        found: dict[str, Any] = ast.literal_eval((second or first).decode("ascii"))
        return found
    _kill_session(first)
    return None


def _kill_session(command: bytes) -> None:
    """Kill what can be found of a command whose supervisor has gone; its descendants have other parents now."""
    if command.isdigit():
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline and kill_round(lambda: session(int(command)), deadline):
            time.sleep(0.02)


def _drain(descriptor: int, kept: _Kept) -> bool:
    """Take what is there to read, at most 16 MiB at a time; False at the end of the stream."""
    for _ in range(256):
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        kept.add(data)
    return True


def _feed(descriptor: int, left: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left when its reader is gone."""
    if not left:
        return left
    try:
        return left[os.write(descriptor, left[: 1 << 16]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
