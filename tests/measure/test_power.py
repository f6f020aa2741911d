"""How many runs it takes: attainable p and normal-theory plans against what comparisons then do."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy import stats

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.gate import compare
from pytest_proteus.measure.power import attainable, detectable, pairs_needed

GATE = {"direction": "higher", "margin": 0.1}


def verdict(differences, **options):
    baseline = dict.fromkeys(range(len(differences)), 0.5)
    return compare(baseline, {i: 0.5 + d for i, d in enumerate(differences)}, **{**GATE, **options}).verdict


@pytest.mark.parametrize(("alpha", "n"), [(0.05, 5), (0.025, 6), (0.1, 4), (0.125, 3)])
def test_a_sign_flip_needs_as_many_pairs_as_two_has_to_be_multiplied(alpha, n):
    found = attainable(n, alpha=alpha, **GATE)
    assert (found.n_pass, found.n_fail, found.can_pass, found.can_fail) == (n, n, True, True)
    assert found.p_pass_min == 2.0**-n
    assert not attainable(n - 1, alpha=alpha, **GATE).can_pass


def test_what_is_attainable_is_what_the_clearest_data_get():
    for n in range(2, 8):
        clear = [0.3 + i / 100 for i in range(n)]
        assert attainable(n, **GATE).can_pass == (verdict(clear) == "pass")
        assert attainable(n, **GATE).can_fail == (verdict([-d for d in clear]) == "fail")


def test_an_equivalence_needs_one_pair_more_to_fail():
    found = attainable(5, kind="equivalent", **GATE)
    assert (found.can_pass, found.can_fail, found.n_fail) == (True, False, 6)


def test_betting_can_fail_later_than_it_can_pass():
    options = {"assume": "bounded", "bounds": (0.0, 1.0)}
    found = attainable(5, **GATE, **options)
    assert found.n_pass < found.n_fail
    for n in range(1, 12):
        best = compare(dict.fromkeys(range(n), 0.0), dict.fromkeys(range(n), 1.0), **GATE, **options)
        worst = compare(dict.fromkeys(range(n), 1.0), dict.fromkeys(range(n), 0.0), **GATE, **options)
        assert (best.verdict == "pass") == (n >= found.n_pass)
        assert (worst.verdict == "fail") == (n >= found.n_fail)
        assert best.p_min == pytest.approx(attainable(n, **GATE, **options).p_pass_min)


def test_a_direct_comparison_needs_one_run_and_student_s_t_two():
    assert attainable(1, direction="higher", margin=0, assume="deterministic").can_fail
    assert not attainable(0, direction="higher", margin=0, assume="deterministic").can_pass
    assert attainable(2, assume="normal", **GATE).can_pass
    assert not attainable(1, assume="normal", **GATE).can_pass


def test_what_no_number_of_pairs_can_do_is_refused():
    with pytest.raises(ConfigurationError, match="no outcome can fail"):
        attainable(9, direction="higher", margin=2, assume="bounded", bounds=(0, 1))
    with pytest.raises(ConfigurationError, match="n is"):
        attainable(-1, **GATE)
    with pytest.raises(ConfigurationError, match="no number of pairs"):
        attainable(9, alpha=1e-9, **GATE)


def test_the_plan_is_that_of_the_normal_distribution():
    n = pairs_needed(1.0, 0.5)
    assert n == math.ceil((1.6448536269514722 + 0.8416212335729143) ** 2 * 4) == 25
    assert detectable(1.0, n) <= 0.5 < detectable(1.0, n - 1)
    assert detectable(1.0, 25) == pytest.approx(2 * detectable(1.0, 100))
    power = stats.norm.cdf(0.5 * math.sqrt(n) - stats.norm.ppf(0.95))
    assert power == pytest.approx(0.8, abs=0.02)
    assert pairs_needed(1.0, 0.5, claims=2) > n
    with pytest.raises(ConfigurationError, match="margin itself"):
        pairs_needed(1.0, 0.0)


def test_a_comparison_names_the_plan_for_its_own_spread():
    differences = [0.1, -0.2, 0.3, -0.1, 0.0, 0.05, -0.15]
    baseline = dict.fromkeys(range(7), 0.5)
    found = compare(baseline, {i: 0.5 + d for i, d in enumerate(differences)}, **GATE)
    spread = statistics.stdev(differences)
    assert found.n_needed == pairs_needed(spread, 0.1)
    assert found.mde == pytest.approx(detectable(spread, 7))
