"""Gemini CLI, the npm coding agent: the description that the driver of all agents works from, and its log's reader.

The log is what it prints: one JSON record a line, the last of each run with how it ended. It tells no version: that of
the program is checked before it runs. An answer of the model ends where its results, or the run's end, follow.
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
    from_iso,
    mapping,
    records,
    string,
)

SURFACES = usual_surfaces("GEMINI.md", ".gemini/skills", "write_file", "replace")

_TOKENS = {"input": "input", "output_tokens": "output", "cached": "cache_read"}


def _argv(launch: Launch) -> Sequence[str]:
    session = ["--resume", "latest"] if launch.resume else ["--session-id", launch.session]
    return ["-m", launch.model, "--output-format", "stream-json", "--yolo", "--skip-trust", *session]


def _environment(launch: Launch) -> Mapping[str, str]:
    return {
        "GEMINI_CLI_HOME": str(launch.home),
        "GOOGLE_GEMINI_BASE_URL": launch.url.removesuffix("/v1beta"),
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NO_COLOR": "1",
    }


def _files(launch: Launch) -> Mapping[str, str]:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 3},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "telemetry": {"enabled": False},
    }
    return {"home/.gemini/settings.json": json.dumps(settings)}


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read what it printed."""
    transcript = Transcript()
    session = transcript.session
    answering, said = False, ""
    for phase, record in records(text, phases, session):
        kind, time = record.get("type"), from_iso(record.get("timestamp"))
        speaks = kind == "tool_use" or (kind == "message" and record.get("role") == "assistant")
        if speaks and not answering:
            session.finish_turn(phase)
            session.end(phase, "")
        if said and (kind != "message" or not speaks):
            transcript.say(session.turn, session.last_phase, said, time)
            said = ""
        answering = speaks
        if kind == "message":
            said += string(record.get("content")) if speaks else ""
        elif kind == "tool_use":
            given = mapping(record.get("parameters"))
            tool, named = str(record.get("tool_name", "")), string(given.get("file_path"))
            transcript.call(str(record.get("tool_id")), Call(session.turn, phase, tool, given, named, time))
        elif kind == "tool_result":
            output = str(record.get("output") or mapping(record.get("error")).get("message") or "")
            transcript.result(str(record.get("tool_id")), output, record.get("status") == "error")
        elif kind == "result":
            _read_end(session, phase, record)
        elif kind == "init":
            session.ident = session.ident or str(record.get("session_id") or "")
        else:
            session.unknown_records += 1
    if said:
        transcript.say(session.turn, session.last_phase, said, None)
    return transcript.close(surface_of)


def _read_end(session: Session, phase: str, record: Mapping[str, Any]) -> None:
    stats = dict(mapping(record.get("stats")))
    total, given = stats.get("total_tokens"), stats.get("input_tokens")
    if isinstance(total, int) and isinstance(given, int):
        stats["output_tokens"] = total - given  # with what it thought, which it tells nowhere else
    if any(stats.get(name) for name in _TOKENS):  # zeros alone are none that anybody counted
        session.add_tokens(stats, _TOKENS)
    if record.get("status") == "success":
        session.end(phase, "stop")
        return
    error = mapping(record.get("error"))
    message = str(error.get("message") or "")
    if error.get("type") == "FatalTurnLimitedError":
        session.end(phase, "limit")
        return
    status = re.search(r'"code": ?(\d{3})\b', message)
    session.end(phase, "error", message, int(status[1]) if status else 0)


class GeminiHarness(AgentHarness):
    """The agent ``gemini``: Gemini CLI."""

    agent = Agent(
        name="gemini",
        wires=("gemini",),
        surfaces=SURFACES,
        tools={"write_file": "write", "replace": "edit", "read_file": "read", "run_shell_command": "shell"},
        seed=first_files("GEMINI.md", ".gemini/skills"),
        argv=_argv,
        environment=_environment,
        files=_files,
        read=read_session,
        known="0.61.",
    )
