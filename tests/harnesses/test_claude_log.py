"""The reader of Claude Code's log, on logs that the agent itself wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_logs import broken_logs

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.claude import ClaudeHarness, read_session
from pytest_proteus.harnesses.session import Session

DATA = Path(__file__).parent / "data"
NAMES = ["full", "maxturns", "noperm", "budget", "err500", "sigint_in_bash", "sigterm_in_bash"]


def sample(name: str) -> Session:
    text = (DATA / f"claude_{name}.jsonl").read_text(encoding="utf-8")
    return read_session(text, [("act", 0)], lambda path: "here" if path.startswith("$CWD/") else None)


def test_a_full_session_is_its_calls_and_texts_in_order():
    session = sample("full")
    assert [(event.turn, event.tool, event.surface) for event in session.events if event.tool] == [
        (1, "Write", "here"),
        (1, "Bash", None),
        (2, "Edit", "here"),
        (3, "Read", "here"),
        (4, "Bash", None),
    ]
    assert ClaudeHarness().normalized(session.events) == ["write", "shell", "edit", "read", "shell"]
    assert session.events[-1].text == "Done: the file has been written."
    assert (session.turns, session.tool_calls, session.stop_reason) == ({"act": 5}, 5, "stop")


def test_a_call_carries_its_arguments_its_result_and_its_time():
    write, shell = [event for event in sample("full").events if event.tool][:2]
    assert write.params["content"] == "hello from fake model\nline two\n"
    assert write.text.startswith("File created successfully")
    assert write.timestamp == 1796043158.38
    assert shell.text.startswith("error: Exit code 3")


def test_tokens_are_those_of_the_end_and_not_of_the_blocks():
    assert sample("full").tokens == {"input": 43897, "output": 240, "cache_read": 66589, "cache_write": 500}


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("full", "stop", ""),
        ("maxturns", "limit", ""),
        ("noperm", "denied", "Write, Bash"),
        ("budget", "", ""),
        ("err500", "error", "API Error: 500"),
        ("sigint_in_bash", "aborted", ""),
        ("sigterm_in_bash", "", ""),
    ],
)
def test_the_end_is_told_by_the_last_record(name, reason, message):
    session = sample(name)
    assert (session.last_phase, session.stop_reason) == ("act", reason)
    assert message in session.error_message


def test_an_error_of_the_endpoint_has_its_status_and_is_no_turn():
    session = sample("err500")
    assert (session.status, session.model_errors, session.turns, session.tokens, session.events) == (500, 1, {}, {}, [])


def test_nothing_in_the_samples_is_unknown():
    assert [sample(name).unknown_records for name in NAMES] == [0] * len(NAMES)


def test_a_session_file_of_its_home_tells_the_same_as_what_it_printed():
    printed, filed = sample("full"), sample("session_file")
    assert [(event.turn, event.tool, event.surface) for event in filed.events] == [
        (event.turn, event.tool, event.surface) for event in printed.events
    ]
    assert (filed.turns, filed.tokens, filed.stop_reason) == (printed.turns, printed.tokens, "stop")
    assert filed.unknown_records > 0


def test_another_version_is_refused_with_what_to_install():
    record = json.dumps({"type": "system", "subtype": "init", "claude_code_version": "3.0.1"})
    with pytest.raises(
        ConfigurationError, match=r"claude 3\.0\.1 wrote this log, and only that of 2\.1\.x can be read"
    ):
        read_session(record, [], lambda path: None)


@broken_logs("claude_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader(log):
    try:
        session = read_session(log, [("act", 0)], lambda path: None)
    except ConfigurationError:
        return
    assert json.dumps([dict(event.params) for event in session.events])


@broken_logs("claude_noperm.jsonl")
def test_no_end_whatever_is_in_it_breaks_the_reader(log):
    end = (DATA / "claude_noperm.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    try:
        assert read_session(f"{log}\n{end}", [], lambda path: None).stop_reason == "denied"
    except ConfigurationError:
        return
