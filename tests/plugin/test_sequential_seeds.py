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
        (["--proteus-seeds=auto:6..12"], "there is none; add --proteus-compare=NAME"),
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
