"""SIGKILL of the controller of pytest-xdist: workers and agents follow at once, and the command can be repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from waiting import until

SUITE = """
import os, pathlib
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.sandbox import LocalSandbox

HERE = pathlib.Path(__file__).parent


class Sleeping(MinimalHarness):
    name = "sleeping"

    def run_episode(self, spec):
        if not (HERE / "awake").exists():
            code = f"echo $$ > {HERE}/agent-{os.getpid()}.tmp; mv {HERE}/agent-{os.getpid()}.tmp "
            code += f"{HERE}/agent-{os.getpid()}.pid; exec sleep 300"
            LocalSandbox().launch(["/bin/sh", "-c", code], env={"PATH": "/usr/bin:/bin"}, cwd=HERE)
        return super().run_episode(spec)


pytestmark = pytest.mark.sweep(episodes=1, harness=["test_it:Sleeping"], seed=range(2))


def test_completes(run):
    assert run.state == "complete"
"""


def command(folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "-n", "2"),
        f"--proteus-out={folder}/out",
    ]


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_workers_and_agents_die_with_the_controller_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "test_it.py").write_text(SUITE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path, "env": environment}
    controller = subprocess.Popen(command(tmp_path), **quiet)
    try:
        assert until(lambda: len(list(tmp_path.glob("agent-*.pid"))) == 2, 60)
    finally:
        controller.send_signal(signal.SIGKILL)
        controller.wait()
    notes = list(tmp_path.glob("agent-*.pid"))
    pids = [int(note.read_text()) for note in notes] + [int(note.stem.partition("-")[2]) for note in notes]
    assert until(lambda: not any(map(living, pids)), 3), [pid for pid in pids if living(pid)]
    (tmp_path / "awake").touch()
    again = subprocess.run(command(tmp_path), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 passed" in again.stdout
