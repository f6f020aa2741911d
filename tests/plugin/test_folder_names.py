"""Folders whose names are no UTF-8: everything works in them as elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus import load_report
from pytest_proteus.core.records import as_path, plain

SUITE = """
import pytest

pytestmark = [
    pytest.mark.sweep(name="odd", episodes=2, arm=["neutral", "review:notes"], seed=[0]),
    pytest.mark.evaluator("units:notes"),
]

def test_run(run):
    with run.checkpoint(1) as tree:
        assert any(tree.iterdir())

def test_sweep(sweep, gate):
    gate("cells", len(sweep.runs), equals=2)
"""


@pytest.fixture
def odd(tmp_path):
    """A folder with a name that is no UTF-8."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    return folder


def call(folder, *words):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTHONPATH")}
    kept["PYTHONIOENCODING"] = "utf-8"  # a terminal that takes nothing else
    done = subprocess.run([sys.executable, *words], cwd=folder, env=kept, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, said
    return said


def proteus(folder, *words):
    return call(folder, "-c", "from pytest_proteus.cli import main; raise SystemExit(main())", *words)


def test_a_suite_there_runs_goes_on_and_is_held_against_a_baseline(odd):
    (odd / "test_it.py").write_text(SUITE)
    words = ["-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--json-report", "--json-report-file=r.json"]
    assert "2 complete" in call(odd, *words)
    assert "2 reused" in call(odd, *words)
    call(odd, *words, "--proteus-episodes=3", "--proteus-save=three")
    call(odd, *words, "--proteus-episodes=3", "--proteus-compare=three")
    (sweep,) = load_report(odd / "r.json")["sweeps"]
    assert sweep["ledger"]["complete"] == sweep["ledger"]["reused"] == 2
    assert [run["episodes_complete"] for run in sweep["runs"]] == [3, 3]
    assert as_path(sweep["out"]) == odd / ".proteus" / "odd" / "0001"
    assert load_report(odd / ".proteus" / "odd" / "0001")["outcome"] == "pass"
    assert sorted(os.listdir(os.fsencode(odd.parent))) == [b"d\xff"]


def test_the_command_runs_reads_and_exports_there(odd):
    proteus(odd.parent, "run", "--out", str(odd / "out"), "--seeds", "1", "--episodes", "1")
    assert "1/1" in proteus(odd.parent, "report", str(odd / "out"))
    assert "1 of 1 runs complete" in proteus(odd, "measure", "out")
    (run,) = (odd / "out" / "runs").glob("run-*")
    proteus(odd.parent, "export", str(run), str(odd / "plain"))
    assert (odd / "plain" / ".git").is_dir()


def test_an_output_folder_may_have_such_a_name_itself(odd):
    proteus(odd.parent, "run", "--out", odd.name, "--seeds", "1", "--episodes", "1")
    report = json.loads((odd / "report.json").read_text())
    assert report["sweeps"][0]["ledger"]["complete"] == 1


def test_a_path_comes_back_from_its_text(odd):
    literal = odd.parent / r"\udcfe"
    literal.mkdir()
    for path in (odd, odd.parent, literal):
        assert plain(path).encode()
        assert as_path(plain(path)) == path
