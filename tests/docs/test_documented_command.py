"""The documented command line, word for word, for the offline harness and for the real agent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.testing import ModelServer, say, write

WORDS = ["--goal", "Make your durable knowledge easier to navigate."]
WORDS += ["--evaluator", "units:notes@observe", "--evaluator", "step", "--evaluator", "tool-calls"]
WORDS += ["--arm", "neutral", "--seeds", "2", "--episodes", "10", "--out", "runs/navigation"]


def proteus_run(harness, folder, **environment):
    """The sweep's folder, once the command has ended well."""
    command = [str(Path(sys.executable).with_name("proteus")), "run", "--harness", harness, *WORDS]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "navigation"


def completed(sweep):
    lines = (sweep / "seeds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["episodes_complete"] for line in lines]


def test_it_runs_a_sweep_of_the_offline_harness(tmp_path):
    sweep = proteus_run("minimal", tmp_path)
    evaluators = json.loads((sweep / "manifest.json").read_text(encoding="utf-8"))["evaluators"]
    assert set(evaluators) == {"units:notes", "step", "tool-calls"}
    assert completed(sweep) == [10, 10]


@pytest.mark.skipif("PROTEUS_TEST_REAL_AGENTS" not in os.environ, reason="takes minutes; tox runs it once")
@pytest.mark.skipif(bool(PiHarness().preflight()), reason="pi is not on this machine")
def test_it_runs_a_sweep_of_the_real_agent(tmp_path):
    def answer(conversation):
        number = len(conversation.user_texts)
        return [write(f"notes/page_{number}.md", f"# Page {number}\n"), say("Done.")]

    with ModelServer(answer) as server:
        sweep = proteus_run("pi", tmp_path, ANTHROPIC_BASE_URL=server.endpoint["anthropic"], PYTEST_ADDOPTS="-n 2")
    assert completed(sweep) == [10, 10]
