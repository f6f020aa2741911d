"""Summaries and intervals against independent answers, and what must hold for any values."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_oracles import cases
from scipy import stats

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.summary import (
    Interval,
    Observation,
    betting_interval,
    bootstrap_interval,
    clopper_pearson_interval,
    clustered_interval,
    clustered_stderr,
    estimate,
    missing_bounds,
    number,
    summarise,
    t_interval,
    wilson_interval,
)
from pytest_proteus.measure.unavailable import Unavailable

shares = st.floats(0, 1)
some_shares = st.lists(shares, min_size=1, max_size=12)


# -- what is not there -------------------------------------------------------------------------------------------------


def test_what_is_unavailable_is_false_has_no_number_and_is_null():
    missing = Unavailable("empty_stream")
    assert not missing
    assert not hasattr(missing, "__float__")
    assert missing.to_json() is None
    assert missing.as_dict()["detail"]
    with pytest.raises(TypeError):
        float(missing)  # type: ignore[arg-type]


@pytest.mark.parametrize("compare", [lambda u: u < 0.5, lambda u: u > 0.5, lambda u: u <= 1, lambda u: u >= 1])
def test_comparing_what_is_unavailable_with_a_number_says_why_it_cannot_be(compare):
    with pytest.raises(TypeError, match="within_zero"):
        compare(Unavailable("within_zero"))


def test_a_field_of_what_is_unavailable_is_unavailable_for_the_same_reason():
    missing = Unavailable("fewer_than_two_runs", n=1)
    assert missing.ratio is missing
    assert missing["status"] == "unavailable"
    assert missing["reason"] == "fewer_than_two_runs"
    assert missing["ratio"] is None


def test_what_is_unavailable_survives_copies_and_pickles():
    missing = Unavailable("no_values", "nothing", 0)
    assert copy.deepcopy(missing) == missing == pickle.loads(pickle.dumps(missing))
    assert len({missing, copy.copy(missing)}) == 1


# -- summaries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "expected"), cases("summary"))
def test_summaries_agree_with_the_standard_library(inputs, expected):
    found = summarise(inputs["values"]).to_json()
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value, abs=1e-9, rel=1e-12)), name


def test_a_single_value_has_no_spread():
    one = summarise([3.0])
    assert one.mean == 3.0
    assert isinstance(one.stddev, Unavailable)
    assert isinstance(one.stderr, Unavailable)
    assert one["stddev_reason"] == "n_below_minimum"


@pytest.mark.parametrize(
    "value", [None, "1", b"1", math.nan, math.inf, 10**400, 1j, [1.0], np.array([1.0]), np.float64("nan"), object()]
)
def test_whatever_is_no_finite_number_is_missing(value):
    assert number(value) is None
    assert summarise([value]).n_missing == 1


def test_numbers_of_other_libraries_are_numbers():
    assert [number(v) for v in (True, 2, np.float32(0.5), np.int8(3), np.bool_(True), np.array(4))] == [
        1,
        2,
        0.5,
        3,
        1,
        4,
    ]


@given(st.lists(st.floats(-1e12, 1e12), min_size=1))
def test_a_mean_lies_between_its_values(values):
    found = summarise(values)
    assert found.min <= found.mean <= found.max
    assert found.min <= found.median <= found.max


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=8), st.randoms())
def test_a_summary_does_not_depend_on_the_order_of_the_runs(values, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    assert summarise(shuffled) == summarise(values)


# -- intervals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (57, 200)])
def test_rates_have_the_intervals_of_scipy(successes, n, level):
    for make, method in ((wilson_interval, "wilson"), (clopper_pearson_interval, "exact")):
        theirs = stats.binomtest(successes, n).proportion_ci(level, method)
        ours = make(successes, n, level)
        assert ours.low == pytest.approx(theirs.low, abs=1e-12)
        assert ours.high == pytest.approx(theirs.high, abs=1e-12)


@given(st.lists(st.integers(-1000, 1000).map(lambda i: i / 8), min_size=2, max_size=20), st.sampled_from([0.5, 0.9]))
def test_t_intervals_are_those_of_scipy(values, level):
    found = t_interval(values, level)
    if min(values) == max(values):
        assert found == Unavailable("identical_values", n=len(values))
        return
    low, high = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found.low == pytest.approx(low, rel=1e-7, abs=1e-7)  # earlier versions of it have eight digits
    assert found.high == pytest.approx(high, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(("inputs", "expected"), cases("bootstrap_mean_ci"))
def test_small_bootstraps_are_enumerated(inputs, expected):
    percentile = bootstrap_interval(inputs["values"], inputs["level"], "percentile")
    assert [percentile.low, percentile.high] == pytest.approx(expected["percentile_exact"], abs=1e-12)
    bca = bootstrap_interval(inputs["values"], inputs["level"], "bca")
    assert [bca.low, bca.high] == pytest.approx(expected["scipy_bca"], abs=1e-12)


def test_a_bootstrap_of_many_values_agrees_with_scipy_and_says_when_it_is_too_narrow():
    values = [math.sqrt(i) * (1 + i % 7) for i in range(25)]
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=0.9, n_resamples=20000, random_state=np.random.default_rng(1)
    )
    ours = bootstrap_interval(values, 0.9, resamples=20000)
    wide = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * wide)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * wide)
    assert ours.note == ""
    assert "less often" in bootstrap_interval(values[:12], 0.9).note


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12, unique=True), st.randoms())
def test_a_bootstrap_does_not_depend_on_the_order_of_the_runs(values, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    assert bootstrap_interval(shuffled, 0.9, resamples=200) == bootstrap_interval(values, 0.9, resamples=200)


def test_betting_refutes_exactly_those_means_against_which_the_capital_grows_enough():
    # identical values 0.9 above the lower bound: the mean that 34 of them refute at 5 % is at least 0.1 below
    found = betting_interval([0.9] * 34, (0.0, 1.9), level=0.9)
    bets, capital = [2.0**-j for j in range(6)], 0.0
    for weight, bet in zip([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125], bets, strict=True):
        capital += weight * (1 - bet + bet * 0.9 / found.low) ** 34
    assert capital == pytest.approx(20, rel=1e-6)


@given(some_shares, st.floats(0.5, 0.99))
def test_a_betting_interval_holds_its_mean_and_stays_within_the_bounds(values, level):
    found = betting_interval(values, (0, 1), level)
    assert 0 <= found.low <= math.fsum(values) / len(values) + 1e-12
    assert math.fsum(values) / len(values) - 1e-12 <= found.high <= 1


@given(some_shares, st.floats(-50, 50), st.floats(0.1, 50))
def test_a_betting_interval_moves_and_grows_with_the_scale(values, shift, factor):
    plain = betting_interval(values, (0, 1), 0.9)
    clip = lambda v: min(max(v, shift), shift + factor)  # noqa: E731
    moved = betting_interval([clip(shift + factor * v) for v in values], (shift, shift + factor), 0.9)
    assert moved.low == pytest.approx(shift + factor * plain.low, abs=1e-7 * (abs(shift) + factor))
    assert moved.high == pytest.approx(shift + factor * plain.high, abs=1e-7 * (abs(shift) + factor))


def test_betting_covers_the_mean_of_every_two_point_distribution():
    n, level = 12, 0.8
    for rate in (0.02, 0.3, 0.5, 0.9):
        covered = 0.0
        for ones in range(n + 1):
            found = betting_interval([1.0] * ones + [0.0] * (n - ones), (0, 1), level)
            covered += math.comb(n, ones) * rate**ones * (1 - rate) ** (n - ones) * (found.low <= rate <= found.high)
        assert covered >= level


def test_clusters_of_one_size_have_the_standard_error_of_their_means():
    values, seeds = [1.0, 3.0, 2.0, 6.0, 5.0, 5.0], [0, 0, 1, 1, 2, 2]
    means = [2.0, 4.0, 5.0]
    assert clustered_stderr(values, seeds) == pytest.approx(stats.sem(means), rel=1e-12)
    found = clustered_interval(values, seeds, 0.9)
    low, high = stats.t.interval(0.9, 2, loc=np.mean(means), scale=stats.sem(means))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_values_of_one_cluster_say_nothing_about_others():
    assert clustered_stderr([1.0, 2.0], ["s0", "s0"]).reason == "n_below_minimum"
    assert clustered_interval([1.0, 2.0, 2.0, 1.0], [0, 0, 1, 1]).reason == "identical_values"


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "method"),
    [
        ([0, 1, 1], {"bounds": (0, 1)}, "wilson"),
        ([0, 1, 1], {"kind": "binary"}, "wilson"),
        ([0.5, 1, 1], {"bounds": (0, 1)}, "betting"),
        ([4, 5, 9], {}, "t"),
        ([4, 5, 9], {"bounds": (0, None)}, "t"),
        ([4, 5, 9], {"kind": "bootstrap"}, "bootstrap-bca"),
        ([4, 5, 9, 8], {"clusters": [0, 0, 1, 1]}, "clustered-t"),
        ([0, 1, 1, 1], {"clusters": [0, 0, 1, 1], "bounds": (0, 1)}, "clustered-t"),
        ([1, 1, 1, 1], {"clusters": [0, 0, 1, 1], "bounds": (0, 1)}, "betting"),
        ([4, 4], {"kind": "deterministic"}, "deterministic"),
    ],
)
def test_the_kind_of_data_decides_the_interval(values, options, method):
    assert estimate(values, **options).interval.method == method


def test_identical_values_have_no_interval_of_width_zero():
    found = estimate([7.0, 7.0, 7.0])
    assert found.value == 7.0
    assert found.interval.reason == "identical_values"
    assert "identical" in found.warnings[0]
    known = estimate([7.0, 7.0, 7.0], bounds=(0, 10)).interval
    assert known.low < 7 < known.high


def test_a_declared_determinism_is_a_point_that_says_so_until_values_differ():
    point = estimate([2.0, 2.0], kind="deterministic")
    assert (point.interval.low, point.interval.high) == (2.0, 2.0)
    assert "deterministic" in point.warnings[0]
    assert estimate([2.0, 3.0], kind="deterministic").interval.reason == "not_deterministic"


def test_missing_runs_are_counted_kept_and_never_zero():
    runs = [Observation(0.5, arm="a", seed=0), Observation(None, arm="a", seed=1, reason="lost")]
    found = estimate([run.value for run in runs], bounds=(0, 1), observations=runs)
    assert (found.value, found.n, found.n_missing) == (0.5, 1, 1)
    assert found.observations[1].reason == "lost"
    assert found.with_missing.low <= found.interval.low
    assert found.with_missing.high >= found.interval.high


def test_without_bounds_a_missing_value_could_be_anything():
    assert estimate([1.0, 2.0, None]).with_missing.reason == "no_bounds"
    assert missing_bounds([1.0, None], (0, None)).reason == "no_bounds"
    assert missing_bounds([1.0, None], (0, 2)) == (0.5, 1.5)
    assert missing_bounds([1.0, 2.0], None) == (1.5, 1.5)


def test_no_value_is_no_estimate():
    assert estimate([None, math.nan]).reason == "no_values"
    assert not estimate([])


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "normal"},
        {"direction": "up"},
        {"bounds": (1, 0)},
        {"kind": "bounded"},
        {"kind": "binary"},
        {"level": 90},
        {"clusters": [1]},
    ],
)
def test_what_contradicts_itself_is_refused(options):
    with pytest.raises(ConfigurationError):
        estimate([0.5, 0.25], **options)


def test_an_estimate_is_plain_json_and_no_truth_value():
    found = estimate([0.5, None, 0.25], bounds=(0, 1), direction="higher", scale="share of tests passed")
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["interval"]["method"] == "betting"
    assert data["observations"][1]["value"] is None
    assert dict(found) == found.to_json()
    with pytest.raises(TypeError, match="gate"):
        bool(found)


@given(
    st.one_of(some_shares, st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=12)),
    st.integers(0, 4),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.booleans(),
)
def test_one_more_missing_seed_never_tightens_an_interval(values, missing, level, clustered):
    def made(holes):
        return estimate(
            [*values, *[None] * holes],
            bounds=(0, 1),
            level=level,
            clusters=[i // 2 for i in range(len(values) + holes)] if clustered else None,
        )

    before, after = made(missing), made(missing + 1)
    assert isinstance(before.with_missing, (Interval, Unavailable))
    if isinstance(before.with_missing, Interval) and isinstance(after.with_missing, Interval):
        assert after.with_missing.low <= before.with_missing.low + 1e-9
        assert after.with_missing.high >= before.with_missing.high - 1e-9
    if not clustered:
        assert before.interval == after.interval
    assert before.value == after.value


@given(some_shares, st.integers(0, 5))
def test_bounds_for_missing_values_hold_every_way_to_fill_them(values, missing):
    low, high = missing_bounds([*values, *[None] * missing], (0, 1))
    for fill in itertools.islice(itertools.product([0.0, 0.3, 1.0], repeat=missing), 40):
        mean = math.fsum([*values, *fill]) / (len(values) + missing)
        assert low - 1e-12 <= mean <= high + 1e-12


def test_a_value_outside_of_the_bounds_makes_an_estimate_unavailable_and_says_of_which_run_it_is():
    seen = [Observation(0.5, run_id="a-s0"), Observation(3.2, run_id="a-s1"), Observation(None, run_id="a-s2")]
    found = estimate([0.5, 3.2, None], bounds=(0, 1), observations=seen, scale="score of over")
    assert found.reason == "outside_bounds"
    assert "3.2 (score of over) in run a-s1 lies outside of the declared bounds [0, 1]" in str(found)
