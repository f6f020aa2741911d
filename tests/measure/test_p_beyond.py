"""The p of a one-sided test that an interval's end is, held against tests that are made without the interval."""

import math

import pytest
from scipy import stats

from pytest_proteus.measure.summary import betting_interval, estimate, p_beyond

VALUES = [3.1, 2.7, 4.4, 3.9, 2.2, 3.3]


@pytest.mark.parametrize("bound", [0.5, 2.0, 3.0])
@pytest.mark.parametrize(("above", "side"), [(True, "greater"), (False, "less")])
def test_that_of_t_is_student_s(bound, above, side):
    wanted = stats.ttest_1samp(VALUES, bound, alternative=side).pvalue
    found = p_beyond(estimate(VALUES), bound, above=above)
    assert found == pytest.approx(wanted if wanted < 0.5 else 1.0, rel=1e-6)


def test_that_of_a_rate_is_the_score_test_s():
    rate = estimate([1, 1, 1, 0, 1, 1, 1, 1, 0, 1], bounds=(0, 1))
    assert rate.interval.method == "wilson"
    wanted = stats.norm.sf((0.8 - 0.5) / math.sqrt(0.25 / 10))
    assert p_beyond(rate, 0.5, above=True) == pytest.approx(wanted, rel=1e-6)


def test_that_of_betting_is_the_alpha_at_which_the_interval_leaves_the_bound():
    values = [0.5, 0.6, 0.4] * 10
    p = p_beyond(estimate(values, bounds=(0, 1)), 0.7, above=False)
    assert 0 < p < 0.05
    assert betting_interval(values, (0, 1), 1 - 2 * p * 1.001).high < 0.7
    assert betting_interval(values, (0, 1), 1 - 2 * p * 0.999).high > 0.7


def test_deterministic_values_leave_no_doubt():
    found = estimate([2.0, 2.0], kind="deterministic")
    assert (p_beyond(found, 1, above=True), p_beyond(found, 3, above=True)) == (0.0, 1.0)


def test_without_an_interval_there_is_none():
    assert p_beyond(estimate([2.0, 2.0]), 1, above=True) is None
