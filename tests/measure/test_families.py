"""Several gates at once: corrected p against independent answers, and what a correction may and may not do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_oracles import cases
from scipy import stats

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import signflip
from pytest_proteus.measure.families import adjust, correct, max_t
from pytest_proteus.measure.gate import compare
from pytest_proteus.measure.unavailable import Unavailable

some_ps = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@pytest.mark.parametrize(("inputs", "expected"), cases("bh"))
def test_benjamini_and_hochberg_as_in_scipy(inputs, expected):
    assert adjust(inputs["p"], "bh") == pytest.approx(expected, abs=1e-12)


@given(some_ps)
def test_benjamini_and_hochberg_for_any_p(ps):
    assert adjust(ps, "bh") == pytest.approx(stats.false_discovery_control(ps).tolist(), abs=1e-12)


@given(some_ps)
def test_holm_rejects_what_closed_testing_by_bonferroni_does(ps):
    """A claim is rejected when every set of claims with it is, by its smallest p times its size."""
    for i, adjusted in enumerate(adjust(ps)):
        others = [j for j in range(len(ps)) if j != i]
        sets = [(i, *more) for k in range(len(ps)) for more in itertools.combinations(others, k)]
        closed = max(min(1.0, len(chosen) * min(ps[j] for j in chosen)) for chosen in sets)
        assert adjusted == pytest.approx(closed, abs=1e-12)


def test_holm_worked_out_by_hand():
    assert adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_p_that_is_not_known_stays_so_and_makes_the_others_no_easier():
    assert adjust([0.01, None, Unavailable("no_values")]) == [pytest.approx(0.03), None, None]
    assert adjust([]) == []


@pytest.mark.parametrize(("ps", "method"), [([0.1], "tukey"), ([1.5], "holm"), ([-0.1], "bh"), ([math.nan], "holm")])
def test_what_is_no_p_or_no_correction_is_refused(ps, method):
    with pytest.raises(ConfigurationError):
        adjust(ps, method)


def gated(differences):
    baseline = dict.fromkeys(range(len(differences)), 0.5)
    candidate = {i: 0.5 + d for i, d in enumerate(differences)}
    return compare(baseline, candidate, direction="higher", margin=0.01)


def test_a_fail_that_so_many_gates_give_by_chance_is_undecided():
    failed = gated([-0.3, -0.2, -0.25, -0.28, -0.22])
    passed = gated([0.3, 0.2, 0.25, 0.28, 0.22])
    assert [one.verdict for one in correct([failed])] == ["fail"]
    two = correct([failed, passed])
    assert [one.verdict for one in two] == ["undecided", "pass"]
    assert two[0].reason == "not_significant_in_family"
    assert two[0].p_adjusted == 2 * failed.p_fail
    strong = gated([-0.3 - i / 100 for i in range(10)])
    assert [one.verdict for one in correct([strong, passed, passed, passed])] == ["fail", "pass", "pass", "pass"]


def test_a_gate_without_a_p_has_no_corrected_one():
    empty = compare({1: None}, {1: 1.0}, direction="higher", margin=0.1)
    (found,) = correct([empty])
    assert found.verdict == "unavailable"
    assert found.p_adjusted.reason == "no_values"


def test_copies_of_one_claim_cost_nothing_by_their_largest_statistic():
    values = {f"s{i}": v for i, v in enumerate([0.3, 0.1, 0.4, -0.1, 0.5, 0.2, 0.35])}
    scaled = {key: 1000 * value for key, value in values.items()}
    alone = signflip.p_greater(list(values.values()))
    assert max_t([values]) == [alone]
    assert max_t([values, scaled, values]) == [alone] * 3


@given(st.lists(st.lists(st.integers(-5, 5), min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_largest_statistic_under_all_shared_flips_by_brute_force(columns):
    claims = [{i: float(v) for i, v in enumerate(column)} for column in columns]
    found = max_t(claims)
    sizes = [math.sqrt(sum(v * v for v in column)) or 1.0 for column in columns]

    def statistics(signs):
        return [
            sum(s * v for s, v in zip(signs, column, strict=True)) / n for column, n in zip(columns, sizes, strict=True)
        ]

    actual = statistics([1] * 6)
    flips = [statistics(signs) for signs in itertools.product([1, -1], repeat=6)]
    order = sorted(range(len(columns)), key=lambda j: -actual[j])
    last = 0.0
    for place, j in enumerate(order):
        hits = sum(max(flip[k] for k in order[place:]) >= actual[j] - 1e-9 for flip in flips)
        last = max(last, hits / 64)
        assert found[j] == pytest.approx(last)


def test_a_claim_without_values_and_a_run_without_a_claim_s_value():
    assert max_t([{}, {}]) == [1.0, 1.0]
    clear = {i: 1.0 + i for i in range(6)}
    assert max_t([clear, {}])[1] == 1.0
    assert max_t([clear, {0: 1.0, 9: 1.0}])[0] <= 0.05


def test_many_runs_are_corrected_by_drawn_flips():
    rng = np.random.default_rng(0)
    claims = [dict(enumerate((rng.normal(size=20) + shift).tolist())) for shift in (1.5, 0.0)]
    strong, none = max_t(claims)
    assert strong < 0.01
    assert none > 0.05
