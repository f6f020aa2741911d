"""Hidden evaluators that came or changed are scored from what is stored; no cell runs again for them."""

from __future__ import annotations

import json
import sys

import pytest

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(name="demo", episodes=3, arm=[NEUTRAL, review("notes")], seed=range(2)),
    pytest.mark.evaluator("units:notes"),
    {more}
]

def test_all(sweep, scores):
    for name in sweep.runs[0].evaluators:
        scores(name)

def test_one(run):
    assert all(score is not None for name in run.evaluators for score in run.scores(name))
"""
MINE = 'pytest.mark.evaluator("measures:mine"),'
MEASURES = """
from pathlib import Path
from pytest_proteus import EvalResult

def mine(trace, ctx):
    return EvalResult("mine", {factor} * (len(list(Path(ctx.harness_root).rglob("*.md"))) + len(trace)))
"""


@pytest.fixture
def write(suite):
    """Write the suite with further evaluators, and their module with a factor."""

    def write(more="", factor=1):
        suite.write(MEASURES.format(factor=factor), "measures")
        suite.write(SUITE.format(more=more))

    return write


def scores_of(suite, name):
    """arm-seed → the scores of an evaluator in the report."""
    return {f"{run['arm']}-s{run['seed']}": run["evaluators"][name]["scores"] for run in suite.sweep["runs"]}


def artifacts(suite):
    """What episodes leave: all of it but what a later scoring may add."""
    (out,) = (suite.folder / ".proteus" / "demo").iterdir()
    kept = [path for path in sorted(out.glob("runs/**/*")) if path.is_file() and path.name != "rescores.jsonl"]
    return {str(path): path.read_bytes() for path in [*kept, out / "seeds.jsonl"]}


def run(suite, *words, passed=5):
    result = suite.run("-p", "no:cacheprovider", *words)
    result.assert_outcomes(passed=passed)
    return result


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_evaluator_that_came_later_is_scored_and_nothing_runs_again(suite, write, workers):
    write()
    run(suite)
    before = artifacts(suite)
    write(more=MINE + 'pytest.mark.evaluator("step"),')
    result = run(suite, "-n", workers)
    result.stdout.fnmatch_lines(["*4 reused, 4 to be scored by new or changed evaluators*"])
    assert artifacts(suite) == before
    assert suite.sweep["ledger"]["reused"] == 4
    found = {name: scores_of(suite, name) for name in ("units:notes", "measures:mine", "step")}
    run(suite, "--proteus-on-existing=fresh")
    assert found == {name: scores_of(suite, name) for name in found}


def test_a_changed_evaluator_is_scored_anew_and_its_old_scores_are_kept(suite, write):
    write(MINE)
    run(suite)
    first = scores_of(suite, "measures:mine")
    before = artifacts(suite)
    write(MINE, factor=2)
    run(suite, "--proteus-no-run")
    assert scores_of(suite, "measures:mine") == {cell: [2 * score for score in all_] for cell, all_ in first.items()}
    assert artifacts(suite) == before
    (stored, *_) = sorted((suite.folder / ".proteus").rglob("rescores.jsonl"))
    lines = stored.read_bytes()
    write(MINE)
    run(suite)
    assert scores_of(suite, "measures:mine") == first
    assert stored.read_bytes() == lines


def test_an_observed_evaluator_that_changed_makes_another_condition(suite, write):
    write(MINE.replace('mine"', 'mine", visibility="observe"'))
    run(suite)
    write(MINE.replace('mine"', 'mine", visibility="observe"'), factor=2)
    run(suite)
    assert suite.sweep["ledger"]["reused"] == 0
    assert not list((suite.folder / ".proteus").rglob("rescores.jsonl"))


def test_episodes_of_two_versions_are_brought_to_one(suite, write):
    write(MINE)
    run(suite, "--proteus-episodes=1")
    write(MINE, factor=2)
    run(suite)
    mixed = scores_of(suite, "measures:mine")
    run(suite, "--proteus-on-existing=fresh")
    assert scores_of(suite, "measures:mine") == mixed


def test_an_evaluator_that_fails_then_is_missing_and_costs_no_other(suite, write):
    write()
    run(suite)
    write(MINE + 'pytest.mark.evaluator("step"),', factor="1 // 0")
    suite.run().assert_outcomes(passed=1, failed=4)
    assert set(map(tuple, scores_of(suite, "measures:mine").values())) == {(None, None, None)}
    assert all(None not in scores for scores in scores_of(suite, "step").values())
    (entry, *_) = suite.sweep["runs"]
    assert entry["evaluators"]["measures:mine"]["errors"][0].startswith("evaluator error: ZeroDivisionError")


def test_the_command_and_a_suite_share_what_was_scored(suite, write):
    write()
    run(suite)
    (out,) = (suite.folder / ".proteus" / "demo").iterdir()
    words = ["rescore", str(out), "--evaluator", "measures:mine", "--evaluator", "units:notes", "--json"]
    done = suite.pytester.run(sys.executable, "-m", "pytest_proteus.cli", *words)
    told = json.loads("\n".join(done.outlines))
    assert (done.ret, told["computed"], told["stored"], told["errors"], told["unreadable"]) == (0, 12, 12, 0, {})
    values = {entry["name"]: entry["value"] for entry in told["statistics"]}
    stored = {path: path.read_bytes() for path in out.rglob("rescores.jsonl")}
    write(MINE)
    run(suite)
    assert {path: path.read_bytes() for path in out.rglob("rescores.jsonl")} == stored
    last = {cell: scores[-1] for cell, scores in scores_of(suite, "measures:mine").items()}
    observed = values["scores measures:mine at last"]
    assert {
        f"{arm}-s{item['seed']}": item["value"] for arm in observed for item in observed[arm]["observations"]
    } == last
