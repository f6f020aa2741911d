"""The readers of the logs of copilot, gemini, mini-swe-agent and qwen, on logs that the agents themselves wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_logs import broken_logs

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.copilot import CopilotHarness
from pytest_proteus.harnesses.gemini import GeminiHarness
from pytest_proteus.harnesses.mini_swe_agent import MiniSweAgentHarness
from pytest_proteus.harnesses.qwen import QwenHarness
from pytest_proteus.harnesses.session import Session

DATA = Path(__file__).parent / "data"
HARNESSES = {"copilot": CopilotHarness, "gemini": GeminiHarness, "qwen": QwenHarness}


def sample(name: str) -> Session:
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    read = HARNESSES[name.partition("_")[0]].agent.read
    return read(text, [("act", 0)], lambda path: "here" if path.startswith("$CWD/") else None)


@pytest.mark.parametrize("name", HARNESSES)
def test_a_full_session_is_its_calls_and_texts_in_order(name):
    session = sample(f"{name}_full")
    calls = [event for event in session.events if event.tool]
    assert [(event.turn, event.surface) for event in calls] == [
        (1, "here"),
        (1, None),
        (2, "here"),
        (3, "here"),
        (4, None),
    ]
    assert HARNESSES[name]().normalized(session.events) == ["write", "shell", "edit", "read", "shell"]
    assert session.events[-1].text == "Done: the file has been written."
    assert [event.text for event in session.events if not event.tool] == ["I will do the next step."] * 4 + [
        session.events[-1].text
    ]
    assert (session.turns, session.tool_calls, session.stop_reason) == ({"act": 5}, 5, "stop")
    assert (session.unknown_records, session.unreadable_lines) == (0, 0)


@pytest.mark.parametrize("name", ["copilot", "qwen"])
def test_a_failed_command_says_so(name):
    shell = [event for event in sample(f"{name}_full").events if event.tool][1]
    assert shell.text.startswith("error: ")
    assert "$CWD/hello.txt" in shell.text


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("copilot", {}),
        ("gemini", {"input": 24700, "output": 62081 - 61745, "cache_read": 37045}),
        ("qwen", {"input": 96973 - 58182, "output": 240, "cache_read": 58182}),
    ],
)
def test_tokens_are_those_that_the_log_tells(name, tokens):
    assert sample(f"{name}_full").tokens == tokens


@pytest.mark.parametrize(
    ("name", "reason", "status"),
    [
        ("copilot_err400", "error", 400),
        ("copilot_sigterm_in_bash", "", 0),
        ("gemini_err400", "error", 400),
        ("gemini_maxturns", "limit", 0),
        ("gemini_sigterm_in_bash", "", 0),
        ("qwen_err400", "error", 400),
        ("qwen_maxturns", "", 0),
        ("qwen_walltime", "", 0),
    ],
)
def test_the_end_is_told_by_the_last_record(name, reason, status):
    session = sample(name)
    assert (session.stop_reason, session.status) == (reason, status)
    assert session.last_phase == ("" if name == "qwen_walltime" else "act")


def trajectory(name: str) -> Session:
    text = (DATA / f"mini_swe_agent_{name}.jsonl").read_text(encoding="utf-8")
    return MiniSweAgentHarness.agent.read(text, [("act", 0)], lambda path: "here")


def test_a_trajectory_of_mini_swe_agent_is_its_commands_in_order():
    session = trajectory("full")
    calls = [event for event in session.events if event.tool]
    assert [(event.turn, event.tool, event.surface) for event in calls] == [
        (1, "bash", None),
        (1, "bash", None),
        (2, "bash", None),
        (3, "bash", None),
        (4, "bash", None),
    ]
    assert MiniSweAgentHarness().normalized(session.events) == ["shell"] * 5
    assert calls[3].params == {"command": "cat $CWD/hello.txt"}
    assert calls[1].text.startswith("error: 31 $CWD/hello.txt")
    assert (session.turns, session.stop_reason, session.unknown_records) == ({"act": 4}, "stop", 0)
    assert calls[0].timestamp == 1796044495.0
    assert set(session.tokens) == {"input", "output", "cache_read"}


@pytest.mark.parametrize(("name", "reason", "status"), [("err500", "error", 500), ("steplimit", "limit", 0)])
def test_a_trajectory_of_mini_swe_agent_tells_how_it_ended(name, reason, status):
    session = trajectory(name)
    assert (session.last_phase, session.stop_reason, session.status) == ("act", reason, status)


def test_a_model_that_does_not_keep_to_the_form_is_no_error_of_the_endpoint():
    text = (DATA / "mini_swe_agent_err500.jsonl").read_text().replace("InternalServerError", "RepeatedFormatError")
    session = MiniSweAgentHarness.agent.read(text, [("act", 0)], lambda path: None)
    assert (session.last_phase, session.stop_reason, session.model_errors) == ("act", "", 0)


def test_another_version_of_mini_swe_agent_is_refused():
    with pytest.raises(ConfigurationError, match=r"mini-swe-agent 3\.0\.0 wrote this log"):
        MiniSweAgentHarness.agent.read('{"info": {"mini_version": "3.0.0"}}', [], lambda path: None)


def test_another_version_of_qwen_is_refused():
    record = json.dumps({"type": "system", "subtype": "init", "qwen_code_version": "1.0.0"})
    with pytest.raises(ConfigurationError, match=r"qwen 1\.0\.0 wrote this log, and only that of 0\.24\.x can be read"):
        QwenHarness.agent.read(record, [], lambda path: None)


def check(name: str, log: str) -> None:
    try:
        session = HARNESSES[name].agent.read(log, [("act", 0)], lambda path: None)
    except ConfigurationError:
        return
    assert json.dumps([dict(event.params) for event in session.events])


@broken_logs("copilot_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader_of_copilot(log):
    check("copilot", log)


@broken_logs("gemini_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader_of_gemini(log):
    check("gemini", log)


@broken_logs("qwen_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader_of_qwen(log):
    check("qwen", log)


@broken_logs("mini_swe_agent_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader_of_mini_swe_agent(log):
    try:
        session = MiniSweAgentHarness.agent.read(log, [("act", 0)], lambda path: None)
    except ConfigurationError:
        return
    assert json.dumps([dict(event.params) for event in session.events])
