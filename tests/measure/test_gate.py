"""Verdicts on a candidate beside its baseline: against independent answers, and what must hold for any values."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from measure_oracles import cases
from scipy import stats

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure import betting, signflip
from pytest_proteus.measure.gate import Comparison, compare
from pytest_proteus.measure.summary import Interval
from pytest_proteus.measure.unavailable import Unavailable

VERDICTS = {"inconclusive": "undecided", "pass": "pass", "fail": "fail"}


def keyed(values):
    return dict(enumerate(values))


def gated(differences, **options) -> Comparison:
    """A candidate whose differences to its baseline are these."""
    baseline = [0.5] * len(differences)
    options = {"direction": "higher", "margin": 0.05, **options}
    candidate = [None if d is None else b + d for b, d in zip(baseline, differences, strict=True)]
    return compare(keyed(baseline), keyed(candidate), **options)


# -- independent answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("paired_permutation"))
def test_p_of_the_sign_flip_is_that_of_all_choices_of_signs(inputs, expected):
    d = inputs["d"]
    one_sided = signflip.p_greater(d)
    assert one_sided == expected["p"]
    assert min(1.0, 2 * min(one_sided, signflip.p_greater([-v for v in d]))) == expected["p_two_sided"]
    assert signflip.p_min(len(d)) == expected["p_min"]


@pytest.mark.parametrize(("inputs", "expected"), cases("signflip_ci"))
def test_the_interval_ends_at_means_of_subsets(inputs, expected):
    found = signflip.interval(inputs["d"], 1 - 2 * inputs["alpha_one_sided"])
    assert found.low == pytest.approx(expected["lower"], abs=1e-12)
    assert found.high == pytest.approx(expected["upper"], abs=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("gate"))
def test_verdicts_are_those_worked_out_by_hand(inputs, expected):
    assume = "deterministic" if inputs.get("deterministic") else inputs.get("assume", "symmetric")
    found = compare(
        keyed(inputs["baseline"]),
        keyed(inputs["candidate"]),
        direction=inputs["direction"],
        margin=inputs["margin"],
        assume=assume,
    )
    assert found.verdict == VERDICTS[expected["verdict"]]
    assert found.reason == expected.get("reason", "")
    for name in ("n", "p_pass", "p_fail"):
        assert getattr(found, name) == expected.get(name, getattr(found, name))
    if "lower" in expected:
        assert found.interval.low == pytest.approx(expected["lower"], abs=1e-12)
    if "n_missing_candidate" in expected:
        assert sum(pair.candidate is None for pair in found.pairs) == expected["n_missing_candidate"]


@pytest.mark.parametrize(("inputs", "expected"), cases("noninferiority_t"))
def test_student_s_t_is_that_of_scipy(inputs, expected):
    found = compare(
        keyed(inputs["baseline"]),
        keyed(inputs["candidate"]),
        direction="higher",
        margin=inputs["margin"],
        assume="normal",
    )
    assert found.p_pass == pytest.approx(expected["p_pass"], abs=1e-9)
    assert found.interval.low == pytest.approx(expected["lower95"], abs=1e-9)
    t = (found.effect + inputs["margin"]) / (found.effect / found.d_z / math.sqrt(found.n))
    assert t == pytest.approx(expected["t"], abs=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("welch"))
def test_groups_without_pairs_are_compared_by_welch_s_t(inputs, expected):
    candidate = {f"other {i}": value for i, value in enumerate(inputs["candidate"])}
    found = compare(keyed(inputs["baseline"]), candidate, direction="higher", margin=0.05)
    assert not found.paired
    assert found.method == "welch"
    assert found.effect == pytest.approx(expected["diff"], abs=1e-9)
    assert [found.interval.low, found.interval.high] == pytest.approx(expected["ci90"], abs=1e-9)
    theirs = stats.ttest_ind(
        inputs["candidate"], [b - 0.05 for b in inputs["baseline"]], equal_var=False, alternative="greater"
    )
    assert found.p_pass == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("betting"))
def test_the_capital_of_betting_is_that_of_exact_fractions(inputs, expected):
    x, lowest, n = inputs["x_each"], inputs["lo"], expected["first_n"]
    assert math.exp(betting.log_capital([x] * n, lowest)) == pytest.approx(expected["capital_at_first_n"], abs=1e-9)
    assert math.exp(betting.log_capital([x] * (n - 1), lowest)) == pytest.approx(expected["capital_before"], abs=1e-9)
    assert betting.p_greater([x] * n, lowest) <= inputs["alpha"] < betting.p_greater([x] * (n - 1), lowest)
    assert betting.values_needed([x], lowest, inputs["alpha"]) == n
    assert [weight for weight, _ in betting.BETS] == inputs["weights"]
    verdicts = [gated([0.0] * k, margin=x, bounds=(0, 1), assume="bounded").verdict for k in (n - 1, n)]
    assert verdicts == ["undecided", "pass"]


# -- what a verdict is -------------------------------------------------------------------------------------------------

SOME = [0.02, 0.01, 0.03, 0.0, -0.02, 0.015]


def test_a_comparison_says_all_that_a_reader_needs():
    found = gated([0.02, 0.01, 0.03, 0.0, -0.12, 0.015])
    assert found.verdict == "undecided"
    assert found.reason == "straddles"
    for said in ("effect -0.0075 (-1.5 %)", "0.9 interval", "smallest effect", "n needed", "alpha 0.05, n = 6", "symm"):
        assert said in str(found)
    assert "blind to failures rarer than" in str(gated(SOME))
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["interval"]["method"] == "sign-flip"
    assert data["pairs"][4]["difference"] == pytest.approx(-0.12)
    assert data["p_adjusted"] is None
    with pytest.raises(TypeError, match="verdict"):
        bool(found)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_too_few_pairs_for_the_level_are_undecided_however_clear_they_are(n):
    found = gated([0.3 + i / 100 for i in range(n)])
    assert found.verdict == "undecided"
    assert found.reason == ("n_below_minimum" if n == 1 else "p_min_above_alpha")
    assert found.p_min == 2.0**-n


def test_two_to_four_pairs_can_be_decided_by_declaring_them_normal():
    assert gated([0.3, 0.31], assume="normal").verdict == "pass"
    assert gated([0.3], assume="normal").reason == "n_below_minimum"


def test_no_pair_at_all_is_unavailable_and_no_verdict():
    assert compare({}, {}, direction="higher", margin=1).verdict == "unavailable"
    assert compare({1: None}, {1: 2.0}, direction="higher", margin=1).reason == "no_values"
    assert compare({1: 1.0}, {}, direction="higher", margin=1).reason == "no_values"
    assert isinstance(compare({}, {}, direction="higher", margin=1).effect, Unavailable)


@pytest.mark.parametrize("differences", [[0.0] * 30, [0.0] * 16 + [0.001 * i for i in range(1, 15)], [0.1] * 5])
def test_differences_of_which_more_than_half_are_equal_are_never_a_certain_pass(differences):
    found = gated(differences)
    assert found.verdict == "undecided"
    assert found.reason == "degenerate_differences"
    assert not found.interval


def test_equal_differences_with_declared_bounds_are_decided_by_betting():
    found = gated([0.0] * 34, margin=0.1, bounds=(0, 1))
    assert (found.verdict, found.method) == ("pass", "betting")
    assert "within (0, 1)" in found.assumption
    assert gated([0.0] * 33, margin=0.1, bounds=(0, 1)).n_needed == 34


def test_half_of_the_differences_equal_is_not_more_than_half():
    assert gated([0.0, 0.0, 0.0, 0.01, 0.02, 0.03]).method == "sign-flip"
    assert gated([0.0, 0.0, 0.0, 0.0, 0.02, 0.03]).reason == "degenerate_differences"


def test_deterministic_values_are_compared_as_they_are():
    exact = {"direction": "lower", "assume": "deterministic"}
    assert compare({0: 10}, {0: 11}, margin=0.1, relative=True, **exact).verdict == "pass"
    assert compare({0: 10}, {0: 11}, margin=0.09, relative=True, **exact).verdict == "fail"
    assert compare({0: 10}, {0: 10}, margin=0, **exact).verdict == "pass"
    assert compare({0: 10}, {0: 10}, margin=0, kind="superior", **exact).verdict == "fail"
    found = compare({0: 10}, {0: 10.5}, margin=1, **exact)
    assert (found.interval.low, found.interval.high, found.n_needed) == (0.5, 0.5, 1)


def test_more_than_a_fifth_of_the_pairs_missing_is_undecided():
    clear = [0.3, 0.31, 0.32, 0.33, 0.35, 0.36, 0.37, 0.38]
    assert gated([*clear, None, None]).verdict == "pass"
    assert gated([*clear, None, None]).n_missing == 2
    assert gated([*clear, None, None, None]).reason == "missing_fraction"


def test_a_run_without_its_pair_is_left_out_and_counted():
    baseline, candidate = dict.fromkeys(range(8), 0.5), {i: 0.5 + i / 100 for i in range(2, 9)}
    found = compare(baseline, candidate, direction="higher", margin=0.1)
    assert (found.n, found.n_missing, found.n_unpaired, found.paired) == (6, 0, 3, True)


def test_a_verdict_that_missing_values_could_turn_is_undecided_where_bounds_are_declared():
    clear = [0.02, 0.01, 0.03, 0.0, -0.02]
    assert gated([*clear, None]).verdict == "pass"
    assert gated([*clear, None], bounds=(0, 1)).reason == "missing_runs"
    strong = [0.31, 0.32, 0.3, 0.34, 0.35, 0.29, 0.28, 0.33]
    assert gated([*strong, None], bounds=(0, 1)).verdict == "pass"
    assert gated([*[-d - 0.1 for d in strong], None], bounds=(0, 1)).verdict == "fail"
    assert gated([*[-d for d in strong], None], bounds=(0, 1)).reason == "missing_runs"


def test_without_pairs_the_missing_of_either_side_are_filled_in_too():
    baseline = {f"b{i}": v for i, v in enumerate([0.5, 0.52, 0.48, 0.51, 0.49, 0.5])}
    candidate = {f"c{i}": v for i, v in enumerate([0.5, 0.51, 0.49, 0.52, 0.48, None])}
    assert compare(baseline, candidate, direction="higher", margin=0.1).verdict == "pass"
    filled = compare(baseline, candidate, direction="higher", margin=0.1, bounds=(0, 1))
    assert (filled.reason, filled.n_missing) == ("missing_runs", 1)
    many = {**candidate, "c6": None}
    assert compare(baseline, many, direction="higher", margin=0.1).reason == "missing_fraction"


def test_where_enough_pairs_left_it_undecided_more_are_needed_than_there_are():
    found = gated([-0.04, -0.05, -0.03, -0.06, -0.045, -0.055, -0.05])
    assert found.verdict == "undecided"
    assert found.n_needed > found.n
    on_the_margin = gated([-0.06, -0.04, -0.07, -0.03, -0.08, -0.02], margin=0.05)
    assert on_the_margin.n_needed.reason == "straddles"


# -- margins, directions, kinds, scales --------------------------------------------------------------------------------


def test_a_margin_in_percent_is_a_share_of_each_baseline_value():
    baseline = keyed([100, 200, 300, 400, 500, 600])
    candidate = keyed([105, 213, 312, 425, 540, 624])
    found = compare(baseline, candidate, direction="lower", margin=0.1, relative=True)
    assert found.verdict == "pass"
    assert found.pairs[1].slack == pytest.approx(0.1 * 200 - 13)
    assert found.interval_percent.high < 10
    assert compare(baseline, candidate, direction="lower", margin=0.03, relative=True).verdict == "fail"


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=6, max_size=9),
    st.sampled_from([0.05, 0.4]),
)
def test_a_margin_in_percent_holds_when_the_interval_of_the_ratio_does(values, margin):
    baseline, candidate = (keyed([pair[side] for pair in values]) for side in (0, 1))
    found = compare(baseline, candidate, direction="higher", margin=margin, relative=True)
    assume(found.method == "sign-flip" and isinstance(found.interval_percent, Interval))
    low, high = found.interval_percent.low, found.interval_percent.high
    assume(min(abs(low + 100 * margin), abs(high + 100 * margin)) > 1e-6)
    assert found.verdict == ("pass" if low > -100 * margin else "fail" if high < -100 * margin else "undecided")


def test_on_the_log_scale_the_ratio_of_geometric_means_is_compared():
    baseline, ratios = keyed([100.0, 1000.0, 50.0, 400.0, 90.0, 700.0]), [1.02, 0.97, 1.05, 1.01, 0.99, 1.0]
    candidate = {key: value * r for (key, value), r in zip(baseline.items(), ratios, strict=True)}
    found = compare(baseline, candidate, direction="lower", margin=0.1, scale="log")
    assert found.verdict == "pass"
    assert found.effect == pytest.approx(
        stats.gmean(list(candidate.values())) / stats.gmean(list(baseline.values())) - 1
    )
    assert found.effect_percent == pytest.approx(100 * found.effect)
    assert found.interval.high < 0.1
    twice = {key: 2 * value for key, value in candidate.items()}
    assert compare(baseline, twice, direction="lower", margin=0.1, scale="log").verdict == "fail"


def test_values_that_have_no_logarithm_or_percentage_are_unavailable():
    assert compare({1: 0.0}, {1: 2.0}, direction="higher", margin=0.1, scale="log").reason == "not_positive"
    assert compare({1: -1.0}, {1: 2.0}, direction="higher", margin=0.1, relative=True).reason == "not_positive"


def test_an_equivalence_needs_both_sides_and_can_be_missed_on_either():
    neutral = {"direction": "neutral", "kind": "equivalent"}
    assert gated(SOME, **neutral).verdict == "pass"
    far = [0.3, 0.31, 0.33, 0.36, 0.29, 0.28]
    assert gated(far, **neutral).verdict == gated([-d for d in far], **neutral).verdict == "fail"
    assert gated(far[:5], **neutral).verdict == "undecided", "two ways to fail cost twice the level"
    assert gated([0.1, -0.1, 0.2, -0.2, 0.02, 0.01], **neutral).verdict == "undecided"


@given(st.lists(st.integers(-40, 40).map(lambda i: i / 100), min_size=6, max_size=9))
def test_an_equivalence_passes_when_its_two_one_sided_tests_do(differences):
    both = gated(differences, direction="neutral", kind="equivalent", margin=0.1)
    up = gated(differences, direction="higher", margin=0.1)
    down = gated(differences, direction="lower", margin=0.1)
    assert (both.verdict == "pass") == (up.verdict == down.verdict == "pass")


def test_what_has_to_be_gained_is_more_than_the_margin():
    assert gated([0.1, 0.11, 0.12, 0.13, 0.14], kind="superior").verdict == "pass"
    assert gated(SOME, kind="superior").verdict == "fail"
    assert gated([0.1, 0.11, 0.12, 0.13, 0.14], kind="superior", margin=0).verdict == "pass"


def test_several_tasks_of_one_seed_count_as_one_value():
    baseline = {(seed, task): 0.5 for seed in range(3) for task in range(4)}
    candidate = {(seed, task): 0.55 + seed / 50 + task / 100 for seed, task in baseline}
    loose = compare(baseline, candidate, direction="higher", margin=0.1)
    nested = compare(baseline, candidate, direction="higher", margin=0.1, clusters={key: key[0] for key in baseline})
    assert (loose.n, loose.verdict) == (12, "pass")
    assert (nested.n, nested.verdict) == (3, "undecided")
    assert nested.effect == pytest.approx(loose.effect)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "up"}, "direction"),
        ({"kind": "better"}, "kind"),
        ({"scale": "ratio"}, "scale"),
        ({"assume": "nothing"}, "assume"),
        ({"direction": "neutral"}, "equivalent"),
        ({"margin": -1}, "margin"),
        ({"margin": 0}, "above 0"),
        ({"margin": math.nan}, "margin"),
        ({"margin": 1.5, "relative": True}, "100%"),
        ({"alpha": 0.5}, "alpha"),
        ({"alpha": 0}, "alpha"),
        ({"assume": "bounded"}, "bounds"),
        ({"assume": "bounded", "bounds": (0, 1), "scale": "log"}, "above 0"),
        ({"bounds": (0, 1), "margin": 1}, "no outcome can fail"),
        ({"bounds": (0, 1), "margin": 1, "kind": "superior"}, "no outcome can pass"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_sentence(options, message):
    with pytest.raises(ConfigurationError, match=message):
        gated(SOME, **options)


def test_a_value_outside_of_the_bounds_makes_a_comparison_unavailable():
    found = gated(SOME, bounds=(0.6, 1))
    assert (found.verdict, found.reason) == ("unavailable", "outside_bounds")
    assert "lies outside of the declared bounds [0.6, 1]" in found.detail


# -- what must hold for any values -------------------------------------------------------------------------------------

differences = st.lists(st.integers(-60, 60).map(lambda i: i / 128), min_size=2, max_size=20)
methods = st.sampled_from([{}, {"assume": "normal"}, {"assume": "bounded", "bounds": (-0.5, 1.5)}])


@given(differences, methods, st.sampled_from(["noninferior", "superior", "equivalent"]))
def test_swapping_the_sides_and_the_direction_changes_nothing_but_the_sign_of_the_effect(values, method, kind):
    baseline, candidate = keyed([0.5] * len(values)), keyed([0.5 + d for d in values])
    options = {"margin": 0.125, "kind": kind, **method}
    one = compare(baseline, candidate, direction="higher", **options)
    two = compare(candidate, baseline, direction="lower", **options)
    assert (one.verdict, one.reason, one.p_better, one.p_min) == (two.verdict, two.reason, two.p_better, two.p_min)
    assert one.effect == -two.effect
    for name in ("p_pass", "p_fail"):
        p, q = getattr(one, name), getattr(two, name)
        assert p == (pytest.approx(q, rel=1e-9) if isinstance(p, float) else q)
    if isinstance(one.interval, Interval) and len(values) <= signflip.ENUMERATED:
        assert [one.interval.low, one.interval.high] == pytest.approx([-two.interval.high, -two.interval.low], abs=1e-9)


@given(differences, methods, st.randoms())
def test_a_comparison_does_not_depend_on_the_order_of_the_seeds(values, method, random):
    order = list(range(len(values)))
    random.shuffle(order)
    candidate = keyed([0.5 + d for d in values])
    baseline = keyed([0.5] * len(values))
    one = compare(baseline, candidate, direction="higher", margin=0.125, **method)
    two = compare(
        dict.fromkeys(order, 0.5), {i: candidate[i] for i in order[::-1]}, direction="higher", margin=0.125, **method
    )
    for name in ("verdict", "reason", "p_pass", "p_fail", "n", "p_better"):
        assert getattr(one, name) == getattr(two, name)
    if isinstance(one.interval, Interval):
        assert [one.interval.low, one.interval.high] == pytest.approx([two.interval.low, two.interval.high], abs=1e-12)


@given(differences, methods, st.integers(0, 3), st.booleans())
def test_one_more_missing_seed_never_tightens_an_interval_nor_makes_a_verdict(values, method, holes, bounded):
    bounds = {"bounds": (-0.5, 1.5)} if bounded else {}

    def made(missing):
        return gated([*values, *[None] * missing], margin=0.125, **{**bounds, **method})

    before, after = made(holes), made(holes + 1)
    assert after.verdict in (before.verdict, "undecided")
    assert after.n_missing == before.n_missing + 1
    if isinstance(after.interval, Interval):
        assert after.interval == before.interval


@given(differences, st.sampled_from([2.0**-20, 2.0, 3.0, 1e-3, 1e6]), st.sampled_from([{}, {"assume": "normal"}]))
def test_other_units_give_the_same_verdict(values, unit, method):
    baseline, candidate = [0.5] * len(values), [0.5 + d for d in values]
    one = compare(keyed(baseline), keyed(candidate), direction="higher", margin=0.125, **method)
    scaled = [keyed([unit * v for v in side]) for side in (baseline, candidate)]
    two = compare(*scaled, direction="higher", margin=0.125 * unit, **method)
    assert (one.verdict, one.reason) == (two.verdict, two.reason)
    for name in ("p_pass", "p_fail"):
        p = getattr(one, name)
        assert getattr(two, name) == (pytest.approx(p, rel=1e-6) if isinstance(p, float) else p)
    assert two.effect == pytest.approx(unit * one.effect, abs=1e-12 * unit)
    if isinstance(one.interval, Interval):
        assert [two.interval.low, two.interval.high] == pytest.approx(
            [unit * one.interval.low, unit * one.interval.high], abs=1e-9 * unit
        )


@given(differences, methods)
def test_the_verdict_is_where_the_interval_lies(values, method):
    found = gated(values, margin=0.12345, **method)
    if isinstance(found.interval, Interval):
        low, high = found.interval.low, found.interval.high
        assume(min(abs(low + found.margin), abs(high + found.margin)) > 1e-9)
        assert found.verdict == ("pass" if low > -found.margin else "fail" if high < -found.margin else "undecided")


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
def test_sums_that_tie_as_decimals_tie_in_the_test(tenths):
    """0.1 + 0.2 - 0.3 is no zero in floating point; the same data in whole tenths has the same p."""
    assert signflip.p_greater([t / 10 for t in tenths]) == signflip.p_greater(tenths)
    assert signflip.p_greater([(t + 70) / 10 - 7.0 for t in tenths], magnitude=16.0) == signflip.p_greater(tenths)


def test_drawn_choices_of_signs_agree_with_all_of_them():
    values = [math.sin(i) + 0.3 for i in range(16)]
    exact = signflip.p_greater(values)
    drawn = signflip.p_greater([*values, 0.0])  # a value of zero adds nothing to any sum
    assert drawn == pytest.approx(exact, abs=5 * math.sqrt(exact / signflip.RESAMPLES))
    low, high = (getattr(signflip.interval(values), end) for end in ("low", "high"))
    assert low < sum(values) / 16 < high


anything = st.one_of(
    st.none(), st.floats(), st.text(max_size=2), st.integers(-5, 5), st.sampled_from([1e308, -1e308, 5e-324, 10**400])
)
sides = st.dictionaries(st.integers(0, 8), anything, max_size=9)


@given(
    sides,
    sides,
    st.fixed_dictionaries(
        {
            "direction": st.sampled_from(["higher", "lower", "neutral"]),
            "kind": st.sampled_from(["noninferior", "superior", "equivalent"]),
            "margin": st.sampled_from([0.0, 0.1, 3.0, 1e-300, 1e300]),
            "relative": st.booleans(),
            "scale": st.sampled_from(["difference", "log"]),
            "assume": st.sampled_from(["symmetric", "normal", "bounded", "deterministic"]),
            "bounds": st.sampled_from([None, (0, 1), (-6, 6), (0, None), (-1e308, 1e308)]),
        }
    ),
)
def test_whatever_the_values_there_is_one_sentence_or_a_result_that_json_can_hold(baseline, candidate, options):
    try:
        found = compare(baseline, candidate, **options)
    except ConfigurationError:
        return
    json.dumps(found.to_json(), allow_nan=False)
    assert str(found)
    assert bool(found.reason) == (found.verdict in ("undecided", "unavailable"))
