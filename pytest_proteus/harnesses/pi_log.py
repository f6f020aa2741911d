"""pi's session file, read: one JSON record a line, format version 3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.session import (
    Phases,
    Session,
    SurfaceOf,
    from_milliseconds,
    mapping,
    objects,
    records,
    text_of,
)
from pytest_proteus.harnesses.traces import bounded, bounded_text

__all__ = ["Session", "damage", "read_session"]

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


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
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
    for phase, record in records(text, phases, session):
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
            session.add_tokens(record.get("usage"), _TOKENS)
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
    for number, (_, record) in enumerate(records(text, (), Session())):
        if (number == 0) != (record.get("type") == "session"):
            return "its first record is missing" if number == 0 else "a second session begins in it"
        parent = record.get("parentId")
        if number and parent is not None and parent not in known:
            return f"the record before {record.get('id')!r} is missing"
        known.add(str(record.get("id")))
    return ""


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
    surface_of: SurfaceOf,
) -> None:
    error = str(message.get("errorMessage") or "")
    status = re.match(r"\s*(\d{3})\b", error)
    session.end(phase, str(message.get("stopReason", "")), error, int(status[1]) if status else 0)
    if session.stop_reason in ("error", "aborted"):
        # its zeros are none that anybody counted
        return
    session.add_tokens(message.get("usage"), _TOKENS)
    turn = session.finish_turn(phase)
    time = from_milliseconds(message.get("timestamp"))
    parts = objects(message.get("content"))
    session.say(turn, phase, text_of([part for part in parts if part.get("type") == "text"]), time)
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
    surface_of: SurfaceOf,
) -> ActionEvent:
    tool = str(part.get("name", ""))
    arguments = mapping(part.get("arguments"))
    path = arguments.get("path")
    surface = surface_of(path) if tool in _PATH_TOOLS and isinstance(path, str) else None
    outcome = "".join(str(piece.get("text", "")) for piece in result.get("content") or () if isinstance(piece, dict))
    text = f"error: {outcome}" if result.get("isError") else outcome
    return ActionEvent(turn, phase, tool, surface, bounded(arguments), bounded_text(text), time)
