"""Looks once whether boxes hold here what they must: the real policy, against things that a subject must not reach.

What is written to, read or connected to here are canaries: nothing of the user's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_proteus.core.errors import ApparatusError, ConfigurationError
from pytest_proteus.sandbox import bwrap

#: Arguments: a file that is not given to the box, one that it may only read, a folder that it may write, a port of the
#: machine. Prints a line for each thing that it could do, and what the kernel says of it. Nothing but bash is needed.
_SCRIPT = r"""
exec 2>/dev/null
echo began
read -r _ < "$1" && echo read-absent
(: >> "$2") && echo wrote-read-only
(: >> "$3/new") && echo wrote-own
(: >> /proc/sys/kernel/core_pattern) && echo wrote-sysctl
(: < "/dev/tcp/127.0.0.1/$4") && echo reached-machine
exec 3<> /dev/tcp/127.0.0.1/8080 && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && read -r line <&3 && echo "door ${line%$'\r'}"
while read -r key value; do
    case $key in Seccomp:|CapEff:|CapBnd:|NoNewPrivs:) echo "$key $value";; esac
done < /proc/self/status
(sleep 600 > "$3/daemon" &)
exit 0
"""

#: A line of the script → whether it must be there, and what is wrong when that is otherwise.
_FINDINGS = (
    (r"began", True, "no command runs in it: bash must be installed"),
    (r"read-absent", False, "a file outside of the box could be read"),
    (r"wrote-read-only", False, "a read-only file could be written"),
    (r"wrote-own", True, "its own folder cannot be written"),
    (r"wrote-sysctl", False, "settings of the kernel could be written"),
    (r"reached-machine", False, "a server of this machine could be reached"),
    (r"survived", False, "a process outlived it"),
    (r"door HTTP/1\.[01] 204\b.*", True, "the way to the model's endpoint does not work"),
    (r"Seccomp: 2", True, "the filter of system calls is not in force"),
    (r"CapEff: 0+", True, "it holds capabilities"),
    (r"CapBnd: 0+", True, "it could gain capabilities"),
    (r"NoNewPrivs: 1", True, "it could gain rights by programs that give them"),
)

_lock = threading.Lock()
_held: dict[tuple[str, str], str] = {}


def probe(sandbox: bwrap.BwrapSandbox) -> str:
    """Why boxes of a rung do not hold here, and what to do, in one sentence; empty when they do. Looks once in a
    process."""
    key = sandbox.name, sandbox.image
    with _lock:
        if key not in _held:
            try:
                _held[key] = _found(sandbox)
            except (ConfigurationError, ApparatusError) as error:
                _held[key] = str(error)
        return _held[key]


def _found(sandbox: bwrap.BwrapSandbox) -> str:
    with _canaries() as (folder, port, url), _pipe(folder / "own" / "daemon") as held:
        paths = [folder / "absent" / "file", folder / "shown" / "file", folder / "own"]
        outcome = sandbox.launch(
            ["bash", "-c", _SCRIPT, "probe", *map(str, paths), str(port)],
            env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
            cwd=paths[2],
            timeout=30.0,
            writable=[paths[2]],
            readable=[paths[1].parent],
            endpoint=url,
        )
        said = [*outcome.stdout.splitlines(), *(["survived"] if held() else [])]
    for pattern, wanted, wrong in _FINDINGS:
        if any(re.fullmatch(pattern, line) for line in said) != wanted:
            return f"sandbox {sandbox.name} does not hold on this machine: {wrong}; take another machine, {bwrap.HINT}"
    return ""


@contextlib.contextmanager
def _pipe(path: Path) -> Iterator[Callable[[], bool]]:
    """A pipe of that name, and whether some process holds it open to write."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def held() -> bool:
        try:
            return os.read(descriptor, 1) != b""
        except BlockingIOError:
            return True

    try:
        yield held
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _canaries() -> Iterator[tuple[Path, int, str]]:
    """A folder with files, and a server on this machine: its port and its URL."""
    folder = bwrap.let_in(Path(tempfile.mkdtemp(prefix="box-", dir=bwrap.open_folders()[0])))
    try:
        for name in ("absent", "shown", "own"):
            (folder / name).mkdir()
            (folder / name / "file").write_text("canary\n", encoding="ascii")
        with socket.create_server(("127.0.0.1", 0)) as server:
            answering = threading.Thread(target=_answer, args=(server,), daemon=True)
            answering.start()
            port = server.getsockname()[1]
            try:
                yield folder, port, f"http://127.0.0.1:{port}"
            finally:
                server.shutdown(socket.SHUT_RDWR)
                answering.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            with client:
                client.settimeout(10)
                client.recv(4096)
                client.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
