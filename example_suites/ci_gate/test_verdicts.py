"""The gate passes a harmless change, fails a harmful one, and says of a tiny one how many seeds would decide it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus import load_report

GATE = Path(__file__).with_name("test_gate.py")


def gate_on(candidate, folder):
    """Exit code of the suite for one candidate, and the entry of its gate on calls."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", str(GATE), "-q"]
    command += [f"--proteus-out={folder / 'out'}", "--json-report", f"--json-report-file={report}"]
    done = subprocess.run(command, env={**os.environ, "CANDIDATE_REF": candidate}, check=False)
    (calls,) = [gate for gate in load_report(report)["gates"] if gate["name"] == "calls"]
    return done.returncode, calls


def test_a_harmless_change_passes(tmp_path):
    exit_code, calls = gate_on("harmless", tmp_path)
    assert (exit_code, calls["verdict"]) == (0, "pass")


def test_a_harmful_change_fails(tmp_path):
    exit_code, calls = gate_on("harmful", tmp_path)
    assert (exit_code, calls["verdict"]) == (pytest.ExitCode.TESTS_FAILED, "fail")


def test_a_tiny_change_is_undecided_and_says_how_many_seeds_would_decide_it(tmp_path):
    exit_code, calls = gate_on("tiny", tmp_path)
    assert (exit_code, calls["verdict"]) == (pytest.ExitCode.TESTS_FAILED, "undecided")
    assert calls["n_needed"] > calls["n"] == 8
    assert f"n needed: {calls['n_needed']}" in calls["reason"]
