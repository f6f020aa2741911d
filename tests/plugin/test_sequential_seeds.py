"""Seeds are run block after block until every declared gate is decided; the others cost nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

AGENT = """
import os
import zlib
from pathlib import Path
from pytest_proteus import EvalResult
from pytest_proteus.harnesses.minimal import MinimalHarness

class Noisy(MinimalHarness):
    name = "noisy"
    deterministic = False

    def __init__(self):
        super().__init__(files=1)  # whose words depend on the seed

def load(trace, ctx):
    # 10 and what the environment adds, with noise that differs from session to session
    files = b"".join(path.read_bytes() for path in sorted(Path(ctx.harness_root).rglob("*.md")))
    noise = zlib.crc32(files + os.environ.get("NOISE", "").encode()) % 997 / 997
    return EvalResult("load", 10 + noise + float(os.environ.get("MORE", 0)), True, "")
"""

SUITE = """
import pytest

pytestmark = [
    pytest.mark.sweep(name="demo", episodes=1, harness=["noisy_agent:Noisy"]),
    pytest.mark.evaluator("noisy_agent:load", name="load", direction="lower"),
]

def test_runs(run):
    assert run.episodes_complete == run.episodes

def test_scores(scores, sweep):
    assert scores("load").n == len(sweep.runs)
    assert scores("load").n_missing == 0
"""


@pytest.fixture(scope="module")
def baseline_of_the_suite(tmp_path_factory):
    """The file that a session of twelve seeds with --proteus-save=main leaves."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "noisy_agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "test_it.py").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-q", "--proteus-seeds=12", "--proteus-save=main"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "NOISE", "MORE"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".proteus" / "baselines" / "main.json"


@pytest.fixture
def saved(suite, baseline_of_the_suite):
    suite.write(AGENT, "noisy_agent")
    suite.write(SUITE)
    target = suite.folder / ".proteus" / "baselines" / "main.json"
    target.parent.mkdir(parents=True)
    shutil.copy(baseline_of_the_suite, target)
    return suite


def compared(suite, monkeypatch, more, *options):
    monkeypatch.setenv("NOISE", "again")
    monkeypatch.setenv("MORE", more)
    return suite.run("--proteus-compare=main", "--proteus-compare-fail=load:20%", "-q", *options)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("more", "verdict", "seeds"), [("5", "fail", 6), ("0", "pass", 11)])
def test_it_stops_once_every_gate_is_decided(saved, monkeypatch, workers, more, verdict, seeds):
    result = compared(saved, monkeypatch, more, "--proteus-seeds=auto:6..12", "-n", workers)
    assert result.ret == (1 if verdict == "fail" else 0)
    result.assert_outcomes(passed=seeds + 1, skipped=12 - seeds)
    ledger = saved.sweep["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["not_run"]) == (12, seeds, 12 - seeds)
    (gate,) = saved.proteus["gates"]
    assert (gate["verdict"], gate["n"], gate["n_missing"]) == (verdict, seeds, 0)
    assert f"after {seeds} of 12 seeds" in gate["reason"]
    assert saved.proteus["outcome"] == verdict
    assert saved.proteus["budget"]["blocks_bought"] == seeds
    result.stdout.fnmatch_lines([f"{seeds} seeds were run: they decide every declared gate"])


def test_what_is_not_decided_takes_all_seeds(saved, monkeypatch):
    result = compared(saved, monkeypatch, "2", "--proteus-seeds=auto:6..8")
    result.assert_outcomes(passed=9)
    (gate,) = saved.proteus["gates"]
    assert (gate["verdict"], saved.sweep["ledger"]["complete"]) == ("undecided", 8)
    assert saved.proteus["outcome"] == "undecided"


def test_a_later_session_of_more_seeds_reuses_what_was_run(saved, monkeypatch):
    compared(saved, monkeypatch, "5", "--proteus-seeds=auto:6..12")
    compared(saved, monkeypatch, "5", "--proteus-seeds=8")
    ledger = saved.sweep["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["reused"]) == (8, 8, 6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--proteus-seeds=auto:6..12"],
            "there is none; declare one with @pytest.mark.gate, add",
        ),
        (["--proteus-seeds=auto:12..6"], "write auto:MIN..MAX"),
        (["--proteus-seeds=auto:6"], "write auto:MIN..MAX"),
        (
            [
                "--proteus-seeds=auto:6..8",
                "--proteus-save=x",
                "--proteus-compare=main",
                "--proteus-compare-fail=load:9%",
            ],
            "a baseline has all seeds",
        ),
    ],
)
def test_what_it_cannot_do_is_one_sentence(saved, options, told):
    result = saved.run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert not (saved.folder / ".proteus" / "demo").exists()


GATED = """
import pytest

pytestmark = [
    pytest.mark.sweep(name="demo", episodes=1, harness=["noisy_agent:Noisy"]),
    pytest.mark.evaluator("noisy_agent:load", name="load", direction="lower"),
]

@pytest.mark.gate("scores.load", at_most=13)
def test_load():
    pass
"""


@pytest.mark.parametrize(("more", "verdict", "seeds"), [("5", "fail", 6), ("0", "pass", 11), ("2.5", "undecided", 12)])
def test_a_gate_that_a_marker_declares_is_looked_at_after_each_seed(suite, monkeypatch, more, verdict, seeds):
    suite.write(AGENT, "noisy_agent")
    suite.write(GATED)
    monkeypatch.setenv("MORE", more)
    result = suite.run("--proteus-seeds=auto:6..12", "-q")
    assert result.ret == (0 if verdict == "pass" else 1)
    ledger = suite.sweep["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["not_run"]) == (12, seeds, 12 - seeds)
    (gate,) = suite.proteus["gates"]
    assert (gate["verdict"], gate["n"], gate["source"], gate["alpha"]) == (verdict, seeds, "marker", 0.05)
    assert (gate["interval"], gate["p"]) == (None, None)
    assert f"after {seeds} of 12 seeds" in gate["reason"]


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ('"separation.p", at_most=0.05', "the gate on separation.p is decided by all runs together"),
        ('"scores.load", equals=13', "give scores.load at_least and at_most"),
    ],
)
def test_a_gate_that_cannot_be_looked_at_twice_is_refused_where_seeds_come_in(suite, bound, told):
    suite.write(AGENT, "noisy_agent")
    suite.write(
        GATED.replace('"scores.load", at_most=13', bound).replace(
            "episodes=1,", 'episodes=1, arm=["neutral", "review:notes"],'
        )
    )
    result = suite.run("--proteus-seeds=auto:6..12")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()


def test_a_gate_in_a_body_says_that_it_does_not_allow_for_looking_after_each_seed(suite, monkeypatch):
    suite.write(AGENT, "noisy_agent")
    suite.write(
        GATED
        + """
def test_body(scores, gate):
    gate("load", scores("load"), at_most=14)
"""
    )
    monkeypatch.setenv("MORE", "0")
    suite.run("--proteus-seeds=auto:6..12", "-q")
    told = {gate["source"]: gate["reason"] for gate in suite.proteus["gates"]}
    assert "seeds was not fixed in advance" in told["gate"]
    assert "seeds was not fixed in advance" not in told["marker"]
