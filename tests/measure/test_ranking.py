"""Comparisons of variants against numbers worked out by hand, each in its comment, and what must hold for any runs.

Quantiles are those of printed tables: t(0.95) with 1, 2, 3, 9 degrees of freedom is 6.313752, 2.919986, 2.353363,
1.833113; z(0.95) is 1.644854. Wilson's interval of k in n: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.core.errors import STATES, ConfigurationError
from pytest_proteus.measure.ranking import (
    GROUPS,
    RANK_BY,
    Attempt,
    Ranking,
    attempt,
    kinds_of,
    rank,
    ratio_estimate,
    task_hash,
)
from pytest_proteus.measure.unavailable import Unavailable

HASH = "0" * 64


def tries(name, *rows, state="complete", score_state="scored"):
    """Attempts of one variant; a row is (gate, tokens, ratio[, seconds[, score[, usd]]])."""
    found = []
    for at, row in enumerate(rows):
        gate, tokens, ratio, seconds, score, usd = (*row, *[None] * (6 - len(row)))
        metrics = {
            "total_tokens": tokens,
            "cost_usd": usd,
            "wallclock": seconds,
            "score": score,
            "goal_aligned_ratio": ratio,
        }
        found.append(Attempt({"harness": name}, state, gate, score_state, metrics, f"run-{name}-{at}", at))
    return found


def groups(found: Ranking) -> dict[str, list[str]]:
    return {group: [one.variant for one in getattr(found, group)] for group in GROUPS}


def ranks(found: Ranking) -> dict[str, int | None]:
    return {one.variant: one.rank for one in found.ranked}


# -- fifteen sets ------------------------------------------------------------------------------------------------------


def test_all_attempts_that_fail_rank_nothing_and_the_ranking_says_so():
    found = rank([*tries("a", ("failed", 10, 0.5), ("failed", 20, 0.5)), *tries("b", ("failed", 5, 1.0))], HASH)
    assert groups(found) == {"ranked": [], "failed": ["a", "b"], "ungated": [], "unscored": []}
    assert found.finding == "nothing is ranked: no variant passed the gate"
    assert found.variant("a").reason == "none of 2 attempts passed the gate (2 complete)"
    # nobody succeeded: 0 of 2 is [0, z²/(2+z²)] = [0, 2.705543/4.705543] = [0, 0.574969]
    rate = found.variant("a").success_rate
    assert (rate.value, rate.interval.low) == (0.0, 0.0)
    assert rate.interval.high == pytest.approx(0.574969, abs=1e-6)
    assert found.variant("a").cost_per_success.reason == "not_positive"
    assert found.variant("a").attempted["total_tokens"].mean == 15.0  # (10 + 20) / 2


def test_successes_of_which_no_number_is_known_are_unscored():
    found = rank(tries("a", ("passed", None, None), ("passed", None, None), score_state="pending"), HASH)
    assert groups(found) == {"ranked": [], "failed": [], "ungated": [], "unscored": ["a"]}
    assert "none has total_tokens nor goal_aligned_ratio (scores: 2 pending)" in found.variant("a").reason
    assert found.variant("a").metrics["total_tokens"].n == 0
    assert found.variant("a").metrics["total_tokens"]["mean"] is None
    assert "not known" in found.finding


def test_a_single_run_has_a_value_and_no_spread():
    found = rank(tries("a", ("passed", 120, 0.8)), HASH)
    (one,) = found.ranked
    assert one.value == pytest.approx(150.0)  # 120 / 0.8
    assert one.metrics["total_tokens"]["stddev"] is None
    assert (one.metrics["total_tokens"].median, one.metrics["total_tokens"].n) == (120, 1)
    assert isinstance(one.interval, Unavailable)
    # 1 of 1: (1 + z²/2 ± z·z/2) / (1 + z²) = [1/3.705543, 1] = [0.269866, 1]
    assert one.success_rate.interval.low == pytest.approx(0.269866, abs=1e-6)
    assert one.success_rate.interval.high == 1.0


def test_single_runs_cannot_be_told_apart_and_tie():
    found = rank([*tries("a", ("passed", 100, 1.0)), *tries("b", ("passed", 900, 1.0))], HASH)
    assert ranks(found) == {"a": 1, "b": 1}
    assert [one.tied_with for one in found.ranked] == [("b",), ("a",)]


def test_the_composite_is_a_ratio_of_means_and_not_a_mean_of_ratios():
    # tokens 100 and 300: mean 200; ratios 0.5 and 1.0: mean 0.75; 200 / 0.75 = 266.667 (the mean of ratios is 250)
    found = rank(tries("a", ("passed", 100, 0.5), ("passed", 300, 1.0)), HASH)
    assert found.ranked[0].composite.value == pytest.approx(800 / 3)
    # stddev of 100, 300 by n - 1: √(2 · 100²) = 141.4214
    tokens = found.ranked[0].metrics["total_tokens"]
    assert (tokens.mean, tokens.median, tokens.min, tokens.max, tokens.n) == (200, 200, 100, 300, 2)
    assert tokens.stddev == pytest.approx(141.4214, abs=1e-4)


def test_the_composite_is_of_successful_runs_that_have_both_numbers():
    # the failed run and those without one of the numbers are left out: (100 + 140) / 2 ÷ (0.6 + 0.6) / 2 = 200
    rows = [("passed", 100, 0.6), ("passed", 140, 0.6), ("passed", None, 0.1), ("passed", 7, None), ("failed", 1, 1.0)]
    found = rank(tries("a", *rows), HASH)
    assert found.ranked[0].composite.value == pytest.approx(200.0)
    assert (found.ranked[0].composite.n, found.ranked[0].composite.n_missing) == (2, 2)
    assert found.ranked[0].metrics["total_tokens"].mean == pytest.approx(247 / 3)  # 100, 140, 7
    assert found.ranked[0].metrics["goal_aligned_ratio"].n_missing == 1


def test_a_rubric_of_zero_is_unscored_and_never_divides():
    found = rank([*tries("zero", ("passed", 100, 0.0), ("passed", 90, 0.0)), *tries("a", ("passed", 500, 1.0))], HASH)
    assert groups(found) == {"ranked": ["a"], "failed": [], "ungated": [], "unscored": ["zero"]}
    assert "is 0" in found.variant("zero").reason


def test_each_variant_is_in_the_one_group_that_its_gates_say():
    found = rank(
        [
            *tries("ranked", ("passed", 10, 1.0), ("failed", 10, 1.0)),
            *tries("failed", ("failed", 10, 1.0), ("none", 10, 1.0)),
            *tries("ungated", ("none", 10, 1.0)),
            *tries("unscored", ("passed", 10, None), score_state='not_scored:"trivial"'),
        ],
        HASH,
    )
    assert groups(found) == {group: [group] for group in GROUPS}
    assert found.variant("ungated").reason == "none of its runs has a verdict of a gate (1 complete)"
    assert 'not_scored:"trivial"' in found.variant("unscored").reason
    assert (found.variant("failed").runs, found.variant("failed").attempts) == (2, 1)


def test_runs_without_a_verdict_are_missing_and_widen_what_is_known_of_the_rate():
    # 2 of 2 known, 2 unknown: at worst 2 of 4: (0.5 + 0.338193 - 1.644854·√(0.0625 + 0.042274)) / 1.676386 = 0.182400
    found = rank(tries("a", ("passed", 1, 1.0), ("passed", 2, 1.0), ("none", 1, 1.0), ("none", 1, 1.0)), HASH)
    rate = found.ranked[0].success_rate
    assert (rate.value, rate.n, rate.n_missing) == (1.0, 2, 2)
    assert rate.with_missing.low == pytest.approx(0.182400, abs=1e-6)


def test_labels_that_nobody_knows_are_left_out_and_runs_without_any_are_one_variant():
    rows = [
        Attempt({"harness": "pi", "arm": "", "model": ""}, "complete", "passed", metrics={"total_tokens": 3}),
        Attempt({"harness": "", "arm": "", "model": ""}, "complete", "passed", metrics={"total_tokens": 4}),
        Attempt({}, "lost"),
    ]
    found = rank(rows, HASH, rank_by="tokens")
    assert ranks(found) == {"pi": 1, "(unknown)": 1}
    assert found.variant("(unknown)").states == {"complete": 1, "lost": 1}
    with pytest.raises(LookupError, match="no variant is called 'nope'"):
        found.variant("nope")


def test_one_success_in_ten_never_stands_above_ten_in_ten():
    # a passes once, with 10 tokens; b always, with 100 to 109. By tokens of successful runs a would win.
    # 1 of 10: (0.1 + 0.135277 + 1.644854·√(0.009 + 0.006764)) / 1.270554 = 0.347720 is its upper end,
    # 10 of 10: 1 / 1.270554 = 0.787058 the other's lower one: decided.
    few = tries("a", ("passed", 10, 1.0), *[("failed", 10, 1.0)] * 9)
    many = tries("b", *[("passed", 100 + n, 1.0) for n in range(10)])
    found = rank([*few, *many], HASH, rank_by="tokens")
    assert [(one.variant, one.rank) for one in found.ranked] == [("b", 1), ("a", 2)]
    assert found.variant("a").success_rate.interval.high == pytest.approx(0.347720, abs=1e-5)
    assert found.variant("b").success_rate.interval.low == pytest.approx(0.787058, abs=1e-6)
    assert found.warnings == (
        "a has the better tokens, but succeeds in 1 of 10 attempts where b does in 10 of 10: it stands below",
    )
    # what a success costs: 10 runs of 10 tokens for one, 1045 tokens for ten
    assert found.variant("a").cost_per_success.value == pytest.approx(100.0)
    assert found.variant("b").cost_per_success.value == pytest.approx(104.5)


def test_what_a_success_costs_is_open_above_where_it_is_one_in_ten():
    # costs all 10, successes 1 of 10: their mean 0.1, variance 0.1·0.9·10/9/10 = 0.01; t = 1.833113:
    # 0.1² < t² · 0.01, so there is no end above; below |10 - 0.1 r| = t · 0.1 r, r = 10 / (0.1 + 0.1833113) = 35.2969
    found = rank(tries("a", ("passed", 10, 1.0), *[("failed", 10, 1.0)] * 9), HASH, rank_by="cost_per_success")
    interval = found.ranked[0].cost_per_success.interval
    assert interval.low == pytest.approx(10 / (0.1 + 1.833113 * 0.1), abs=1e-3)
    assert interval.high == math.inf
    assert found.to_json()["ranked"][0]["cost_per_success"]["interval"]["high"] is None


def test_runs_that_timed_out_and_crashed_are_paid_for_by_those_that_succeed():
    # 40 + 40 + 100 (timeout, failed) + 20 (errored, no verdict) = 200 for 2 successes
    rows = [
        *tries("a", ("passed", 40, 1.0), ("passed", 40, 1.0)),
        *tries("a", ("failed", 100, None), state="timeout"),
        *tries("a", ("none", 20, None), state="errored"),
        *tries("a", ("none", None, None), state="not_run"),
    ]
    found = rank(rows, HASH, rank_by="cost_per_success")
    assert found.ranked[0].value == pytest.approx(100.0)
    assert found.cost_unit == "tokens"
    assert (found.ranked[0].runs, found.ranked[0].attempts, found.ranked[0].successes) == (5, 3, 2)
    # of them all: (40 + 40 + 100 + 20) / 4 tokens, though the successful ones took 40
    assert found.ranked[0].attempted["total_tokens"].mean == 50.0
    assert found.ranked[0].metrics["total_tokens"].mean == 40.0


def test_a_run_of_unknown_cost_leaves_what_a_success_costs_unknown():
    rows = [*tries("a", ("passed", 40, 1.0)), *tries("a", ("none", None, None), state="errored")]
    found = rank(rows, HASH, rank_by="cost_per_success")
    assert groups(found)["unscored"] == ["a"]
    assert "1 of 2 runs that began have no total_tokens" in found.unscored[0].reason


def test_prices_are_the_unit_where_all_are_known():
    rows = tries("a", ("passed", 9, 1.0, 1, 1, 0.5), ("failed", 9, 1.0, 1, 1, 0.25))
    assert rank(rows, HASH).cost_unit == "usd"
    assert rank(rows, HASH).ranked[0].cost_per_success.value == pytest.approx(0.75)
    assert rank([*rows, *tries("b", ("passed", 9, 1.0))], HASH).cost_unit == "tokens"


def test_intervals_that_overlap_are_ties_and_those_that_do_not_are_ranks():
    # Student's intervals at 0.9, n = 3: mean ± 2.919986 · s / √3
    # a 10, 11, 12: 11 ± 1.685855; b 12, 13, 14: 13 ± 1.685855 (overlaps); c 20, 21, 22: 21 ± 1.685855 (does not)
    rows = [
        *tries("c", *[("passed", n, 1.0) for n in (20, 21, 22)]),
        *tries("a", *[("passed", n, 1.0) for n in (10, 11, 12)]),
        *tries("b", *[("passed", n, 1.0) for n in (12, 13, 14)]),
    ]
    found = rank(rows, HASH, rank_by="tokens")
    assert [(one.variant, one.rank) for one in found.ranked] == [("a", 1), ("b", 1), ("c", 2)]
    assert [one.tied_with for one in found.ranked] == [("b",), ("a",), ()]
    assert found.ranked[0].interval.low == pytest.approx(11 - 1.685855, abs=1e-5)
    assert found.finding == "a, b tie"


def test_scores_are_better_when_higher_and_times_when_lower():
    rows = [
        *tries("slow", *[("passed", 1, 1.0, s, 0.9) for s in (60, 61, 62)][:2], ("passed", 1, 1.0, 62, 0.91)),
        *tries("fast", *[("passed", 1, 1.0, s, 0.3) for s in (5, 6)], ("passed", 1, 1.0, 7, 0.31)),
    ]
    assert [one.variant for one in rank(rows, HASH, rank_by="score").ranked] == ["slow", "fast"]
    assert ranks(rank(rows, HASH, rank_by="score")) == {"slow": 1, "fast": 2}
    assert [one.variant for one in rank(rows, HASH).by("wallclock").ranked] == ["fast", "slow"]


# -- ratios ------------------------------------------------------------------------------------------------------------


def test_a_ratio_to_ones_has_the_interval_of_the_mean():
    # 10, 11, 12 over 1, 1, 1: Student's 11 ± 2.919986 / √3
    found = ratio_estimate([(10, 1), (11, 1), (12, 1)], 0.9, "")
    assert found.interval.low == pytest.approx(11 - 1.685855, abs=1e-5)
    assert found.interval.high == pytest.approx(11 + 1.685855, abs=1e-5)


def test_a_ratio_of_means_has_fiellers_interval():
    # (2, 1), (4, 2), (9, 3): means 5, 2; covariances of the means: aa 13/3, bb 1/3, ab 3.5/3; t² = 8.526318
    # 1.157894 r² - 2 · 0.052629 r - 11.947378 <= 0: r = (0.052629 ± √(0.002770 + 13.833798)) / 1.157894
    found = ratio_estimate([(2, 1), (4, 2), (9, 3)], 0.9, "")
    assert found.value == 2.5
    assert found.interval.low == 0.0  # the lower root is -3.167069, and these ratios are never negative
    assert found.interval.high == pytest.approx(3.257971, abs=1e-5)


def test_ratios_that_do_not_vary_have_no_interval():
    assert ratio_estimate([(10, 1), (10, 1)], 0.9, "").interval.reason == "identical_values"
    assert ratio_estimate([], 0.9, "").reason == "no_values"


# -- runs as attempts --------------------------------------------------------------------------------------------------

KINDS = {"tests": "gate", "lint": "gate", "judge:rubric": "judge", "loop_count": "route", "step": "measurement"}
RUN = {"harness": "pi", "arm": "neutral", "model": "m", "axes": {"kb": "on"}, "state": "complete", "seconds": 3.0}


def _result(score, passed=False, **more):
    return {"score": score, "passed": passed, "error": False, **more}


def test_an_attempt_has_the_numbers_of_its_run_by_kind_of_evaluator():
    results = {
        "tests": _result(1.0, True),
        "lint": _result(1.0, True),
        "judge:rubric": _result(0.6, data={"goal_aligned_ratio": 0.75, "state": "scored"}),
        "loop_count": _result(2.0),
        "step": _result(9.0),
    }
    found = attempt({**RUN, "usage": {"total_tokens": 12, "cost_usd": None}}, results, KINDS)
    assert found.variant == "pi/neutral/m/kb=on"
    assert (found.gate, found.score_state) == ("passed", "scored")
    assert found.metrics == {
        "total_tokens": 12,
        "cost_usd": None,
        "wallclock": 3.0,
        "score": 0.6,
        "goal_aligned_ratio": 0.75,
        "loop_count": 2.0,
    }


@pytest.mark.parametrize(
    ("state", "results", "gate"),
    [
        ("complete", {"tests": _result(1, True), "lint": _result(0, False)}, "failed"),
        ("complete", {"tests": _result(1, True)}, "none"),
        ("complete", {"tests": _result(1, True), "lint": {**_result(0, False), "error": True}}, "none"),
        ("complete", {"tests": _result(0, False), "lint": {**_result(0, False), "error": True}}, "failed"),
        ("timeout", {}, "failed"),
        ("abort", {}, "failed"),
        ("errored", {"tests": _result(1, True), "lint": _result(1, True)}, "none"),
        ("skipped:no agent", {}, "none"),
    ],
)
def test_a_gate_passes_when_all_of_them_do_and_a_broken_one_decides_nothing(state, results, gate):
    assert attempt({**RUN, "state": state}, results, KINDS).gate == gate


def test_what_an_agent_can_do_to_be_judged_by_no_gate_is_a_failure_and_what_the_session_does_is_none():
    assert attempt({**RUN, "refused": True}, {}, KINDS).gate == "failed"
    assert attempt({**RUN, "state": "abort", "stopped": True}, {}, KINDS).gate == "none"


def test_without_a_gate_there_is_no_verdict_also_of_a_run_that_timed_out():
    assert attempt({**RUN, "state": "timeout"}, {}, {"step": "measurement"}).gate == "none"


def test_kinds_are_read_from_every_form_of_a_manifest():
    assert kinds_of({"a": {"kind": "gate"}, "b": None}) == {"a": "gate", "b": ""}
    assert kinds_of([{"name": "a", "kind": "gate"}, "b"]) == {"a": "gate"}
    assert kinds_of(None) == {}


def test_a_judge_that_failed_leaves_its_score_pending():
    found = attempt(RUN, {"judge:rubric": {**_result(0.0), "error": True}}, KINDS)
    assert (found.score_state, found.metrics["score"], found.metrics["goal_aligned_ratio"]) == ("pending", None, None)


def test_the_hash_of_a_task_is_that_of_its_goal():
    # printf 'Fix it.' | sha256sum
    assert task_hash("Fix it.") == "690cc521261686d9e468ac60d31aefbfa60ecc5774647f8ff7a65a9d4ed3162c"
    assert task_hash("Fix it.") != task_hash("Fix it.", "b") != task_hash("Fix it.b")


# -- what holds for any runs -------------------------------------------------------------------------------------------

_numbers = st.one_of(st.none(), st.floats(0, 1e6))
_attempts = st.lists(
    st.builds(
        Attempt,
        labels=st.sampled_from("abcde").map(lambda name: {"harness": name}),
        state=st.sampled_from(STATES),
        gate=st.sampled_from(["passed", "passed", "failed", "none"]),
        metrics=st.fixed_dictionaries(
            {"total_tokens": _numbers, "wallclock": _numbers, "score": _numbers, "goal_aligned_ratio": _numbers}
        ),
    ),
    max_size=40,
)


@given(_attempts, st.sampled_from(sorted(RANK_BY)))
def test_every_variant_is_in_one_group_and_the_less_successful_never_above(attempts, rank_by):
    found = rank(attempts, HASH, rank_by=rank_by)
    names = [one.variant for one in found.variants()]
    assert sorted(names) == sorted({one.variant for one in attempts})
    for at, one in enumerate(found.ranked):
        for other in found.ranked[at + 1 :]:
            assert not one.success_rate.with_missing.high < other.success_rate.with_missing.low
            assert one.rank <= other.rank
    assert all(one.reason or one.group == "ranked" for one in found.variants())
    json.dumps(found.to_json(), allow_nan=False)


@given(_attempts, st.randoms())
def test_a_ranking_does_not_depend_on_the_order_of_the_runs(attempts, random):
    shuffled = list(attempts)
    random.shuffle(shuffled)
    one, other = (rank(given, HASH) for given in (attempts, shuffled))
    assert groups(one) == groups(other)
    assert ranks(one) == ranks(other)


def test_an_unknown_order_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigurationError, match="rank_by='luck' is not known; write one of composite"):
        rank([], HASH, rank_by="luck")
