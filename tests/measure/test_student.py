"""Student's distribution is that of the reference library, tails and all, whose earlier versions have eight digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_proteus.measure import student

freedoms = st.floats(0.6, 1e6) | st.integers(1, 400)


@given(st.floats(1e-3, 1e4), freedoms)
def test_the_probability_beyond_a_number_agrees(t, freedom):
    expected = float(stats.t.sf(t, freedom))
    if expected > 1e-290:
        assert student.beyond(t, freedom) == pytest.approx(expected, rel=1e-7)
        assert student.beyond(-t, freedom) == pytest.approx(1 - expected, rel=1e-9)


@given(st.floats(1e-12, 0.49), freedoms)
def test_the_number_beyond_which_a_probability_lies_agrees(tail, freedom):
    p = 1 - tail
    assert student.quantile(p, freedom) == pytest.approx(float(stats.t.ppf(p, freedom)), rel=1e-7)
    assert student.quantile(1 - p, freedom) == pytest.approx(-student.quantile(p, freedom), rel=1e-3)


def test_one_degree_of_freedom_is_cauchy_s_distribution():
    assert student.beyond(1.0, 1) == pytest.approx(0.25, rel=1e-15)
    assert student.beyond(1e-6, 1) == pytest.approx(0.5 - math.atan(1e-6) / math.pi, rel=1e-15)
    assert student.beyond(1e200, 1) == pytest.approx(1 / (math.pi * 1e200), rel=1e-12)


def test_the_middle_and_the_ends():
    assert student.quantile(0.5, 3) == 0
    assert student.beyond(0.0, 3) == 0.5
    assert student.beyond(math.inf, 3) == 0
