"""opencode, the npm coding agent: the description that the driver of all agents works from, and the reader of its log.

The log is what it prints: one JSON record a line, of which each has all that became of a call. It tells no version:
that of the program is checked before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.harnesses.agent import Agent, AgentHarness, Launch, first_files, usual_surfaces
from pytest_proteus.harnesses.session import (
    Call,
    Phases,
    Session,
    SurfaceOf,
    Transcript,
    from_milliseconds,
    mapping,
    records,
    string,
)

_KNOWN = "1.18."

SURFACES = usual_surfaces("AGENTS.md", ".agents/skills", "write", "edit")

#: Wire protocol → the provider's module, all of which are in the program.
_MODULES = {
    "anthropic": "@ai-sdk/anthropic",
    "openai-responses": "@ai-sdk/openai",
    "openai-chat": "@ai-sdk/openai-compatible",
    "gemini": "@ai-sdk/google",
}

_PROVIDER = "endpoint"

#: Every folder of its configuration gets this module installed from the registry, unless it seems to be there.
_PLUGIN = {"@opencode-ai/plugin": "1.18.33"}

_TOKENS = {"input": "input", "output": "output"}
_CACHE = {"read": "cache_read", "write": "cache_write"}

_ENDS = {"stop": "stop", "length": "length"}


def _argv(launch: Launch) -> Sequence[str]:
    session = ["--session", launch.resume] if launch.resume else ["--title", "session"]
    return ["run", "--format", "json", "--auto", *session]


def _environment(launch: Launch) -> Mapping[str, str]:
    home = launch.agent_home
    return {
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_SHARE": "1",
        # a folder of its configuration in the tree would have something installed into it
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    }


def _files(launch: Launch) -> Mapping[str, str]:
    model = {
        "name": launch.model,
        "limit": {"context": 200_000, "output": 16_384},
        "tool_call": True,
        "reasoning": launch.reasoning,
    }
    provider = {
        "npm": _MODULES[launch.wire],
        "name": _PROVIDER,
        "options": {"baseURL": launch.versioned_url, "apiKey": f"{{env:{launch.key}}}"},
        "models": {launch.model: model},
    }
    named = f"{_PROVIDER}/{launch.model}"
    settings = {"autoupdate": False, "share": "disabled", "model": named, "small_model": named}
    settings |= {"enabled_providers": [_PROVIDER], "provider": {_PROVIDER: provider}}
    lock = {"name": "x", "lockfileVersion": 3, "requires": True, "packages": {"": {"dependencies": _PLUGIN}}}
    config = "agent/config/opencode"
    return {
        "agent/opencode.json": json.dumps(settings),
        f"{config}/package.json": json.dumps({"dependencies": _PLUGIN}),
        f"{config}/package-lock.json": json.dumps(lock),
        f"{config}/node_modules/.keep": "",
    }


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read what it printed."""
    transcript = Transcript()
    session = transcript.session
    for phase, record in records(text, phases, session):
        kind, part = record.get("type"), mapping(record.get("part"))
        session.ident = session.ident or str(record.get("sessionID") or "")
        time = from_milliseconds(record.get("timestamp"))
        turn = session.turn + 1  # what ends a turn comes after all that belongs to it
        if kind == "text":
            transcript.say(turn, phase, string(part.get("text")), time)
        elif kind == "tool_use":
            _read_call(transcript, turn, phase, part, time)
        elif kind == "step_finish":
            session.finish_turn(phase)
            tokens = mapping(part.get("tokens"))
            session.add_tokens(tokens, _TOKENS)
            session.add_tokens(tokens.get("cache"), _CACHE)
            session.end(phase, _ENDS.get(str(part.get("reason")), ""))
        elif kind == "error":
            _read_error(session, phase, mapping(record.get("error")))
        elif kind not in ("step_start", "reasoning"):
            session.unknown_records += 1
    return transcript.close(surface_of)


def _read_call(transcript: Transcript, turn: int, phase: str, part: Mapping[str, Any], time: float | None) -> None:
    state = mapping(part.get("state"))
    given = mapping(state.get("input"))
    ident = str(part.get("callID"))
    transcript.call(ident, Call(turn, phase, str(part.get("tool", "")), given, string(given.get("filePath")), time))
    failed = state.get("status") == "error" or mapping(state.get("metadata")).get("exit") not in (None, 0)
    transcript.result(ident, string(state.get("output") if "output" in state else state.get("error")), failed)


def _read_error(session: Session, phase: str, error: Mapping[str, Any]) -> None:
    told = mapping(error.get("data"))
    status = told.get("statusCode")
    message = str(told.get("message") or error.get("name") or "")
    session.end(phase, "error", message, status if isinstance(status, int) else 0)


class OpencodeHarness(AgentHarness):
    """The agent ``opencode``."""

    agent = Agent(
        name="opencode",
        wires=tuple(_MODULES),
        surfaces=SURFACES,
        tools={"write": "write", "edit": "edit", "read": "read", "bash": "shell"},
        seed=first_files("AGENTS.md", ".agents/skills"),
        argv=_argv,
        environment=_environment,
        files=_files,
        read=read_session,
        known=_KNOWN,
    )
