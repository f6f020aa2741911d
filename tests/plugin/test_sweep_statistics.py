"""Post-run statistics are session-scoped fixtures and report entries; gates on them have three values."""

from __future__ import annotations

import pytest

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(episodes=3, arm=[NEUTRAL, review("notes")], seed=range(4)),
    pytest.mark.evaluator("units:notes", direction="higher"),
    pytest.mark.evaluator("tool-calls"),
]

def test_scores(scores, gate):
    notes = scores("units:notes", arm="review_notes")
    assert notes.n == 4 and notes.n_missing == 0
    assert len(notes.observations) == 4 and notes.value == sum(o.value for o in notes.observations) / 4
    gate("notes", notes, at_least=1)
    gate("never", notes, at_most=0, blocking=False)
    gate("open", notes, at_most=notes.value, blocking=False)

def test_structure_is_what_the_evaluator_counted(structure, scores, sweep):
    for arm, runs in sweep.by_arm().items():
        built = structure[arm]["notes"]
        assert [o.value for o in built.observations] == [run.last("units:notes") for run in runs]

def test_travel_is_at_least_the_distance(travel, structure):
    for arm in travel:
        assert travel[arm]["notes"].value >= structure[arm]["notes"].value

def test_reliability(reliability):
    assert set(reliability) == {"neutral", "review_notes"}
    assert all(0 <= value.ratio for value in reliability.values())

def test_separation(separation):
    assert separation.R > 0 and 0 < separation.p_min <= separation.p <= 1
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_statistics_are_fixtures_and_report_entries(suite, workers):
    suite.write(SUITE)
    suite.run("-n", workers).assert_outcomes(passed=5)
    statistics = {entry["name"]: entry for entry in suite.sweep["statistics"]}
    assert set(statistics) == {
        "reliability", "separation", "structure", "travel", "scores units:notes[review_notes] at last",
    }  # fmt: skip
    estimate = statistics["scores units:notes[review_notes] at last"]["value"]
    assert len(estimate["observations"]) == 4
    verdicts = {gate["name"]: (gate["verdict"], gate["n"], gate["alpha"]) for gate in suite.proteus["gates"]}
    assert verdicts == {"notes": ("pass", 4, 0.05), "never": ("fail", 4, 0.05), "open": ("undecided", 4, 0.05)}
    assert suite.proteus["outcome"] == "pass"


UNDECIDED = """
import pytest
pytestmark = [pytest.mark.sweep(episodes=2, seed=range(3)), pytest.mark.evaluator("units:notes")]

def test_it(scores, gate):
    notes = scores("units:notes")
    gate("open", notes, at_most=notes.value)
"""


@pytest.mark.parametrize(("policy", "outcome"), [("fail", "failed"), ("pass", "passed"), ("skip", "skipped")])
def test_what_is_undecided_does_what_the_user_says(suite, policy, outcome):
    suite.write(UNDECIDED)
    suite.run(f"--proteus-undecided={policy}").assert_outcomes(**{outcome: 1})
    (gate,) = suite.proteus["gates"]
    assert gate["verdict"] == "undecided"
    assert "straddles" in gate["reason"]
    assert gate["interval"]["low"] < gate["value"] < gate["interval"]["high"]


def test_what_cannot_be_known_fails_with_its_reason(suite):
    suite.write(
        """
import pytest
pytestmark = [pytest.mark.sweep(episodes=2, seed=[0]), pytest.mark.evaluator("units:notes")]

def test_one_run_has_no_reliability(reliability, gate):
    gate("reliability", reliability["neutral"].ratio, below=0.5)

def test_one_run_has_no_interval(scores, gate):
    gate("notes", scores("units:notes"), at_least=0)

def test_one_arm_has_no_separation(separation, gate):
    gate("p", separation.p, at_most=0.05)
"""
    )
    result = suite.run()
    result.assert_outcomes(failed=3)
    assert {gate["verdict"] for gate in suite.proteus["gates"]} == {"unavailable"}
    assert all(gate["reason"] for gate in suite.proteus["gates"])


def test_strata_are_never_pooled(suite):
    suite.write(
        """
import pytest
pytestmark = pytest.mark.sweep(episodes=2, seed=range(2), model=["small", "large"])

def test_keys(reliability, structure):
    assert set(reliability) == {("minimal/small", "neutral"), ("minimal/large", "neutral")}
    assert set(structure) == set(reliability)
"""
    )
    suite.run().assert_outcomes(passed=1)
    strata = {entry["stratum"] for entry in suite.sweep["statistics"]}
    assert strata == {"minimal/small", "minimal/large"}
