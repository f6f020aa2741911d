"""Usage that is filled in from an agent's session log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_proteus.cli import main
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering.backfill import backfill, read
from pytest_proteus.metering.store import NAME, Store
from pytest_proteus.metering.totals import usage_of
from pytest_proteus.metering.usage import Usage

LOGS = Path(__file__).parents[1] / "harnesses" / "data"


def claude(ident: str, output: int, request: str = "", sidechain: bool = False) -> str:
    usage = {
        "input_tokens": 10,
        "output_tokens": output,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
    }
    message = {"id": ident, "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage, "content": []}
    record = {"type": "assistant", "message": message, "timestamp": "2026-11-30T12:00:00Z", "isSidechain": sidechain}
    return json.dumps({**record, "requestId": request} if request else record)


@pytest.fixture
def folder(tmp_path):
    """A store with a task of three replies: one whole, one cut short, one that told nothing."""
    store = Store(tmp_path / NAME)
    span = store.open_span("task", run_id="task", agent="claude", model="claude-sonnet-4-5")
    told = {"status": 200, "first_byte": None, "ended": 2.0}
    replies = {
        "whole": (Usage(10, 20, 5, 2, message_id="msg_whole"), "complete", "req_whole"),
        "cut": (Usage(10, None, 5, 2, message_id="msg_cut"), "cut", ""),
        "silent": (Usage(), "complete", "req_silent"),
    }
    for ident, (usage, state, request) in replies.items():
        row = {"id": ident, "span": span, "task_id": "task", "provider": "anthropic", "model": "m", "began": 1.0}
        store.begin({**row, "upstream": "u"}).result()
        store.settle(ident, usage, {**told, "state": state, "request_id": request}).result()
    store.close_span(span, "complete")
    store.close()
    return tmp_path


def log(folder: Path, *lines: str) -> Path:
    path = folder / "session.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_replies_without_counts_get_them_and_those_that_never_came_by_are_added(folder):
    assert usage_of(folder)["task"].total_tokens is None
    lines = [
        claude("msg_whole", 999),
        *[claude("msg_cut", output) for output in (1, 30, 30)],
        claude("msg_silent", 40, "req_silent"),
        claude("msg_sub", 50, sidechain=True),
    ]
    found = backfill(folder, "task", log(folder, *lines))
    assert (found.told, found.filled, found.added) == (4, 2, 1)
    assert found.usage.output_tokens == 20 + 30 + 40 + 50, "what the wire told stays, and nothing counts twice"
    assert found.usage.total_tokens == 140 + 4 * 17
    assert (found.usage.token_source, found.usage.discrepancy["badge"]) == ("wire+log", "log-fallback")
    assert found.usage.requests == 4
    again = backfill(folder, "task", log(folder, *lines))
    assert (again.filled, again.added, again.usage) == (0, 0, found.usage)


@pytest.mark.parametrize(
    ("name", "provider"),
    [("claude_session_file", "anthropic"), ("codex_full", "openai-responses"), ("pi_full", "anthropic")],
)
def test_the_logs_of_the_agents_tell_each_reply_once(name, provider):
    replies = list(read(LOGS / f"{name}.jsonl"))
    assert len(replies) == len({reply["message_id"] for reply in replies}) > 2
    assert {reply["provider"] for reply in replies} == {provider}
    assert all(reply["output"] > 0 and reply["cache_read"] > 0 and reply["began"] > 0 for reply in replies)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"type": "assistant"}', '{"type": "assistant", "message": {"usage": {"a": 1}}}']
)
def test_a_log_that_tells_nothing_is_refused(folder, text):
    with pytest.raises(ConfigurationError, match="tells of no reply"):
        backfill(folder, "task", log(folder, text))


def test_what_cannot_be_filled_in_is_said_in_one_line(folder, capsys):
    here = ["--dir", str(folder)]
    assert main(["backfill", "another", str(log(folder, claude("m", 1))), *here]) == 2
    assert main(["backfill", "task", str(folder / "nowhere"), *here]) == 2
    assert main(["backfill", "task", "/dev/zero", *here]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [error.partition(": ")[0] for error in errors] == ["proteus backfill"] * 3
    assert main(["backfill", "task", str(log(folder, claude("msg_new", 7))), *here]) == 0
    assert "1 replies in the log: 0 filled in, 1 added" in capsys.readouterr().out
