"""The sub-commands that read a finished sweep give the numbers that its session gave, from the folder alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.cli import main

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = pytest.mark.sweep(name="demo", episodes=3, arm=[NEUTRAL, review("notes")], seed=range(4))

def test_all(structure, travel, reliability, separation, audit):
    assert all(item.no_evidence_found for item in audit.values())
"""
STRATA = """
import pytest
pytestmark = pytest.mark.sweep(name="demo", episodes=2, seed=range(2), model=["small", "large"])

def test_all(sweep, structure, travel, reliability, separation, audit):
    assert set(audit) == {run.run_id for run in sweep}
"""


def session(folder, text):
    """The sweep's folder after a session in a process of its own."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", f"--rootdir={folder}", "-q"]
    done = subprocess.run([*words, str(folder)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".proteus" / "demo" / "0001"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return session(tmp_path_factory.mktemp("finished"), SUITE)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished sweep, to be damaged."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def of_session(folder):
    """What the session's report says: (name, stratum) → entry, but for the time it took."""
    (sweep,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))["sweeps"]
    return {(item["name"], item["stratum"]): {**item, "seconds": None} for item in sweep["statistics"]}


def of_command(capsys, *words):
    """What a sub-command says of the same."""
    assert main([*words, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["statistics"]
    return {(item["name"], item["stratum"]): {**item, "seconds": None, "observations": None} for item in listed}


@pytest.mark.parametrize("text", [SUITE, STRATA], ids=["one stratum", "two strata"])
def test_commands_and_fixtures_give_the_same(text, finished, tmp_path, capsys):
    folder = finished if text == SUITE else session(tmp_path, text)
    found = of_command(capsys, "measure", str(folder), "--travel")
    found |= of_command(capsys, "reliability", str(folder)) | of_command(capsys, "audit", str(folder))
    assert found == of_session(folder)


def test_path_lengths_are_measured_on_demand(finished, capsys):
    assert {name for name, _ in of_command(capsys, "measure", str(finished))} == {"structure", "separation"}


def test_the_table_says_direction_and_n(finished, capsys):
    assert main(["measure", str(finished)]) == 0
    out = capsys.readouterr().out
    assert "demo: 8 of 8 runs complete" in out
    assert "structure (units; no better or worse)" in out
    assert out.count("(n=4)") == 4


@pytest.mark.parametrize(("level", "stored"), [("freq", "freq"), ("order", "order"), ("procedure", "ncd")])
def test_reliability_has_the_levels_of_distance(finished, capsys, level, stored):
    ((_, entry),) = of_command(capsys, "reliability", str(finished), "--level", level).items()
    assert {value["level"] for value in entry["value"].values()} == {stored}


def test_evidence_is_quoted_with_its_run_and_place(copy, capsys):
    (run_root, *_) = sorted(path for path in (copy / "runs").iterdir() if path.name.startswith("run-"))
    (run_root / "harness" / "notes" / "plan.md").write_text("This is an experiment, see /etc/passwd\n")
    assert main(["audit", str(copy)]) == 0
    out = capsys.readouterr().out
    assert "evidence in 1 of 8 runs, 24 episodes looked at" in out
    assert "notes/plan.md:1: names '/etc/passwd', outside the harness" in " ".join(out.split())
    assert "“This is an experiment, see /etc/passwd”" in out


def test_a_run_that_nobody_began_is_missing_and_no_zero(copy, capsys):
    (cell, *_) = sorted((copy / "cells").glob("*.json"))
    cell.unlink()
    entry = of_command(capsys, "measure", str(copy))["structure", None]
    counts = {arm: (value["notes"]["n"], value["notes"]["n_missing"]) for arm, value in entry["value"].items()}
    assert sorted(counts.values()) == [(3, 1), (4, 0)]


def test_artifacts_that_cannot_be_read_are_named_and_end_with_1(copy, capsys):
    for path in (copy / "runs" / ".proteus-records").glob("*/actions.jsonl"):
        path.unlink()
    assert main(["reliability", str(copy)]) == 1
    assert "unavailable: no trace of episode 1 is stored" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["measure", "reliability", "audit"])
@pytest.mark.parametrize("kind", ["missing", "empty", "file", "damaged", "no runs"])
def test_what_is_no_sweep_is_one_sentence_and_2(command, kind, tmp_path, capsys):
    folder = tmp_path / "sweep"
    if kind == "file":
        folder.write_text("x")
    elif kind != "missing":
        folder.mkdir()
    if kind in ("damaged", "no runs"):
        (folder / "manifest.json").write_text("{" if kind == "damaged" else '{"runs": 3}')
    assert main([command, str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"proteus {command}: ")
    assert str(folder) in err


# --- rescoring --------------------------------------------------------------------------------------------------------


def test_further_evaluators_are_scored_from_the_folder(copy, capsys):
    words = ["rescore", str(copy), "--evaluator", "units:notes", "--evaluator", "contains:STATE.md:State"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["computed"], told["stored"], told["errors"]) == (48, 0, 0)
    scores = {entry["name"]: entry for entry in told["statistics"]}
    structure = of_session(copy)["structure", None]["value"]
    measured = scores["scores units:notes at last"]["value"]
    assert {arm: value["value"] for arm, value in measured.items()} == {
        arm: value["notes"]["value"] for arm, value in structure.items()
    }
    assert scores["scores contains:STATE.md:State at last"]["direction"] == "higher"
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("0 results computed; 48 were there\n")


def test_evaluators_that_fail_and_runs_that_cannot_be_read_end_with_1(copy, capsys, monkeypatch):
    monkeypatch.chdir(copy)
    (copy / "my_failing_measures.py").write_text("def fail(trace, ctx):\n    raise OSError('no')\n")
    (run, *_) = sorted((copy / "runs" / ".proteus-records").iterdir())
    (run / "actions.jsonl").unlink()
    assert main(["rescore", str(copy), "--evaluator", "my_failing_measures:fail"]) == 1
    out = capsys.readouterr().out
    assert "21 results computed, 21 of them evaluator errors; 0 were there" in out
    assert f"{run.name} cannot be read: no trace of episode 1 is stored" in out


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["units:note"], "this harness has no surface 'note'; write units:notes"),
        (["units:notes@observe"], "nobody can see it any more; leave out @observe"),
        (["units:notes", "units:notes"], "--evaluator units:notes is given twice; give it once"),
        (["no_such_module:f"], "module no_such_module cannot be imported"),
    ],
)
def test_a_wrong_evaluator_is_one_sentence_and_nothing_is_written(finished, capsys, specs, message):
    words = [word for spec in specs for word in ("--evaluator", spec)]
    assert main(["rescore", str(finished), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not list(finished.rglob("rescores.jsonl"))


# --- the layout of proteus-evolve -------------------------------------------------------------------------------------

EVOLVE = Path(__file__).parent / "data" / "evolve-sweep.tar.gz"


@pytest.fixture
def evolve(tmp_path):
    """A finished sweep of proteus-evolve 0.3.0, made by its command line.

    ``proteus run --harness minimal --goal none --arm neutral --arm review:notes --seeds 4 --episodes 3
    --evaluator units:notes --evaluator tool-calls --out sweep``
    """
    subprocess.run(["tar", "xzf", str(EVOLVE), "-C", str(tmp_path)], check=True)
    return tmp_path / "sweep"


def test_a_sweep_of_proteus_evolve_is_read(evolve, capsys):
    found = of_command(capsys, "measure", str(evolve), "--travel")
    means = {
        (name, arm): {surface: item["value"] for surface, item in value.items()}
        for name in ("structure", "travel")
        for arm, value in found[name, None]["value"].items()
    }
    # what its own `measure --travel` prints
    for name in ("structure", "travel"):
        assert means[name, "neutral"] == {"notes": 0.5, "tools": 1.0}
        assert means[name, "review_notes"] == {"notes": 5.0, "tools": 0.0}
    assert found["separation", None]["value"]["n"] == 8


def test_traces_of_proteus_evolve_are_compared_and_audited(evolve, capsys):
    reliability = of_command(capsys, "reliability", str(evolve))["reliability", None]
    assert {arm: value["n_runs"] for arm, value in reliability["value"].items()} == {"neutral": 4, "review_notes": 4}
    audits = of_command(capsys, "audit", str(evolve))["audit", None]["value"]
    assert all(audit["actions"] > 0 and audit["episodes"] == [0, 1, 2, 3] for audit in audits.values())


def test_a_log_that_is_no_normalized_trace_is_refused_and_not_guessed(evolve, capsys):
    for path in (evolve / "runs").glob("*/traces/ep001.jsonl"):
        path.write_text('{"turn": 1, "phase": "act", "tool": ["bash"]}\n')
    assert main(["reliability", str(evolve)]) == 1
    assert "is no log of normalized actions" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_of_proteus_evolve_is_scored_with_further_evaluators(evolve, capsys):
    assert main(["rescore", str(evolve), "--evaluator", "step", "--evaluator", "tool-calls", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # it wrote down what its own tool-calls gave, and no version of it
    assert (told["computed"], told["stored"]) == (24, 24)
    (step, *_) = told["statistics"]
    assert step["name"] == "scores step at last"
    assert all(value["n"] == 4 for value in step["value"].values())
