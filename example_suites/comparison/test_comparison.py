"""Two agents and four models at one task: which variant is better, and which cannot be ranked, and why."""

import shutil
import sys

import comparison_models
import pytest

from pytest_proteus import EvalResult
from pytest_proteus.harnesses.llm import LlmHarness
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.scoring.judge import rubric

pytest.importorskip("aiohttp", reason="the scripted models need the extra [web]: pip install 'pytest-proteus[web]'")
if comparison_models.missing_sandbox:
    pytest.skip(comparison_models.missing_sandbox, allow_module_level=True)

ENDPOINT = comparison_models.endpoint
HARNESSES = [LlmHarness(ENDPOINT), *([] if PiHarness().preflight() else [PiHarness(ENDPOINT)])]
AGENTS = [harness.name for harness in HARNESSES]
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable


def stays_in_place(trace, ctx):
    """Whether an agent wrote where it should, by its calls; what it did in a shell they do not tell."""
    if any(event.tool in ("bash", "shell") for event in trace):
        raise LookupError("a shell may have written anywhere")
    return EvalResult("", 1.0, passed=not any("/" in str(event.params.get("path", "")) for event in trace))


pytestmark = [
    pytest.mark.sweep(
        name="comparison",
        goal="Fix total(): the discount is given in percent.",
        phases=["task"],
        repo=comparison_models.repository,
        ref="HEAD",
        test_command=[PYTHON, "-m", "unittest", "discover", "-s", "tests"],
        harness=HARNESSES,
        model=["careful", "lazy", "shell", "wordy"],
        seed=[0, 1],
        exclude=lambda cell: cell.harness == "pi" and cell.model not in ("careful", "lazy"),
        phase_timeout=120,
    ),
    pytest.mark.evaluator(stays_in_place, name="stays-in-place", kind="gate"),
    pytest.mark.evaluator(rubric("judge", endpoint=ENDPOINT)),
    pytest.mark.evaluator("route:total_step_count"),
]


def names(variants):
    return {one.variant for one in variants}


def test_variants_that_repair_and_can_be_judged_are_ranked(ranking):
    assert names(ranking.ranked) == {f"{agent}/neutral/careful" for agent in AGENTS}
    for one in ranking.ranked:
        assert one.success_rate.value == 1.0
        assert one.composite.value == one.metrics["total_tokens"].mean  # every action was toward the goal


def test_a_variant_that_does_nothing_failed_whatever_it_says(ranking):
    assert names(ranking.failed) == {f"{agent}/neutral/lazy" for agent in AGENTS}


def test_a_variant_whose_gate_cannot_tell_is_ungated(ranking):
    assert names(ranking.ungated) == {"llm/neutral/shell"}


def test_a_variant_without_an_aligned_action_is_unscored(ranking):
    assert names(ranking.unscored) == {"llm/neutral/wordy"}
    assert "none has goal_aligned_ratio" in ranking.variant("llm/neutral/wordy").reason
    assert "llm/neutral/wordy" in names(ranking.by("tokens").ranked)


def test_no_agent_saw_the_instructions_of_the_repository(sweep):
    assert sweep.manifest["task"]["neutralised"] == ["AGENTS.md"]


def test_a_repair_is_cheap(ranking, gate):
    for one in ranking.ranked:
        gate(f"tokens of {one.variant}", one.metrics["total_tokens"].mean, at_most=100_000)
