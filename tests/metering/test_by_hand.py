"""Measurements by hand: the tap that stands alone, slots, roles, and the timeline of a task."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from model_calls import SERVED, ask, served

from pytest_proteus.cli import main
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import task_hash
from pytest_proteus.metering import slots
from pytest_proteus.metering.names import experiment_run, of_cell, task_id
from pytest_proteus.metering.roles import canonical, read, role_of
from pytest_proteus.metering.serve import agent_of, serve
from pytest_proteus.metering.timeline import timeline

CALL = SERVED.input + SERVED.output + SERVED.cache_read + SERVED.cache_write


@pytest.fixture
def tap(tmp_path):
    """Base URL of a tap that stands alone; its store is in ``tmp_path``."""
    with served() as server:
        running, store = serve(tmp_path, {"anthropic": server.url, "gemini": server.endpoint["gemini"]}, 0)
        yield f"http://127.0.0.1:{running.port}"
        running.close()
        store.close()


def tasks(folder: Path) -> dict:
    found = sqlite3.connect(folder / "usage.db").execute("SELECT task_id, count(*) FROM token_usage GROUP BY task_id")
    return dict(found.fetchall())


def test_a_call_belongs_to_its_token_else_its_header_else_its_agents_slot_else_the_one_for_everybody(tap, tmp_path):
    everybody = slots.start(tmp_path, "everybody")
    slots.start(tmp_path, "claudes", agent="claude")
    ask(tap, "anthropic")
    ask(tap, "anthropic", User_Agent="claude-cli/2.1 (external)")
    ask(tap, "anthropic", User_Agent="claude-cli/2.1", X_Task_Id="named")
    ask(f"{tap}/t/{everybody.token}", "anthropic", User_Agent="claude-cli/2.1", X_Task_Id="named")
    assert tasks(tmp_path) == {"everybody": 2, "claudes": 1, "named": 1}
    slots.stop(tmp_path, "claude")
    slot, usage = slots.stop(tmp_path)
    assert (slot.task_id, usage.total_tokens, usage.requests) == ("everybody", 2 * CALL, 2)
    assert ask(f"{tap}/t/{everybody.token}", "anthropic")[0] == 403
    assert ask(f"{tap}/t/", "anthropic")[0] == 403
    assert ask(tap, "anthropic")[0] == 200
    assert tasks(tmp_path)[None] == 1, "what belongs to nobody is on record, too"


def test_only_configured_upstreams_are_reached(tap):
    assert ask(tap, "openai-chat")[0] == 403


def test_a_slot_is_taken_once_and_a_task_that_was_left_open_is_aborted(tmp_path):
    slots.start(tmp_path, "a")
    with pytest.raises(ConfigurationError, match="a is being measured already"):
        slots.start(tmp_path, "b")
    slots.path_of(tmp_path).unlink()  # as if it had never been closed
    slots.start(tmp_path, "a")
    slots.stop(tmp_path, state="timeout")
    assert [span["state"] for span in timeline(tmp_path, "a")["spans"]] == ["abort", "timeout"]


@pytest.mark.parametrize("agent", ["../x", "A", "a.b", "x" * 50])
def test_a_slot_lies_nowhere_else(tmp_path, agent):
    with pytest.raises(ConfigurationError, match="no name of an agent"):
        slots.path_of(tmp_path, agent)


def test_the_timeline_has_every_call_once_with_its_role_and_what_is_nobodys_beside(tap, tmp_path):
    slots.start(tmp_path, "work", agent="claude")
    ask(tap, "anthropic", User_Agent="claude-cli/2.1")
    ask(tap, "anthropic", User_Agent="observation-writer/1")
    ask(tap + "/v1beta", "gemini", User_Agent="health-coordinator")
    ask(tap, "anthropic", User_Agent="claude-cli/2.1")
    slots.stop(tmp_path, "claude")
    ask(tap, "anthropic", User_Agent="observation-writer/1")
    found = timeline(tmp_path, "work")
    assert [(row["turn"], row["role"], row["ambient"]) for row in found["rows"]] == [
        (1, "foreground", False),
        (None, "knowledge", True),
        (None, "infrastructure", True),
        (2, "foreground", False),
    ]
    assert found["usage"]["total_tokens"] == 2 * CALL, "what is beside is in no total"
    assert {role: lane["calls"] for role, lane in found["roles"].items()} == {
        "foreground": 2,
        "knowledge": 1,
        "infrastructure": 1,
    }
    assert (found["canonical_agent"], found["canonical_model"]) == ("claude", "some-model")


def test_the_largest_context_is_told_by_its_parts(tmp_path):
    with served() as server:
        running, store = serve(tmp_path, {"anthropic": server.url}, 0)
        slots.start(tmp_path, "work")
        ask(f"http://127.0.0.1:{running.port}", "anthropic")
        running.close()
        store.close()
    sizes = timeline(tmp_path, "work")["largest"]["bytes"]
    assert sizes == {"system": 0, "tools": 0, "history": 0, "tool_outputs": 0, "user_input": len("hello")}


def test_the_list_of_the_background_is_the_users(tmp_path):
    (tmp_path / "roles.json").write_text('{"knowledge": ["claude-cli*"]}')
    assert role_of("claude-cli/2", read(tmp_path)) == "knowledge"
    assert role_of("observation-writer", read(tmp_path)) == "foreground"
    (tmp_path / "roles.json").write_text('{"other": []}')
    with pytest.raises(ConfigurationError, match=r"roles\.json"):
        read(tmp_path)


def test_the_dominant_group_of_the_foreground_names_agent_and_model():
    rows = [
        {"role": "knowledge", "process": "w", "model": "big", "total_tokens": 99},
        {"role": "foreground", "process": "a", "model": "m", "total_tokens": 5},
        {"role": "foreground", "process": "b", "model": "n", "total_tokens": 3},
        {"role": "foreground", "process": "b", "model": "n", "total_tokens": 3},
    ]
    assert canonical(rows) == ("b", "n")
    assert canonical([]) == ("", "")


def test_agents_are_told_by_how_they_call_themselves():
    said = {"claude-cli/2.1.332 (external, cli)": "claude", "opencode/1.18": "opencode", "curl/8": ""}
    assert {text: agent_of({"User-Agent": text}) for text in said} == said


def test_an_id_of_a_task_tells_its_parts_and_its_experiment():
    made = task_id(
        "fizz", agent="claude", model="claude-sonnet-4.6", framework="gsd", env="kb-on", repetition=3, salt="0007"
    )
    assert made == "fizz-0007--claude-claude-sonnet-4.6-gsd-kb-on--r3"
    assert experiment_run(made) == "fizz-0007"
    assert experiment_run("by-hand") == ""
    assert task_id("a -- b", agent="x") == "a_-_b--x-none-none-none--r0"
    cell = {"harness": "pi", "arm": "neutral", "seed": 2, "model": None, "task": "t1", "axes": {"kb": "on"}}
    assert of_cell("nav", "0001", cell) == "nav-0001--pi-none-neutral-t1+on--r2"
    assert len(task_hash("Write fizzbuzz.")) == 64


def test_the_commands_measure_what_somebody_runs_by_hand(tmp_path, capsys):
    place = ["--dir", str(tmp_path), "--json"]
    with served() as server:
        command = [sys.executable, "-m", "pytest_proteus.cli", "tap", "--upstream", server.url, *place]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert main(["measurement", "start", "--task-id", "mine", "--goal", "Go.", *place]) == 0
        started = json.loads(capsys.readouterr().out)
        ask(url, "anthropic")
        ask(url + started["path"], "anthropic")
        assert main(["measurement", "status", *place]) == 0
        assert json.loads(capsys.readouterr().out)[0]["usage"]["requests"] == 2
        assert main(["measurement", "stop", *place]) == 0
        assert json.loads(capsys.readouterr().out)["usage"]["total_tokens"] == 2 * CALL
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stdout.close()
    assert main(["timeline", "mine", *place]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main(["timeline", "mine", "--dir", str(tmp_path)]) == 0
    assert "2 calls" in capsys.readouterr().out
    assert main(["timeline", "another", "--dir", str(tmp_path)]) == 2
    assert "no task 'another'" in capsys.readouterr().err
    assert main(["measurement", "stop", "--dir", str(tmp_path)]) == 2
    assert started["task_hash"] == task_hash("Go.")
