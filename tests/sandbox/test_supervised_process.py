from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from waiting import until

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox import LocalSandbox, none
from pytest_proteus.sandbox.none import SupervisorLost

#: Starts a child that leaves its parent, session and process group, closes all, ignores signals, and writes its number.
ESCAPE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (1, 2, 3, 13, 15):
            signal.signal(number, signal.SIG_IGN)
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        if len(sys.argv) > 2:
            for descriptor in range(3):
                os.close(descriptor)
        while True:
            time.sleep(60)
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.01)
"""


def python(code: str, *args: object, cwd: Path | None = None, **more) -> none.Outcome:
    more.setdefault("env", {"PATH": "/usr/bin:/bin"})
    return LocalSandbox().launch([sys.executable, "-c", code, *map(str, args)], cwd=cwd or "/", **more)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_file(path: Path) -> int:
    """The number in a file that another process is about to write."""
    assert until(lambda: path.is_file() and path.read_text(), 30), f"{path} never came"
    return int(path.read_text())


def test_output_and_exit_status_come_back():
    outcome = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "out\n", "err\n")
    assert not any((outcome.timed_out, outcome.stdout_truncated, outcome.left_over, outcome.interrupted))


def test_a_signal_is_a_negative_exit_status():
    assert python("import os; os.kill(os.getpid(), 9)").returncode == -9


def test_the_command_reads_its_stdin_to_the_end():
    text = "é" * 300_000
    outcome = python("import sys; t = sys.stdin.buffer.read(); print(len(t))", stdin=text)
    assert outcome.stdout == f"{2 * len(text)}\n"


def test_a_command_that_does_not_read_its_stdin_does_no_harm():
    assert python("pass", stdin="x" * 1_000_000).returncode == 0


def test_the_environment_is_given_whole(monkeypatch):
    monkeypatch.setenv("CANARY", "inherited")
    outcome = python("import os; print(sorted(os.environ))", env={"ONLY": "this"})
    assert outcome.stdout.replace("'LC_CTYPE', ", "") == "['ONLY', 'PWD']\n"


def test_the_environment_names_the_folder_that_the_command_is_in(tmp_path):
    outcome = python("import os; print(os.environ['PWD'])", env={"PWD": "/elsewhere"}, cwd=tmp_path)
    assert outcome.stdout == f"{tmp_path}\n"


def test_the_command_starts_in_its_folder(tmp_path):
    assert python("import os; print(os.getcwd())", cwd=tmp_path).stdout == f"{tmp_path}\n"


def test_the_command_inherits_no_descriptor():
    outcome = LocalSandbox().launch(["ls", "/proc/self/fd"], env={"PATH": os.environ["PATH"]}, cwd="/")
    assert outcome.stdout.split() == ["0", "1", "2", "3"]


def test_signals_are_back_to_their_defaults():
    code = "import signal; print([s.name for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN])"
    # Python itself ignores these two when it starts
    assert python(code).stdout == "['SIGPIPE', 'SIGXFSZ']\n"
    outcome = LocalSandbox().launch(["grep", "SigIgn", "/proc/self/status"], env={"PATH": os.environ["PATH"]}, cwd="/")
    assert int(outcome.stdout.split()[1], 16) == 0


def test_the_supervisor_does_not_name_the_framework_to_its_command():
    code = "import os; p = os.getppid(); print(open(f'/proc/{p}/cmdline').read(), open(f'/proc/{p}/environ').read())"
    outcome = python(code)
    assert "supervisor" not in outcome.stdout
    assert "proteus" not in outcome.stdout.replace(sys.executable, "")


def test_too_much_output_keeps_its_beginning_and_its_end():
    outcome = python("print('first'); print('x' * 5_000_000); print('last')", stdout_limit=1000)
    assert outcome.stdout.startswith("first\n")
    assert outcome.stdout.endswith("x\nlast\n")
    assert "bytes left out" in outcome.stdout
    assert len(outcome.stdout) < 1100
    assert outcome.stdout_truncated
    assert not outcome.stderr_truncated


def test_output_that_is_not_text_is_replaced():
    assert python("import os; os.write(1, b'a\\xffb')").stdout == "a\ufffdb"


@pytest.mark.parametrize("closing", [[], ["close"]])
def test_a_daemon_is_dead_when_its_starter_has_ended(tmp_path, closing):
    outcome = python(ESCAPE, tmp_path / "pid", *closing)
    pid = wait_for_file(tmp_path / "pid")
    assert outcome.returncode == 0
    assert outcome.left_over == 1
    assert not alive(pid)


def test_a_chain_of_forks_is_dead_too(tmp_path):
    code = """
import os, sys, time
if os.fork():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os._exit(0)
os.setsid()
while True:  # ever a new process, its parent gone
    if os.fork():
        os._exit(0)
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
    python(code, tmp_path / "pids")
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_the_stop_signal_comes_when_the_time_is_over():
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n    print('stopped', flush=True)\n    sys.exit(5)\n"
        "signal.signal(signal.SIGINT, end)\n"
        "while True: time.sleep(60)"
    )
    outcome = python(code, timeout=3.0, stop_signal=signal.SIGINT, grace=20)
    assert (outcome.timed_out, outcome.returncode, outcome.stdout) == (True, 5, "stopped\n")


def test_a_command_that_ignores_the_stop_signal_is_killed():
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(60)"
    outcome = python(code, timeout=3.0, grace=0.1)
    assert (outcome.timed_out, outcome.returncode) == (True, -9)


@pytest.mark.parametrize(("argv", "cwd"), [(["no-such-command"], "/"), (["true"], "/no/such/folder")])
def test_a_command_that_cannot_start_is_an_error_of_the_configuration(argv, cwd):
    with pytest.raises(ConfigurationError, match=r"cannot be started in .*: No such file"):
        LocalSandbox().launch(argv, env={"PATH": os.environ["PATH"]}, cwd=cwd)


def test_killing_the_supervisor_is_an_error_of_the_apparatus():
    with pytest.raises(SupervisorLost, match="ended without a report"):
        python("import os, time; os.kill(os.getppid(), 9); time.sleep(0.2)")


def test_what_a_killed_supervisor_leaves_in_the_commands_session_is_killed(tmp_path):
    code = (
        "import os, sys, time; os.kill(os.getppid(), 9); os.fork()\n"
        "open(f'{sys.argv[1]}/{os.getpid()}', 'w').write(str(os.getpid()))\n"
        "while True: time.sleep(60)"
    )
    with pytest.raises(SupervisorLost):
        python(code, tmp_path)
    assert all(until(lambda pid=int(path.name): not alive(pid), 20) for path in tmp_path.iterdir())


def test_stopping_the_supervisor_ends_the_phase_at_its_time_limit(tmp_path):
    code = (
        "import os, sys, time; os.kill(os.getppid(), 19); os.fork()\n"
        "open(f'{sys.argv[1]}/{os.getpid()}', 'w').write(str(os.getpid()))\n"
        "while True: time.sleep(60)"
    )
    began = time.monotonic()
    outcome = python(code, tmp_path, timeout=1.0, grace=0.2)
    assert outcome.timed_out
    assert time.monotonic() - began < 6
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_a_signal_to_the_supervisor_cuts_the_phase_short(tmp_path):
    code = (
        "while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])): time.sleep(0.01)\n"
        "os.kill(os.getppid(), 15)\n"
        "time.sleep(60)"
    )
    outcome = python(ESCAPE + code, tmp_path / "pid")
    assert (outcome.interrupted, outcome.timed_out) == (True, False)
    assert not alive(wait_for_file(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_everything_is_dead_when_the_launching_process_is_killed(tmp_path, number):
    code = (
        "import sys; from pytest_proteus.sandbox import LocalSandbox\n"
        "LocalSandbox().launch([sys.executable, '-c', sys.argv[1], sys.argv[2]], env={}, cwd='/')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, ESCAPE + "time.sleep(60)", str(tmp_path / "pid")], stderr=subprocess.DEVNULL
    )
    pid = wait_for_file(tmp_path / "pid")
    process.send_signal(number)
    process.wait(20)
    assert until(lambda: not alive(pid), 20)


def test_an_interrupt_in_the_launching_thread_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        wait_for_file(tmp_path / "pid")
        raise KeyboardInterrupt

    monkeypatch.setattr(none, "_attend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        python(ESCAPE + "time.sleep(60)", tmp_path / "pid")
    assert not alive(wait_for_file(tmp_path / "pid"))


def test_a_launching_thread_that_has_ended_does_not_end_the_command(tmp_path):
    # the parent-death signal of a thread would: the supervisor watches the process instead
    outcomes = []

    def inner():
        outcomes.append(python("import time; time.sleep(0.6); print('done')"))

    starter = threading.Thread(target=lambda: threading.Thread(target=inner, name="inner").start())
    starter.start()
    starter.join()
    for thread in threading.enumerate():
        if thread.name == "inner":
            thread.join(20)
    assert outcomes[0].stdout == "done\n"


def test_no_descriptor_is_left_open():
    python("pass")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        python("pass")
    assert len(os.listdir("/proc/self/fd")) == before
