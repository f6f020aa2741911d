"""All real agents through the same scripted session; an agent that is not on this machine is skipped."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from waiting import until

from pytest_proteus.core.adapter import PHASES, EpisodeResult, EpisodeSpec
from pytest_proteus.core.errors import PhaseTimeout
from pytest_proteus.harnesses.agent import AgentHarness
from pytest_proteus.harnesses.registry import resolve
from pytest_proteus.sandbox import BwrapSandbox, choose
from pytest_proteus.testing import ModelServer, both, edit, fail, read, say, shell, write

#: Agent → a model that it offers all its tools to.
MODELS = {
    "claude": "claude-sonnet-4-5",
    "codex": "gpt-5.5",
    "copilot": "claude-sonnet-4.5",
    "gemini": "gemini-2.5-flash",
    "llm": "some-model",
    "opencode": "some-model",
    "pi": "some-model",
    "qwen": "some-model",
}

#: The agent whose one tool is a shell, and how it is told that it has finished.
MINI, SUBMIT = "mini-swe-agent", shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

ASKED = os.environ.get("PROTEUS_TEST_REAL_AGENTS", "")

slow = pytest.mark.skipif(not ASKED, reason="takes long; tox runs it once")
thorough = pytest.mark.skipif(ASKED != "all", reason="takes minutes: set PROTEUS_TEST_REAL_AGENTS=all")


NO_BOX = choose("bwrap").preflight()


def agents(*quick: str):
    """Every agent, those that are not ``quick`` only where all is asked for."""
    return pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in quick else thorough) for n in MODELS])


#: What every agent is heard to do in the session below, whatever it calls its tools.
STREAM = ["read", "shell", "write", "shell", "read", "edit", "read"]

#: Wires of which every agent speaks one.
WIRES = ("anthropic", "openai-responses", "gemini")

SKILL = "---\nname: greet\ndescription: How to greet a visitor.\n---\nSay hello.\n"

TIME = 240.0


def harness(name: str, server: ModelServer | None = None, agent: Path | None = None) -> AgentHarness:
    endpoint = server.endpoint if server else dict.fromkeys(WIRES, "http://127.0.0.1:1")
    adapter = resolve(name, endpoint=endpoint, agents={name: str(agent)} if agent else None)
    assert isinstance(adapter, AgentHarness)
    if missing := adapter.preflight():
        pytest.skip(missing)
    return adapter


def boxed(name: str, server: ModelServer) -> AgentHarness:
    """The agent in a box of its own; skipped where none can be built."""
    if NO_BOX:
        pytest.skip(NO_BOX)
    adapter = harness(name, server)
    adapter.sandbox = BwrapSandbox()
    return adapter


def instructions(name: str) -> str:
    return next(surface.subdir for surface in resolve(name).surfaces() if surface.name == "instructions")


def session(name: str, root: Path, mark: str = "it"):
    """The model's part: reads its instructions, looks at its notes, edits two surfaces, and is content."""
    page, note = (str(root / "harness" / path) for path in (instructions(name), "notes/found.md"))
    steps = {
        "observe": [read(page), say("Seen.")],
        "propose": [shell("ls notes"), say("That could be better.")],
        "act": [
            both(write(note, f"# Found {mark}\n"), shell("echo out; exit 3")),
            read(page),  # qwen does not edit what it has not read since it was started
            edit(page, "# Instructions", "# My instructions"),
            read(note),
            say("All written."),
        ],
        "reflect": [say("Good.")],
    }
    return lambda talk: next(steps[phase] for phase in PHASES if f"Now {phase}" in talk.prompt)


def prompts(*phases: str, mark: str = "it") -> dict[str, str]:
    return {phase: f"Now {phase} {mark}." for phase in phases or PHASES}


def run(adapter: AgentHarness, root: Path, *phases: str, timeout: float = TIME, mark: str = "it") -> EpisodeResult:
    (root / "harness").mkdir(exist_ok=True)
    adapter.seed(root / "harness")
    spec = EpisodeSpec(
        root, 1, MODELS.get(adapter.name, "some-model"), prompts(*phases, mark=mark), phase_timeout=timeout
    )
    return adapter.run_episode(spec)


def said(server: ModelServer, *parts: str) -> str:
    """What the model was told, in lower case: all of it, or only these parts of the requests."""
    bodies = [[value for name, value in one.body.items() if name in (parts or one.body)] for one in server.requests]
    return " ".join(map(str, [*bodies, *(one.headers for one in server.requests)])).lower()


@agents("claude", "codex", "llm", "opencode", "pi")
def test_an_episode_of_four_phases_edits_two_surfaces_and_looks_the_same_from_every_agent(name, root):
    with ModelServer(session(name, root)) as server:
        adapter = boxed(name, server)
        skills = next(surface.subdir for surface in adapter.surfaces() if surface.name == "skills")
        (root / "harness" / skills / "greet").mkdir(parents=True)
        (root / "harness" / skills / "greet" / "SKILL.md").write_text(SKILL)
        result = run(adapter, root)
    assert result.ok, result.error
    tree = root / "harness"
    assert (tree / "notes" / "found.md").read_text() == "# Found it\n"
    assert (tree / instructions(name)).read_text().startswith("# My instructions\n")
    trace = adapter.read_trace(root, 1)
    assert adapter.normalized(trace) == STREAM
    calls = [event for event in trace if event.tool]
    assert [event.surface for event in calls] == ["instructions", None, "notes", None, *["instructions"] * 2, "notes"]
    assert [event.phase for event in calls] == ["observe", "propose", *["act"] * 5]
    assert [event.text for event in trace if not event.tool][-1] == "Good."
    if name != "gemini":  # which does not say how a command ended
        assert calls[3].text.startswith("error: "), "the command ended with 3"
    turns = [result.counters[f"phase_{phase}_turns"] for phase in PHASES]
    assert (turns, result.counters["tool_calls"], "unread_log_records" in result.counters) == ([2, 2, 5, 1], 7, False)
    assert {request.wire for request in server.requests} == {adapter.wire}
    assert sorted(path.name for path in root.iterdir()) == ["harness", "traces"]
    found = said(server)
    assert "this folder is yours to change" in found, "the agent reads its instructions"
    assert "how to greet a visitor" in found, "the agent knows its skills"
    assert "proteus" not in found
    # the agents' own prompts and tools have examples of it
    assert "pytest" not in said(server, "messages", "input", "contents")


@thorough
def test_mini_swe_agent_does_the_same_with_its_one_tool(root):
    def answer(talk):
        return [*session(MINI, root)(talk)[:-1], SUBMIT]

    with ModelServer(answer) as server:
        adapter = boxed(MINI, server)
        (root / "harness").mkdir()
        adapter.seed(root / "harness")
        result = adapter.run_episode(EpisodeSpec(root, 1, "some-model", prompts(), phase_timeout=TIME))
    assert result.ok, result.error
    assert (root / "harness" / "notes" / "found.md").read_text() == "# Found it\n"
    assert (root / "harness" / "AGENTS.md").read_text().startswith("# My instructions\n")
    trace = adapter.read_trace(root, 1)
    assert adapter.normalized(trace) == ["shell"] * 11
    assert [event.phase for event in trace] == [*["observe"] * 2, *["propose"] * 2, *["act"] * 6, "reflect"]


@agents("claude", "codex", "pi")
def test_a_wrong_key_is_an_error_of_the_configuration(name, root):
    with ModelServer([fail(401)]) as server:
        result = run(harness(name, server), root, "act")
    assert (result.ok, result.error_class) == (False, "configuration")
    assert "the model's endpoint failed" in result.error


@slow
@agents("claude", "codex", "pi")
def test_an_error_of_the_endpoint_in_mid_episode_keeps_what_was_done(name, root):
    with ModelServer([write(str(root / "harness/notes/a.md"), "a\n"), fail(400)]) as server:
        adapter = harness(name, server)
        result = run(adapter, root, "act")
    assert (result.ok, result.error_class) == (False, "apparatus")
    assert adapter.normalized(adapter.read_trace(root, 1)) == ["write"]


@slow
def test_a_phase_that_uses_its_turns_up_ends_well_and_is_counted(root):
    with ModelServer(lambda talk: shell("echo again")) as server:
        adapter = harness("claude", server)
        (root / "harness").mkdir()
        spec = EpisodeSpec(root, 1, MODELS["claude"], prompts("act"), max_turns=2, phase_timeout=TIME)
        result = adapter.run_episode(spec)
    assert (result.ok, result.error, result.counters["turn_limited_phases"]) == (True, "", 1)
    assert result.counters["phase_act_turns"] == 2


@agents("codex")
def test_a_model_that_would_never_stop_gets_the_turns_of_the_phase_and_no_more(name, root):
    asked_for = itertools.count(1)
    # the work of the first phase has one turn, that of the second four: each is followed by one for the checkpoint
    checkpoints = (2, 7)

    def answer(talk):
        return shell("echo kept > notes/kept.md" if next(asked_for) in checkpoints else "echo again")

    with ModelServer(answer) as server:
        adapter = harness(name, server)
        (root / "harness").mkdir()
        adapter.seed(root / "harness")
        budget = {"max_turns": 5, "phase_turns": {"observe": 2, "act": 3}, "hard_max_turns": 7, "checkpoint_turns": 1}
        asked = prompts("observe", "act")
        result = adapter.run_episode(EpisodeSpec(root, 1, MODELS[name], asked, phase_timeout=TIME, **budget))
    assert result.ok, result.error
    assert len(server.requests) == result.turns == 7
    assert result.counters["phase_ends"] == dict.fromkeys(asked, "turn_limit")
    assert (result.counters["turn_limited_phases"], result.counters["model_errors"]) == (2, 0)
    told = [str(request.body).count("Begin nothing new") for request in server.requests]
    assert told == [sum(number >= checkpoint for checkpoint in checkpoints) for number in range(1, 8)]
    assert (root / "harness" / "notes" / "kept.md").read_text() == "kept\n"


@slow
@agents("claude", "codex", "pi")
def test_a_phase_that_takes_too_long_keeps_what_was_done_and_leaves_no_process(name, root):
    left = both(write(str(root / "harness/notes/a.md"), "a\n"), shell("setsid sleep 3600 >/dev/null 2>&1 &"))
    with ModelServer([left, fail("hang")]) as server:
        adapter = harness(name, server)
        with pytest.raises(PhaseTimeout):
            run(adapter, root, "act", timeout=20.0 if name in ("claude", "codex", "pi") else 60.0)
    assert len(server.requests) > 1, "it came as far as the silence"
    assert adapter.normalized(adapter.read_trace(root, 1)) == ["write", "shell"]
    assert not [p for p in psutil.process_iter(["cwd"]) if str(p.info["cwd"] or "").startswith(str(root))]


#: How many run at once, and which phases they have.
AT_ONCE, THEIRS = (10, PHASES) if ASKED == "all" else (6, ("observe", "act"))


@slow
def test_agents_at_once_share_nothing_and_mix_nothing(root):
    names = [
        name
        for name in [*MODELS, *([MINI] if ASKED == "all" else [])]
        if not resolve(name, endpoint=dict.fromkeys(WIRES, "http://127.0.0.1")).preflight()
    ]
    marks = {f"mark{number}": names[number % len(names)] for number in range(AT_ONCE)}

    def answer(talk):
        mark = re.search(r"mark\d", talk.prompt)[0]
        steps = session(marks[mark], root / mark, mark)(talk)
        return [*steps[:-1], SUBMIT] if marks[mark] == MINI else steps

    with ModelServer(answer) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        for mark in marks:
            (root / mark).mkdir()
        results = {
            mark: pool.submit(run, boxed(name, server), root / mark, *THEIRS, mark=mark, timeout=900.0)
            for mark, name in marks.items()
        }
        assert {mark: result.result().error for mark, result in results.items()} == dict.fromkeys(marks, "")
    for request in server.requests:
        assert len(set(re.findall(r"mark\d", str(request.body)))) == 1
    for mark, name in marks.items():
        assert (root / mark / "harness" / "notes" / "found.md").read_text() == f"# Found {mark}\n"
        assert (root / mark / "harness" / instructions(name)).read_text().startswith("# My instructions\n")


#: Runs the agent, and notes every connection and every question to a name server that it or its children try.
WATCHED = """#!/bin/sh
exec {strace} -f -qq -e trace=connect,sendto,sendmmsg -o {log}.$$ -- {agent} "$@"
"""


@slow
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not on this machine")
@pytest.mark.parametrize(
    "name",
    ["claude", "codex", "pi", *(pytest.param(n, marks=thorough) for n in ("copilot", "gemini", "opencode", "qwen"))],
)
def test_no_connection_is_made_but_to_the_endpoint(name, root):
    log = root / "watch"
    with ModelServer(session(name, root)) as server:
        real = harness(name, server)._program().argv
        wrapper = root / "watched"
        wrapper.write_text(WATCHED.format(strace=shutil.which("strace"), log=log, agent=" ".join(real)))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        result = run(harness(name, server, wrapper), root, "observe", "act")
    assert result.ok, result.error
    text = "".join(path.read_text(errors="replace") for path in root.glob("watch.*"))
    calls = re.findall(r"sa_family=AF_INET6?, .*", text)
    assert calls, "nothing was noted"
    assert [call for call in calls if '"127.0.0.1"' not in call] == []
    assert len(set(re.findall(r"htons\(\d+\)", " ".join(calls)))) == 1, "the address that the agent was given"


SUITE = """
import pytest
pytestmark = pytest.mark.sweep(
    name="x", episodes=1, phases=["act"], harness=[{name!r}], model=[{model!r}], arm=["neutral"], seed=[0])
def test_run(run):
    pass
"""


def of_agents(folder: Path, token: str) -> list[int]:
    """What an agent of a session works at, by its folder or by its command line."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline", "status"]):
        here = str(process.info["cwd"] or "").startswith(str(folder)) or token in str(process.info["cmdline"])
        if here and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@thorough
@pytest.mark.parametrize("rung", ["bwrap", "none"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", [*MODELS, MINI])
def test_a_killed_session_leaves_no_process_of_the_agent(name, number, rung, root, tmp_path):
    if rung == "bwrap" and NO_BOX:
        pytest.skip(NO_BOX)
    harness(name)
    token = uuid.uuid4().hex
    (tmp_path / "test_it.py").write_text(SUITE.format(name=name, model=MODELS.get(name, "some-model")))
    command = f"trap '' TERM HUP; setsid bash -c 'while :; do sleep 600; done' {token} & sleep 600"
    with ModelServer(lambda talk: shell(command)) as server:
        words = ["-p", "proteus", "-p", "no:cacheprovider", "--proteus-out=out", f"--proteus-sandbox={rung}"]
        words += [f"--proteus-endpoint={wire}={url}" for wire, url in server.endpoint.items()]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "TMPDIR": str(root)}}
        running = subprocess.Popen([sys.executable, "-m", "pytest", *words, "test_it.py"], cwd=tmp_path, **quiet)
        try:
            assert until(lambda: any(token in " ".join(cmdline(pid)) for pid in of_agents(root, token)), 120)
            running.send_signal(number)
            assert until(lambda: not of_agents(root, token), 20), of_agents(root, token)
        finally:
            running.kill()
            running.wait(30)


def cmdline(pid: int) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []
