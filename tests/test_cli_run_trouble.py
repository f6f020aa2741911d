"""``proteus run`` when something is wrong: one line on standard error, the right exit code, no traceback."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from waiting import until

ADAPTERS = """
import os
from pytest_proteus.harnesses.minimal import MinimalHarness


class Raises(MinimalHarness):
    def surfaces(self):
        raise RuntimeError("first\\nsecond")


class Odd(MinimalHarness):
    def surfaces(self):
        return ["notes"]


class Exits(MinimalHarness):
    def run_episode(self, spec):
        os._exit(0)


class Slow(MinimalHarness):
    def run_episode(self, spec):
        with open("pid", "w") as file:
            file.write(f"{os.getpid()};")
        return super().run_episode(spec)

    def __init__(self):
        super().__init__(hang_at=[1])


class Absent(MinimalHarness):
    def preflight(self):
        return "its program is not here"


class Exits3(MinimalHarness):
    def run_episode(self, spec):
        os._exit(3)


class Exits4(MinimalHarness):
    def run_episode(self, spec):
        os._exit(4)


class Exits9(MinimalHarness):
    def run_episode(self, spec):
        os._exit(9)


class Killed(MinimalHarness):
    def run_episode(self, spec):
        os.kill(os.getpid(), 9)


class ExitsEarly(MinimalHarness):
    def __init__(self):
        os._exit(0)
"""


@pytest.fixture
def proteus(tmp_path):
    """Run the command beside a module of adapters that make trouble."""
    found = shutil.which("proteus", path=str(Path(sys.executable).parent))
    (tmp_path / "trouble.py").write_text(ADAPTERS)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTHONPATH")}
    keys = ("_API_KEY", "_BASE_URL")
    kept = {name: value for name, value in kept.items() if not name.endswith(keys)}

    def go(*words, **env):
        options = {"cwd": tmp_path, "env": kept | env, "capture_output": True, "text": True, "check": False}
        return subprocess.run([found, "run", "--seeds", "1", "--episodes", "1", "--out", "out", *words], **options)

    return go


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arm", "nope"], ["--arm", "'nope'", "neutral"]),
        (["--arm", "reviw:notes"], ["--arm", "'reviw:notes'", "did you mean review:SURFACE?"]),
        (["--arm", "review:notez"], ["--arm review:notez", "did you mean 'notes'?"]),
        (["--evaluator", "units:notez"], ["--evaluator units:notez", "units:notes"]),
        (["--evaluator", "stepp"], ["--evaluator stepp", "did you mean 'step'?"]),
        (["--harness", "minimall"], ["--harness", "'minimall'", "did you mean 'minimal'?"]),
        (["--harness", "trouble:Nope"], ["--harness", "trouble:Nope"]),
        (["--harness", "trouble:Raises"], ["--harness", "trouble:Raises", "surfaces() failed", "first second"]),
        (["--harness", "trouble:Odd"], ["--harness", "trouble:Odd", "surfaces() gave 'notes'"]),
        (["--harness", "trouble:Absent"], ["its program is not here"]),
        (["--", "--nope"], ["--nope"]),
        (["--", "--maxfial=1"], ["--maxfial=1", "did you mean --maxfail?"]),
        (["--endpoint", "nowhere"], ["nowhere", "[WIRE=]URL"]),
        (["-n", "2", "--evaluator", "stepp"], ["--evaluator stepp"]),
    ],
)
def test_a_wrong_call_is_one_line_that_names_what_was_typed(proteus, words, said):
    done = proteus(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("proteus run: ")
    assert all(piece in line for piece in said), line
    assert "Traceback" not in done.stdout
    if "trouble:Absent" not in words:
        assert "=====" not in done.stdout


def test_a_folder_that_cannot_be_made_is_told_in_the_commands_own_words(proteus):
    done = proteus("--out", "/proc/x")
    assert done.returncode == 2
    assert "--out DIR" in done.stderr
    assert "--proteus" not in done.stderr


@pytest.mark.parametrize("adapter", ["Exits", "ExitsEarly", "Exits3", "Exits4", "Exits9", "Killed"])
def test_an_adapter_that_ends_the_process_is_exit_1_and_one_line(proteus, adapter):
    done = proteus("--harness", f"trouble:{adapter}")
    assert done.returncode == 1
    assert done.stderr == "proteus run: a harness or evaluator ended the process; there is no report\n"


def test_an_adapter_that_ends_a_worker_is_exit_1(proteus):
    assert proteus("--harness", "trouble:Exits", "-n", "2").returncode == 1


def slow(folder: Path, preexec=None, **streams) -> tuple[subprocess.Popen, int]:
    """The command while its only episode hangs, and the process that runs it."""
    (folder / "trouble.py").write_text(ADAPTERS)
    found = shutil.which("proteus", path=str(Path(sys.executable).parent))
    words = ["run", "--harness", "trouble:Slow", "--seeds", "1", "--episodes", "1", "--out", "out"]
    process = subprocess.Popen([found, *words], cwd=folder, preexec_fn=preexec, **streams)
    note = folder / "pid"
    assert until(lambda: note.exists() and note.read_text().endswith(";"), 30)
    return process, int(note.read_text()[:-1])


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_when_the_command_is_killed_so_is_what_it_runs(tmp_path):
    process, runs = slow(tmp_path, stdout=subprocess.DEVNULL)
    process.kill()
    process.wait()
    assert until(lambda: state(runs) in "ZX", 3)


def test_a_terminals_ctrl_z_stops_it_and_ctrl_c_ends_it_with_a_report(tmp_path):
    master, terminal = os.openpty()

    def own_terminal():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    said = (tmp_path / "said").open("wb")
    process, runs = slow(tmp_path, own_terminal, stdin=terminal, stdout=said, stderr=said)
    states = lambda: (state(process.pid), state(runs))  # noqa: E731
    os.write(master, b"\x1a")
    assert until(lambda: states() == ("T", "T")), states()
    process.send_signal(signal.SIGCONT)
    # asleep again, not only woken: a signal that comes while a thread is being woken goes to another thread of its
    # process, and then ends no sleep of the first one
    assert until(lambda: states() == ("S", "S")), states()
    os.write(master, b"\x03")
    assert until(lambda: process.poll() is not None), (states(), Path(said.name).read_text())
    assert process.returncode == 130, Path(said.name).read_text()
    assert (tmp_path / "out" / "report.json").exists()
    for open_file in (master, terminal):
        os.close(open_file)
    said.close()
