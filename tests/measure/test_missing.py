"""What missing runs could make of separation and reliability."""

from __future__ import annotations

import copy
import json
import pickle
import random

import pytest

from pytest_proteus.core import ActionEvent
from pytest_proteus.measure.missing import Uncertain, completions
from pytest_proteus.measure.sweeps import arm_reliability, arm_separation
from pytest_proteus.sweep.gates import decide

WEIGHTS = {"a": (8, 1, 1), "b": (1, 1, 8), "a_aa": (8, 1, 1)}


class FakeRun:
    """A finished run whose traces are drawn."""

    harness, records = "h", ()

    def __init__(self, arm, seed, complete=3, episodes=3, weights=None, length=30):
        self.arm, self.seed, self.run_id = arm, seed, f"{arm}-{seed}"
        self.episodes, self.episodes_complete = episodes, complete
        self.state = "complete" if complete == episodes else "timeout" if complete else "errored"
        source = random.Random(f"{arm}{seed}")
        chosen = weights or WEIGHTS[arm]
        self._traces = [source.choices("xyz", chosen, k=length) for _ in range(episodes)]

    def trace(self, episode):
        assert episode <= self.episodes_complete
        return [ActionEvent(turn, "act", tool) for turn, tool in enumerate(self._traces[episode - 1])]


def runs(*arms, n=5, ended=()):
    """n runs of each arm; ``ended`` has (arm, seed, complete episodes) of those that did not get to their end."""
    short = {(arm, seed): complete for arm, seed, complete in ended}
    return [FakeRun(arm, seed, short.get((arm, seed), 3)) for arm in arms for seed in range(n)]


def test_without_missing_runs_numbers_are_plain():
    found = arm_separation(runs("a", "b"))
    assert (type(found.p), found.with_missing, found.n_missing) == (float, {}, 0)
    assert all(type(one.ratio) is float for one in arm_reliability(runs("a", "b")).values())


def test_a_missing_run_is_counted_and_bounds_what_it_could_make_of_the_numbers():
    found = arm_separation(runs("a", "b", ended=[("b", 2, 1)]))
    assert (found.n, found.n_missing) == (9, 1)
    assert found.p == arm_separation([run for run in runs("a", "b") if run.run_id != "b-2"]).p
    for name in ("R", "index", "p", "p_R", "p_welch", "within", "between"):
        low, high = found.with_missing[name]
        value = getattr(found, name)
        assert low <= value <= high
        assert (value.low, value.high, value.n, value.n_missing) == (low, high, 9, 1)
    assert found.with_missing["index"][0] < found.index
    json.dumps(found.to_json(), allow_nan=False)


def test_arms_that_are_far_apart_stay_so_whatever_the_missing_run_did():
    found = arm_separation(runs("a", "b", n=8, ended=[("b", 2, 1)]))
    assert decide("p", found.p, "at_most", 0.05).verdict == "pass"
    assert decide("p", found.p, "above", 0.5).verdict == "fail"


def test_a_verdict_that_the_missing_runs_could_turn_is_undecided():
    found = arm_separation(runs("a", "b", ended=[("b", 2, 0), ("b", 3, 2)]))
    assert found.p <= 0.02 < found.p.high
    verdict = decide("p", found.p, "at_most", 0.02)
    assert (verdict.verdict, verdict.n, verdict.n_missing) == ("undecided", 8, 2)
    assert "2 missing runs could turn it" in verdict.reason


def test_reliability_is_bounded_arm_by_arm():
    found = arm_reliability(runs("a", "b", ended=[("b", 2, 1)]))
    assert type(found["a"].ratio) is float
    assert found["b"].ratio.low <= found["b"].ratio < found["b"].ratio.high
    assert (found["b"].n_missing, found["b"].n_runs) == (1, 4)


def test_with_nothing_but_missing_runs_there_is_no_number():
    dead = [("b", seed, 0) for seed in range(5)]
    assert arm_separation(runs("a", "b", ended=dead)).reason == "fewer_than_two_labels"
    assert arm_reliability(runs("b", ended=dead))["b"].reason == "fewer_than_two_runs"


def test_runs_are_put_in_like_their_own_arm_like_each_arm_and_like_none():
    streams = {"a": [["x"] * 4, None], "b": [["y"] * 4, ["y", "y", "y", "z"], ["y"] * 4]}
    own, like_a, like_b, like_none = completions(streams, "freq")
    assert own["a"][1] == like_a["a"][1] == ["x"] * 4
    assert like_b["a"][1] == ["y"] * 4
    assert set(like_none["a"][1]).isdisjoint("xyz")
    assert own["b"] == streams["b"]
    assert list(completions({"a": [None]}, "freq")) == []


def test_a_number_without_ends_decides_nothing():
    found = decide("p", Uncertain(0.01, None, None, 8, 1), "at_most", 0.05)
    assert found.verdict == "undecided"


def test_an_uncertain_number_is_a_number():
    value = Uncertain(0.25, 0.1, 0.5, 8, 1)
    assert (value + 1, f"{value:.1f}", json.dumps(value)) == (1.25, "0.2", "0.25")
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert (again, again.low, again.high, again.n_missing) == (0.25, 0.1, 0.5, 1)


# -- episodes and copies -----------------------------------------------------------------------------------------------


def test_separation_has_every_episode():
    found = arm_separation(runs("a", "b"))
    assert [one.episode for one in found.by_episode.episodes] == [1, 2, 3]
    assert found.by_episode.p <= 0.05
    assert "arms differ at episodes 1-3 (p for all episodes together 0.0" in found.finding
    assert found.to_json()["finding"] == found.finding


def test_episodes_that_not_every_run_has_are_not_compared():
    found = arm_separation(runs("a", "b", ended=[("b", 2, 2), ("a", 1, 0)])).by_episode
    assert [one.n_missing for one in found.episodes] == [0, 0, 1]
    assert found.finding.endswith("not compared: 3")
    assert found.episodes[0].n == 9


def test_one_episode_is_no_course():
    found = arm_separation([FakeRun(arm, seed, 1, 1) for arm in "ab" for seed in range(5)])
    assert found.by_episode.reason == "n_below_minimum"


def test_so_few_runs_that_no_difference_could_be_shown_say_so():
    assert "can show no difference at 0.05" in arm_separation(runs("a", "b", n=2)).by_episode.finding


@pytest.mark.parametrize("others", [("a", "b"), ("a",)])
def test_a_copy_is_compared_with_its_arm(others):
    found = arm_separation(runs(*others, "a_aa"), copies={"a_aa": "a", "gone": "b"})
    assert set(found.placebos) == {"a_aa"}
    assert found.placebos["a_aa"].p > 0.05
    assert set(found.sizes) == (set(others) if len(others) > 1 else {"a", "a_aa"})
    assert "a_aa beside the arm that it copies: no difference (p " in found.finding


def test_a_copy_without_runs_has_no_verdict():
    found = arm_separation(runs("a", "b", "a_aa", ended=[("a_aa", i, 0) for i in range(5)]), copies={"a_aa": "a"})
    assert "a_aa cannot be compared with the arm that it copies" in found.finding
