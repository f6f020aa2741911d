"""What a report works out from its own runs."""

from __future__ import annotations

import pytest

from pytest_proteus.report.derived import derived, visible_and_hidden
from pytest_proteus.report.statistics import findings

SHOWN = {"visibility": "observe", "direction": "higher"}
HIDDEN = {"visibility": "hidden", "direction": "higher"}


def run(arm="neutral", seed=0, task=None, state="complete", planned=3, **scores):
    return {
        "harness": "minimal", "model": None, "task": task, "axes": {}, "arm": arm, "seed": seed, "state": state,
        "episodes_planned": planned, "evaluators": {name: {"scores": list(own)} for name, own in scores.items()},
    }  # fmt: skip


def crossed(arms=("neutral",), **more):
    return [
        run(arm, seed, task, score=[0, 0, 10 * number + seed % 2], **more)
        for arm in arms
        for seed in range(4)
        for number, task in enumerate("abc")
    ]


def test_a_sweep_with_tasks_has_variance_components():
    (entry,) = derived({"score": HIDDEN}, crossed(("neutral", "other")))
    assert (entry["name"], entry["stratum"], entry["unavailable"]) == ("variance score", None, None)
    assert entry["value"]["shares"]["task"] > 0.9
    assert (entry["value"]["seeds"], entry["value"]["tasks"], entry["value"]["n"]) == (4, 3, 24)
    assert "what to buy next: tasks" in entry["value"]["finding"]


def test_a_sweep_without_tasks_has_none():
    assert derived({"score": HIDDEN}, [run(seed=seed, score=[0, 0, seed]) for seed in range(4)]) == []


def test_what_a_run_did_not_reach_is_missing():
    runs = [*crossed(), run("neutral", 0, "d", score=[1, 2]), run("neutral", 1, "d", state="errored", score=[1, 2, 3])]
    (entry,) = derived({"score": HIDDEN}, runs)
    assert (entry["value"]["n"], entry["value"]["n_missing"]) == (12, 2)


def test_too_small_a_design_says_so():
    (entry,) = derived({"score": HIDDEN}, [run(task=task, score=[0, 0, 1]) for task in "ab"])
    assert (entry["value"], entry["unavailable"]["reason"]) == (None, "n_below_minimum")


@pytest.mark.parametrize(
    "evaluators",
    [
        {"tests": SHOWN, "held out": {**HIDDEN, "checks": "tests"}},
        {"tests@observe": SHOWN, "tests@hidden": HIDDEN},
    ],
)
def test_a_hidden_evaluator_beside_a_visible_one_gives_their_gap_in_each_arm(evaluators):
    shown, hidden = evaluators
    runs = [
        run(arm, seed, **{shown: [0.1, 0.5, 0.9 if arm == "games" else 0.2], hidden: [0.1, 0.2, 0.2]})
        for arm in ("honest", "games")
        for seed in range(5)
    ]
    assert visible_and_hidden(evaluators) == [(shown, hidden)]
    honest, games = derived(evaluators, runs)
    assert [entry["name"] for entry in (honest, games)] == [
        f"gap {shown} / {hidden}[honest]", f"gap {shown} / {hidden}[games]",
    ]  # fmt: skip
    assert (honest["value"]["alarm"], games["value"]["alarm"]) == (False, True)
    assert findings([games])[0].startswith(f"{games['name']}: GOODHART ALARM")


def test_evaluators_that_pull_in_opposite_directions_have_no_gap():
    evaluators = {"a": SHOWN, "b": {**HIDDEN, "direction": "lower", "checks": "a"}}
    (entry,) = derived(evaluators, [run(seed=seed, a=[1, 2, 3], b=[1, 2, 3]) for seed in range(5)])
    assert entry["unavailable"]["reason"] == "not_measured"


def test_damaged_evaluators_have_none():
    assert derived({"a": None, "b": {"checks": "c"}}, [run(a=[1, 2, 3], b=[1, 2, 3])]) == []
