"""Copilot CLI, the npm coding agent: the description that the driver of all agents works from, and its log's reader.

The log is what it prints: one JSON record a line, the last of each run with its exit code. It tells no version: that of
the program is checked before it runs.
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
    from_iso,
    mapping,
    objects,
    records,
    string,
    text_of,
)

SURFACES = usual_surfaces("AGENTS.md", ".agents/skills", "create", "edit")

#: Wire protocol → the provider's type and the protocol's name, where it has one.
_PROVIDERS = {
    "anthropic": ("anthropic", ""),
    "openai-responses": ("openai", "responses"),
    "openai-chat": ("openai", ""),
}

#: Records that say nothing which others do not say, or nothing of what the agent did.
_SILENT = ("user.message", "system.message", "assistant.turn_start", "assistant.turn_end", "tool.execution_start")


def _argv(launch: Launch) -> Sequence[str]:
    session = f"--resume={launch.resume}" if launch.resume else f"--session-id={launch.session}"
    quiet = ["--no-auto-update", "--disable-client-telemetry", "--log-dir", str(launch.temporary / "logs")]
    return ["--output-format", "json", "--allow-all", session, *quiet]


def _environment(launch: Launch) -> Mapping[str, str]:
    kind, wire = _PROVIDERS[launch.wire]
    return {
        "COPILOT_HOME": str(launch.agent_home),
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_MODEL": launch.model,
        "COPILOT_PROVIDER_TYPE": kind,
        "COPILOT_PROVIDER_BASE_URL": launch.url if launch.wire == "anthropic" else launch.versioned_url,
        **({"COPILOT_PROVIDER_WIRE_API": wire} if wire else {}),
    }


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read what it printed."""
    transcript = Transcript()
    session = transcript.session
    for phase, record in records(text, phases, session):
        kind, data = str(record.get("type")), mapping(record.get("data"))
        if record.get("ephemeral") is True:
            continue  # pieces of what comes whole later
        if kind == "assistant.message":
            _read_answer(transcript, phase, data, from_iso(record.get("timestamp")))
        elif kind == "tool.execution_complete":
            _read_outcome(transcript, data)
        elif kind == "session.error":
            status = data.get("statusCode")
            session.end(phase, "error", str(data.get("message") or ""), status if isinstance(status, int) else 0)
        elif kind == "result":
            session.ident = session.ident or str(record.get("sessionId") or "")
            if record.get("exitCode") == 0 and session.last_phase == phase and session.stop_reason != "error":
                session.end(phase, "stop")
        elif kind not in _SILENT and not kind.startswith("session."):
            session.unknown_records += 1
    return transcript.close(surface_of)


def _read_answer(transcript: Transcript, phase: str, data: Mapping[str, Any], time: float | None) -> None:
    turn = transcript.session.finish_turn(phase)
    transcript.session.end(phase, "")
    transcript.say(turn, phase, text_of(data.get("content")), time)
    for part in objects(data.get("toolRequests")):
        given = mapping(part.get("arguments"))
        named = string(given.get("path"))
        transcript.call(str(part.get("toolCallId")), Call(turn, phase, str(part.get("name", "")), given, named, time))


def _read_outcome(transcript: Transcript, data: Mapping[str, Any]) -> None:
    exited = mapping(data.get("shellExecution")).get("exitCode")
    failed = data.get("success") is not True or exited not in (None, 0)
    told = mapping(data.get("result")).get("content") or mapping(data.get("error")).get("message")
    transcript.result(str(data.get("toolCallId")), text_of(told), failed)


class CopilotHarness(AgentHarness):
    """The agent ``copilot``: Copilot CLI, with an endpoint of one's own in place of a subscription."""

    agent = Agent(
        name="copilot",
        wires=tuple(_PROVIDERS),
        surfaces=SURFACES,
        tools={"create": "write", "edit": "edit", "view": "read", "bash": "shell"},
        seed=first_files("AGENTS.md", ".agents/skills"),
        argv=_argv,
        environment=_environment,
        files=lambda _: {},
        read=read_session,
        known="1.0.",
    )
