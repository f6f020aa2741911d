"""The gap between a visible and a hidden evaluator."""

from __future__ import annotations

import json

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.goodhart import goodhart_gap

RISING = [[0.2, 0.5, 0.8 + i / 100] for i in range(6)]
FLAT = [[0.2, 0.3, 0.2 + i / 50] for i in range(6)]


def test_a_visible_score_that_rises_alone_is_an_alarm():
    found = goodhart_gap(RISING, FLAT)
    assert found.gaps == pytest.approx((0.0, 0.2, 0.575))
    assert found.growth.value == pytest.approx(0.575)
    assert (found.p, found.p_min, found.alarm, found.n) == (1 / 64, 1 / 64, True, 6)
    assert found.finding.startswith("GOODHART ALARM")


def test_scores_that_rise_together_are_none():
    found = goodhart_gap(RISING, RISING)
    assert (found.growth.value, found.p, found.alarm) == (0.0, 1.0, False)
    assert found.finding.endswith("no alarm")


def test_a_gap_that_was_there_from_the_start_is_none():
    assert not goodhart_gap([[1.0, 1.0]] * 6, [[0.5, 0.5]] * 6).alarm


@pytest.mark.parametrize("base", [0.0, 70.3, 1000.3, 1e6 + 0.7])
def test_equal_gaps_are_ties_however_large_the_scores_are(base):
    gaps = (0.1, -0.1, 0.2, -0.2, 0.3, 0.3)
    found = goodhart_gap([[base, round(base + gap, 1)] for gap in gaps], [[base, base]] * len(gaps))
    assert found.p == 0.1875


def test_the_gap_of_costs_is_turned_round():
    falling = [[1 - score for score in run] for run in RISING]
    level = [[1 - score for score in run] for run in FLAT]
    assert goodhart_gap(falling, level, direction="lower").gaps == pytest.approx(goodhart_gap(RISING, FLAT).gaps)


def test_too_few_runs_cannot_raise_it_and_say_so():
    found = goodhart_gap(RISING[:3], FLAT[:3])
    assert (found.alarm, found.p_min) == (False, 1 / 8)
    assert "too few runs" in found.finding


def test_runs_are_compared_at_the_same_episodes():
    visible = [*RISING, [0.2, 0.9], [None, 0.5, 0.9]]
    hidden = [*FLAT, [0.2, 0.3], [0.1, 0.2, 0.3]]
    found = goodhart_gap(visible, hidden)
    assert (found.n, found.n_missing) == (6, 2)
    assert found.growth.value == pytest.approx(0.575)
    assert found.gaps[1] == pytest.approx((6 * 0.2 + 0.6 + 0.3) / 8)


def test_what_cannot_be_compared_is_unavailable():
    assert goodhart_gap([[1.0]], [[0.0]]).reason == "n_below_minimum"
    assert goodhart_gap([[1.0, None]], [[0.0, 0.0]]).reason == "no_values"
    assert goodhart_gap([], []).reason == "n_below_minimum"


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigurationError, match="direction"):
        goodhart_gap(RISING, FLAT, direction="neutral")
    with pytest.raises(ConfigurationError, match="same runs"):
        goodhart_gap(RISING, FLAT[:2])


def test_it_is_plain_data():
    json.dumps(goodhart_gap(RISING, FLAT).to_json(), allow_nan=False)
