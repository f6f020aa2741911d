"""Separation at every episode, with one error rate for all."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import relabel
from pytest_proteus.measure.episodes import separation_by_episode
from pytest_proteus.measure.stream import separation


def course(seed: int, episodes: int, weights=(4, 2, 1), changed_from: int | None = None, length: int = 20):
    source = random.Random(seed)
    out = []
    for episode in range(1, episodes + 1):
        own = (1, 2, 4) if changed_from is not None and episode >= changed_from else weights
        out.append(source.choices("abc", own, k=length))
    return out


def arms(n: int = 5, episodes: int = 4, changed_from: int | None = None):
    return {
        "a": [course(i, episodes) for i in range(n)],
        "b": [course(100 + i, episodes, changed_from=changed_from) for i in range(n)],
    }


def test_each_episode_has_what_separation_says_of_it_alone():
    runs = arms()
    found = separation_by_episode(runs)
    for number, episode in enumerate(found.episodes):
        alone = separation({arm: [run[number] for run in own] for arm, own in runs.items()})
        assert episode.episode == number + 1
        assert pytest.approx(alone.R) == episode.R
        assert episode.index == pytest.approx(alone.index)
        assert episode.p == pytest.approx(alone.p_welch)
        assert episode.welch > 0
    assert found.exact
    assert found.p_min == pytest.approx(1 / 126)


def test_the_p_for_all_episodes_is_that_of_the_smallest_over_whole_runs():
    runs = arms(4, 3, changed_from=3)
    found = separation_by_episode(runs)
    assert found.p == min(episode.p_adjusted for episode in found.episodes)
    for episode in found.episodes:
        assert episode.p <= episode.p_adjusted <= min(1.0, 3 * episode.p + 1e-12)
        reached = episode.critical and episode.welch >= episode.critical
        assert bool(reached) == (episode.p_adjusted <= found.alpha)


def test_a_late_difference_is_found_late():
    found = separation_by_episode(arms(7, 4, changed_from=3))
    assert [episode.p_adjusted <= 0.05 for episode in found.episodes] == [False, False, True, True]


def test_arms_that_do_not_differ_do_so_at_no_episode():
    hits = sum(
        separation_by_episode(
            {arm: [course(1000 * i + 50 * j + k, 6) for k in range(5)] for j, arm in enumerate("ab")}
        ).p
        <= 0.05
        for i in range(60)
    )
    assert hits <= 9


def test_drawn_relabelings_agree_with_all_of_them(monkeypatch):
    runs = arms(5, 3, changed_from=2)
    exact = separation_by_episode(runs)
    monkeypatch.setattr(relabel, "ENUMERATED", 0)
    drawn = separation_by_episode(runs, permutations=4000)
    assert (exact.relabelings, drawn.relabelings) == (252, 4000)
    for one, other in zip(exact.episodes, drawn.episodes, strict=True):
        assert one.p == pytest.approx(other.p, abs=0.05)
        assert one.p_adjusted == pytest.approx(other.p_adjusted, abs=0.05)


def test_an_episode_that_a_run_lacks_is_unavailable_and_the_others_are_not():
    runs = arms(4, 3)
    runs["b"][0] = runs["b"][0][:2]
    runs["a"][1][0] = None
    found = separation_by_episode(runs)
    assert [episode.get("p_reason") for episode in found.episodes] == [
        "missing_runs", None, "missing_runs",
    ]  # fmt: skip
    assert [episode.n_missing for episode in found.episodes] == [1, 0, 1]
    json.dumps(found.to_json(), allow_nan=False)


def test_what_cannot_be_compared_is_unavailable():
    assert separation_by_episode({"a": [[["x"]]]}).reason == "fewer_than_two_labels"
    assert separation_by_episode({"a": [[["x"]]], "b": [[["x"]], [["x"]]]}).reason == "welch_needs_dispersion"
    same = separation_by_episode({arm: [[["x", "y"]]] * 3 for arm in "ab"})
    assert (same.p, same.episodes[0].p) == (1, 1)
    assert same.episodes[0].welch.reason == "welch_needs_dispersion"
    assert same.episodes[0].R.reason == "all_streams_identical"
    empty = separation_by_episode({arm: [[["x"]], [[]]] for arm in "ab"})
    assert empty.episodes[0].p.reason == "empty_stream"


def test_an_episode_at_which_the_runs_of_an_arm_do_not_differ_has_the_p_of_r():
    found = separation_by_episode({"a": [[["x", "y"]]] * 4, "b": [[["u", "v"]]] * 4})
    (only,) = found.episodes
    assert (only.p, only.index, only.welch.reason) == (2 / 70, 1.0, "welch_needs_dispersion")
    assert only.critical.reason == "welch_needs_dispersion"
    assert found.p == 2 / 70


def test_labels_move_within_shared_seeds():
    runs = arms(6, 2)
    found = separation_by_episode(runs, seeds={"a": range(6), "b": range(6)})
    assert (found.scheme, found.relabelings) == ("within_seed", 64)
    with pytest.raises(ConfigurationError, match="twice"):
        separation_by_episode(runs, seeds={"a": [0] * 6, "b": range(6)})


def test_it_does_not_depend_on_the_order_of_the_runs_when_all_relabelings_are_gone_through():
    runs = arms(4, 2, changed_from=2)
    mixed = {"b": runs["b"][::-1], "a": runs["a"][::-1]}
    one, other = separation_by_episode(runs), separation_by_episode(mixed)
    for first, second in itertools.zip_longest(one.episodes, other.episodes):
        assert first.p_adjusted == second.p_adjusted
        assert first.welch == pytest.approx(second.welch)
