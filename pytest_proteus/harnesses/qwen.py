"""Qwen Code, the npm coding agent: the description that the driver of all agents works from, and its log's reader.

The log is what it prints: one JSON record a line, the first of each run with its version, the last with how it ended.
An answer of the model comes as several records, and ends where its results, or the run's end, follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.harnesses.agent import Agent, AgentHarness, Launch, first_files, usual_surfaces
from pytest_proteus.harnesses.session import (
    Call,
    Phases,
    Session,
    SurfaceOf,
    Transcript,
    check_version,
    mapping,
    objects,
    records,
    string,
    text_of,
)

_KNOWN = "0.24."

SURFACES = usual_surfaces("QWEN.md", ".qwen/skills", "write_file", "edit")

#: Wire protocol → its name of it, and the variable of its base URL.
_WIRES = {"openai-chat": ("openai", "OPENAI"), "anthropic": ("anthropic", "ANTHROPIC")}

_TOKENS = {"input_tokens": "input", "output_tokens": "output", "cache_read_input_tokens": "cache_read"}


def _argv(launch: Launch) -> Sequence[str]:
    session = ["--resume", launch.resume] if launch.resume else ["--session-id", launch.session]
    return ["--auth-type", _WIRES[launch.wire][0], "--output-format", "stream-json", "--yolo", *session]


def _environment(launch: Launch) -> Mapping[str, str]:
    vendor = _WIRES[launch.wire][1]
    return {
        "QWEN_HOME": str(launch.agent_home),
        f"{vendor}_BASE_URL": launch.url if launch.wire == "anthropic" else launch.versioned_url,
        f"{vendor}_MODEL": launch.model,
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "NO_COLOR": "1",
    }


def _files(launch: Launch) -> Mapping[str, str]:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": _WIRES[launch.wire][0]}},
        "model": {"name": launch.model},
        # it asks the model what to remember when a run is over, and keeps that in its home, which does not last
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    }
    return {"agent/settings.json": json.dumps(settings)}


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read what it printed.

    Raises:
        ConfigurationError: a version whose log is not known wrote it.
    """
    transcript = Transcript()
    session = transcript.session
    answering = False
    usages: dict[str, Any] = {}  # of a session, which goes on from phase to phase, the last one holds all before
    for phase, record in records(text, phases, session):
        kind, content = record.get("type"), mapping(record.get("message")).get("content")
        if kind == "assistant":
            if not answering:
                session.finish_turn(phase)
                session.end(phase, "")
            _read_parts(transcript, phase, content)
        elif kind == "user":
            for part in objects(content):
                if part.get("type") == "tool_result":
                    failed = part.get("is_error") is True
                    transcript.result(str(part.get("tool_use_id")), text_of(part.get("content")), failed)
        elif kind == "result":
            usage = mapping(record.get("usage"))
            if any(usage.get(name) for name in _TOKENS):  # zeros alone are none that anybody counted
                usages[str(record.get("session_id"))] = usage
            _read_end(session, phase, record)
        elif kind == "system":
            if record.get("subtype") == "init":
                check_version("qwen", record.get("qwen_code_version"), _KNOWN)
                session.ident = session.ident or str(record.get("session_id") or "")
        elif kind != "stream_event":
            session.unknown_records += 1
        answering = kind == "assistant" or (answering and kind == "stream_event")
    for usage in usages.values():
        session.add_tokens(_apart(usage), _TOKENS)
    return transcript.close(surface_of)


def _read_parts(transcript: Transcript, phase: str, content: Any) -> None:
    turn = transcript.session.turn
    for part in objects(content):
        if part.get("type") == "text":
            transcript.say(turn, phase, text_of([part]), None)
        elif part.get("type") == "tool_use":
            given = mapping(part.get("input"))
            named = string(given.get("file_path"))
            transcript.call(str(part.get("id")), Call(turn, phase, str(part.get("name", "")), given, named, None))


def _apart(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens with those of the cache apart from the input."""
    given, cached = usage.get("input_tokens"), usage.get("cache_read_input_tokens")
    if isinstance(given, int) and isinstance(cached, int):
        return {**usage, "input_tokens": given - cached}
    return dict(usage)


def _read_end(session: Session, phase: str, record: Mapping[str, Any]) -> None:
    if record.get("is_error") is not True:
        session.end(phase, "stop")
        return
    message = str(mapping(record.get("error")).get("message") or "")
    status = re.search(r"API Error: (\d{3})\b", message)
    session.end(phase, "error", message, int(status[1]) if status else 0)


class QwenHarness(AgentHarness):
    """The agent ``qwen``: Qwen Code."""

    agent = Agent(
        name="qwen",
        wires=tuple(_WIRES),
        surfaces=SURFACES,
        tools={"write_file": "write", "edit": "edit", "read_file": "read", "run_shell_command": "shell"},
        seed=first_files("QWEN.md", ".qwen/skills"),
        argv=_argv,
        environment=_environment,
        files=_files,
        read=read_session,
        known=_KNOWN,
    )
