"""The p of a one-sided test that an interval's end is, held against tests that are made without the interval."""

import pytest
from scipy import stats

from pytest_proteus.measure.summary import betting_interval, deciding, estimate, p_beyond

VALUES = [3.1, 2.7, 4.4, 3.9, 2.2, 3.3]


@pytest.mark.parametrize("bound", [0.5, 2.0, 3.0])
@pytest.mark.parametrize(("above", "side"), [(True, "greater"), (False, "less")])
def test_that_of_t_is_student_s(bound, above, side):
    wanted = stats.ttest_1samp(VALUES, bound, alternative=side).pvalue
    found = p_beyond(estimate(VALUES), bound, above=above)
    assert found == pytest.approx(wanted if wanted < 0.5 else 1.0, rel=1e-6)


@pytest.mark.parametrize("bound", [0.0, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize(("above", "side"), [(True, "greater"), (False, "less")])
@pytest.mark.parametrize("successes", [0, 4, 8, 10])
def test_that_of_a_rate_is_the_exact_binomial_test_s(successes, bound, above, side):
    rate = estimate([1] * successes + [0] * (10 - successes), bounds=(0, 1))
    assert rate.interval.method == "wilson"
    wanted = stats.binomtest(successes, 10, bound, alternative=side).pvalue
    assert p_beyond(rate, bound, above=above) == pytest.approx(wanted if wanted < 0.5 else 1.0, rel=1e-9)


@pytest.mark.parametrize("n", [3, 5, 10, 20, 50])
def test_the_interval_that_decides_on_a_rate_misses_it_at_its_level_at_most(n):
    ends = [deciding(estimate([1] * k + [0] * (n - k), bounds=(0, 1))).interval for k in range(n + 1)]
    for rate in [number / 50 for number in range(1, 50)]:
        chances = stats.binom.pmf(range(n + 1), n, rate)
        assert sum(chance for chance, end in zip(chances, ends, strict=True) if end.low > rate) <= 0.05
        assert sum(chance for chance, end in zip(chances, ends, strict=True) if end.high < rate) <= 0.05


def test_missing_runs_widen_the_interval_that_decides_on_a_rate():
    found = deciding(estimate([1] * 8 + [None, None], bounds=(0, 1)))
    assert found.interval.low == pytest.approx(0.05 ** (1 / 8))
    assert found.with_missing.low < found.interval.low
    assert found.with_missing.high == 1
    assert found.with_missing.method == "clopper-pearson, missing values at their worst and best"


def test_other_intervals_decide_themselves():
    for found in (estimate(VALUES), estimate([0.2, 0.4], bounds=(0, 1)), estimate([1.0])):
        assert deciding(found) is found


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
