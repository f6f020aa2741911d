from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.pi import SURFACES
from pytest_proteus.harnesses.pi_log import Session, damage, read_session
from pytest_proteus.harnesses.traces import bounded, surface_finder

DATA = Path(__file__).parent / "data"


def sample(name: str) -> Session:
    text = (DATA / f"pi_{name}.jsonl").read_text(encoding="utf-8")
    return read_session(text, [("act", 0)], lambda path: "here" if path.startswith("$CWD/") else None)


def line(role: str = "assistant", **message) -> str:
    return json.dumps({"type": "message", "message": {"role": role, **message}})


def test_a_full_session_is_its_calls_and_texts_in_order():
    session = sample("full")
    tools = [(event.turn, event.tool, event.surface) for event in session.events if event.tool]
    assert tools == [
        (1, "write", "here"),
        (1, "bash", None),
        (2, "edit", "here"),
        (3, "read", "here"),
        (4, "bash", None),
    ]
    assert session.events[-1].text == "Done: the file has been written."
    assert (session.turns, session.tool_calls, session.stop_reason) == ({"act": 5}, 5, "stop")
    assert {event.phase for event in session.events} == {"act"}


def test_a_call_carries_its_arguments_its_result_and_its_time():
    event = next(event for event in sample("full").events if event.tool == "write")
    assert event.params["content"] == "hello from fake model\nline two\n"
    assert event.text.startswith("Successfully wrote")
    assert event.timestamp == 1796042211.98


def test_a_failed_command_says_so():
    event = next(event for event in sample("full").events if event.tool == "bash")
    assert event.text.startswith("error: ")
    assert "exited with code 3" in event.text


def test_tokens_are_the_sums_of_what_the_agent_noted():
    assert sample("full").tokens == {"input": 2975, "output": 240, "cache_read": 5209, "cache_write": 500}


def test_another_wire_gives_the_same_stream():
    assert [event.tool for event in sample("chat_api").events if event.tool] == ["write", "bash"]


def test_errors_that_were_retried_are_counted_and_their_zeros_are_not_tokens():
    session = sample("err500")
    assert (session.model_errors, session.stop_reason, session.turns, session.tokens) == (4, "error", {}, {})
    assert session.error_message.startswith("500 ")


def test_a_session_that_was_stopped_keeps_what_was_done():
    session = sample("sigterm_in_bash")
    assert (session.stop_reason, session.turns) == ("aborted", {"act": 1})
    assert session.events[-1].text == "error: started\n\n\nCommand aborted"


def test_nothing_in_the_samples_is_unknown():
    assert [sample(name).unknown_records for name in ("full", "chat_api", "err500", "sigterm_in_bash")] == [0, 0, 0, 0]


def test_phases_are_told_apart_by_the_line_they_began_with():
    text = "\n".join(line(content=[{"type": "text", "text": str(n)}], stopReason="stop") for n in range(4))
    session = read_session(text, [("observe", 0), ("propose", 1), ("act", 1), ("reflect", 3)], lambda path: None)
    assert [event.phase for event in session.events] == ["observe", "act", "act", "reflect"]
    assert (session.turns, session.last_phase) == ({"observe": 1, "act": 2, "reflect": 1}, "reflect")


def test_another_format_version_is_refused_with_what_to_install():
    with pytest.raises(ConfigurationError, match=r"format 4, and only 3 can be read; .* proteus agents install pi"):
        read_session('{"type": "session", "version": 4}', [], lambda path: None)


def test_unknown_records_and_torn_lines_are_counted_and_passed_over():
    text = '{"type": "novelty"}\n' + line("martian") + '\n[1]\n{"type": "mess'
    session = read_session(text, [], lambda path: None)
    assert (session.events, session.unknown_records, session.unreadable_lines) == ([], 2, 2)


def test_tokens_that_were_never_noted_are_absent():
    assert read_session(line(content=[], stopReason="stop"), [], lambda path: None).tokens == {}


def test_long_arguments_and_results_are_cut():
    call = {"type": "toolCall", "id": "1", "name": "write", "arguments": {"path": "a", "content": "x" * 50_000}}
    result = line("toolResult", toolCallId="1", content=[{"type": "text", "text": "y" * 50_000}])
    event = read_session(line(content=[call], stopReason="toolUse") + "\n" + result, [], lambda path: None).events[0]
    assert len(json.dumps(event.params)) < 2200
    assert len(event.text) < 2200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(["content", "stopReason", "usage", "toolCallId", "timestamp", "errorMessage", "isError"])
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "toolCall", "thinking"])}) | JSON
MESSAGE = st.builds(
    lambda role, more, parts: {"role": role, **more, "content": parts},
    st.sampled_from(["assistant", "toolResult", "user", "system"]) | JSON,
    st.dictionaries(KEYS, JSON, max_size=5),
    st.lists(PART, max_size=3) | JSON,
)
RECORD = st.builds(lambda message: {"type": "message", "message": message}, MESSAGE | JSON) | JSON


@given(st.lists(RECORD, max_size=5), st.text(max_size=10))
def test_no_log_whatever_is_in_it_breaks_the_reader(records, tail):
    text = "\n".join([*map(json.dumps, records), tail])
    try:
        session = read_session(text, [("act", 0)], lambda path: None)
    except ConfigurationError:
        return
    assert all(isinstance(event, ActionEvent) for event in session.events)
    assert json.dumps([dict(event.params) for event in session.events])


@pytest.mark.parametrize(
    ("path", "surface"),
    [
        ("notes/a.md", "notes"),
        ("./notes/deep/b.md", "notes"),
        ("/live/harness/skills/x/SKILL.md", "skills"),
        ("AGENTS.md", "instructions"),
        ("tools/../AGENTS.md", "instructions"),
        ("AGENTS.md.bak", None),
        ("notes2/a.md", None),
        ("../harness/notes/a.md", "notes"),
        ("../elsewhere/notes/a.md", None),
        ("/etc/passwd", None),
        ("", None),
        (".", None),
        ("a\0b", None),
    ],
)
def test_surfaces_are_found_by_path(path, surface):
    assert surface_finder(Path("/live/harness"), SURFACES)(path) == surface


@given(JSON)
def test_bounding_keeps_small_values_as_they_are(value):
    assert bounded(value) == value or len(json.dumps(value)) > 30


def test_bounding_ends_at_a_depth_and_at_a_number_of_items():
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    assert "deeper levels left out" in json.dumps(bounded(deep))
    assert len(bounded(list(range(1000)))) == 50


@pytest.mark.parametrize("name", ["pi_chat_api", "pi_err500", "pi_full", "pi_sigterm_in_bash"])
def test_the_logs_of_the_agent_itself_show_no_damage(name):
    text = (DATA / f"{name}.jsonl").read_text()
    assert damage(text) == ""
    lines = text.splitlines(keepends=True)
    assert damage("".join(lines[1:])) == "its first record is missing"
    assert "is missing" in damage("".join(lines[:2] + lines[3:]))
