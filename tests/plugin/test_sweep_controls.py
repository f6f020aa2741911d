"""Control arms in a session: runs of their own, and a harness that does not evolve."""

from __future__ import annotations

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, Arm

base = Arm("base", disposition=NEUTRAL)
pytestmark = [
    pytest.mark.sweep(episodes=3, arm=[base, base.aa(), base.frozen()], seed=range(2)),
    pytest.mark.evaluator("units:notes", direction="higher", visibility="observe"),
    pytest.mark.evaluator("units:tools", direction="lower"),
    pytest.mark.evaluator("tool-calls"),
]

def test_run(run):
    assert run.state == "complete"

def test_the_best_of_all_episodes(sweep, scores):
    best = scores("units:notes", arm="base_frozen", episode="best")
    runs = sweep.by_arm()["base_frozen"]
    assert [o.value for o in best.observations] == [max(run.scores("units:notes")) for run in runs]
    fewest = scores("units:tools", arm="base_frozen", episode="best")
    assert [o.value for o in fewest.observations] == [min(run.scores("units:tools")) for run in runs]

def test_no_best_of_what_has_no_direction(scores):
    with pytest.raises(Exception, match="no best score; declare direction"):
        scores("tool-calls", episode="best")

def test_all_runs_are_those_of_no_copy_and_count_once_a_seed(scores):
    for metric in ("units:notes", "seconds"):
        pooled = scores(metric)
        assert {o.arm for o in pooled.observations} == {"base", "base_frozen"}
        assert (len(pooled.observations), pooled.n) == (4, 2)
    assert scores("units:notes", arm="base_aa").n == 2

@pytest.mark.parametrize("metric", ["units:notes", "seconds"])
def test_an_arm_that_is_none_is_told_beside_those_there_are(scores, metric):
    with pytest.raises(LookupError, match="no arm is called 'bas'; did you mean 'base'"):
        scores(metric, arm="bas")

def test_an_episode_that_was_not_planned_is_told(scores):
    with pytest.raises(Exception, match="episode=9 was not planned; the last one is 3"):
        scores("units:notes", episode=9)

def test_nothing_evolves_in_a_frozen_arm(sweep, structure, travel):
    assert structure["base_frozen"]["notes"].value == travel["base_frozen"]["notes"].value == 0
    for run in sweep.by_arm()["base_frozen"]:
        assert [record["accepted"] for record in run.records] == [False] * 3
        assert max(run.scores("units:notes")) <= 1
"""


def test_controls_have_runs_of_their_own(suite):
    suite.write(SUITE)
    suite.run("-n", "2").assert_outcomes(passed=13)
    assert len({run["run_id"] for run in suite.sweep["runs"]}) == 6
    assert suite.sweep["ledger"]["complete"] == 6
    assert suite.sweep["ledger"]["reused"] == 0


def test_a_copy_does_what_its_arm_does_and_reuses_nothing_of_it(suite):
    suite.write(SUITE)
    suite.run("-k", "test_run and base-").assert_outcomes(passed=2)
    suite.run("-k", "test_run and base_aa").assert_outcomes(passed=2)
    runs = {(run["arm"], run["seed"]): run for run in suite.sweep["runs"]}
    assert [runs["base_aa", seed]["reused"] for seed in (0, 1)] == [False, False]
    assert runs["base_aa", 0]["evaluators"] == runs["base", 0]["evaluators"]


def test_a_frozen_run_goes_on_where_it_was_and_is_told_of_nothing(suite):
    suite.write(SUITE)
    suite.run("-k", "test_run and base_frozen", "--proteus-episodes=2").assert_outcomes(passed=2)
    suite.run("-k", "test_run and base_frozen").assert_outcomes(passed=2)
    runs = {(run["arm"], run["seed"]): run for run in suite.sweep["runs"]}
    went_on = runs["base_frozen", 0]["evaluators"]
    suite.run("-k", "test_run and base_frozen", "--proteus-on-existing=fresh").assert_outcomes(passed=2)
    runs = {(run["arm"], run["seed"]): run for run in suite.sweep["runs"]}
    assert runs["base_frozen", 0]["evaluators"] == went_on


def test_arms_can_be_controls_on_the_command_line(suite):
    suite.write("import pytest\npytestmark = pytest.mark.sweep(episodes=1, seed=[0])\n\ndef test_run(run): pass\n")
    suite.run("--proteus-arm=neutral", "--proteus-arm=aa:neutral", "--proteus-arm=frozen:neutral").assert_outcomes(
        passed=3
    )
    assert set(suite.states()) == {"neutral-s0", "neutral_aa-s0", "neutral_frozen-s0"}


PLACEBOS = """
import pytest
from pytest_proteus import NEUTRAL, Arm, review

base, changed = Arm("base", disposition=NEUTRAL), Arm("changed", disposition=review("notes"))
pytestmark = [
    pytest.mark.sweep(episodes=2, arm=[base, changed, base.aa()], seed=range(3)),
    pytest.mark.evaluator("units:notes", direction="higher"),
    pytest.mark.evaluator("tool-calls"),
]

def test_what_has_no_direction_is_told_of_the_arms_that_were_asked_for(contrast):
    with pytest.raises(Exception, match="changed against base: tool-calls has no direction"):
        contrast("tool-calls", arm="changed", against="base", margin=1)

def test_a_gate_and_what_it_makes_of_a_copy(contrast, gate):
    gate("notes", contrast("units:notes", arm="changed", against="base", margin="10%"))

def test_arms(separation):
    assert set(separation.sizes) == {"base", "changed"}
    assert separation.placebos["base_aa"].p > 0.05
    assert len(separation.by_episode.episodes) == 2
"""


def test_the_report_says_what_a_copy_would_have_come_to(suite):
    suite.write(PLACEBOS)
    result = suite.run()
    result.assert_outcomes(passed=3)
    entries = {entry["name"]: entry["value"] for entry in suite.sweep["statistics"]}
    placebo = entries["placebo units:notes: base_aa against base, noninferior, margin 10%, difference"]
    assert (placebo["verdict"], placebo["failed"], placebo["swaps"]) == ("pass", 0.0, 8)
    assert "base_aa beside the arm that it copies: no difference" in entries["separation"]["finding"]
    assert len(entries["separation"]["by_episode"]["episodes"]) == 2
    result.stdout.fnmatch_lines(["*a copy that changes nothing: pass*"])
