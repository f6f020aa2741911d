"""The rung ``bwrap``: a process in namespaces of its own, where nothing of the machine is but what it was given.

The subject finds the system's programs, its writable folders at their own paths, and one address, behind which a relay
leads to the model's endpoint. All else is absent: not forbidden but not there. Bubblewrap (0.8 or newer) builds the
box; root gives its rights up first. What a shared kernel does not keep apart, this does not either.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from pytest_proteus.core.errors import ApparatusError, ConfigurationError
from pytest_proteus.sandbox import seccomp
from pytest_proteus.sandbox.none import BoxError, Outcome, supervise

#: Oldest bubblewrap whose options suffice.
OLDEST = (0, 8, 0)

#: Port of the box's own network at which the relay answers.
PORT = 8080

#: Who the subject is in the box, and outside of it when root starts it: the first number from here that nobody has.
_INSIDE, _OUTSIDE = 1000, 61113

#: What of the system a box holds, besides ``/usr``.
_SYSTEM = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/nix/store"),
)
_ROOTS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

#: Folders that are never given to a box.
_NEVER = ("/", "/home", "/root", "/run", "/tmp", "/var", "/var/tmp", "/etc", "/proc", "/sys", "/dev", "/usr", "/opt")

#: What starts the command when a line comes, and ends when none will: then whoever was to limit the box is dead.
_GATE = ("/bin/sh", "-c", 'read -r _ && exec "$@"', "sh")

HINT = "or write --proteus-sandbox=none, which keeps an agent from nothing that you may do"

#: What bubblewrap says when it cannot build a box → what to do about it.
_FIXES = (
    (
        r"RTM_NEWADDR|setting up uid map: Permission denied",
        "AppArmor forbids user namespaces here: apt-get install apparmor-profiles, and load the profile "
        "bwrap-userns-restrict with apparmor_parser -r",
    ),
    (
        r"No permissions to creat\w+ new namespace",
        "user namespaces are forbidden here: set the sysctl kernel.unprivileged_userns_clone=1, or, in a container, "
        "allow them in its seccomp profile",
    ),
    (
        r"No space left on device|nesting depth",
        "no further user namespace can be made: raise the sysctl user.max_user_namespaces; inside of another sandbox "
        "there is no second one",
    ),
    (r"mount proc", "this container masks /proc: take the container for the sandbox"),
)


@dataclass(frozen=True)
class Limits:
    """What a box may use.

    Args:
        memory: bytes that its processes hold together, mapped files left out; looked at four times a second.
        disk: bytes by which its writable folders grow together; looked at as often, less often where they are large.
        file: bytes of one file.
        scratch: bytes of each of its temporary file systems.
        processes: processes and threads together.
        open_files: open files of one process.
    """

    memory: int = 4 << 30
    disk: int = 2 << 30
    file: int = 1 << 30
    scratch: int = 256 << 20
    processes: int = 1024
    open_files: int = 4096


class BwrapSandbox:
    """The rung ``bwrap`` as an object: its name, what it enforces, and ``launch``.

    Args:
        hidden: folders that no box may hold, whatever it is given.
        limits: what each box may use.
    """

    name = "bwrap"

    #: What a box holds of the system; empty for the machine's own.
    image = ""

    #: Property → ``enforced``, ``watchdog`` (looked at now and then) or ``absent``; recorded with every sweep.
    enforcement: Mapping[str, str] = MappingProxyType(
        {
            "writes_outside": "enforced",
            "hidden_reads": "enforced",
            "network": "enforced",
            "processes": "enforced",
            "file_size": "enforced",
            "disk": "watchdog",
            "memory": "watchdog",
            "cpu": "absent",
            "time": "enforced",
            "output": "enforced",
            "processes_dead": "enforced",
        }
    )

    def __init__(self, hidden: Sequence[str | Path] = (), limits: Limits | None = None) -> None:
        self._hidden = sorted({real(path) for path in (Path.home(), *_ours(), *hidden)} - {"/"})
        self._limits = limits or Limits()

    def address(self, url: str) -> str:
        """The base URL at which a subject reaches the endpoint ``url``."""
        return f"http://127.0.0.1:{PORT}{urlsplit(url).path}" if url else ""

    def preflight(self, readable: Sequence[str | Path] = ()) -> str:
        """Why boxes cannot be built here, do not hold what they must or cannot be given what is to be ``readable``, in
        one sentence; empty when all is well. They are looked at once in a process."""
        from pytest_proteus.sandbox.probe import probe

        found = probe(self)
        if not found and readable:
            try:
                self._check_given([], given(readable), sandbox_user())
            except ConfigurationError as error:
                return str(error)
        return found

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
        """As ``LocalSandbox.launch``, in a box; an exit status above 128 is 128 and the signal that ended the command.

        Args:
            writable: folders that the command may write, at their own paths; ``cwd`` alone when there is none. Root
                gives them to the user that the box runs as.
            readable: further files and folders that it may read; of a file in a ``node_modules`` all of that.
            endpoint: base URL of what it may reach, at ``address(endpoint)``; nothing when empty.

        Raises:
            ConfigurationError: there is no bubblewrap, or no such command in the box, or something that the box is to
                hold would show what it must not, or cannot be reached by the user that it runs as. Of a container,
                there is no engine or no image.
            ApparatusError: the box could not be built, or something could not be killed.
        """
        user = sandbox_user()
        folders, shown = [real(path) for path in writable or (cwd,)], given(readable)
        self._check_given(folders, shown, user)
        with contextlib.ExitStack() as stack:
            door = stack.enter_context(Door(endpoint)) if endpoint else None
            box = self._box(user, folders, door)
            how, descriptors = self._start(stack, box, [str(word) for word in argv], env, real(cwd), folders, shown)
            if user is not None:
                for folder in folders:
                    own(Path(folder), *user)
            order = {
                "name": str(argv[0]),
                "cwd": "/",
                "timeout": timeout,
                "stop_signal": int(stop_signal),
                "grace": grace,
                **how,
            }
            if door:
                door.begin()
            try:
                outcome = supervise(
                    order,
                    stdin="\n" + stdin,  # for the gate
                    stdout_limit=stdout_limit,
                    stderr_limit=stderr_limit,
                    descriptors=[*descriptors, *([door.theirs.fileno()] if door else [])],
                )
            except BoxError as error:
                raise ApparatusError(self._why(str(error))) from error
        return replace(outcome, left_over=None, calls=door.calls if door else 0, refused=door.refused if door else 0)

    def _start(
        self,
        stack: contextlib.ExitStack,
        box: Mapping[str, object],
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        writable: Sequence[str],
        readable: Sequence[str],
    ) -> tuple[dict[str, object], Sequence[int]]:
        """What of the supervisor's order depends on the rung: ``argv``, ``env`` and ``box``; and what it inherits for
        that. All that is to go when the command has ended is put on the stack."""
        binary = find_bwrap()
        _check_command(argv[0], env.get("PATH", ""), [*readable, *writable])
        files = stack.enter_context(_Files())
        policy = self._policy(files, writable, readable, env, cwd)
        arguments = files.add(b"".join(os.fsencode(word) + b"\0" for word in policy))
        command = [binary, "--args", str(arguments), "--json-status-fd", "STATUS", "--", *_GATE, *argv]
        return {"argv": command, "env": {}, "box": box}, files.descriptors

    def _why(self, said: str) -> str:
        """Why a box could not be built, from what was said on standard error."""
        return explain(said)

    def _box(self, user: tuple[int, int] | None, folders: Sequence[str], door: Door | None) -> dict[str, object]:
        limits = self._limits
        return {
            "user": user,
            "writable": folders,
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "limits": {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file, "RLIMIT_NOFILE": limits.open_files},
            "port": PORT,
            "door": door.theirs.fileno() if door else None,
        }

    def _check_given(self, writable: Sequence[str], readable: Sequence[str], user: tuple[int, int] | None) -> None:
        for path in (*writable, *readable):
            if path in _NEVER or not os.path.lexists(path):
                raise ConfigurationError(
                    f"sandbox {self.name}: {path} cannot be given to a box: "
                    + ("it holds what no agent may see" if path in _NEVER else "it is not there")
                )
            if user is None:
                continue
            _let_further(path, user)
            shut = closed_folder(path, user)
            if shut:
                raise ConfigurationError(
                    f"sandbox {self.name}: {path} cannot be reached by the user {user[0]} that boxes of root run as, "
                    f"since {shut} is closed to others: put it where everybody can get, such as /opt"
                )
        for hidden in self._hidden:
            for path in writable:
                if _is_in(hidden, path):
                    raise ConfigurationError(
                        f"sandbox {self.name}: the agent's folder {path} holds {hidden}, which it may not see"
                    )

    def _policy(
        self, files: _Files, writable: Sequence[str], readable: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> list[str]:
        """Bubblewrap's arguments; mounts are made in this order."""
        size = str(self._limits.scratch)
        words = ["--unshare-user", "--unshare-all", "--disable-userns", "--new-session", "--die-with-parent"]
        words += ["--cap-drop", "ALL", "--uid", str(_INSIDE), "--gid", str(_INSIDE), "--hostname", "box"]
        words += ["--ro-bind", "/usr", "/usr"]
        for root in (Path("/", name) for name in _ROOTS):
            if root.is_symlink():
                words += ["--symlink", str(root.readlink()), str(root)]
            elif root.is_dir():
                words += ["--ro-bind", str(root), str(root)]
        for name in _SYSTEM:
            words += ["--ro-bind-try", name, name]
        for name, text in accounts(env.get("HOME", "/"), _INSIDE).items():
            words += ["--perms", "0444", "--file", str(files.add(text.encode())), name]
        words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
        words += ["--size", str(16 << 20), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        words += ["--size", size, "--perms", "1777", "--tmpfs", "/tmp"]
        covered: list[str] = []
        for shown, inner in ((("/usr", "/nix/store"), readable), (readable, ())):
            hiding = [path for path in self._hidden if any(_is_in(path, folder) for folder in shown)]
            for path in hiding:
                words += ["--size", "4096", "--tmpfs", path]
            for path in inner:
                words += ["--ro-bind", path, path]
            covered += hiding
        for path in writable:
            words += ["--bind", path, path]
        for path in (*dict.fromkeys(covered), "/"):
            words += ["--remount-ro", path]
        words += ["--chdir", cwd, "--clearenv"]
        for name, value in env.items():
            words += ["--setenv", name, value]
        return [*words, "--seccomp", str(files.add(seccomp.program()))]


def explain(said: str) -> str:
    """What bubblewrap says, as one sentence with what to do about it."""
    for pattern, fix in _FIXES:
        if re.search(pattern, said):
            return f"sandbox bwrap cannot be built: {fix}; {HINT} ({' '.join(said.split())[-300:]})"
    return f"sandbox bwrap cannot be built: {' '.join(said.split())[-300:]}; mend that, {HINT}"


@functools.lru_cache(maxsize=4)
def _version(binary: str) -> tuple[int, ...]:
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", told)[:3]))


def find_bwrap() -> str:
    """The path of bubblewrap's program.

    Raises:
        ConfigurationError: there is none, or it is too old.
    """
    binary = shutil.which("bwrap")
    if binary is None:
        raise ConfigurationError(
            f"sandbox bwrap needs bubblewrap, which is not on PATH: apt-get install bubblewrap (or with dnf, apk or "
            f"pacman), {HINT}"
        )
    if _version(binary) < OLDEST:
        raise ConfigurationError(
            f"sandbox bwrap needs bubblewrap {'.'.join(map(str, OLDEST))} or newer, and {binary} is "
            f"{'.'.join(map(str, _version(binary))) or 'of no known version'}: put a newer one on PATH, {HINT}"
        )
    return binary


@functools.lru_cache(maxsize=1)
def sandbox_user() -> tuple[int, int] | None:
    """User and group that boxes of root run as; None for everybody else, whose boxes run as themselves."""
    if os.geteuid() != 0:
        return None
    number = _OUTSIDE
    while True:
        try:
            pwd.getpwuid(number)
        except KeyError:
            return number, number
        number += 1


def open_folders() -> list[str]:
    """The folders for temporary files that the user of boxes can get to, the usual one first."""
    user = sandbox_user()
    named = [real(path) for path in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm") if Path(path).is_dir()]
    return [path for path in dict.fromkeys(named) if user is None or not closed_folder(f"{path}/x", user)]


def own(path: Path, uid: int, gid: int) -> None:
    """Give a tree to a user. Follows nothing; no process of the subject may be alive."""
    todo = [os.fspath(path)]
    os.lchown(path, uid, gid)
    while todo:
        # what is too deep to be reached by its path the subject has made itself, so that it has it already
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as items:
            for item in items:
                found = item.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    todo.append(item.path)
                elif found.st_nlink > 1:
                    continue
                if found.st_uid != uid:
                    os.lchown(item.path, uid, gid)


def closed_folder(path: str, user: tuple[int, int]) -> str:
    """The folder above ``path`` that a user may not pass; empty when there is none."""
    for folder in reversed(Path(path).parents):
        found = folder.stat()
        shift = 6 if found.st_uid == user[0] else 3 if found.st_gid == user[1] else 0
        if not found.st_mode >> shift & 1:
            return str(folder)
    return ""


def let_in(folder: Path) -> Path:
    """Let the user that boxes of root run as, and nobody else, pass through a folder of ours; the folder."""
    user = sandbox_user()
    if user is not None:
        os.chown(folder, -1, user[1])
        folder.chmod(0o710)
    return folder


def _let_further(path: str, user: tuple[int, int]) -> None:
    """Let the user of boxes pass through what root has closed below a folder that he has been let into."""
    is_in = False
    for folder in reversed(Path(path).parents):
        found = folder.stat()
        if found.st_uid == 0 and found.st_gid == user[1]:
            is_in = True
        elif is_in and found.st_uid == 0 and not found.st_mode & 1:
            let_in(folder)


def _check_command(word: str, path: str, given: Sequence[str]) -> None:
    """See to it that a command is among what a box holds."""
    shown = ["/usr", "/nix/store", *(f"/{name}" for name in _ROOTS), *given]
    for place in [word] if "/" in word else [f"{folder}/{word}" for folder in path.split(":")]:
        if os.access(place, os.X_OK) and any(_is_in(real(place), folder) for folder in shown):
            return
    raise ConfigurationError(
        f"sandbox bwrap: the command {word!r} is not in the box: install it below /usr, or give its place as readable"
    )


def given(readable: Sequence[str | Path]) -> list[str]:
    """What is bound for things that are to be readable."""
    return list(dict.fromkeys(_holder(real(path)) for path in readable))


def accounts(home: str, number: int) -> dict[str, str]:
    """The files in which programs look up users, hosts and names, for a user and group of that number."""
    user = f"agent:x:{number}"
    return {
        "/etc/passwd": f"root:x:0:0::/:/bin/sh\n{user}:{number}::{home}:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n",
        "/etc/group": f"root:x:0:\n{user}:\nnogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost box\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def real(path: str | Path) -> str:
    """A path without links."""
    return os.path.realpath(path)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _holder(path: str) -> str:
    """What to bind for a program: the ``node_modules`` that it lies in, if it does."""
    parts = path.split("/")
    return "/".join(parts[: parts.index("node_modules") + 1]) if "node_modules" in parts else path


def _ours() -> list[Path]:
    """The folder that holds this package, and the ones of installed packages whose names tell that it is there."""
    sites = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return [Path(__file__).parents[2], *(site for site in sites if any(site.glob("pytest_proteus-*")))]


class _Files:
    """Small files that bubblewrap reads by descriptor; they lie in memory."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def add(self, data: bytes) -> int:
        descriptor = os.memfd_create("data")
        self.descriptors.append(descriptor)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Door:
    """Waits for the listener that the box's supervisor hands over, and relays what comes to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls = self.refused = 0
        self.mine, self.theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._wait, name="door", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def _wait(self) -> None:
        from pytest_proteus.sandbox.relay import Relay

        with contextlib.suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(self.mine, 1, 1)
            if not descriptors:
                return
            relay = Relay(socket.socket(fileno=descriptors[0]), self.url)
            self.mine.recv(1)  # until we are closed
            relay.close()
            self.calls, self.refused = relay.calls, relay.refused

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.theirs.close()
        with contextlib.suppress(OSError):
            self.mine.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self.mine.close()
