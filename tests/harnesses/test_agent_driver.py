"""The driver of all agents, against stand-ins: one that logs to its home as codex does, one that prints as opencode."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_proteus.core.adapter import PHASES, EpisodeSpec
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.harnesses.claude import ClaudeHarness
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.harnesses.opencode import OpencodeHarness
from pytest_proteus.harnesses.registry import BUILTIN, resolve
from pytest_proteus.testing import ModelServer, say

#: Stands in for codex: goes on with its numbered log, answers once, runs CODE.
CODEX = f"""#!{sys.executable}
import json, os, pathlib, shutil, sys
prompt = sys.stdin.read()
with open(os.environ["SEEN"], "a") as file:
    file.write(json.dumps({{"argv": sys.argv[1:], "prompt": prompt, "env": dict(os.environ)}}) + "\\n")
home = pathlib.Path(os.environ["CODEX_HOME"])
log = home / "sessions" / "2026" / "11" / "30" / "rollout-x.jsonl"
log.parent.mkdir(parents=True, exist_ok=True)
number = len(log.read_text().splitlines()) if log.exists() else 0
def note(kind, **payload):
    global number
    with log.open("a") as file:
        file.write(json.dumps({{"ordinal": number, "type": kind, "payload": payload}}) + "\\n")
    number += 1
if not number:
    note("session_meta", id="the-session", cli_version=os.environ.get("VERSION", "0.171.0"))
note("response_item", type="message", role="assistant", content=[{{"text": "said"}}])
note("token_usage_record", usage={{"input_tokens": 5, "output_tokens": 2}})
note("event_msg", type="task_complete", **json.loads(os.environ.get("END", "{{}}")))
exec(os.environ.get("CODE", ""))
"""

#: Stands in for opencode: prints what the variable LOG holds, runs CODE.
OPENCODE = f"""#!{sys.executable}
import os, sys, time
with open(os.environ["SEEN"], "a") as file:
    file.write(repr(sys.argv[1:]) + "\\n")
print(os.environ["LOG"], end="", flush=True)
exec(os.environ.get("CODE", ""))
"""

ANSWER = json.dumps({"type": "text", "sessionID": "ses_1", "part": {"text": "said"}}) + "\n"
STOP = json.dumps({"type": "step_finish", "part": {"reason": "stop", "tokens": {"input": 5}}}) + "\n"


@pytest.fixture
def run(tmp_path):
    """Run an episode with a stand-in; ``run.root`` is its root, ``run.seen`` the file of what the stand-in saw."""
    root = tmp_path / "live"
    (root / "harness").mkdir(parents=True)

    def go(kind, phases=("act",), timeout=30.0, handoff="", continuity_mode="native", **env):
        program = tmp_path / "agent"
        program.write_text(CODEX if issubclass(kind, CodexHarness) else OPENCODE)
        program.chmod(0o755)
        prompts = {phase: f"Now {phase}." for phase in phases}
        extra = {"SEEN": str(go.seen), **env}
        spec = EpisodeSpec(
            *(root, 1, "some-model", prompts),
            extra_env=extra,
            phase_timeout=timeout,
            handoff=handoff,
            continuity_mode=continuity_mode,
        )
        return kind({"openai-responses": "http://127.0.0.1:1"}, program).run_episode(spec)

    go.root, go.seen = root, tmp_path / "seen"
    return go


def trace(kind, root: Path) -> list[tuple[str, str]]:
    return [(event.phase, event.text) for event in kind().read_trace(root, 1)]


def test_phases_are_one_session_that_goes_on_by_the_agents_own_id(run):
    result = run(CodexHarness, PHASES)
    assert result.ok, result.error
    seen = [json.loads(line) for line in run.seen.read_text().splitlines()]
    assert [one["prompt"] for one in seen] == [f"Now {phase}." for phase in PHASES]
    assert [one["argv"][1:3] == ["resume", "the-session"] for one in seen] == [False, True, True, True]
    assert trace(CodexHarness, run.root) == [(phase, "said") for phase in PHASES]
    assert result.counters["agent_log_tokens"] == {"input": 20, "output": 8}


#: Calls the endpoint that it was configured with as often as the prompt's number says.
CALLS = """
import re, tomllib, urllib.error, urllib.request
settings = tomllib.loads((home / "config.toml").read_text())
url = next(iter(settings["model_providers"].values()))["base_url"] + "/responses"
for _ in range(int(re.findall("[0-9]+", prompt)[-1])):
    try:
        urllib.request.urlopen(urllib.request.Request(url, b"{}")).read()
    except urllib.error.HTTPError as error:
        note("event_msg", type="task_complete", error={"message": f"status {error.code}"})
"""


def counted(tmp_path: Path, calls: tuple[int, ...], **budget):
    """Run an episode whose phases call the endpoint so often; its result, and the calls that reached the endpoint."""
    phases = ("observe", "act", "reflect")
    prompts = {phase: f"Now {phase} {number}" for phase, number in zip(phases, calls, strict=True)}
    extra = {"SEEN": str(tmp_path / "seen"), "CODE": CALLS}
    (tmp_path / "live" / "harness").mkdir(parents=True)
    (tmp_path / "agent").write_text(CODEX)
    (tmp_path / "agent").chmod(0o755)
    with ModelServer([say("Well.")]) as server:
        spec = EpisodeSpec(tmp_path / "live", 1, "m", prompts, extra_env=extra, phase_timeout=60.0, **budget)
        result = CodexHarness(server.endpoint, tmp_path / "agent").run_episode(spec)
    assert result.ok, result.error
    assert list(result.counters["phase_ends"]) == list(phases)
    return result, len(server.requests)


needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="the stand-in reads TOML")


@needs_toml
@pytest.mark.parametrize(
    ("calls", "hard", "used", "ends"),
    [
        ((2, 2, 2), 8, 6, ["stop", "stop", "stop"]),
        ((9, 9, 9), 8, 8, ["turn_limit", "turn_limit", "turn_limit"]),
        ((0, 9, 1), 7, 6, ["stop", "turn_limit", "stop"]),
    ],
)
def test_calls_of_the_endpoint_decide_when_a_phase_ends(tmp_path, calls, hard, used, ends):
    plan = dict.fromkeys(("observe", "act", "reflect"), 2)
    result, asked = counted(tmp_path, calls, max_turns=6, phase_turns=plan, hard_max_turns=hard)
    assert (result.turns, asked, result.counters["endpoint_turns"]) == (used, used, used)
    assert list(result.counters["phase_ends"].values()) == ends


@needs_toml
def test_a_phase_without_turns_does_not_take_place(tmp_path):
    result, asked = counted(tmp_path, (1, 1, 1), max_turns=1)
    assert list(result.counters["phase_ends"].values()) == ["stop", "no_turns", "no_turns"]
    assert (asked, len((tmp_path / "seen").read_text().splitlines())) == (1, 1)


class NotingCodex(CodexHarness):
    continuity_mode = "framework"


class NotingOpencode(OpencodeHarness):
    continuity_mode = "framework"


def test_under_framework_continuity_every_phase_is_a_session_and_a_note_goes_on(run):
    write = "pathlib.Path('../handoff/note.md').write_text('from ' + prompt)"
    result = run(NotingCodex, ("observe", "act"), CODE=write, handoff="earlier", continuity_mode="framework")
    assert result.ok, result.error
    seen = [json.loads(line) for line in run.seen.read_text().splitlines()]
    assert ["resume" in one["argv"] for one in seen] == [False, False]
    assert trace(CodexHarness, run.root) == [("observe", "said"), ("act", "said")]
    assert [note["text"] for note in result.handoffs.values()] == ["from Now observe.\n", "from Now act.\n"]
    assert result.counters["agent_log_tokens"] == {"input": 10, "output": 4}


def test_under_framework_continuity_what_agents_print_is_one_log_as_well(run):
    result = run(NotingOpencode, ("observe", "act"), LOG=ANSWER + STOP, continuity_mode="framework")
    assert trace(OpencodeHarness, run.root) == [("observe", "said"), ("act", "said")]
    assert "--session" not in run.seen.read_text()
    assert [note["source"] for note in result.handoffs.values()] == ["calls", "calls"]


def test_an_agents_own_memory_over_episodes_is_refused(run):
    class Remembering(CodexHarness):
        continuity_mode = "native"

    with pytest.raises(ConfigurationError, match="continuity_mode must be 'none' or 'framework'"):
        run(Remembering)


def test_only_the_log_stays_of_what_lay_beside_the_harness(run):
    run(CodexHarness)
    assert sorted(path.name for path in run.root.rglob("*")) == [
        "ep001",
        "harness",
        "log.jsonl",
        "phases.json",
        "traces",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "log.write_text(log.read_text()[30:])",
        "log.unlink()",
        "log.unlink(); os.symlink('/etc/passwd', log)",
        "log.unlink(); os.mkfifo(log)",
        "shutil.rmtree(home)",
        "shutil.move(home, '../kept'); os.symlink('../kept', home)",
        "shutil.rmtree('../traces')",
        "pathlib.Path('../traces/ep001/log.jsonl').write_text('')",
    ],
)
def test_a_log_that_the_agent_destroys_is_an_error_of_the_episode(run, code):
    result = run(CodexHarness, ("observe", "act"), CODE=f"if 'act' in prompt: {code}")
    assert (result.ok, result.error_class) == (False, "apparatus")
    assert "the agent's session log was cut, replaced or removed" in result.error


def test_a_home_that_is_nested_without_end_does_not_break_the_search_for_the_log(run):
    code = "os.chdir(home)\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    assert run(CodexHarness, CODE=code).ok
    assert trace(CodexHarness, run.root) == [("act", "said")]


def test_a_log_of_an_unknown_version_is_refused_with_what_to_install(run):
    with pytest.raises(ConfigurationError, match=r"codex 9\.0\.0 wrote this log, .* proteus agents install codex"):
        run(CodexHarness, VERSION="9.0.0")


def test_a_failed_turn_is_an_error_whatever_the_exit_status(run):
    error = {"error": {"message": "unexpected status 404 Not Found: no such model"}}
    result = run(CodexHarness, END=json.dumps(error), CODE="sys.exit(0)")
    assert (result.ok, result.error_class) == (False, "configuration")


def test_what_an_agent_prints_is_its_log(run):
    result = run(OpencodeHarness, ("observe", "act"), LOG=ANSWER + STOP)
    assert result.ok, result.error
    assert trace(OpencodeHarness, run.root) == [("observe", "said"), ("act", "said")]
    first, second = run.seen.read_text().splitlines()
    assert "ses_1" not in first
    assert "'--session', 'ses_1'" in second


def test_a_phase_that_takes_too_long_keeps_what_was_printed(run):
    with pytest.raises(PhaseTimeout):
        run(OpencodeHarness, timeout=4.0, LOG=ANSWER, CODE="time.sleep(60)")
    assert trace(OpencodeHarness, run.root) == [("act", "said")]


def test_an_agent_that_dies_in_the_middle_says_so(run):
    step = json.dumps({"type": "step_finish", "part": {"reason": "tool-calls"}}) + "\n"
    result = run(OpencodeHarness, LOG=ANSWER + step, CODE="os.kill(os.getpid(), 15)")
    assert result.error == "phase act: the agent ended in the middle of its work (exit status -15)"


def test_what_cannot_be_read_of_a_log_is_counted(run):
    result = run(OpencodeHarness, LOG=ANSWER + STOP + '{"type": "novelty"}\n{"type": "te')
    assert (result.ok, result.counters["unread_log_records"]) == (True, 2)


@pytest.mark.parametrize("name", sorted({*BUILTIN} - {"minimal"}))
def test_every_agent_names_its_surfaces_and_seeds_them_without_naming_the_framework(name, tmp_path):
    harness = resolve(name)
    assert [surface.name for surface in harness.surfaces()] == ["instructions", "notes", "skills", "tools"]
    harness.seed(tmp_path)
    page = (tmp_path / harness.surfaces()[0].subdir).read_text()
    assert harness.surfaces()[2].subdir in page
    assert "proteus" not in page
    assert harness.required_edit_tools()


def test_of_several_endpoints_an_agent_uses_the_first_that_it_speaks():
    endpoints = {"gemini": "http://a", "anthropic": "http://b", "openai-chat": "http://c"}
    assert [resolve(name, endpoint=endpoints).wire for name in ("claude", "gemini", "qwen")] == [
        "anthropic",
        "gemini",
        "anthropic",
    ]


def test_an_endpoint_of_which_the_agent_speaks_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="harness codex: no wire protocol 'gemini'; choose one of openai-resp"):
        CodexHarness({"gemini": "http://a"})


@pytest.mark.parametrize(("key", "told"), [("", "has no model endpoint and no key"), ("k", "")])
def test_without_an_endpoint_the_vendors_is_used_where_its_key_is_there(tmp_path, monkeypatch, key, told):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    (tmp_path / "agent").write_text("")
    assert told in ClaudeHarness(None, tmp_path / "agent").unconfigured("anthropic/claude-x")
    assert bool(told) == bool(ClaudeHarness(None, tmp_path / "agent").unconfigured("anthropic/claude-x"))
