"""The gate passes a good change and fails a harmful one: the same suite, run once for each candidate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus import load_report

GATE = Path(__file__).with_name("test_gate.py")


def verdicts(candidate, folder):
    """Exit code of the gate, and gate → verdict from its JSON report, for one candidate."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", str(GATE), "-q"]
    command += [f"--proteus-out={folder / 'out'}", "--json-report", f"--json-report-file={report}"]
    done = subprocess.run(command, env={**os.environ, "CANDIDATE_REF": candidate}, check=False)
    return done.returncode, {gate["name"]: gate["verdict"] for gate in load_report(report)["gates"]}


def test_a_good_change_passes(tmp_path):
    assert verdicts("good", tmp_path) == (0, {"notes": "pass", "tools": "pass", "calls": "pass"})


def test_a_harmful_change_fails(tmp_path):
    exit_code, found = verdicts("harmful", tmp_path)
    assert exit_code == pytest.ExitCode.TESTS_FAILED
    assert found == {"notes": "fail", "tools": "pass", "calls": "fail"}
