"""mini-swe-agent, the PyPI coding agent: the description that the driver of all agents works from, and its log reader.

The log is the trajectory that each phase leaves, one JSON value, with the version that wrote it. It has one tool, a
shell: what it writes shows no surface. It cannot go on with a session: every phase is one of its own.
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
    text_of,
)

_KNOWN = "2.4."

SURFACES = usual_surfaces("AGENTS.md", "skills", "bash")

_LOG = "trajectory.json"

#: Wire protocol → how litellm, which it asks models through, calls the provider.
_PROVIDERS = {"openai-chat": "openai", "anthropic": "anthropic"}

_TOKENS = {"uncached": "input", "completion_tokens": "output", "cached": "cache_read", "written": "cache_write"}

_ENDS = {"Submitted": "stop", "LimitsExceeded": "limit"}

#: Errors of the endpoint, by litellm's names → their HTTP status where the name settles it.
_ERRORS = {
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    **dict.fromkeys(("BadRequestError", "ContextWindowExceededError", "ContentPolicyViolationError"), 400),
    **dict.fromkeys(("RateLimitError", "InternalServerError", "ServiceUnavailableError", "BadGatewayError"), 0),
    **dict.fromkeys(("APIError", "APIConnectionError", "APIResponseValidationError", "Timeout"), 0),
}


def _argv(launch: Launch) -> Sequence[str]:
    # it reads no instructions of its own accord
    page = "Read AGENTS.md first, which is your page of instructions.\n\n"
    settings = {
        "model.model_kwargs.api_base": launch.url if launch.wire == "anthropic" else launch.versioned_url,
        "agent.step_limit": launch.turns,
    }
    return [
        *("--yolo", "--exit-immediately", "-m", f"{_PROVIDERS[launch.wire]}/{launch.model}", "-c", "mini.yaml"),
        *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        *("-o", str(launch.agent_home / _LOG), "-t", page + launch.prompt),
    ]


def _environment(launch: Launch) -> Mapping[str, str]:
    return {
        "MSWEA_GLOBAL_CONFIG_DIR": str(launch.agent_home / "config"),
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read trajectories, one a line.

    Raises:
        ConfigurationError: a version whose log is not known wrote one.
    """
    transcript = Transcript()
    session = transcript.session
    for phase, record in records(text, phases, session):
        info = mapping(record.get("info"))
        check_version("mini-swe-agent", info.get("mini_version"), _KNOWN)
        for message in objects(record.get("messages")):
            _read_message(transcript, phase, message)
        _read_end(session, phase, info, objects(record.get("messages")))
    return transcript.close(surface_of)


def _read_message(transcript: Transcript, phase: str, message: Mapping[str, Any]) -> None:
    role, extra = message.get("role"), mapping(message.get("extra"))
    if role == "assistant":
        turn = transcript.session.finish_turn(phase)
        time = mapping(extra.get("response")).get("created")
        seconds = float(time) if isinstance(time, (int, float)) and not isinstance(time, bool) else None
        transcript.session.add_tokens(_apart(mapping(mapping(extra.get("response")).get("usage"))), _TOKENS)
        transcript.say(turn, phase, text_of(message.get("content")), seconds)
        for call in objects(message.get("tool_calls")):
            function = mapping(call.get("function"))
            given = _arguments(function.get("arguments"))
            tool = str(function.get("name", ""))
            transcript.call(str(call.get("id")), Call(turn, phase, tool, given, "", seconds))
    elif role == "tool":
        output = str(extra.get("raw_output") or extra.get("exception_info") or "")
        transcript.result(str(message.get("tool_call_id")), output, extra.get("returncode") not in (0, None))
    elif role not in ("system", "user", "exit"):
        transcript.session.unknown_records += 1


def _apart(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens as litellm tells them for all providers, with those of the cache apart from the prompt."""
    details = mapping(usage.get("prompt_tokens_details"))
    prompt, cached, written = (
        usage.get("prompt_tokens"),
        details.get("cached_tokens"),
        usage.get("cache_creation_input_tokens"),
    )
    inside = sum(part for part in (cached, written) if isinstance(part, int))
    return {
        **usage,
        "uncached": prompt - inside if isinstance(prompt, int) else None,
        "cached": cached,
        "written": written,
    }


def _arguments(given: Any) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(given))
    except (ValueError, TypeError, RecursionError):
        return {"input": given}


def _read_end(session: Session, phase: str, info: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    told = str(info.get("exit_status") or "")
    if told in _ENDS:
        session.end(phase, _ENDS[told])
    elif told in _ERRORS:
        message = text_of(messages[-1].get("content")) if messages else ""
        status = re.search(r"\b(?:error|status)\D{0,10}(\d{3})\b", message, re.IGNORECASE)
        session.end(phase, "error", message or told, _ERRORS[told] or (int(status[1]) if status else 0))
    else:
        session.end(phase, "")


class MiniSweAgentHarness(AgentHarness):
    """The agent ``mini-swe-agent``."""

    agent = Agent(
        name="mini-swe-agent",
        wires=tuple(_PROVIDERS),
        surfaces=SURFACES,
        tools={"bash": "shell"},
        seed=first_files("AGENTS.md", "skills"),
        argv=_argv,
        environment=_environment,
        files=lambda _: {},
        read=read_session,
        log=("document", _LOG),
        known=_KNOWN,
    )
