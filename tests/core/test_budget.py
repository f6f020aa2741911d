"""Turn budgets: what a phase may use after what the earlier ones used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_harness import go

from pytest_proteus.core import PHASES, EpisodeSpec, TurnBudget
from pytest_proteus.core.budget import allowance
from pytest_proteus.core.errors import ConfigurationError


@st.composite
def budgets(draw):
    floor = draw(st.integers(0, 4))
    plan = draw(st.none() | st.lists(st.integers(max(floor, 1), 9), min_size=4, max_size=4))
    most = sum(plan) if plan else draw(st.integers(max(4 * floor, 1), 30))
    hard = draw(st.sampled_from([0, most + draw(st.integers(0, 12))]))
    planned = dict(zip(PHASES, plan, strict=True)) if plan else {}
    return TurnBudget(most, floor, planned, hard, draw(st.integers(0, 6)))


def play(budget: TurnBudget, greed: list[int]) -> list[tuple[int, int]]:
    """(allowance, turns used) of each phase, when each wants so many turns and gets no more than its allowance."""
    used, played = 0, []
    for phase, wanted in zip(PHASES, greed, strict=True):
        allowed = allowance(budget, PHASES, phase, used)
        played.append((allowed, min(wanted, allowed)))
        used += played[-1][1]
    return played


greeds = st.lists(st.integers(0, 60), min_size=4, max_size=4)


@given(budgets(), greeds)
def test_no_episode_exceeds_the_hard_limit(budget, greed):
    assert sum(used for _, used in play(budget, greed)) <= budget.hard_limit


@given(budgets(), greeds)
def test_every_phase_gets_its_minimum_and_its_plan_whatever_the_earlier_ones_used(budget, greed):
    assert not TurnBudget(**{**vars(budget), "checkpoint_turns": 0}).problem(PHASES)
    for phase, (allowed, _) in zip(PHASES, play(budget, greed), strict=True):
        assert allowed >= max(budget.min_turns_per_phase, budget.phase_turns.get(phase, 0))


@given(budgets(), greeds)
def test_only_act_goes_beyond_its_plan_and_beyond_the_normal_limit(budget, greed):
    played = play(budget, greed)
    if budget.phase_turns:
        for phase, (allowed, _) in zip(PHASES, played, strict=True):
            assert phase == "act" or allowed == budget.phase_turns[phase]
    else:
        assert sum(used for _, used in played[:2]) <= budget.max_turns


@given(budgets(), greeds)
def test_act_may_use_all_that_the_later_phases_do_not_keep(budget, greed):
    played = play(budget, greed)
    later = budget.phase_turns.get("reflect", budget.min_turns_per_phase)
    assert sum(used for _, used in played[:2]) + played[2][0] + later == budget.hard_limit


@given(budgets(), st.integers(0, 100), st.sampled_from(PHASES))
def test_what_an_earlier_phase_overran_is_missing_from_the_later_ones(budget, used, phase):
    allowed = allowance(budget, PHASES, phase, used)
    assert 0 <= allowed <= max(budget.hard_limit - used, 0)


@given(budgets(), st.integers(1, 40))
def test_the_checkpoint_keeps_its_turns_but_never_all(budget, turns):
    assert budget.reserve(turns) == min(budget.checkpoint_turns, turns - 1)


@pytest.mark.parametrize(
    ("budget", "phases", "told"),
    [
        (TurnBudget(5, phase_turns={"act": 5}), PHASES, "phase_turns names act, and the phases are observe"),
        (TurnBudget(7, min_turns_per_phase=2), PHASES, "min_turns_per_phase=2 needs 8 turns for 4 phases"),
        (TurnBudget(5, 2, {"observe": 1, "act": 4}), ("observe", "act"), "min_turns_per_phase=2 is more than"),
        (TurnBudget(5, hard_max_turns=6), ("task",), "hard_max_turns=6 is for a phase 'act' to borrow"),
        (TurnBudget(5, checkpoint_turns=5), ("task",), "checkpoint_turns=5 leaves no turn of 5"),
        (TurnBudget(5, checkpoint_turns=4), ("task",), ""),
    ],
)
def test_a_budget_that_the_phases_cannot_keep_says_why(budget, phases, told):
    assert told in budget.problem(phases)
    assert bool(told) == bool(budget.problem(phases))


def test_a_run_with_such_a_budget_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot keep its turn budget: min_turns_per_phase=30 needs 120"):
        go(tmp_path / "run", min_turns_per_phase=30)
    assert list(tmp_path.iterdir()) == []


def spec(**more: object) -> EpisodeSpec:
    return EpisodeSpec(Path(), 1, "m", dict.fromkeys(PHASES, "PROMPT"), max_turns=12, **more)  # type: ignore[arg-type]


def test_what_is_left_is_announced_before_the_prompt_when_asked_for():
    told = spec(hard_max_turns=15, checkpoint_turns=2, announce_budget=True).prompt_of("act", 4)
    assert told.endswith("\n\nPROMPT")
    for part in ("used 4 so far", "may use 11 in this part", "last 2 of them", "planned for 12", "ends at 15"):
        assert part in told
    assert "proteus" not in told


def test_otherwise_nothing_is_said_of_turns():
    assert spec(hard_max_turns=15, checkpoint_turns=2).prompt_of("act", 4) == "PROMPT"
