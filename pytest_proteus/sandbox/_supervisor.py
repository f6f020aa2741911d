"""The supervisor of one process: a program of its own, with nothing but the standard library, that never imports us.

Started as ``python -I -S <this> ORDER LIFELINE STATUS`` (three descriptors). It reads its order, starts the command as
a child, adopts every orphan among its descendants, and when the command ends, its time is over or the lifeline's other
end is closed, kills every descendant. To STATUS it writes the command's process id in a line of its own, and its report
only when no descendant is left; then it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable

#: Signals that Python or this program handles; the command gets them as a fresh process would.
_RESET = (
    *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
)

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    # this file itself was opened for us by descriptor; the command is to inherit none of them
    os.close(int(sys.argv[0].rpartition("/")[2]))
    order_fd, lifeline, status = map(int, sys.argv[1:4])
    for descriptor in (order_fd, lifeline, status):
        os.set_inheritable(descriptor, False)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with os.fdopen(order_fd, "rb") as file:
        text = file.read()
    if not text:
        return  # whoever started us died before it gave an order
    report = Supervisor(json.loads(text), lifeline).run(status)
    os.write(status, json.dumps(report).encode("ascii") + b"\n")


class Supervisor:
    """One command, from its start to the death of the last of its descendants."""

    def __init__(self, order: dict, lifeline: int) -> None:  # type: ignore[type-arg]
        self.order = order
        self.lifeline = lifeline
        self.parent = os.getppid()
        self.main = 0
        self.returncode: int | None = None
        self.alarm, writer = os.pipe()
        for descriptor in (self.alarm, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.asked_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self.stop)

    def stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def run(self, status: int) -> dict[str, object]:
        error = self.start()
        if error:
            return {"start_error": error}
        os.write(status, b"%d\n" % self.main)
        interrupted = timed_out = False
        try:
            interrupted = self.wait(self.order["timeout"]) == "cut"
            if not interrupted and self.returncode is None:
                timed_out = True
                self.send(self.main, self.order["stop_signal"])
                interrupted = self.wait(self.order["grace"]) == "cut"
        finally:
            left_over, survivors = self.kill_descendants()
        return {
            "start_error": "",
            "returncode": self.returncode,
            "timed_out": timed_out,
            "interrupted": interrupted,
            "left_over": left_over,
            "survivors": survivors,
        }

    def start(self) -> str:
        """Start the command in a session of its own; what went wrong, or an empty string."""
        failed, writer = os.pipe()
        self.main = os.fork()
        if self.main == 0:
            self.become_command(writer)
        os.close(writer)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        with os.fdopen(failed, "rb") as file:
            error = file.read().decode("utf-8", "replace")
        if error:
            self.reap()
        return error

    def become_command(self, failed: int) -> None:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            os.chdir(self.order["cwd"])
            os.execvpe(self.order["argv"][0], self.order["argv"], self.order["env"])
        except BaseException as error:
            text = getattr(error, "strerror", None) or str(error)
            os.write(failed, text.encode("utf-8", "replace")[:2000])
        finally:
            os._exit(127)

    def wait(self, seconds: float) -> str:
        """Until the command ends ("ended"), the time is over ("time"), or we are to give up ("cut")."""
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if self.returncode is not None:
                return "ended"
            # a copy of the lifeline's other end may live on in a process that our parent forked: so ask for it, too
            if self.asked_to_stop or os.getppid() != self.parent:
                return "cut"
            left = deadline - time.monotonic()
            if left <= 0:
                return "time"
            ready, _, _ = select.select([self.lifeline, self.alarm], [], [], min(left, 1.0))
            if self.lifeline in ready:
                return "cut"
            if self.alarm in ready:
                os.read(self.alarm, 4096)

    def reap(self) -> bool:
        """Bury every dead child; True when there is no child left at all."""
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.main:
                self.returncode = os.waitstatus_to_exitcode(state)

    def kill_descendants(self) -> tuple[int, list[int]]:
        """Kill round after round until none is left; (how many besides the command, those that remain)."""
        deadline = time.monotonic() + self.order["kill_seconds"]
        met: set[int] = set()
        while not self.reap() and time.monotonic() < deadline:
            met |= kill_round(lambda: descendants(os.getpid()), deadline)
            select.select([self.alarm], [], [], 0.05)
            if select.select([self.alarm], [], [], 0)[0]:
                os.read(self.alarm, 4096)
        met.discard(self.main)
        return len(met), [] if self.reap() else sorted(descendants(os.getpid()))

    @staticmethod
    def send(pid: int, number: int) -> None:
        send(pid, number)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_round(living: Callable[[], set[int]], deadline: float) -> set[int]:
    """Stop what ``living`` finds until it finds nothing new, then kill all of it; what was met."""
    stopped: set[int] = set()
    # a stopped process forks no more: when a round finds no new one, all are caught
    while (new := living() - stopped) and time.monotonic() < deadline:
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return stopped


def descendants(root: int) -> set[int]:
    """Every living descendant of ``root``."""
    return below({root})[0]


def session(number: int) -> set[int]:
    """Every living process of a session, and their descendants."""
    _, members = below(set())
    roots = {pid for pid, its in members.items() if its == number}
    return roots | below(roots)[0]


def below(roots: set[int]) -> tuple[set[int], dict[int, int]]:
    """Every living descendant of ``roots``; every living process with its session."""
    children: dict[int, list[int]] = {}
    sessions: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
                # the command's name may hold anything, so read behind its last bracket
                state, parent, _, its = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
            sessions[int(name)] = int(its)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return found, sessions


if __name__ == "__main__":
    main()
