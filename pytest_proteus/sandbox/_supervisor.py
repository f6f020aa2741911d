"""The supervisor of one process: a program of its own, with nothing but the standard library, that never imports us.

Started as ``python -I -S -c <load this> THIS ORDER LIFELINE STATUS`` (four descriptors). It reads its order, starts the
command as a child, adopts every orphan among its descendants, and when the command ends, its time is over or the
lifeline's other end is closed, kills every descendant. To STATUS it writes the command's process id in a line of its
own when it has started, and its report only when no descendant is left; then it ends. An order with a box has the
command started by bubblewrap or by a container engine: the supervisor stays outside, where no process of the box can
see it, sets the box's limits and hands out a listener of its network.

Starting takes most of its time, so it imports little: no ``contextlib``, ``json`` and ``signal``, which is enums.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import ctypes
import fcntl
import marshal
import os
import resource
import select
import sys
import time
from collections.abc import Callable

#: Signals that Python or this program handles; the command gets them as a fresh process would.
_RESET = (
    *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

#: The ioctl that opens the user namespace which owns a namespace; flags of setns.
NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

#: Seconds that bubblewrap may take before it starts the command.
BOX_SECONDS = 30.0

#: Seconds between two looks at what a box uses, and entries of its folders after which a look ends.
LOOK_SECONDS = 0.25
LOOK_ENTRIES = 200_000


def main() -> None:
    # the command is to inherit none of them
    order_fd, lifeline, status = map(int, sys.argv[2:5])
    for descriptor in (order_fd, lifeline, status):
        os.set_inheritable(descriptor, False)
    libc("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    with os.fdopen(order_fd, "rb") as file:
        text = file.read()
    if not text:
        return  # whoever started us died before it gave an order
    report = Supervisor(marshal.loads(text), lifeline).run(status)
    os.write(status, ascii(report).encode("ascii") + b"\n")
    os._exit(0)  # taking an interpreter down takes longer than is needed


class quiet:  # noqa: N801 - as the one in contextlib
    """What ``contextlib.suppress`` is."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


def libc(name: str, *arguments: int) -> None:
    """Call a function of the C library that returns 0 when it succeeds."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


class Supervisor:
    """One command, from its start to the death of the last of its descendants."""

    def __init__(self, order: dict, lifeline: int) -> None:  # type: ignore[type-arg]
        self.order = order
        self.lifeline = lifeline
        self.parent = os.getppid()
        self.main = 0
        self.box: Box | None = None
        if order["box"]:
            self.box = (Container if "remove" in order["box"] else Box)(order["box"], order["argv"])
        self.exceeded = ""
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
            ended = self.wait(self.order["timeout"])
            if ended == "time":
                timed_out = True
                send(self.box.command() if self.box else self.main, self.order["stop_signal"])
                ended = self.wait(self.order["grace"])
            interrupted = ended == "cut"
        finally:
            left_over, survivors = self.kill_descendants()
        if self.box and ended == "ended" and self.box.has_failed(self.returncode):
            return {"start_error": "", "box_error": True}
        return {
            "start_error": "",
            "exceeded": self.exceeded,
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
        if self.box and not error:
            self.box.client = self.main
            error = self.box.open(self.lifeline)
        if error:
            self.kill_descendants()
        return error

    def become_command(self, failed: int) -> None:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            if self.box:
                self.box.become()
            os.chdir(self.order["cwd"])
            os.execvpe(self.order["argv"][0], self.order["argv"], self.order["env"])
        except BaseException as error:
            text = getattr(error, "strerror", None) or str(error)
            os.write(failed, text.encode("utf-8", "replace")[:2000])
        finally:
            os._exit(127)

    def wait(self, seconds: float) -> str:
        """Until the command ends ("ended"), the time is over ("time"), a limit is exceeded ("over"), or we are to give
        up ("cut")."""
        deadline = time.monotonic() + seconds
        look = LOOK_SECONDS if self.box else 1.0
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
            self.exceeded = self.box.exceeded() if self.box else ""
            if self.exceeded:
                return "over"
            ready, _, _ = select.select([self.lifeline, self.alarm], [], [], min(left, look))
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
        if self.box:
            self.box.kill(self.returncode)
        while not self.reap() and time.monotonic() < deadline:
            met |= kill_round(lambda: descendants(os.getpid()), deadline)
            select.select([self.alarm], [], [], 0.05)
            if select.select([self.alarm], [], [], 0)[0]:
                os.read(self.alarm, 4096)
        met.discard(self.main)
        return len(met), [] if self.reap() else sorted(descendants(os.getpid()))


class Box:
    """What the supervisor does for a command that bubblewrap starts: see ``bwrap.py`` for the order's keys."""

    def __init__(self, order: dict, argv: list[str]) -> None:  # type: ignore[type-arg]
        self.order = order
        self.told, self.telling = os.pipe()  # bubblewrap's own status
        self.init = -1
        self.init_pid = 0
        self.text = b""
        self.look_after = 0.0
        self.disk_before = -1
        self.client = 0  # process id of what is started
        if order["door"] is not None:
            os.set_inheritable(order["door"], False)
        argv[argv.index("STATUS")] = str(self.telling)

    def become(self) -> None:
        """In the child that becomes bubblewrap: its user, limits and descriptors, and death with the supervisor."""
        for name, value in self.order["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        parent = os.getppid()
        self.drop_rights()
        libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        os.set_inheritable(self.telling, True)

    def drop_rights(self) -> None:
        if self.order["user"] is not None:
            uid, gid = self.order["user"]
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)

    def open(self, lifeline: int) -> str:
        """Wait for the namespaces and set what can only be set in them; what went wrong."""
        os.close(self.telling)
        pid = self.read_init(lifeline)
        if not pid:
            return ""  # bubblewrap says why on the command's standard error
        self.settle(pid, lifeline)
        failed, writer = os.pipe()
        helper = os.fork()
        if helper == 0:
            try:
                self.enter(pid)
            except BaseException as wrong:
                os.write(writer, str(wrong).encode("utf-8", "replace")[:2000])
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(failed, "rb") as file:
            error = file.read().decode("utf-8", "replace")
        os.waitpid(helper, 0)
        if self.order["door"] is not None:
            os.close(self.order["door"])
        if error:
            return f"its namespaces cannot be entered: {error}"
        return ""

    def settle(self, pid: int, lifeline: int) -> None:
        """Wait for the command: only with one, which waits at the gate, is its first process sure to die with its
        parent."""
        deadline = time.monotonic() + BOX_SECONDS
        while self.command() == pid and time.monotonic() < deadline:
            if select.select([self.told, lifeline], [], [], 0.001)[0]:
                break

    def read_init(self, lifeline: int) -> int:
        """The process id of the first process in the box; 0 when there is none."""
        deadline = time.monotonic() + BOX_SECONDS
        while not self.text.rstrip().endswith(b"}"):
            ready, _, _ = select.select([self.told, lifeline], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self.told, 4096) if self.told in ready else b""
            if not data:
                return 0
            self.text += data
        self.init_pid = int(self.text.partition(b'"child-pid":')[2].split(b",")[0].split(b"}")[0])
        with quiet(OSError):
            self.init = os.pidfd_open(self.init_pid)
        return self.init_pid

    def enter(self, pid: int) -> None:
        """In a process of its own: limit the number of processes, and hand over a listener in the box's network."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        user = fcntl.ioctl(network, NS_GET_USERNS)
        self.drop_rights()
        # in the box's own user namespace, so that other boxes of the same user do not count
        count = self.order["processes"]
        for one in (pid, self.command()):  # the command has begun already, and inherits nothing any more
            resource.prlimit(one, resource.RLIMIT_NPROC, (count, count))
        libc("setns", user, CLONE_NEWUSER)
        self.hand_over(network)

    def hand_over(self, network: int) -> None:
        """Give whoever waits at the door a listener of a network."""
        if self.order["door"] is None:
            return
        libc("setns", network, CLONE_NEWNET)
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        # the loopback device may not be up yet, and there is no other
        listener.bind(("0.0.0.0", self.order["port"]))
        listener.listen(128)
        door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, self.order["door"])
        rights = listener.fileno().to_bytes(4, sys.byteorder)
        door.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])

    def has_failed(self, returncode: int | None) -> bool:
        """Whether the command was never started: only of one that was, bubblewrap tells the exit status."""
        os.set_blocking(self.told, False)
        with quiet(OSError):
            self.text += os.read(self.told, 4096)
        return returncode == 1 and b'"exit-code"' not in self.text

    def command(self) -> int:
        """The command's process id: it is the oldest child of the first process, whose own it is until there is one."""
        with quiet(OSError, ValueError, IndexError), open(self.children) as file:  # noqa: PTH123
            return int(file.read().split()[0])
        return self.init_pid

    @property
    def children(self) -> str:
        return f"/proc/{self.init_pid}/task/{self.init_pid}/children"

    def kill(self, _: int | None) -> None:
        """Kill the first process: all others of the box die with it."""
        if self.init >= 0:
            with quiet(ProcessLookupError):
                signal.pidfd_send_signal(self.init, signal.SIGKILL)

    def exceeded(self) -> str:
        """Which limit the box is over, in words; empty when none."""
        now = time.monotonic()
        if now < self.look_after:
            return ""
        memory, disk = self.memory(), self.disk()
        if self.disk_before < 0:
            self.disk_before = disk  # a large task is no offence; and what no look ends is left alone then
        # looking takes at most a tenth of the time
        self.look_after = time.monotonic() + max(LOOK_SECONDS, 9 * (time.monotonic() - now))
        for name, used in (("memory", memory), ("disk", disk - self.disk_before)):
            if used > self.order[name]:
                return f"it used more {name} than the {self.order[name] >> 20} MiB that it may"
        return ""

    def memory(self) -> int:
        """Bytes of memory, files that are mapped left out."""
        total = 0
        page = os.sysconf("SC_PAGE_SIZE")
        for pid in descendants(self.init_pid):
            with quiet(OSError, ValueError, IndexError):
                with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
                    numbers = file.read().split()
                total += page * (int(numbers[1]) - int(numbers[2]))
        return total

    def disk(self) -> int:
        """Bytes that the writable folders take; so many entries that a look does not end are too many bytes."""
        total = entries = 0
        todo = list(self.order["writable"])
        while todo:
            with quiet(OSError), os.scandir(todo.pop()) as items:
                for item in items:
                    entries += 1
                    if entries > LOOK_ENTRIES:
                        return sys.maxsize
                    found = item.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if item.is_dir(follow_symlinks=False):
                        todo.append(item.path)
        return total


class Container(Box):
    """What the supervisor does for a command that a container engine starts: see ``container.py`` for the order's
    keys. Its child is the engine's client; the container need not be below it, and is known by its name."""

    def __init__(self, order: dict, argv: list[str]) -> None:  # type: ignore[type-arg]
        super().__init__(order, [*argv, "STATUS"])

    def become(self) -> None:
        """The client keeps its rights and has no limits: it is no part of the container."""
        libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def read_init(self, lifeline: int) -> int:
        """The process id of the container's first process; 0 when the client ends before there is one."""
        deadline = time.monotonic() + BOX_SECONDS
        while time.monotonic() < deadline and not select.select([lifeline], [], [], 0.01)[0]:
            told = self.ask("inspect")
            if told.isdigit() and int(told) > 0:
                self.init_pid = int(told)
                with quiet(OSError):
                    self.init = os.pidfd_open(self.init_pid)
                break
            if os.waitid(os.P_PID, self.client, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        return self.init_pid

    def settle(self, pid: int, lifeline: int) -> None:
        """The first process is itself the gate."""

    def enter(self, pid: int) -> None:
        """In a process of its own: hand over a listener; root needs no user namespace to get into the network."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if os.geteuid() != 0:
            libc("setns", fcntl.ioctl(network, NS_GET_USERNS), CLONE_NEWUSER)
        self.hand_over(network)

    def has_failed(self, returncode: int | None) -> bool:
        """Whether the engine could not start it."""
        return self.init_pid == 0 and returncode != 0

    def kill(self, returncode: int | None) -> None:
        """Remove the container, unless it has ended by itself, which removes it as well."""
        if returncode is None or not 0 <= returncode < 125:
            self.ask("remove")

    def ask(self, what: str) -> bytes:
        """What a command of the engine prints, without the space around it."""
        argv = self.order[what]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                for number, descriptor in enumerate((nothing, write, nothing)):
                    os.dup2(descriptor, number)
                os.execvpe(argv[0], argv, self.order["env"])
            finally:
                os._exit(127)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            said = file.read(1 << 16)
        with quiet(ChildProcessError):
            os.waitpid(child, 0)
        return said.strip()


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with quiet(ProcessLookupError, PermissionError):
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
