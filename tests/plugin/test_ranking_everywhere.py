"""The fixture, the command, the report and the file of a comparison hold the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_proteus.cli import main

SUITE = """
import json
from pathlib import Path
import pytest
from pytest_proteus import NEUTRAL, review
from pytest_proteus.core.goal import EvalResult


def notes(trace, ctx):
    return EvalResult("", 1.0, passed=len(ctx.units["notes"]) > 2)


notes.built_in = True  # it is in this process, and has the tables of units


def judged(trace, ctx):
    return EvalResult("", 0.5)


pytestmark = [
    pytest.mark.sweep(episodes=2, goal="Keep notes.", arm=[NEUTRAL, review("notes")], seed=range(3)),
    pytest.mark.evaluator(notes, name="tests", kind="gate"),
    pytest.mark.evaluator(judged, name="judge", kind="judge", timeout=None),
]


def test_ranked(ranking, gate):
    assert ranking.by("wallclock").ranked[0].variant == "minimal/review_notes"
    gate("success", ranking.variant("minimal/review_notes").success_rate, at_least=0.3)
    Path("fixture.json").write_text(json.dumps(ranking.to_json()))


def test_run(run):
    pass
"""


@pytest.fixture
def swept(suite):
    suite.write(SUITE, "test_it")
    suite.run().assert_outcomes(passed=7)
    return suite


def test_fixture_command_report_and_file_agree(swept, monkeypatch, capsys):
    fixture = json.loads((swept.folder / "fixture.json").read_text())
    (reported,) = [entry for entry in swept.sweep["statistics"] if entry["name"] == "ranking"]
    (file,) = Path(swept.folder, ".proteus", "reports").glob("*.json")
    out = swept.sweep["out"]
    assert main(["rank", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert fixture == reported["value"] == json.loads(file.read_text()) == told["rankings"][0]
    assert {arm: told["success_rate"] for arm, told in swept.sweep["arms"].items()} == {"neutral": 0, "review_notes": 1}
    assert file.stem == fixture["task_hash"]
    assert [one["variant"] for one in fixture["failed"]] == ["minimal/neutral"]
    assert [one["variant"] for one in fixture["unscored"]] == ["minimal/review_notes"]

    assert main(["rank", out, "--rank-by", "score", "--csv"]) == 0
    header, ranked, failed = capsys.readouterr().out.splitlines()
    assert header.startswith("task_hash,group,rank,variant,")
    assert ",ranked,1,minimal/review_notes," in ranked
    assert ",failed,,minimal/neutral," in failed

    monkeypatch.setenv("COLUMNS", "100")
    assert main(["rank", out, "--rank-by", "score"]) == 0
    shown = capsys.readouterr().out
    assert "failed: minimal/neutral: none of 3 attempts passed the gate (3 complete)" in shown
    assert "minimal/review_notes is best by score" in shown

    # without the fixture's test the report has the comparison all the same
    swept.run("-k", "test_run").assert_outcomes(passed=6, deselected=1)
    (again,) = [entry for entry in swept.sweep["statistics"] if entry["name"] == "ranking"]
    assert again["value"] == fixture
