"""Two self-editing episodes of a real coding agent in each of two arms."""

import os

import pi_agent_model
import pytest

from pytest_proteus import NEUTRAL, review
from pytest_proteus.harnesses.pi import PiHarness

pytest.importorskip("aiohttp", reason="the scripted model needs the extra [web]: pip install 'pytest-proteus[web]'")
if missing := PiHarness().preflight() or pi_agent_model.missing_sandbox:
    pytest.skip(missing, allow_module_level=True)

pytestmark = [
    pytest.mark.sweep(
        name="pi_agent",
        episodes=2,
        phases=["act", "reflect"],
        goal="Keep what you learn where you will find it again.",
        harness=["pi"],
        model=[os.environ.get("PI_AGENT_MODEL", "scripted")],
        arm=[NEUTRAL, review("notes")],
        seed=[0],
        phase_timeout=300,
    ),
    pytest.mark.evaluator("units:notes", direction="higher", at_least=2),
    pytest.mark.evaluator("units:skills"),
    pytest.mark.evaluator("tool-calls", direction="lower", at_least=1),
]


def test_every_episode_completes(run):
    assert (run.state, run.episodes_complete) == ("complete", run.episodes)


def test_the_agent_edits_its_own_notes(run):
    written = [event for episode in (1, 2) for event in run.trace(episode) if event.surface == "notes"]
    assert {event.tool for event in written} & PiHarness().required_edit_tools()


def test_what_it_wrote_is_in_the_checkpoint(run):
    with run.checkpoint(run.episodes) as tree:
        assert (tree / "AGENTS.md").is_file()
        assert len(list((tree / "notes").rglob("*.md"))) == run.last("units:notes")


def test_nothing_else_is_lost_between_episodes(run):
    first, last = run.scores("units:notes")
    assert last >= first
