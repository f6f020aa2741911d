"""The real agent against the scripted model server; skipped where pi is not installed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_proteus.core.adapter import EpisodeSpec
from pytest_proteus.core.errors import PhaseTimeout
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.testing import ModelServer, Usage, both, edit, fail, read, say, shell, write

MISSING = PiHarness({"anthropic": "http://127.0.0.1:1"}).preflight()

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

EDITS = [
    both(write("notes/found.md", "# Found\n"), shell("echo out; exit 3")),
    edit("AGENTS.md", "# Instructions", "# My instructions"),
    read("notes/found.md"),
    say("All written."),
]


@pytest.fixture
def root(root):
    (root / "harness").mkdir()
    return root


def episode(root: Path, server: ModelServer, *phases: str, wire: str = "anthropic", timeout: float = 120.0, **more):
    harness = PiHarness({wire: server.endpoint[wire]})
    harness.seed(root / "harness")
    prompts = {phase: f"Now {phase}." for phase in phases or ("act",)}
    return harness.run_episode(EpisodeSpec(root, 1, "some-model", prompts, phase_timeout=timeout, **more))


def texts(root: Path) -> dict[str, str]:
    harness = root / "harness"
    return {str(path.relative_to(harness)): path.read_text() for path in harness.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat", "openai-responses", "gemini"])
def test_the_agent_edits_two_surfaces_over_every_wire(root, wire):
    with ModelServer(EDITS) as server:
        result = episode(root, server, wire=wire)
    assert result.ok, result.error
    assert texts(root)["notes/found.md"] == "# Found\n"
    assert texts(root)["AGENTS.md"].startswith("# My instructions\n")
    stream = [(event.tool, event.surface) for event in PiHarness().read_trace(root, 1)]
    assert stream == [
        ("write", "notes"),
        ("bash", None),
        ("edit", "instructions"),
        ("read", "notes"),
        (None, None),
    ]
    assert {request.wire for request in server.requests} == {wire}
    assert (result.turns, result.counters["tool_calls"]) == (4, 4)


def test_phases_share_a_session_and_the_trace_tells_them_apart(root):
    steps = {"observe": [read("AGENTS.md"), say("Seen.")], "act": [write("tools/a.sh", "true\n"), say("Done.")]}
    with ModelServer(lambda talk: steps["observe" if "observe" in talk.prompt else "act"]) as server:
        result = episode(root, server, "observe", "act")
    assert result.ok, result.error
    assert server.requests[-1].body["messages"][0]["content"][0]["text"] == "Now observe."
    trace = [(event.phase, event.tool) for event in PiHarness().read_trace(root, 1)]
    assert trace == [("observe", "read"), ("observe", None), ("act", "write"), ("act", None)]
    assert (result.counters["phase_observe_turns"], result.counters["phase_act_turns"]) == (2, 2)


def test_the_harness_is_what_the_agent_starts_from(root):
    skill = "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n"
    (root / "harness" / "skills" / "greet").mkdir(parents=True)
    (root / "harness" / "skills" / "greet" / "SKILL.md").write_text(skill)
    with ModelServer([say("Done.")]) as server:
        episode(root, server)
    system = str(server.requests[0].body["system"])
    assert "How to greet." in system
    assert "This folder is yours to change." in system


def test_nothing_that_the_agent_or_its_model_sees_names_the_framework(root):
    command = "env; pwd; ls -la .. ../state ../traces; cat /proc/self/cmdline /proc/$PPID/cmdline"
    with ModelServer([shell(command), say("Done.")]) as server:
        episode(root, server)
    seen = " ".join(str(request.body) + str(request.headers) for request in server.requests).lower()
    assert "pi_session_id" in seen
    assert "proteus" not in seen
    assert "pytest" not in seen


def test_tokens_are_those_that_the_server_told(root):
    usage = Usage(input=100, output=20, cache_read=30, cache_write=5)
    with ModelServer([write("notes/a.md", "a", usage=usage), say("Done.", usage=usage)]) as server:
        result = episode(root, server)
    assert result.counters["agent_log_tokens"] == {"input": 200, "output": 40, "cache_read": 60, "cache_write": 10}


def test_an_error_that_passes_is_retried_and_counted(root):
    with ModelServer([fail(500, times=1), say("Done.")]) as server:
        result = episode(root, server)
    assert (result.ok, result.counters["model_errors"], result.counters["phase_act_turns"]) == (True, 1, 1)


@pytest.mark.parametrize(("status", "error_class"), [(429, "apparatus"), (400, "apparatus"), (401, "configuration")])
def test_an_error_that_stays_ends_the_episode(root, status, error_class):
    with ModelServer([fail(status)]) as server:
        result = episode(root, server)
    assert (result.ok, result.error_class) == (False, error_class)
    assert f"the model's endpoint failed: {status}" in result.error


def test_an_endpoint_that_is_not_there_is_an_error_of_the_apparatus(root):
    with ModelServer([]) as server:
        pass
    result = episode(root, server)
    assert (result.ok, result.error_class) == (False, "apparatus")


def test_a_silent_model_is_a_time_out(root):
    with ModelServer([write("notes/a.md", "a"), fail("hang")]) as server, pytest.raises(PhaseTimeout):
        episode(root, server, timeout=12.0)
    assert [event.tool for event in PiHarness().read_trace(root, 1)] == ["write"]


def test_no_process_of_an_episode_outlives_it(root):
    command = "setsid sh -c 'trap : TERM HUP; while :; do sleep 600; done' >/dev/null 2>&1 & echo $! > ../pid"
    with ModelServer([shell(command), say("Done.")]) as server:
        result = episode(root, server)
    assert result.ok, result.error
    assert not psutil.pid_exists(int((root / "pid").read_text()))
    assert not [p for p in psutil.process_iter(["cwd"]) if str(p.info["cwd"] or "").startswith(str(root))]


def test_the_version_is_told():
    assert PiHarness().version.count(".") == 2
