"""Claude Code, the npm coding agent: the description that the driver of all agents works from, and its log's reader.

The log is what it prints: one JSON record a line, the first of each run with its version, the last with how it ended.
The session files in its home, which people keep, have the same answers and results and much else; they are read, too.
"""

from __future__ import annotations

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
    from_iso,
    mapping,
    objects,
    records,
    string,
    text_of,
)

_KNOWN = "2.1."

SURFACES = usual_surfaces("CLAUDE.md", ".claude/skills", "Write", "Edit")

_TOOLS = {"Write": "write", "Edit": "edit", "Read": "read", "Bash": "shell"}

_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}

#: How it says that a run of it ended → how the last answer ended; what is not here is an end in the middle.
_ENDS = {
    "completed": "stop",
    "max_turns": "limit",
    "api_error": "error",
    "aborted_tools": "aborted",
    "aborted_streaming": "aborted",
}

#: How an answer ended, which only session files tell → how the last answer ended.
_STOPS = {"end_turn": "stop", "max_tokens": "length"}


def _argv(launch: Launch) -> Sequence[str]:
    session = ["--resume", launch.resume] if launch.resume else ["--session-id", launch.session]
    return [
        *("-p", "--output-format", "stream-json", "--verbose"),
        *("--model", launch.model, *session, "--max-turns", str(launch.turns)),
        "--dangerously-skip-permissions",
    ]


def _environment(launch: Launch) -> Mapping[str, str]:
    return {
        "CLAUDE_CONFIG_DIR": str(launch.agent_home),
        "ANTHROPIC_BASE_URL": launch.url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
        # without it root may not let it use its tools unasked
        "IS_SANDBOX": "1",
    }


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read what it printed, or a session file of its home.

    Raises:
        ConfigurationError: a version whose log is not known wrote it.
    """
    transcript = Transcript()
    session = transcript.session
    answers: dict[str, Mapping[str, Any]] = {}
    ended = False
    for phase, record in records(text, phases, session):
        kind = record.get("type")
        if kind == "system":
            if record.get("subtype") == "init":
                check_version("claude", record.get("claude_code_version"), _KNOWN)
                session.ident = session.ident or str(record.get("session_id") or "")
        elif kind == "assistant":
            _read_answer(transcript, phase, record, answers)
        elif kind == "user":
            for part in objects(mapping(record.get("message")).get("content")):
                if part.get("type") == "tool_result":
                    failed = part.get("is_error") is True
                    transcript.result(str(part.get("tool_use_id")), text_of(part.get("content")), failed)
        elif kind == "result":
            ended, usage = True, mapping(record.get("usage"))
            if any(usage.get(name) for name in _TOKENS):  # zeros alone are none that anybody counted
                session.add_tokens(usage, _TOKENS)
            _read_end(session, phase, record)
        else:
            session.unknown_records += 1
    if not ended:  # the answers of what it prints have the tokens of their first moment
        for usage in answers.values():
            session.add_tokens(usage, _TOKENS)
    return transcript.close(surface_of)


def _read_answer(
    transcript: Transcript, phase: str, record: Mapping[str, Any], answers: dict[str, Mapping[str, Any]]
) -> None:
    """A block of an answer; each comes as a record of its own, with the answer's id and the answer's tokens."""
    message = mapping(record.get("message"))
    if message.get("model") == "<synthetic>":
        return  # its own words for an error, which the end tells
    session = transcript.session
    session.last_phase, session.stop_reason = phase, _STOPS.get(str(message.get("stop_reason")), "")
    if "version" in record:
        check_version("claude", record["version"], _KNOWN)
    ident = str(message.get("id"))
    if ident not in answers:
        session.finish_turn(phase)
    answers[ident] = mapping(message.get("usage"))
    turn, time = session.turn, from_iso(record.get("timestamp"))
    for part in objects(message.get("content")):
        if part.get("type") == "text":
            transcript.say(turn, phase, text_of([part]), time)
        elif part.get("type") == "tool_use":
            given = mapping(part.get("input"))
            named = string(given.get("file_path"))
            transcript.call(str(part.get("id")), Call(turn, phase, str(part.get("name", "")), given, named, time))


def _read_end(session: Session, phase: str, record: Mapping[str, Any]) -> None:
    reason = _ENDS.get(str(record.get("terminal_reason")), "")
    denied = [str(one.get("tool_name")) for one in objects(record.get("permission_denials"))]
    denied = [tool for tool in denied if tool in _TOOLS]
    if reason == "stop" and denied:
        session.end(phase, "denied", ", ".join(dict.fromkeys(denied)))
        return
    status = record.get("api_error_status")
    session.end(phase, reason, str(record.get("result") or ""), status if isinstance(status, int) else 0)


class ClaudeHarness(AgentHarness):
    """The agent ``claude``: Claude Code."""

    agent = Agent(
        name="claude",
        wires=("anthropic",),
        surfaces=SURFACES,
        tools=_TOOLS,
        seed=first_files("CLAUDE.md", ".claude/skills"),
        argv=_argv,
        environment=_environment,
        files=lambda _: {},
        read=read_session,
        known=_KNOWN,
    )
