"""The reader of codex's log, on logs that the agent itself wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_logs import broken_logs

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.codex import CodexHarness, damage, read_session
from pytest_proteus.harnesses.session import Session

DATA = Path(__file__).parent / "data"
NAMES = ["full", "unknown_model", "err400", "sigint_in_bash", "sigterm_in_bash", "patch_failed"]


def text(name: str) -> str:
    return (DATA / f"codex_{name}.jsonl").read_text(encoding="utf-8")


def sample(name: str) -> Session:
    return read_session(text(name), [("act", 0)], lambda path: "here" if path.startswith("$CWD/") else None)


def stream(session: Session) -> list[str]:
    return CodexHarness({"openai-responses": "http://127.0.0.1:1"}).normalized(session.events)


def test_a_full_session_is_its_calls_and_texts_in_order():
    session = sample("full")
    assert [(event.turn, event.tool, event.surface) for event in session.events if event.tool] == [
        (1, "apply_patch", "here"),
        (1, "exec_command", None),
        (2, "apply_patch", "here"),
        (3, "exec_command", "here"),
    ]
    assert stream(session) == ["write", "shell", "edit", "read"]
    assert session.events[-1].text == "Done: the file has been written."
    assert (session.turns, session.tool_calls, session.stop_reason) == ({"act": 4}, 4, "stop")


def test_a_call_carries_its_arguments_its_result_and_its_time():
    patch, command = [event for event in sample("full").events if event.tool][:2]
    assert (patch.params["path"], patch.params["action"]) == ("$CWD/hello.txt", "add")
    assert "hello from fake model" in patch.params["patch"]
    assert "Success" in patch.text
    assert patch.timestamp == 1796042949.992
    assert command.text.startswith("error: 31 $CWD/hello.txt")


def test_a_patch_of_several_files_is_an_event_for_each():
    given = "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n@@\n-x\n+y\n*** Delete File: c\n*** End Patch\n"
    call = {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": given}
    record = json.dumps({"type": "response_item", "payload": call})
    session = read_session(record, [], lambda path: path)
    assert [(event.surface, event.params["action"]) for event in session.events] == [
        ("a", "add"),
        ("b", "update"),
        ("c", "delete"),
    ]
    assert session.tool_calls == 1


def test_without_its_patch_tool_it_writes_by_commands():
    assert stream(sample("unknown_model")) == ["shell", "shell", "shell", "read"]


def test_a_patch_that_failed_says_so():
    session = sample("patch_failed")
    assert (session.stop_reason, session.events[1].tool) == ("stop", "apply_patch")
    assert session.events[1].text.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [("err400", "error", "fake error 400"), ("sigint_in_bash", "aborted", ""), ("sigterm_in_bash", "", "")],
)
def test_the_end_is_told_by_the_last_event(name, reason, message):
    session = sample(name)
    assert session.stop_reason == reason
    assert message in session.error_message


def test_the_status_of_an_error_is_read_from_its_text():
    error = {"message": "unexpected status 401 Unauthorized: no", "codex_error_info": "other"}
    record = {"type": "event_msg", "payload": {"type": "task_complete", "error": error}}
    assert read_session(json.dumps(record), [], lambda path: None).status == 401


def test_tokens_from_the_cache_are_no_input_of_their_own():
    tokens = sample("full").tokens
    assert tokens == {"input": 39722 - 23832, "output": 183, "cache_read": 23832}


def test_nothing_in_the_samples_is_unknown():
    assert [sample(name).unknown_records for name in NAMES] == [0] * len(NAMES)


def test_the_session_goes_on_by_the_id_that_the_log_tells():
    assert sample("full").ident == "01a22c80-84a3-7fb2-9d8a-cba3e9c37a38"


@pytest.mark.parametrize("version", ["0.172.0", "1.171.0", None])
def test_another_version_is_refused_with_what_to_install(version):
    record = json.dumps({"type": "session_meta", "payload": {"cli_version": version}})
    with pytest.raises(
        ConfigurationError, match=r"only that of 0\.171\.x can be read; .* proteus agents install codex"
    ):
        read_session(record, [], lambda path: None)


@pytest.mark.parametrize("name", NAMES)
def test_the_logs_of_the_agent_itself_show_no_damage_but_cut_ones_do(name):
    lines = text(name).splitlines(keepends=True)
    assert damage("".join(lines)) == ""
    assert damage("".join(lines[1:])) == "its first record is missing"
    assert damage("".join(lines[:2] + lines[3:])) == "record 2 is missing"


@broken_logs("codex_full.jsonl")
def test_no_log_whatever_is_in_it_breaks_the_reader(log):
    try:
        session = read_session(log, [("act", 0)], lambda path: None)
    except ConfigurationError:
        return
    assert json.dumps([dict(event.params) for event in session.events])
    assert damage(log) is not None
