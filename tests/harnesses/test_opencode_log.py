"""The reader of opencode's log, on logs that the agent itself wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_logs import broken_logs

from pytest_proteus.harnesses.opencode import OpencodeHarness, read_session
from pytest_proteus.harnesses.session import Session

DATA = Path(__file__).parent / "data"
NAMES = ["full", "err400", "hang_timeout", "sigterm_in_bash"]


def sample(name: str) -> Session:
    text = (DATA / f"opencode_{name}.jsonl").read_text(encoding="utf-8")
    return read_session(text, [("act", 0)], lambda path: "here" if path.startswith("$CWD/") else None)


def test_a_full_session_is_its_calls_and_texts_in_order():
    session = sample("full")
    assert [(event.turn, event.tool, event.surface) for event in session.events if event.tool] == [
        (1, "write", "here"),
        (1, "bash", None),
        (2, "edit", "here"),
        (3, "read", "here"),
        (4, "bash", None),
    ]
    assert OpencodeHarness().normalized(session.events) == ["write", "shell", "edit", "read", "shell"]
    assert session.events[-1].text == "Done: the file has been written."
    assert (session.turns, session.tool_calls, session.stop_reason) == ({"act": 5}, 5, "stop")


def test_a_call_carries_its_arguments_its_result_and_its_time():
    write, shell = [event for event in sample("full").events if event.tool][:2]
    assert write.params["content"] == "hello from fake model\nline two\n"
    assert write.text == "Wrote file successfully."
    assert write.timestamp == 1796042622.088
    assert shell.text.startswith("error: 31 $CWD/hello.txt"), "it ended with 3"


def test_tokens_are_the_sums_of_what_the_agent_noted():
    assert sample("full").tokens == {"input": 15425, "output": 240, "cache_read": 23882, "cache_write": 500}


@pytest.mark.parametrize(
    ("name", "phase", "reason", "message", "status"),
    [
        ("full", "act", "stop", "", 0),
        ("err400", "act", "error", "fake error 400", 400),
        ("hang_timeout", "act", "error", "The operation timed out.", 0),
        ("sigterm_in_bash", "", "", "", 0),
    ],
)
def test_the_end_is_told_by_the_last_record(name, phase, reason, message, status):
    session = sample(name)
    assert (session.last_phase, session.stop_reason) == (phase, reason)
    assert (session.error_message, session.status) == (message, status)


def test_nothing_in_the_samples_is_unknown():
    assert [sample(name).unknown_records for name in NAMES] == [0] * len(NAMES)


def test_the_session_goes_on_by_the_id_that_the_log_tells():
    assert sample("full").ident == "ses_dd3849626ffeWRijyvVx2e6zJ9"


@broken_logs("opencode_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader(log):
    session = read_session(log, [("act", 0)], lambda path: None)
    assert json.dumps([dict(event.params) for event in session.events])
