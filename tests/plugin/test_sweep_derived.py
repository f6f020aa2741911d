"""What the report says unasked: where variance comes from, and whether a visible score still tells."""

from __future__ import annotations

import pytest

TASKS = """
import pytest
pytestmark = [
    pytest.mark.sweep(episodes=2, seed=range(3), task=["first", "second"]),
    pytest.mark.evaluator("units:notes", direction="higher"),
]

def test_run(run):
    assert run.state == "complete"

def test_scores_are_means_over_tasks_whose_interval_counts_seeds(scores, structure):
    notes = scores("units:notes", arm="neutral")
    assert (notes.n, len(notes.observations), notes.interval.method) == (3, 6, "clustered-t")
    assert {(o.seed, o.task) for o in notes.observations} == {(s, t) for s in range(3) for t in ("first", "second")}
    assert set(structure) == {("minimal/first", "neutral"), ("minimal/second", "neutral")}
"""


def test_a_task_axis_brings_variance_components(suite):
    suite.write(TASKS)
    result = suite.run()
    result.assert_outcomes(passed=7)
    entry = next(entry for entry in suite.sweep["statistics"] if entry["name"] == "variance units:notes")
    assert entry["value"]["tasks"] == 2
    result.stdout.fnmatch_lines(["*  variance: seed *"])


GAMES = """
import pytest
from pytest_proteus import EvalResult

def shown(trace, ctx):
    return EvalResult("shown", float(ctx.episode))

def held_out(trace, ctx):
    return EvalResult("held out", 1.0)

pytestmark = [
    pytest.mark.sweep(episodes=3, seed=range(5)),
    pytest.mark.evaluator(shown, name="tests", visibility="observe", direction="higher"),
    pytest.mark.evaluator(held_out, name="held out", direction="higher", checks="tests"),
]

def test_run(run):
    assert run.state == "complete"
"""


def test_a_visible_score_that_comes_loose_is_an_alarm(suite):
    suite.write(GAMES)
    result = suite.run("-n", "2")
    result.assert_outcomes(passed=5)
    (entry,) = suite.sweep["statistics"]
    assert (entry["name"], entry["value"]["alarm"]) == ("gap tests / held out[neutral]", True)
    assert entry["value"]["gaps"] == [0.0, 1.0, 2.0]
    result.stdout.fnmatch_lines(["*GOODHART ALARM*"])
    assert suite.proteus["outcome"] == "pass"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('checks="tests"', 'checks="test"', "no such evaluator is attached; did you mean 'tests'?"),
        ('visibility="observe", ', "", "give 'tests' visibility='observe'"),
        ('checks="tests"', "checks=3", "checks=3 must be the name of a visible evaluator"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(suite, old, new, said):
    suite.write(GAMES.replace(old, new))
    result = suite.run()
    assert result.ret == 4
    assert said in result.stderr.str()
