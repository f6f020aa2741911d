"""Whole sessions whose harness runs in a box are killed: nothing of it lives on, and the next session goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from boxes import marked, needs_bwrap
from waiting import until

pytestmark = needs_bwrap

SUITE = """
import os
import pytest
from pytest_proteus.core.adapter import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness
class Waits(MinimalHarness):
    '''Its first episode ends at once, its second waits in hiding until a file is there.'''
    name = "waits"
    runs_code = True
    def __init__(self):
        super().__init__()
        self.sandbox = None
    def run_episode(self, spec):
        code = "echo x >> STATE.md"
        if spec.episode == 2 and not os.path.exists("GO"):
            code = 'trap "" HUP TERM; setsid bash -c "while :; do sleep 600; done" x TOKEN & while :; do sleep 1; done'
        where = spec.harness_root
        outcome = self.sandbox.launch(["bash", "-c", code], env={"PATH": "/usr/bin:/bin"}, cwd=where)
        return EpisodeResult(spec.episode, outcome.returncode == 0, 1, "it was cut short", {}, "abort")
    def read_trace(self, root, episode):
        return []
pytestmark = pytest.mark.sweep(name="waiting", episodes=3, harness=[Waits()], arm=["neutral"], seed=[0, 1])
def test_run(run):
    assert run.state == "complete"
"""


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGKILL, "0"), (signal.SIGKILL, "2"), (signal.SIGTERM, "2"), (signal.SIGINT, "0")]
)
def test_a_killed_session_leaves_no_process_and_is_continued(tmp_path: Path, number, workers):
    token = uuid.uuid4().hex
    (tmp_path / "test_it.py").write_text(SUITE.replace("TOKEN", token).replace("GO", str(tmp_path / "go")))
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--proteus-out=out", "-n"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    session = subprocess.Popen([*command, workers, "test_it.py"], cwd=tmp_path, start_new_session=True, **quiet)
    try:
        assert until(lambda: marked(token), 120)
        session.send_signal(number)
        assert until(lambda: not marked(token), 20)
    finally:
        session.kill()
        session.wait(20)
    (tmp_path / "go").touch()
    assert subprocess.run([*command, "0", "test_it.py"], cwd=tmp_path, **quiet).returncode == 0
    report = json.loads((tmp_path / "out" / "waiting" / "report.json").read_text())
    assert [run["episodes_complete"] for run in report["sweeps"][0]["runs"]] == [3, 3]


def test_a_killed_worker_leaves_no_process_of_its_agent(tmp_path: Path):
    token = uuid.uuid4().hex
    suite = SUITE.replace("TOKEN", token).replace("GO", str(tmp_path / "go")).replace("seed=[0, 1]", "seed=[0]")
    (tmp_path / "test_it.py").write_text(suite)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "proteus",
        "-p",
        "no:cacheprovider",
        "--proteus-out=out",
        "-n",
        "1",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    session = subprocess.Popen([*command, "test_it.py"], cwd=tmp_path, **quiet)
    try:
        assert until(lambda: marked(token), 120)
        (worker,) = psutil.Process(session.pid).children()
        worker.kill()
        assert until(lambda: not marked(token), 20)
        assert session.wait(60) == 1
    finally:
        session.kill()
        session.wait(20)
    report = json.loads((tmp_path / "out" / "waiting" / "report.json").read_text())
    assert [run["state"] for run in report["sweeps"][0]["runs"]] == ["lost"]
