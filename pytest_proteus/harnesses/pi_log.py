"""pi's session file, read: one JSON record a line, format version 3.

Unknown records are ignored and counted; a line that is no JSON, such as the torn last one of a killed agent, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.traces import bounded, bounded_text

FORMAT_VERSION = 3

#: Tools whose argument ``path`` says which file they touch.
_PATH_TOOLS = ("read", "write", "edit", "ls", "grep", "find")

#: Records that say nothing of what the agent did; some of them tell tokens.
_SILENT = (
    "model_change",
    "thinking_level_change",
    "usage",
    "compaction",
    "context_edit",
    "branch_summary",
    "custom",
    "custom_message",
    "label",
    "session_info",
)

_TOKENS = {"input": "input", "output": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}


@dataclass
class Session:
    """What a session file says.

    Args:
        events: tool calls and texts, in order.
        turns: phase → answers of the model that it finished.
        tool_calls: number of calls.
        tokens: sums of what the agent noted of its tokens; a kind that it never noted is absent.
        model_errors: answers that ended in an error, those that a retry made good included.
        unknown_records, unreadable_lines: what could not be made use of.
        last_phase: phase of the last answer; empty when there is none.
        stop_reason, error_message: how the last answer ended.
    """

    events: list[ActionEvent] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    model_errors: int = 0
    unknown_records: int = 0
    unreadable_lines: int = 0
    last_phase: str = ""
    stop_reason: str = ""
    error_message: str = ""


def read_session(text: str, phases: Sequence[tuple[str, int]], surface_of: Callable[[str], str | None]) -> Session:
    """Read a session.

    Args:
        text: the file's text.
        phases: (phase, number of the line it began with), ascending.
        surface_of: path → name of the surface that it is on.

    Raises:
        ConfigurationError: the file is of another format version.
    """
    session = Session()
    results: dict[str, Mapping[str, Any]] = {}
    answers: list[tuple[str, Mapping[str, Any]]] = []
    for phase, record in _records(text, phases, session):
        kind = record.get("type")
        message = record.get("message")
        if kind == "session":
            _check_version(record)
        elif kind == "message" and isinstance(message, dict):
            role = message.get("role")
            if role == "assistant":
                answers.append((phase, message))
            elif role == "toolResult":
                results[str(message.get("toolCallId"))] = message
            elif role not in ("system", "user"):
                session.unknown_records += 1
        elif kind in _SILENT:
            _add_tokens(session, record.get("usage"))
        else:
            session.unknown_records += 1
    for phase, message in answers:
        _read_answer(session, phase, message, results, surface_of)
    return session


def damage(text: str) -> str:
    """What shows that a session file is not whole; empty when nothing does. Its end may lack: see ``last_phase``.

    The first record of a whole file is the session's, and every other one names an earlier one as its parent.
    """
    known: set[str] = set()
    for number, (_, record) in enumerate(_records(text, (), Session())):
        if (number == 0) != (record.get("type") == "session"):
            return "its first record is missing" if number == 0 else "a second session begins in it"
        parent = record.get("parentId")
        if number and parent is not None and parent not in known:
            return f"the record before {record.get('id')!r} is missing"
        known.add(str(record.get("id")))
    return ""


def _records(text: str, phases: Sequence[tuple[str, int]], session: Session) -> Iterator[tuple[str, dict[str, Any]]]:
    starts = list(phases)
    phase = ""
    for number, line in enumerate(text.split("\n")):
        while starts and number >= starts[0][1]:
            phase = starts.pop(0)[0]
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield phase, record
        else:
            session.unreadable_lines += 1


def _check_version(record: Mapping[str, Any]) -> None:
    if record.get("version") != FORMAT_VERSION:
        raise ConfigurationError(
            f"pi writes its sessions in format {record.get('version')!r}, and only {FORMAT_VERSION} can be read; "
            f"install the version that is known with: proteus agents install pi"
        )


def _read_answer(
    session: Session,
    phase: str,
    message: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    surface_of: Callable[[str], str | None],
) -> None:
    session.last_phase = phase
    session.stop_reason = str(message.get("stopReason", ""))
    session.error_message = str(message.get("errorMessage") or "")
    if session.stop_reason == "error":
        session.model_errors += 1
    if session.stop_reason in ("error", "aborted"):
        # its zeros are none that anybody counted
        return
    _add_tokens(session, message.get("usage"))
    session.turns[phase] = session.turns.get(phase, 0) + 1
    turn = sum(session.turns.values())
    time = _seconds(message.get("timestamp"))
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    said = "\n".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))
    if said:
        session.events.append(ActionEvent(turn, phase, text=bounded_text(said), timestamp=time))
    for part in parts:
        if part.get("type") == "toolCall":
            session.tool_calls += 1
            session.events.append(_call(turn, phase, part, results.get(str(part.get("id")), {}), time, surface_of))


def _call(
    turn: int,
    phase: str,
    part: Mapping[str, Any],
    result: Mapping[str, Any],
    time: float | None,
    surface_of: Callable[[str], str | None],
) -> ActionEvent:
    tool = str(part.get("name", ""))
    given = part.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    path = arguments.get("path")
    surface = surface_of(path) if tool in _PATH_TOOLS and isinstance(path, str) else None
    outcome = "".join(str(piece.get("text", "")) for piece in result.get("content") or () if isinstance(piece, dict))
    text = f"error: {outcome}" if result.get("isError") else outcome
    return ActionEvent(turn, phase, tool, surface, bounded(arguments), bounded_text(text), time)


def _add_tokens(session: Session, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    for theirs, ours in _TOKENS.items():
        value = usage.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool):
            session.tokens[ours] = session.tokens.get(ours, 0) + value


def _seconds(milliseconds: Any) -> float | None:
    is_number = isinstance(milliseconds, (int, float)) and not isinstance(milliseconds, bool)
    return milliseconds / 1000 if is_number else None
