"""Runs of pi as far as nobody, or only the environment, says which model to ask and where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.harnesses.pi import PiHarness, configured
from pytest_proteus.sandbox import choose
from pytest_proteus.testing import ModelServer, say

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
URLS = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
INSTALLED = not PiHarness({"anthropic": "http://127.0.0.1:1"}).preflight()

SEED_LINE = [
    "run", "--harness", "pi", "--goal", "Make your durable knowledge easier to navigate.",
    "--evaluator", "units:notes@observe", "--evaluator", "step", "--evaluator", "tool-calls",
    "--arm", "neutral", "--seeds", "2", "--episodes", "1", "--out", "runs/navigation",
]  # fmt: skip

#: Stands in for an agent that is there.
AGENT = f"#!{sys.executable}\n"


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """An environment without keys and addresses."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")) or name in ("PYTEST_ADDOPTS", "PYTHONPATH"):
            monkeypatch.delenv(name)


@pytest.fixture
def agent(tmp_path) -> Path:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    return path


def command(*words, cwd):
    found = shutil.which("proteus", path=str(Path(sys.executable).parent))
    return subprocess.run([found, *words], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("variables", "wire", "expected"),
    [
        ({}, None, ("", "")),
        ({}, "openai-responses", ("", "gpt-6.2-sol")),
        ({"ANTHROPIC_API_KEY": "k"}, None, ("", "anthropic/claude-opus-5-5")),
        ({"OPENAI_API_KEY": "k"}, None, ("", "openai/gpt-6.2-sol")),
        ({"GOOGLE_API_KEY": "k"}, None, ("", "google/gemini-4-argon")),
        ({"ANTHROPIC_BASE_URL": "http://h"}, None, ("anthropic=http://h", "claude-opus-5-5")),
        ({"OPENAI_BASE_URL": "http://h", "ANTHROPIC_API_KEY": "k"}, None, ("openai-chat=http://h", "gpt-6.2-sol")),
        ({"ANTHROPIC_BASE_URL": "http://h"}, "gemini", ("", "gemini-4-argon")),
    ],
)
def test_the_environment_tells_endpoint_and_model(monkeypatch, variables, wire, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert configured(wire) == expected


@pytest.mark.parametrize(
    ("endpoint", "key", "model", "told"),
    [
        (None, "", "", "no model, endpoint or key"),
        (None, "", "anthropic/x", "no model endpoint and no key"),
        (None, "k", "", "no model: "),
        (None, "k", "anthropic/x", ""),
        ({"anthropic": "http://127.0.0.1:1"}, "", "", "no model: "),
        ({"anthropic": "http://127.0.0.1:1"}, "", "x", ""),
        ({"anthropic": "https://models.example"}, "", "x", "needs a key in the environment variable ANTHROPIC_API_KEY"),
    ],
)
def test_what_nobody_has_configured_is_one_sentence(agent, monkeypatch, endpoint, key, model, told):
    if key:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    sentence = PiHarness(endpoint, agent).unconfigured(model)
    assert told in sentence
    assert bool(told) == bool(sentence)


def test_an_agent_that_is_not_here_is_no_matter_of_configuration(tmp_path):
    assert PiHarness(None, tmp_path / "none").unconfigured("") == ""


def test_the_command_without_any_configuration_is_one_line(tmp_path):
    done = command(*SEED_LINE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in ("--proteus-endpoint", "ANTHROPIC_API_KEY", "--model"))
    assert list(tmp_path.iterdir()) == []


SUITE = """
import pytest
pytestmark = pytest.mark.sweep(episodes=1, harness=["minimal", "pi"], seed=[0])
def test_run(run):
    assert run.state == "complete"
"""


def suite(folder: Path, agent: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(SUITE)
    call = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", f"--proteus-agent=pi={agent}"]
    return subprocess.run([*call, *words, "test_it.py"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_suite_without_any_configuration_is_a_usage_error_before_anything_runs(tmp_path, agent, workers):
    done = suite(tmp_path, agent, "-n", workers)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "test_it.py: harness pi has no model, endpoint or key" in done.stderr
    assert not list(tmp_path.glob(".proteus/*/*/runs/run-*"))


def test_cells_that_need_nothing_run_without_configuration(tmp_path, agent):
    done = suite(tmp_path, agent, "-k", "minimal")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not INSTALLED, reason="pi is not on this machine")
@pytest.mark.parametrize("more", [(), ("--sandbox", "none")], ids=["as_written", "not_isolated"])
def test_the_seed_line_runs_where_the_environment_names_an_endpoint(tmp_path, monkeypatch, more):
    if not more and (missing := choose("auto").preflight()):
        pytest.skip(missing)
    with ModelServer(lambda talk: [say("Done.")]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.endpoint["anthropic"])
        done = command(*SEED_LINE, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {request.body["model"] for request in server.requests} == {"claude-opus-5-5"}
    manifest = json.loads((tmp_path / "runs" / "navigation" / "manifest.json").read_text())
    assert [run["model"] for run in manifest["runs"]] == ["claude-opus-5-5"] * 2
