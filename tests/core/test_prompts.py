"""Phase prompts: who is told what, and what nobody is told."""

from __future__ import annotations

import pytest

from pytest_proteus.core import PHASES, Disposition, review
from pytest_proteus.core.prompts import BASE_PROMPTS, OPEN_BASE_PROMPTS, phase_prompts, refusal_notice, rejection_notice

PLAIN = Disposition("secret-label", prompt_suffix="SUFFIX", per_phase={"act": "ACT"})


def test_the_goal_is_in_every_phase() -> None:
    prompts = phase_prompts(PHASES, goal_text="GOAL", disposition=PLAIN)
    assert list(prompts) == list(PHASES)
    assert all(prompt.count("GOAL") == 1 for prompt in prompts.values())


def test_feedback_is_in_observe_alone() -> None:
    prompts = phase_prompts(PHASES, goal_text="GOAL", disposition=PLAIN, feedback="FEEDBACK")
    assert [phase for phase, prompt in prompts.items() if "FEEDBACK" in prompt] == ["observe"]


def test_the_disposition_closes_each_prompt_once() -> None:
    prompts = phase_prompts(PHASES, goal_text="GOAL", disposition=PLAIN)
    for phase, prompt in prompts.items():
        assert prompt.endswith("\n\nACT" if phase == "act" else "\n\nSUFFIX")
        assert prompt.count("SUFFIX") + prompt.count("ACT") == 1


def test_a_notice_is_in_the_first_phase_alone() -> None:
    prompts = phase_prompts(PHASES, goal_text="", disposition=PLAIN, notice="NOTICE")
    assert [phase for phase, prompt in prompts.items() if "NOTICE" in prompt] == ["observe"]


def test_a_phase_of_its_own_gets_goal_task_and_disposition() -> None:
    prompts = phase_prompts(("task",), goal_text="GOAL", task_text="TASK", disposition=PLAIN, feedback="FEEDBACK")
    assert prompts["task"].endswith("GOAL\n\nTASK\n\nSUFFIX")
    assert "FEEDBACK" not in prompts["task"]


def test_without_a_goal_no_prompt_assumes_one() -> None:
    prompts = phase_prompts(PHASES, goal_text="", disposition=Disposition("n"))
    assert prompts == dict(OPEN_BASE_PROMPTS)
    assert "do not suppose" in prompts["observe"]


@pytest.mark.parametrize("goal", ["", "GOAL"])
def test_no_prompt_names_the_arm_or_the_framework(goal: str) -> None:
    notices = (refusal_notice("bad", handed_back=True), refusal_notice("bad", handed_back=False), rejection_notice())
    for notice in notices:
        prompts = phase_prompts(PHASES, goal_text=goal, disposition=review("notes", "hushhush"), notice=notice)
        text = " ".join(prompts.values()).lower()
        assert not any(word in text for word in ("proteus", "pytest", "hushhush", "evaluator", "arm "))


def test_every_phase_has_a_text_with_and_without_a_goal() -> None:
    assert set(BASE_PROMPTS) == set(OPEN_BASE_PROMPTS) == set(PHASES)
