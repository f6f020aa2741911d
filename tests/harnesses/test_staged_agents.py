"""Agents that run from one tree and edit another: what they may change, and what becomes of what they wrote."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_proteus.core import GoalConfig, RunConfig, run
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.sandbox import BwrapSandbox, choose
from pytest_proteus.testing import ModelServer, say, shell

NO_BOX = choose("bwrap").preflight()


class StagedCodex(CodexHarness):
    staged_activation = True


@pytest.fixture
def folder():
    """A folder whose path, unlike pytest's own, spells nothing, and that the user of boxes can reach."""
    made = Path(tempfile.mkdtemp(prefix="live-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def config(folder: Path, harness: StagedCodex, episodes: int) -> RunConfig:
    return RunConfig(
        name="staged",
        adapter=harness,
        disposition=NEUTRAL,
        goal=GoalConfig.of("Keep your page short."),
        root=folder / "run",
        model="gpt-5.5",
        episodes=episodes,
        phases=("act",),
        phase_timeout=240.0,
        live_root=folder / "live",
    )


@pytest.mark.skipif(bool(NO_BOX), reason=NO_BOX or "-")
def test_in_a_box_an_agent_breaks_its_candidate_is_told_and_repairs_it_while_it_runs_from_what_works(folder):
    steps = [
        "echo mine >> AGENTS.md || echo denied; : > ../harness/AGENTS.md; echo one > ../harness/notes/one.md",
        "cat ../harness/notes/one.md; echo '# Short page' > ../harness/AGENTS.md",
        "cat AGENTS.md",
    ]
    asked: list[str] = []

    def answer(talk):
        if not talk.answers:
            asked.append(talk.prompt)
        return [shell(steps[len(asked) - 1]), say("Done.")]

    with ModelServer(answer) as server:
        harness = StagedCodex({"openai-responses": server.endpoint["openai-responses"]}, sandbox=BwrapSandbox())
        if harness.preflight():
            pytest.skip(harness.preflight())
        result = run(config(folder, harness, 3))
    assert result.state == "complete", result.error
    assert [record["accepted"] for record in result.eval_history] == [False, True, True]
    assert result.eval_history[0]["error"].startswith("AGENTS.md is no page of text")
    assert len(asked) == 3
    assert all(re.search(r"You run from \S+/active, .* cannot be changed", prompt, re.S) for prompt in asked)
    assert "AGENTS.md is no page of text" in asked[1]
    outputs = str([request.body["input"] for request in server.requests])
    assert "denied" in outputs, "what it runs from cannot be written"
    assert "# Short page" in str(server.requests[-1].body["input"][-1]), "the third one runs from the repaired page"
    tree = folder / "run" / "harness"
    assert ((tree / "AGENTS.md").read_text(), (tree / "notes" / "one.md").read_text()) == ("# Short page\n", "one\n")


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
