"""Verdicts are wrong no more often than their level says, where what they assume is true: the quick form.

Seeds are fixed, and a rate counts as too large only when chance exceeds it once in a million simulations.
"""

from __future__ import annotations

import error_rates
import pytest
from error_rates import (
    ALPHA,
    BEYOND,
    FAMILIES,
    MEANS,
    SEPARATIONS,
    SIZES,
    most,
    of_a_mean,
    separations,
    stopped,
    verdicts,
)

BY_NAME = {family.name: family for family in FAMILIES}
TRUE = [(family, assume) for family in FAMILIES for assume in family.assumptions if assume in family.holds]


def runs_of(n, assume):
    """Betting takes long, and is so cautious that few runs show it."""
    few = 20 if assume == "bounded" else 50
    return few if n == 50 else 2 * few


@pytest.mark.parametrize(("family", "assume"), TRUE, ids=lambda value: getattr(value, "name", value))
def test_at_the_margin_a_pass_and_a_fail_are_each_given_with_probability_alpha_at_most(family, assume):
    runs = {n: runs_of(n, assume) for n in SIZES}
    found = {n: verdicts(family, n, assume, 1.0, runs[n]) for n in SIZES}
    for verdict in ("pass", "fail"):
        assert [n for n in SIZES if found[n][verdict] > most(runs[n])] == [], verdict
        total = sum(runs.values())
        assert sum(found[n][verdict] * runs[n] for n in SIZES) / total <= most(total), verdict


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_without_a_change_nothing_fails_more_often_than_alpha_whatever_the_values(family):
    assert verdicts(family, 10, "symmetric", 0.0, 80)["fail"] <= most(80)


@pytest.mark.parametrize("name", [name for name, (_, _, _, holds) in MEANS.items() if holds])
def test_a_gate_on_a_mean_at_its_bound_passes_and_fails_with_probability_alpha_at_most(name):
    for n in SIZES:
        runs = 40 if MEANS[name][2] else 200
        found = of_a_mean(name, n, runs)
        assert max(found["pass"], found["fail"]) <= most(runs), n
    looked_at = of_a_mean(name, 20, 40, looks=True)
    assert max(looked_at["pass"], looked_at["fail"]) <= most(40)


def test_an_equivalence_is_claimed_and_refuted_with_probability_alpha_at_most():
    neutral = {"direction": "neutral", "kind": "equivalent"}
    for n in (5, 10):
        found = verdicts(BY_NAME["normal"], n, "symmetric", 1.0, 150, **neutral)
        assert max(found["pass"], found["fail"]) <= most(150)


def test_a_collapse_that_no_run_showed_is_never_a_pass_where_the_others_are_all_equal():
    for n in SIZES:
        assert verdicts(BY_NAME["rare collapse"], n, "symmetric", 1.0, 40)["pass"] == 0


def test_what_is_published_of_broken_assumptions_is_no_exaggeration():
    """One-sided skew and a rare collapse in noise pass too often, and only declared bounds help."""
    assert verdicts(BY_NAME["one-sided skew"], 5, "normal", 1.0, 400)["pass"] > most(400)
    assert verdicts(BY_NAME["rare collapse in noise"], 10, "symmetric", 1.0, 60)["pass"] > most(60)
    assert verdicts(BY_NAME["rare collapse in noise"], 10, "bounded", 1.0, 60)["pass"] <= most(60)


@pytest.mark.parametrize(
    ("name", "assume"),
    [("normal", "symmetric"), ("heavy tails (t, 3 degrees)", "symmetric"), ("solved or not", "bounded")],
)
def test_looking_after_each_seed_costs_no_error_rate(name, assume):
    found, _ = stopped(BY_NAME[name], 12, assume, 1.0, 150)
    assert max(found["pass"], found["fail"]) <= most(150)


def test_looking_after_each_seed_saves_seeds():
    found, spent = stopped(BY_NAME["normal"], 20, "symmetric", 2.0, 30)
    assert found["fail"] > 0.7
    assert spent < 16


def test_of_twenty_gates_at_their_margin_one_fails_with_probability_alpha_at_most():
    raw, held = error_rates.family_of_gates(20, 10, 50)
    assert held <= most(50)
    assert raw > held + ALPHA


@pytest.mark.parametrize("name", [name for name in SEPARATIONS if name != BEYOND])
def test_arms_of_one_policy_are_told_apart_with_probability_alpha_at_most(name):
    assert separations(SEPARATIONS[name], 50)[0] <= most(50)
