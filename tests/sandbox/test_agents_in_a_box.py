"""The real agent in a box, against the scripted model server; skipped where pi is not installed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from boxes import needs_bwrap

from pytest_proteus.core.adapter import PHASES, EpisodeSpec
from pytest_proteus.core.errors import PhaseTimeout
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.sandbox import BwrapSandbox, Limits
from pytest_proteus.testing import ModelServer, edit, fail, read, say, shell, write

MISSING = PiHarness({"anthropic": "http://127.0.0.1:1"}).preflight()

pytestmark = [needs_bwrap, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

SKILL = "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n"


def episode(world: Path, server: ModelServer, *phases: str, limits: Limits | None = None, timeout: float = 120.0):
    harness = PiHarness(server.endpoint, sandbox=BwrapSandbox([world / "records"], limits))
    harness.seed(world / "run" / "harness")
    prompts = {phase: f"Now {phase}." for phase in phases}
    return harness.run_episode(EpisodeSpec(world / "run", 1, "some-model", prompts, phase_timeout=timeout))


def test_four_phases_that_edit_two_surfaces(world):
    steps = {
        "observe": [read("AGENTS.md"), shell("ls -la; git --version; id"), say("Seen.")],
        "propose": [write("notes/plan.md", "# Plan\n"), say("Planned.")],
        "act": [write("skills/greet/SKILL.md", SKILL), edit("AGENTS.md", "# Instructions", "# Mine"), say("Done.")],
        "reflect": [shell("cat notes/plan.md >> notes/index.md"), say("Noted.")],
    }

    def answer(talk):
        return next(found for phase, found in steps.items() if f"Now {phase}." in talk.prompt)

    with ModelServer(answer) as server:
        result = episode(world, server, *PHASES)
    assert result.ok, result.error
    harness = world / "run" / "harness"
    assert (harness / "AGENTS.md").read_text().startswith("# Mine\n")
    assert (harness / "skills" / "greet" / "SKILL.md").read_text() == SKILL
    assert (harness / "notes" / "index.md").read_text().endswith("# Plan\n")
    trace = PiHarness().read_trace(world / "run", 1)
    assert {event.phase for event in trace} == set(PHASES)
    assert {event.surface for event in trace if event.tool in ("write", "edit")} == {"notes", "skills", "instructions"}
    assert "How to greet." in str(server.requests[-1].body["system"])
    assert result.counters["endpoint_calls"] == len(server.requests)


def test_what_it_must_not_reach_it_does_not(world):
    tries = [f"cat {world}/records/scores.json", f"ls {world}", "cat ~/../../records/scores.json", "ls /root /home"]
    tries += [f"echo x >> {world}/repo/.git/hooks/pre-commit", "echo x > /proc/sys/kernel/core_pattern"]
    with ModelServer([shell("; ".join(tries)), say("Done.")]) as server:
        result = episode(world, server, "act")
    assert result.ok, result.error
    seen = str(server.requests[-1].body["messages"][-1])
    assert "score" not in seen.replace("scores.json", "")
    assert seen.count("No such file or directory") >= 4
    assert not (world / "repo" / ".git" / "hooks" / "pre-commit").exists()


def test_nothing_that_it_or_its_model_sees_names_the_framework(world):
    command = "env; pwd; ls -la .. ../..; cat /proc/self/cmdline /proc/$PPID/cmdline /proc/1/cmdline /proc/mounts"
    with ModelServer([shell(command), say("Done.")]) as server:
        episode(world, server, "act")
    seen = " ".join(str(request.body) + str(request.headers) for request in server.requests).lower()
    assert "pi_session_id" in seen
    assert "proteus" not in seen
    assert "pytest" not in seen


def test_no_process_of_an_episode_outlives_it(world):
    command = "setsid bash -c 'trap : TERM HUP; while :; do sleep 617; done' >/dev/null 2>&1 &"
    with ModelServer([shell(command), say("Done.")]) as server:
        result = episode(world, server, "act")
    assert result.ok, result.error
    assert not [process for process in psutil.process_iter(["cmdline"]) if "617" in (process.info["cmdline"] or [])]


def test_a_subject_over_its_limits_ends_the_episode_as_its_own_doing(world):
    with ModelServer([shell("head -c 200M /dev/zero > notes/large; sleep 60"), say("Done.")]) as server:
        result = episode(world, server, "act", limits=Limits(disk=64 << 20))
    assert (result.ok, result.error_class) == (False, "abort")
    assert "it used more disk than the 64 MiB that it may" in result.error


@pytest.mark.parametrize(("status", "error_class"), [(401, "configuration"), (429, "apparatus")])
def test_an_error_of_the_endpoint_comes_through_the_door(world, status, error_class):
    with ModelServer([fail(status)]) as server:
        result = episode(world, server, "act")
    assert (result.ok, result.error_class) == (False, error_class)
    assert "the model's endpoint failed" in result.error


def test_a_silent_model_is_a_time_out(world):
    with ModelServer([write("notes/a.md", "a"), fail("hang")]) as server, pytest.raises(PhaseTimeout):
        episode(world, server, "act", timeout=15.0)
    assert [event.tool for event in PiHarness().read_trace(world / "run", 1)] == ["write"]
