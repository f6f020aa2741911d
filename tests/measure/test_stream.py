"""Distances of tool streams, reliability and separation against independent answers, and what must hold always."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_oracles import cases
from scipy import stats
from scipy.spatial.distance import jensenshannon

from pytest_proteus.core import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import divergence, relabel
from pytest_proteus.measure.stream import (
    LEVELS,
    TEXT_TOKEN,
    attainability,
    between_within,
    distances,
    freq_distance,
    mean_distances,
    ncd,
    ncd_parts,
    order_distance,
    rarefied_distances,
    reliability,
    separation,
    tool_stream,
)
from pytest_proteus.measure.unavailable import Unavailable

tokens = st.sampled_from(["read", "write", "bash", "edit", TEXT_TOKEN])
streams = st.lists(tokens, min_size=2, max_size=25)
DISTANCE = {"freq": freq_distance, "order": order_distance, "ncd": ncd}


def chain(seed: int, length: int, weights=(5, 3, 1, 1)) -> list[str]:
    return random.Random(seed).choices(["read", "write", "bash", "edit"], weights, k=length)


def matches(found, expected, tolerance):
    if isinstance(expected, dict) and expected.get("status") == "unavailable":
        assert isinstance(found, Unavailable)
        assert found.reason == expected["reason"]
    else:
        assert found == pytest.approx(expected, abs=tolerance)


# -- two streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("freq_distance"))
def test_frequency_distances_are_those_of_scipy(inputs, expected):
    matches(freq_distance(**inputs), expected, 1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("order_distance"))
def test_order_distances_are_those_of_scipy_on_bigrams(inputs, expected):
    matches(order_distance(**inputs), expected, 1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("ncd"))
def test_compression_distances_are_the_formula_on_lengths_of_bz2(inputs, expected):
    found = ncd_parts(**inputs)
    assert ncd(**inputs) == found.symmetric == pytest.approx(expected["symmetric"], abs=1e-12)
    assert found.directed_ab == pytest.approx(expected["directed_ab"], abs=1e-12)
    assert found.directed_ba == pytest.approx(expected["directed_ba"], abs=1e-12)
    assert found.compressor == "bz2"
    assert found.floor_a > 0


def test_text_has_a_token_of_its_own():
    trace = [ActionEvent(1, "act", "read"), ActionEvent(2, "act", None, text="done"), ActionEvent(3, "act", "write")]
    assert tool_stream(trace) == ["read", "<text>", "write"]
    assert tool_stream([]) == []


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_stream_has_no_distance(level):
    assert DISTANCE[level]([], ["a", "b"]).reason == "empty_stream"
    assert DISTANCE[level](["a", "b"], []).reason == "empty_stream"


@given(streams, streams)
def test_distances_are_symmetric_and_bounded(a, b):
    for level, distance in DISTANCE.items():
        assert distance(a, b) == distance(b, a)
        assert 0 <= distance(a, b) <= (1.5 if level == "ncd" else 1)


@given(streams, st.integers(1, 4), st.randoms())
def test_streams_of_equal_shares_are_at_frequency_distance_zero(a, times, source):
    shuffled = a * times
    source.shuffle(shuffled)
    assert freq_distance(a, shuffled) == 0.0
    assert distances([a, shuffled])[0, 1] == 0.0


@given(st.lists(streams, min_size=2, max_size=8), st.sampled_from(LEVELS))
def test_the_matrix_holds_what_each_pair_has(runs, level):
    matrix = distances(runs, level)
    for i, j in itertools.combinations(range(len(runs)), 2):
        assert matrix[i, j] == matrix[j, i] == pytest.approx(DISTANCE[level](runs[i], runs[j]), abs=1e-12)
    assert not matrix.diagonal().any()


@given(st.lists(streams, min_size=2, max_size=6), st.randoms())
def test_the_bits_of_a_distance_do_not_depend_on_the_position_of_a_run(runs, source):
    order = list(range(len(runs)))
    source.shuffle(order)
    for level in ("freq", "order"):
        assert (distances([runs[i] for i in order], level) == distances(runs, level)[np.ix_(order, order)]).all()


def test_a_vocabulary_of_thousands_costs_what_is_common_only():
    runs = [[f"tool{i}" for i in range(k * 900, k * 900 + 1000)] for k in range(5)]
    matrix = distances(runs)
    assert matrix[0, 1] == pytest.approx(jensenshannon([1] * 1000 + [0] * 900, [0] * 900 + [1] * 1000, base=2) ** 2)
    assert matrix[0, 2] == 1.0


def test_episodes_of_a_run_are_averaged_not_counted_as_runs():
    runs = [[["a", "b"], ["a", "a"]], [["b", "b"]], [[], ["a", "b", "b"], ["b", "a"]]]
    matrix = mean_distances(runs)
    assert matrix.shape == (3, 3)
    pairs = [freq_distance(x, y) for x in runs[0] for y in runs[2][1:]]
    assert matrix[0, 2] == matrix[2, 0] == pytest.approx(sum(pairs) / 4)
    with pytest.raises(ConfigurationError, match="run 1 of 2"):
        mean_distances([[["a"]], [[]]])


# -- reliability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("reliability"))
def test_the_null_of_reliability_is_that_of_every_pooled_resample(inputs, expected):
    found = reliability(**inputs)
    if expected.get("status") == "unavailable":
        assert found.reason == expected["reason"]
        return
    error = 5 * expected["null_sd_per_draw"] / math.sqrt(inputs["draws"])
    assert found.within == pytest.approx(expected["within"], abs=1e-9)
    assert found.null == pytest.approx(expected["null_exact"], abs=error)
    assert found.null_sd == pytest.approx(expected["null_sd_per_draw"], rel=0.1)
    assert found.ratio == pytest.approx(expected["ratio_exact"], abs=error / expected["null_exact"])
    assert found.p_structure == pytest.approx(expected["p_structure_exact"], abs=0.06)
    assert found.reliable is expected["reliable"]
    assert found["n_runs"] == len(inputs["streams"])


@pytest.mark.parametrize("level", ["freq", "order"])
@pytest.mark.parametrize("lengths", [(6, 6, 6), (4, 7, 9)])
def test_the_sums_over_resamples_are_those_over_their_pairs(level, lengths, monkeypatch):
    runs = sorted(chain(i, length) for i, length in enumerate(lengths))
    codes, names = divergence.encode(runs)
    fast = divergence.null_means(codes, level, len(names), 50, 7)
    monkeypatch.setattr(divergence, "_CELLS", 1)
    slow = divergence.null_means(codes, level, len(names), 50, 7)
    assert fast == pytest.approx(slow, abs=1e-8)


def test_the_resamples_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    codes, names = divergence.encode([chain(i, 30) for i in range(4)])
    whole = divergence.null_means(codes, "freq", len(names), 40, 3)
    monkeypatch.setattr(divergence, "_CELLS", 500)
    assert (divergence.null_means(codes, "freq", len(names), 40, 3) == whole).all()


@pytest.mark.parametrize("level", LEVELS)
def test_reliability_does_not_depend_on_the_order_of_the_runs(level):
    runs = [chain(i, 20 + i) for i in range(5)]
    one, other = reliability(runs, level, draws=20), reliability(runs[::-1], level, draws=20)
    assert one.to_others == other.to_others[::-1]
    assert {k: v for k, v in one.items() if k != "to_others"} == {k: v for k, v in other.items() if k != "to_others"}


def test_runs_of_a_shared_procedure_have_a_small_procedure_ratio_at_any_length():
    cycle = ["read", "edit", "bash", "write"]
    for length in (60, 400):
        runs = []
        for seed in range(5):
            source, run = random.Random(seed), []
            while len(run) < length:
                run += cycle if source.random() < 0.9 else [source.choice(cycle)]
            runs.append(run[:length])
        found = reliability(runs, "order", draws=50)
        assert found.procedure_ratio < 0.3
        assert found.p_structure < 0.05


def test_independent_runs_of_one_policy_are_at_the_null_in_order_and_mix():
    runs = [chain(i, 200) for i in range(10)]
    order = reliability(runs, "order", draws=100)
    assert 0.85 < order.procedure_ratio < 1.15
    assert not order.reliable
    assert 0.02 < reliability(runs, "freq").p_structure < 0.98
    assert reliability(runs, "freq").procedure_ratio.reason == "order_not_counted"


def test_runs_of_unlike_composition_are_heterogeneous():
    runs = [chain(i, 100, weights) for i, weights in enumerate([(9, 1, 1, 1), (1, 9, 1, 1), (1, 1, 9, 1)])]
    found = reliability(runs)
    assert found.p_heterogeneous < 0.05
    assert found.ratio > 1


def test_runs_that_are_too_short_are_left_out_and_counted():
    found = reliability([["a", "b"], ["b", "a", "a"], ["a"], []], "order", draws=20)
    assert (found.n_runs, found.n_excluded) == (2, 2)
    assert reliability([["a"], []]).reason == "fewer_than_two_runs"
    assert "1 runs are long enough, 2 too short" in reliability([["a", "b"], ["a"], []], "order").detail


def test_runs_of_one_tool_say_nothing_at_any_level():
    for level in LEVELS:
        assert reliability([["a", "a"], ["a", "a", "a"]], level, draws=5).reason == "null_zero_single_tool"


# -- separation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("between_within"))
def test_r_and_its_p_are_exact(inputs, expected):
    if "D" in inputs:
        found = between_within(inputs["D"], labels=inputs["labels"])
    else:
        found = between_within(inputs["streams"], inputs["level"])
    if expected.get("status") == "unavailable":
        assert found.reason == expected["reason"]
        return
    for name in expected.keys() & {"within", "between", "R", "index"}:
        value = expected[name]
        assert found[name] == (None if value is None else pytest.approx(value, abs=1e-9, rel=1e-12))
    if "R_reason" in expected:
        assert found["R_reason"] == expected["R_reason"]
    if "p_fraction" in expected:
        assert found.p == found.p_R == float(Fraction(expected["p_fraction"]))
    for name in expected.keys() & {"p", "p_min", "labelings", "partitions", "exact"}:
        assert found[name] == expected[name]


@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=6, max_size=14, unique=True), st.integers(2, 3))
def test_the_welch_distance_of_squared_differences_is_the_square_of_welchs_t(values, cut):
    x = np.array(values)
    labels = ["a"] * cut + ["b"] * (len(x) - cut)
    found = between_within((x[:, None] - x) ** 2, labels=labels)
    t = stats.ttest_ind(x[:cut], x[cut:], equal_var=False).statistic
    assert found.welch == pytest.approx(t * t, rel=1e-6, abs=1e-6)


def test_the_welch_distance_of_more_arms_is_the_formula():
    source = np.random.default_rng(5)
    sizes, labels = (3, 4, 5), ["a"] * 3 + ["b"] * 4 + ["c"] * 5
    x = source.normal(size=(12, 2))
    d = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    d = (d + d.T) / 2
    names = np.array(labels)
    pair_sum = lambda *arms: d[np.ix_(np.isin(names, arms), np.isin(names, arms))].sum() / 2  # noqa: E731
    n = dict(zip("abc", sizes, strict=True))
    w = {g: n[g] / (pair_sum(g) / (n[g] * (n[g] - 1))) for g in "abc"}
    total, top = sum(w.values()), 0.0
    for g, h in itertools.combinations("abc", 2):
        mixed = pair_sum(g, h) / (n[g] + n[h]) - pair_sum(g) / n[g] - pair_sum(h) / n[h]
        top += w[g] * w[h] * (n[g] + n[h]) / (n[g] * n[h]) * mixed / total
    low = 2 * (1 + 2 / 8 * sum((1 - w[g] / total) ** 2 / (n[g] - 1) for g in "abc"))
    assert between_within(d, labels=labels, permutations=50).welch == pytest.approx(top / low, rel=1e-9)


def exact_p(labels, statistic):
    observed = statistic(labels)
    every = set(itertools.permutations(labels))
    return Fraction(sum(statistic(one) >= observed - 1e-9 for one in every), len(every))


@given(st.data())
@settings(max_examples=30)
def test_p_counts_every_relabeling_also_among_duplicates(data):
    pool = data.draw(st.lists(st.lists(st.sampled_from("abc"), min_size=3, max_size=5), min_size=1, max_size=3))
    sizes = data.draw(st.sampled_from([(2, 2), (3, 2), (3, 3), (2, 2, 2), (1, 4)]))
    runs = [data.draw(st.sampled_from(pool)) for _ in range(sum(sizes))]
    labels = [arm for arm, size in enumerate(sizes) for _ in range(size)]
    apart = [[freq_distance(a, b) for b in runs] for a in runs]

    def closeness(one):
        return -math.fsum(apart[i][j] for i, j in itertools.combinations(range(len(one)), 2) if one[i] == one[j])

    by_arm = {f"arm{k}": [r for r, own in zip(runs, labels, strict=True) if own == k] for k in set(labels)}
    assert between_within(by_arm).p == float(exact_p(tuple(labels), closeness))


@given(st.data())
@settings(max_examples=30)
def test_separation_depends_neither_on_names_nor_on_order(data):
    arms = data.draw(st.lists(st.lists(streams, min_size=2, max_size=4), min_size=2, max_size=3))
    renamed = data.draw(st.permutations(range(len(arms))))
    mixed = {f"x{renamed[k]}": data.draw(st.permutations(own)) for k, own in enumerate(arms)}
    one = between_within({f"arm{k}": own for k, own in enumerate(arms)}, permutations=200)
    other = between_within(mixed, permutations=200)
    for name in ("R", "within", "between", "index", "p_R", "R_balanced", "p_min"):
        assert one[name] == pytest.approx(other[name], rel=1e-12) if one[name] is not None else other[name] is None
    assert one["welch"] == (None if other["welch"] is None else pytest.approx(other["welch"], rel=1e-9, abs=1e-12))
    assert one["p_welch"] == other["p_welch"]


def test_drawn_relabelings_depend_neither_on_names_nor_on_order():
    arms = {k: [chain(100 * i + j, 30) for j in range(9)] for i, k in enumerate("abc")}
    one = between_within(arms, permutations=500)
    other = between_within({"z": arms["a"][::-1], "b": arms["c"], "a": arms["b"]}, permutations=500)
    assert not one.exact
    assert (one.p_R, one.p_welch, one.R) == (other.p_R, other.p_welch, pytest.approx(other.R, rel=1e-12))


def test_a_drawn_p_agrees_with_the_enumerated_one(monkeypatch):
    arms = {"a": [chain(i, 40) for i in range(6)], "b": [chain(i + 50, 40, (4, 3, 2, 1)) for i in range(7)]}
    exact = between_within(arms)
    monkeypatch.setattr(relabel, "ENUMERATED", 0)
    drawn = between_within(arms, permutations=20_000)
    assert (exact.exact, drawn.exact) == (True, False)
    assert exact.relabelings == 1716
    assert drawn.p_R == pytest.approx(exact.p_R, abs=5 * drawn.p_R_se)
    assert drawn.p_welch == pytest.approx(exact.p_welch, abs=5 * drawn.p_welch_se)
    assert drawn.p_R * 20_001 == pytest.approx(round(drawn.p_R * 20_001))


def test_enumerated_relabelings_are_all_of_them_once():
    for sizes in ((2, 2), (1, 3), (2, 1, 2), (2, 2, 2)):
        design = relabel.Design(sizes)
        codes = np.repeat(np.arange(len(sizes)), sizes).astype(np.int16)
        seen = Counter(tuple(row) for batch in design.batches(codes, None, 1, 0) for row in batch.tolist())
        assert set(seen.values()) == {1}
        assert set(seen) == set(itertools.permutations(codes.tolist()))
        assert design.labelings == len(seen)


@pytest.mark.parametrize("enumerated", [50_000, 0])
def test_labels_move_within_seeds_when_arms_share_them(enumerated, monkeypatch):
    monkeypatch.setattr(relabel, "ENUMERATED", enumerated)
    design, seeds = relabel.Design((3, 3), 3), np.array([0, 1, 2, 2, 0, 1])
    codes = np.array([0, 0, 0, 1, 1, 1], dtype=np.int16)
    rows = [tuple(row) for batch in design.batches(codes, seeds, 400, 0) for row in batch.tolist()]
    for row in rows:
        assert {tuple(sorted(np.array(row)[seeds == s])) for s in range(3)} == {(0, 1)}
    assert len(set(rows)) == 8 == design.labelings
    assert design.partitions == 4


def test_an_effect_hidden_by_what_seeds_share_is_found_within_seeds():
    # each seed has a task of its own; the arm begins it with tests, every time
    tasks = [
        chain(s, 60, [(9, 1, 1, 1), (1, 9, 1, 1), (1, 1, 9, 1), (1, 1, 1, 9), (5, 5, 1, 1), (1, 1, 5, 5)][s])
        for s in range(6)
    ]
    arms = {"a": tasks, "b": [["test"] * 4 + task[4:] for task in tasks]}
    seeds = {"a": range(6), "b": range(6)}
    blocked = separation(arms, seeds=seeds)
    assert blocked.scheme == "within_seed"
    assert blocked.labelings == 64
    assert blocked.p == blocked.p_min == 2 / 64
    free = separation(arms, seeds=seeds, shared_seeds=False)
    assert free.scheme == "unrestricted"
    assert free.p > 0.5


def test_labels_move_freely_and_it_is_said_when_seeds_are_not_in_every_arm_or_too_few():
    arms = {"a": [chain(i, 20) for i in range(4)], "b": [chain(i + 9, 20) for i in range(4)]}
    other = between_within(arms, seeds={"a": [0, 1, 2, 3], "b": [1, 2, 3, 4]})
    assert other.scheme == "unrestricted"
    assert "every seed" in " ".join(other.warnings)
    few = between_within(arms, seeds={"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]})
    assert (few.scheme, few.p_min) == ("unrestricted", 1 / 35)
    assert "within seeds cannot" in " ".join(few.warnings)


def test_a_run_that_appears_twice_is_refused():
    with pytest.raises(ConfigurationError, match="2 streams of seed 0"):
        between_within({"a": [["x"], ["y"]], "b": [["x"], ["y"]]}, seeds={"a": [0, 0], "b": [0, 1]})
    with pytest.raises(ConfigurationError, match="unit"):
        between_within([[0, 1], [1, 0]], labels=["a", "a"], seeds=[1, 1])


@pytest.mark.parametrize(
    ("sizes", "shared", "p_min"),
    [((3, 3), False, 1 / 10), ((4, 4), False, 1 / 35), ((1, 18), False, 1 / 19), ((2, 2, 3), False, 1 / 105),
     ((3, 3, 3), False, 1 / 280), ((2, 2, 2, 2), False, 1 / 105), ((6, 6), True, 2 / 64), ((5, 5), True, 1 / 126)],
)  # fmt: skip
def test_what_a_design_can_show_is_known_before_it_runs(sizes, shared, p_min):
    found = attainability(sizes, 0.05, shared_seeds=shared)
    assert found.p_min == pytest.approx(p_min, rel=1e-12)
    assert found.attainable == (p_min <= 0.05)


def test_three_runs_an_arm_say_that_they_cannot_show_anything():
    found = between_within({"a": [["x"]] * 2 + [["x", "y"]], "b": [["z"]] * 2 + [["z", "y"]]})
    assert found.p == found.p_min == pytest.approx(0.1)
    assert not found.attainable
    assert "no outcome" in " ".join(found.warnings)


def test_runs_that_never_differ_within_arms_have_no_ratio_but_a_p():
    found = between_within({"a": [["x"]] * 4, "b": [["y"]] * 4})
    assert found.R.reason == "within_zero"
    assert found["R"] is None
    assert found["R_reason"] == "within_zero"
    assert (found.index, found.p) == (1.0, pytest.approx(1 / 35))


def test_sums_tie_that_are_equal_in_thirds():
    # 1/3 + 1/3 and 2/3 + 0 are equal, though a third has no exact number
    thirds = np.array([[0, 1, 2, 1], [1, 0, 1, 0], [2, 1, 0, 1], [1, 0, 1, 0]]) / 3
    labels = ("a", "a", "b", "b")
    whole = (thirds * 3).round()

    def closeness(one):
        return -sum(whole[i, j] for i, j in itertools.combinations(range(4), 2) if one[i] == one[j])

    assert between_within(thirds, labels=labels).p == float(exact_p(labels, closeness))


def test_the_gating_p_is_welchs_and_falls_back_to_rs_with_a_warning():
    arms = {"a": [chain(i, 40) for i in range(4)], "b": [chain(i + 9, 40, (1, 1, 5, 5)) for i in range(4)]}
    found = separation(arms)
    assert (found.p, found.p_of) == (found.p_welch, "welch")
    alone = separation({"a": arms["a"], "b": arms["b"][:1]})
    assert alone.welch.reason == "welch_needs_dispersion"
    assert (alone.p, alone.p_of) == (alone.p_R, "R")
    assert "p is R's" in alone.warnings[-1]
    assert separation({"a": arms["a"]}).reason == "fewer_than_two_labels"


def test_unequal_arms_of_one_mean_and_unequal_dispersion_do_not_separate():
    # R's p fails this (that is known); the Welch distance's must not
    source, hits, hits_of_r = np.random.default_rng(2), 0, 0
    for _ in range(150):
        x = np.concatenate([source.normal(0, 3, 4), source.normal(0, 0.5, 11)])
        found = separation((x[:, None] - x) ** 2, labels=["a"] * 4 + ["b"] * 11, permutations=400)
        hits += found.p <= 0.05
        hits_of_r += found.p_R <= 0.05
    assert hits / 150 < 0.13
    assert hits_of_r > 2 * hits


@pytest.mark.parametrize("level", ["freq", "order"])
def test_runs_that_differ_in_length_alone_do_not_separate(level):
    hits = hits_of_r = 0
    for i in range(100):
        short = [chain(1000 * i + j, 30) for j in range(4)]
        arms = {"a": short, "b": [chain(1000 * i + j + 500, 240) for j in range(8)]}
        found = separation(arms, level, permutations=300)
        hits += found.p <= 0.05
        hits_of_r += found.p_R <= 0.05
        assert found.cut_to == 30
    assert hits <= 13
    assert hits_of_r > 60


def test_rarefied_distances_are_those_of_parts_of_the_shortest_length():
    runs = [chain(i, length) for i, length in enumerate([12, 40, 90, 12])]
    thin = rarefied_distances(runs, draws=400)
    plain = distances(runs)
    assert (thin == thin.T).all()
    assert thin[0, 3] == pytest.approx(plain[0, 3], abs=1e-12)
    assert thin[1, 2] > plain[1, 2]
    whole = rarefied_distances(runs[:1] + runs[3:], "order")
    assert (whole == distances(runs[:1] + runs[3:], "order")).all()
    with pytest.raises(ConfigurationError, match="ncd"):
        rarefied_distances(runs, "ncd")


def test_streams_of_unequal_length_and_short_ones_are_told():
    arms = {"a": [chain(i, 20) for i in range(4)], "b": [chain(i + 9, 90) for i in range(4)] + [[]]}
    found = between_within(arms)
    assert found.n_excluded == 1
    assert found.sizes == {"a": 4, "b": 4}
    assert "too short" in found.warnings[0]
    assert "4.5 times" in found.warnings[1]


def test_missing_runs_are_counted_and_never_taken_for_empty_ones():
    found = separation({"a": [["x", "y"], ["y", "y"], None], "b": [["z", "y"], None, ["z", "z"]]})
    assert (found.n, found.n_missing, found.n_excluded) == (4, 2, 0)
    assert "2 runs are missing" in found.warnings[0]
    alike = reliability([["x", "y"], None, ["y", "y"]])
    assert (alike.n_runs, alike.n_missing) == (2, 1)
    assert reliability([["x", "y"], None]).reason == "fewer_than_two_runs"


def test_every_run_keeps_its_own_distances():
    arms = {"a": [["x"], ["x", "y"]], "b": [["y"]]}
    found = between_within(arms, seeds={"a": ["s0", "s1"], "b": ["s0"]})
    first = next(run for run in found.observations if (run.arm, run.seed) == ("a", "s0"))
    assert first.to_own == pytest.approx(freq_distance(["x"], ["x", "y"]))
    assert first.to_others == 1.0
    assert next(run for run in found.observations if run.arm == "b").to_own is None


def test_results_are_plain_json():
    found = separation({"a": [["x"], ["x", "y"]], "b": [["y"], ["z"]]})
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["p"] == found.p
    assert found["within"] == found.within
    assert len(found) == len(data)
    assert json.dumps(reliability([["x", "y"], ["y", "y"]], draws=1).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: between_within({"a": [["x"]]}, "procedure"), "freq, order, ncd"),
        (lambda: between_within([[0, 1], [1, 0]]), "labels="),
        (lambda: between_within([[0, 1], [2, 0]], labels=["a", "b"]), "symmetric"),
        (lambda: between_within([[0, float("nan")], [float("nan"), 0]], labels=["a", "b"]), "finite"),
        (lambda: between_within([[0, 1], [1, 0]], labels=["a"]), "do not fit"),
        (lambda: between_within({"a": [["x"]]}, permutations=0), "1 or more"),
        (lambda: between_within({"a": [["x"]]}, seeds={"a": [1, 2]}), "one for each"),
        (lambda: between_within({"a": [["x"]]}, labels=["a"]), "no labels="),
        (lambda: reliability([["x"]], draws=0), "1 or more"),
        (lambda: distances([["x"], []]), "stream 1 of 2"),
        (lambda: attainability([3]), "two or more arms"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_to_write_instead(call, said):
    with pytest.raises(ConfigurationError, match=said):
        call()


_THREADS = """
import random
from pytest_proteus.measure.stream import reliability, separation
arms = {a: [random.Random(f"{a}{i}").choices("rwbe", k=60) for i in range(30)] for a in "abc"}
print(dict(separation(arms, permutations=2000)), dict(reliability(arms["a"], "order", 100)))
"""


def test_the_numbers_are_the_same_on_any_number_of_threads():
    said = set()
    for threads in ("1", "3"):
        env = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", _THREADS], env=env, capture_output=True, text=True, check=True)
        said.add(done.stdout)
    assert len(said) == 1
