"""Agents that run from one tree and edit another: what they may change, and what becomes of what they wrote."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from test_real_agents import MINI, MODELS, NO_BOX, SUBMIT, instructions, thorough

from pytest_proteus.core import GoalConfig, RunConfig, run
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.core.records import read_trace
from pytest_proteus.harnesses.agent import AgentHarness
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.harnesses.registry import resolve
from pytest_proteus.sandbox import BwrapSandbox
from pytest_proteus.testing import ModelServer, say, shell


def adapter(name: str, server: ModelServer, **attributes: object) -> AgentHarness:
    """An agent with other attributes, in a box."""
    plain = resolve(name, endpoint=server.endpoint)
    assert isinstance(plain, AgentHarness)
    made = type("Changed", (type(plain),), attributes)(server.endpoint)
    made.sandbox = BwrapSandbox()
    if missing := made.preflight():
        pytest.skip(missing)
    return made


def config(root: Path, harness: AgentHarness, episodes: int, *phases: str) -> RunConfig:
    return RunConfig(
        name="staged",
        adapter=harness,
        disposition=NEUTRAL,
        goal=GoalConfig.of("Keep your page short."),
        root=root / "run",
        model=MODELS.get(harness.name, "some-model"),
        episodes=episodes,
        phases=phases,
        phase_timeout=240.0,
        live_root=root / "live",
    )


every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("codex", "llm") else thorough) for name in (*MODELS, MINI)]
)
in_a_box = pytest.mark.skipif(bool(NO_BOX), reason=NO_BOX or "-")


@in_a_box
@every
def test_an_agent_breaks_its_candidate_is_told_and_repairs_it_while_it_runs_from_what_works(name, root):
    page = instructions(name)
    steps = [
        f"echo mine >> {page} || echo denied; : > ../harness/{page}; echo one > ../harness/notes/one.md",
        f"cat ../harness/notes/one.md; echo '# Short page' > ../harness/{page}",
        f"cat {page}",
    ]
    asked: list[str] = []

    def answer(talk):
        if not talk.answers:
            asked.append(talk.prompt)
        return [shell(steps[len(asked) - 1]), SUBMIT if name == MINI else say("Done.")]

    with ModelServer(answer) as server:
        harness = adapter(name, server, staged_activation=True)
        result = run(config(root, harness, 3, "act"))
    assert result.state == "complete", result.error
    assert [record["accepted"] for record in result.eval_history] == [False, True, True]
    assert result.eval_history[0]["error"].startswith(f"{page} is no page of text")
    assert [record["violations"] for record in result.eval_history] == [[], [], []]
    assert len(asked) == 3
    assert all(re.search(r"You run from \S+/active, .* cannot be changed", prompt, re.S) for prompt in asked)
    assert f"{page} is no page of text" in asked[1]
    assert "denied" in str([request.body for request in server.requests]), "what it runs from cannot be written"
    assert "# Short page" in str(server.requests[-1].body), "the third one runs from the repaired page"
    tree = root / "run" / "harness"
    assert ((tree / page).read_text(), (tree / "notes" / "one.md").read_text()) == ("# Short page\n", "one\n")


@in_a_box
@every
def test_an_agent_begins_every_phase_anew_with_the_note_that_the_one_before_left(name, root):
    asked: list[str] = []

    def answer(talk):
        if not talk.answers:
            asked.append(talk.prompt)
        note = re.search(r"(\S+/handoff/note\.md) holds", talk.prompt)[1]
        command = f"cat {note}; echo left-by-{len(asked)} > {note}"
        return [shell(command), SUBMIT if name == MINI else say("Done.")]

    with ModelServer(answer) as server:
        harness = adapter(name, server, continuity_mode="framework")
        result = run(config(root, harness, 2, "observe", "act"))
    assert result.state == "complete", result.error
    assert len(asked) == 4, "no phase goes on with the session of another"
    bodies = str([request.body for request in server.requests])
    assert all(f"left-by-{number}" in bodies for number in (1, 2, 3))
    kept = [json.loads(line) for line in (root / ".proteus-records/run/handoffs.jsonl").read_text().splitlines()]
    notes = [note["text"] for line in kept for note in line["phases"].values()]
    assert notes == [f"left-by-{number}\n" for number in (1, 2, 3, 4)]
    trace = read_trace(root / "run", 2)
    assert [event.phase for event in trace if event.tool][:: 2 if name == MINI else 1] == ["observe", "act"]
    assert not list((root / "run" / "harness").rglob("note.md"))


class StagedCodex(CodexHarness):
    staged_activation = True


@pytest.fixture
def staged(tmp_path):
    """A staged harness whose program ends with the status that the variable-free file ``status`` beside it holds."""
    program = tmp_path / "agent"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nprint(os.getcwd())\nsys.exit(int(open('status').read()))\n"
    )
    program.chmod(0o755)
    harness = StagedCodex({"openai-responses": "http://127.0.0.1:1"}, program)
    tree = tmp_path / "live" / "harness"
    tree.mkdir(parents=True)
    harness.seed(tree)
    (tree / "status").write_text("0")
    return harness, tree


def test_a_tree_that_the_agent_starts_in_is_viable_and_nothing_stays_of_the_try(staged):
    harness, tree = staged
    assert harness.validate_candidate(tree) == ""
    assert os.listdir(tree.parent) == ["harness"]


@pytest.mark.parametrize(
    ("page", "status", "told"),
    [
        (b"# Page", "3", "codex does not start there (exit status 3)"),
        (b"", "0", "AGENTS.md is no page of text"),
        (b"\xff\xfe", "0", "AGENTS.md is no page of text"),
        (b"a\0b", "0", "AGENTS.md is no page of text"),
        (None, "0", "AGENTS.md is no page of text"),
    ],
)
def test_a_tree_that_cannot_work_says_why(staged, page, status, told):
    harness, tree = staged
    (tree / "AGENTS.md").unlink()
    if page is not None:
        (tree / "AGENTS.md").write_bytes(page)
    (tree / "status").write_text(status)
    assert told in harness.validate_candidate(tree)


def test_an_agent_that_is_not_staged_is_not_held_to_it(staged):
    _, tree = staged
    (tree / "AGENTS.md").unlink()
    assert CodexHarness({"openai-responses": "http://127.0.0.1:1"}).validate_candidate(tree) == ""
