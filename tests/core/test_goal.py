"""Goals: what is asked, what is measured, who is shown what, and results that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_proteus.core import EvalResult, EvaluatorSpec, Goal, GoalConfig, GoalContext, Visibility

CONTEXT = GoalContext("/nowhere", 1)


def spec(name: str, value: Any, visibility: Visibility = Visibility.HIDDEN) -> EvaluatorSpec:
    return EvaluatorSpec(name, lambda t, c: value, visibility=visibility)


def test_text_and_evaluators_are_independent() -> None:
    assert GoalConfig.no_goal().is_no_goal
    assert GoalConfig.of("", [spec("a", None)]).is_no_goal
    assert not GoalConfig.of("do it").is_no_goal


def test_several_objectives_are_all_in_the_text() -> None:
    goal = GoalConfig.multi([Goal("a", "FIRST"), Goal("b", "SECOND")])
    assert goal.goal_text().index("FIRST") < goal.goal_text().index("SECOND")
    assert GoalConfig.single(Goal("a", "ONLY")).goal_text() == "ONLY"


def test_the_name_of_the_spec_is_the_identity() -> None:
    (result,) = GoalConfig.of("x", [spec("mine", EvalResult("theirs", 2.0, True, "fine"))]).evaluate([], CONTEXT)
    assert result == EvalResult("mine", 2.0, True, "fine")


@pytest.mark.parametrize(
    ("value", "score"), [(np.float64(1.5), 1.5), (np.int64(2), 2.0), (np.bool_(True), 1.0), (True, 1.0)]
)
def test_scores_become_plain_floats(value: Any, score: float) -> None:
    (result,) = GoalConfig.of("x", [spec("a", EvalResult("a", value))]).evaluate([], CONTEXT)
    assert (type(result.score), result.score, result.error) == (float, score, False)


@pytest.mark.parametrize(
    "value",
    [None, 1.0, "1", EvalResult("a", float("nan")), EvalResult("a", "1"), EvalResult("a", None)],  # type: ignore[arg-type]
)
def test_what_is_no_result_is_an_error_and_costs_no_other(value: Any) -> None:
    fine = EvalResult("b", 1.0)
    broken, other = GoalConfig.of("x", [spec("a", value), spec("b", fine)]).evaluate([], CONTEXT)
    assert (broken.score, broken.error) == (0.0, True)
    assert other == fine


def test_only_observed_results_are_fed_back_and_a_missing_one_is_no_zero() -> None:
    goal = GoalConfig.of("x", [spec("seen", None, Visibility.OBSERVE), spec("hidden", None)])
    results = {name: EvalResult(name, 0.25, detail="half") for name in ("seen", "hidden")}
    assert "seen: 0.250 (half)" in goal.observe_feedback(results)
    assert "hidden" not in goal.observe_feedback(results)
    failed = goal.observe_feedback({"seen": EvalResult("seen", 0.0, detail="/secret/path", error=True)})
    assert failed.endswith("- seen: no result")
    assert goal.observe_feedback({}) == ""


def test_evaluators_are_described_as_plain_data() -> None:
    goal = GoalConfig.of("x", [spec("a", None, Visibility.OBSERVE)])
    assert goal.describe() == [{"name": "a", "kind": "custom", "visibility": "observe"}]


def test_two_evaluators_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'a'"):
        GoalConfig.of("x", [spec("a", None), spec("a", None)])


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(ValueError, match="accept_reject"):
        GoalConfig.of("x", selection="best")
