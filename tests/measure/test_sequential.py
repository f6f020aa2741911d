"""Verdicts while seeds come in: error rates over whole orbits, and what a look may and may not decide."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_oracles import cases

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import betting, signflip
from pytest_proteus.measure.sequential import (
    betting_crossing,
    crossing,
    fewest,
    in_sequence,
    mean_in_sequence,
    sooner_in_sequence,
)
from pytest_proteus.measure.summary import Observation


def sequence(differences, n_max, **options):
    """In what order the differences came decides; the baseline is one half throughout."""
    keys = range(len(differences))
    baseline = dict.fromkeys(keys, 0.5)
    candidate = {key: None if d is None else 0.5 + d for key, d in zip(keys, differences, strict=True)}
    return in_sequence(
        baseline, candidate, **{"order": keys, "n_max": n_max, "direction": "higher", "margin": 0.1, **options}
    )


def worsening(n, by=0.3):
    return [-by - i / 100 for i in range(n)]


# -- the test ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("gs_signflip"))
def test_the_crossing_is_the_one_worked_out_by_hand(inputs, expected):
    assert crossing(inputs["x"], n_max=inputs["n_max"], alpha=inputs["alpha"]) == expected["cross_at"]


@pytest.mark.parametrize(
    "sizes", [[1, 1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8], [8, 1, 1, 0, 3, 3, 0.5, 2], [0.1, 0.2, 0.3] * 3]
)
@pytest.mark.parametrize("looks", [None, [4, 6, 8], [8]])
def test_over_all_choices_of_signs_at_most_alpha_cross(sizes, looks):
    n = len(sizes)
    crossed = sum(
        crossing([s * x for s, x in zip(signs, sizes, strict=True)], n_max=n, looks=looks) is not None
        for signs in itertools.product([1, -1], repeat=n)
    )
    assert crossed / 2**n <= 0.05
    assert crossed > 0


def test_equal_sizes_cross_in_twelve_of_256_cases():
    """As many as the level allows, ties apart."""
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    crossed = sum(
        crossing([s * x for s, x in zip(signs, values, strict=True)], n_max=8) is not None
        for signs in itertools.product([1, -1], repeat=8)
    )
    assert crossed == 12


def crossing_by_hand(values, n_max, looks, alpha):
    """The same in whole numbers, one choice of signs after the other."""
    alive = list(itertools.product([1, -1], repeat=n_max))
    own = tuple(-1 if value < 0 else 1 for value in values)
    total, crossed = len(alive), 0
    for k in sorted(looks):
        if k > len(values):
            return None
        sums = {signs: sum(s * abs(v) for s, v in zip(signs[:k], values[:k], strict=True)) for signs in alive}
        over = set()
        for bar in sorted(set(sums.values()), reverse=True):
            tied = {signs for signs in alive if sums[signs] == bar}
            if crossed + len(over) + len(tied) > Fraction(alpha) * k * total / n_max:
                break
            over |= tied
        if any(signs[: len(own)] == own for signs in over):
            return k
        alive = [signs for signs in alive if signs not in over]
        crossed += len(over)
    return None


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=6),
    st.sampled_from([{2, 4, 6}, set(range(1, 7)), {3, 6}]),
    st.sampled_from(["0.05", "0.1", "0.25"]),
)
def test_the_crossing_is_that_of_its_definition(values, looks, alpha):
    assert crossing(values, n_max=6, looks=looks, alpha=float(alpha)) == crossing_by_hand(values, 6, looks, alpha)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_what_comes_later_does_not_change_an_earlier_look(values):
    n = len(values)
    whole = crossing(values, n_max=8, alpha=0.1)
    parts = [crossing(values[:k], n_max=8, alpha=0.1) for k in range(1, n + 1)]
    assert parts == [whole if whole is not None and whole <= k else None for k in range(1, n + 1)]


def test_one_look_at_the_end_is_the_fixed_test():
    values = [3, -1, 4, 1, 5, -2, 2, 1]
    assert (crossing(values, n_max=8, looks=[8]) == 8) == (signflip.p_greater(values) <= 0.05)
    assert (crossing(values, n_max=8, looks=[8], alpha=0.02) == 8) == (signflip.p_greater(values) <= 0.02)


def test_drawn_choices_cross_about_when_all_of_them_do():
    clear = [1 + i / 10 for i in range(20)]
    assert 5 <= crossing(clear, n_max=20) <= 9
    assert crossing([-value for value in clear], n_max=20) is None


def test_a_bettor_may_look_whenever_there_is_something_to_see():
    assert betting_crossing([0.1] * 40, -0.9) == 34
    assert betting_crossing([0.1] * 40, -0.9, looks=[10, 36]) == 36
    assert betting_crossing([0.1] * 33, -0.9) is None


@pytest.mark.parametrize("loss", [0.2, 0.5, 0.7])
def test_a_bettor_is_rarely_ever_rich_whatever_the_chance_of_a_loss(loss):
    """Over all sequences of 9 values with mean zero: the probability of ever having 1 / alpha is at most alpha."""
    win = loss / (1 - loss)
    total = 0.0
    for signs in itertools.product([True, False], repeat=9):
        values = [-1.0 if lost else win for lost in signs]
        if betting_crossing(values, -1.0, alpha=0.1) is not None:
            total += math.prod(loss if lost else 1 - loss for lost in signs)
    assert total <= 0.1
    assert betting.p_greater([win] * 10, -1.0) <= 1


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_failure_may_be_told_at_any_look_and_saves_the_other_seeds():
    found = sequence(worsening(9), 12)
    assert found.verdict == "fail"
    assert found.n < 9
    assert found.n_saved == 12 - found.n
    assert [look.n for look in found.looks] == list(range(1, found.n + 1))
    assert found.looks[-1].verdict == "fail"


def test_a_pass_waits_until_rare_failures_could_have_been_seen():
    better = [0.2 + i / 100 for i in range(20)]
    found = sequence(better, 20)
    assert (found.verdict, found.n, found.pass_from) == ("pass", 11, 11)
    assert fewest(0.05, 0.25) == 11
    assert sequence(better, 20, tolerated=0.4).n < 11
    assert sequence(better[:8], 8).n == 8, "the last look passes, however few seeds were planned"


def test_while_nothing_is_settled_more_seeds_are_to_come():
    found = sequence(worsening(3), 12)
    assert (found.verdict, found.reason, found.n, found.n_saved) == ("undecided", "more_runs_to_come", 3, 0)
    mixed = sequence([0.1 * (-1) ** i - 0.1 + i / 1000 for i in range(12)], 12)
    assert (mixed.verdict, mixed.reason, mixed.n) == ("undecided", "straddles", 12)
    assert sequence([], 12).verdict == "undecided"


def test_later_seeds_do_not_change_a_verdict():
    values = worsening(10)
    decided = sequence(values, 12)
    assert sequence([*values[: decided.n], 0.4, 0.4], 12).n == decided.n
    assert sequence(values[: decided.n - 1], 12).verdict == "undecided"


def test_equal_differences_are_decided_by_betting_only():
    assert sequence([0.0] * 40, 40).looks[-1].reason == "degenerate_differences"
    found = sequence([0.0] * 40, 40, assume="bounded", bounds=(0, 1))
    assert (found.verdict, found.n, found.n_saved, found.method) == ("pass", 34, 6, "betting")


def test_a_claim_that_crossed_while_a_look_could_not_decide_has_to_stand_when_one_can():
    start = [0.0] * 11
    good = sequence([*start, *[0.01 * i for i in range(1, 13)]], 40)
    assert good.verdict == "pass"
    assert good.n == 22, "the first look at which no value is more than half"
    bad = sequence([*start, *[-0.05 * i for i in range(1, 13)]], 40)
    assert bad.verdict != "pass"


def test_many_missing_seeds_decide_nothing():
    values = worsening(8)
    assert sequence([None, *values[:3], None, *values[3:6], None], 12).looks[-1].reason == "missing_fraction"
    late = sequence([None, *values], 12)
    assert late.verdict == "fail"
    assert late.n_missing == 1
    assert sequence([None, *worsening(10)], 12, bounds=(0, 1)).n >= late.n


def test_a_pair_that_is_on_neither_side_is_missing():
    baseline, candidate = dict.fromkeys(range(5), 0.5), dict.fromkeys(range(5), 0.1)
    found = in_sequence(baseline, candidate, order=range(7), n_max=12, direction="higher", margin=0.1)
    assert found.n_missing == 2


def test_looks_count_seeds_not_tasks():
    keys = [(seed, task) for seed in range(8) for task in range(3)]
    baseline = dict.fromkeys(keys, 0.5)
    candidate = {key: 0.1 - key[0] / 100 - key[1] / 1000 for key in keys}
    found = in_sequence(
        baseline,
        candidate,
        order=keys,
        n_max=10,
        clusters={key: key[0] for key in keys},
        direction="higher",
        margin=0.1,
    )
    assert found.verdict == "fail"
    assert found.n <= 8


def test_an_equivalence_passes_when_both_sides_did_and_fails_on_either():
    near = [0.01 * (-1) ** i + i / 1000 for i in range(20)]
    options = {"direction": "neutral", "kind": "equivalent"}
    assert sequence(near, 20, **options).verdict == "pass"
    assert sequence(worsening(20, 0.4), 20, **options).verdict == "fail"
    assert sequence([0.4 + i / 100 for i in range(9)], 20, **options).verdict == "fail"


def test_one_gate_of_many_fails_later_and_passes_as_soon():
    alone, of_ten = (sequence(worsening(20), 20, gates=gates) for gates in (1, 10))
    assert alone.verdict == of_ten.verdict == "fail"
    assert alone.n < of_ten.n
    better = [0.2 + i / 100 for i in range(20)]
    assert sequence(better, 20, gates=10).n == sequence(better, 20).n


def test_deterministic_values_are_decided_at_the_first_look():
    found = sequence([0.0, 0.0], 12, assume="deterministic")
    assert (found.verdict, found.n, found.n_saved) == ("pass", 1, 11)
    assert sequence([-0.4], 12, assume="deterministic").verdict == "fail"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assume": "normal"}, "look again"),
        ({"looks": [0, 3]}, "looks"),
        ({"looks": [30]}, "looks"),
        ({"looks": []}, "looks"),
        ({"n_max": 0}, "n_max"),
        ({"n_max": 2}, "at most 2"),
        ({"tolerated": 1.0}, "tolerated"),
        ({"gates": 0}, "gates"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        sequence([0.1, 0.2, 0.3], **{"n_max": 12, **options})


def test_values_without_a_logarithm_are_unavailable():
    found = in_sequence({1: 0.0}, {1: 1.0}, order=[1], n_max=9, direction="lower", margin=0.1, scale="log")
    assert (found.verdict, found.reason) == ("unavailable", "not_positive")


def test_with_bounds_solved_or_not_is_decided_by_betting_and_what_varies_by_sign_flips():
    n = 60
    asked = {"order": range(n), "n_max": n, "direction": "higher", "margin": 0.2, "bounds": (0, 1)}
    solved = dict.fromkeys(range(n), 1.0)
    found = sooner_in_sequence(solved, solved, **asked)
    assert (found.verdict, found.method, found.alpha) == ("pass", "betting", 0.05)
    assert found.n < n
    shares = {i: 0.5 + (i * 7 % 11) / 100 for i in range(n)}
    moved = {i: share + (i * 5 % 13 - 6) / 200 for i, share in shares.items()}
    found = sooner_in_sequence(shares, moved, **asked)
    assert (found.verdict, found.method, found.n) == ("pass", "sign-flip", fewest(0.025))


def test_without_bounds_it_is_the_test_by_sign_flips():
    values = {i: 10 + (i * 7 % 11) / 10 for i in range(12)}
    asked = {"order": range(12), "n_max": 12, "direction": "lower", "margin": 3.0}
    assert sooner_in_sequence(values, values, bounds=None, **asked) == in_sequence(values, values, **asked)


def test_a_mean_is_held_against_a_bound_after_each_seed():
    seen = [Observation(10 + (seed * 7 % 11) / 10, seed=seed) for seed in range(12)]
    asked = {"above": False, "order": range(12), "n_min": 5}
    assert mean_in_sequence(seen[:11], 14, **asked).verdict == "pass"
    assert mean_in_sequence(seen[:10], 14, **asked).reason == "more_runs_to_come"
    early = mean_in_sequence(seen[:6], 8, **asked)
    assert (early.verdict, early.n, early.n_saved) == ("fail", 6, 6)
    assert mean_in_sequence(seen, 10.5, **asked).verdict == "undecided"


def test_the_tasks_of_a_seed_are_one_value_for_a_mean():
    seen = [Observation(10 + (seed * 7 % 11) / 10, seed=seed, task=task) for seed in range(12) for task in "ab"]
    assert mean_in_sequence(seen, 14, above=False, order=range(12), n_min=5).n == 11


def test_a_missing_value_shows_no_rare_failure_and_does_not_count_towards_a_pass():
    before = {i: 10 + (i * 7 % 11) / 10 for i in range(14)}
    after = {i: value + (i * 5 % 13 - 6) / 50 for i, value in before.items()}
    asked = {"order": range(14), "n_max": 14, "direction": "lower", "margin": 3.0}
    assert in_sequence(before, after, **asked).n == 11
    assert in_sequence(before, {**after, 3: None}, **asked).n == 12


def test_a_mean_with_a_missing_value_that_could_be_anything_is_undecided():
    seen = [Observation(None if seed == 4 else 10 + (seed * 7 % 11) / 10, seed=seed) for seed in range(14)]
    asked = {"above": False, "order": range(14), "n_min": 5}
    found = mean_in_sequence(seen, 14, **asked)
    assert (found.verdict, found.reason, found.n_missing) == ("undecided", "no_bounds", 1)
    assert mean_in_sequence(seen, 18, bounds=(0, 20), **asked).verdict == "pass"
