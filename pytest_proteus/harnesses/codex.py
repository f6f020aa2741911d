"""codex, the npm coding agent: the description that the driver of all agents works from, and the reader of its log.

The log is the rollout file in the agent's home: one JSON record a line, numbered, with the version that wrote it.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.harnesses.agent import Agent, AgentHarness, Launch, first_files, usual_surfaces
from pytest_proteus.harnesses.session import (
    Phases,
    Session,
    SurfaceOf,
    check_version,
    from_iso,
    mapping,
    objects,
    records,
    text_of,
)
from pytest_proteus.harnesses.traces import bounded, bounded_text

_KNOWN = "0.171."

SURFACES = usual_surfaces("AGENTS.md", ".agents/skills", "apply_patch")

_PROVIDER = "endpoint"

_QUIET = """\
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[feedback]
enabled = false

[otel]
exporter = "none"
metrics_exporter = "none"
trace_exporter = "none"

[features]
plugins = false
apps = false
"""

#: A file's section of a patch: what is done to it, and its path.
_SECTION = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)

_TOKENS = {"input_tokens": "input", "output_tokens": "output", "cached_input_tokens": "cache_read"}

#: Records and events that say nothing which others do not say.
_SILENT = ("turn_context", "world_state", "compacted", "token_count", "task_started", "thread_settings_applied")
_SILENT_ITEMS = ("reasoning", "web_search_call")


def _argv(launch: Launch) -> Sequence[str]:
    resume = ["resume", launch.resume] if launch.resume else []
    options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["exec", *resume, *options, "-"]


def _environment(launch: Launch) -> Mapping[str, str]:
    return {"CODEX_HOME": str(launch.agent_home)}


def _files(launch: Launch) -> Mapping[str, str]:
    text = json.dumps  # a JSON string is a TOML string, too
    lines = [
        f"model = {text(launch.model)}",
        f"model_provider = {text(_PROVIDER)}",
        _QUIET,
        f"[model_providers.{_PROVIDER}]",
        f"name = {text(_PROVIDER)}",
        f"base_url = {text(launch.versioned_url)}",
        'wire_api = "responses"',
        f"env_key = {text(launch.key)}",
        "request_max_retries = 0",  # those of the stream are on top of these
        "stream_max_retries = 2",
    ]
    return {"agent/config.toml": "\n".join(lines) + "\n"}


@dataclass
class _Call:
    """A tool call, with what became of it."""

    turn: int
    phase: str
    name: str
    given: Any
    time: float | None
    output: str = ""
    failed: bool = False
    reads: str = ""


@dataclass
class _Reading:
    """What a log has said so far."""

    session: Session = field(default_factory=Session)
    entries: list[ActionEvent | _Call] = field(default_factory=list)
    calls: dict[str, _Call] = field(default_factory=dict)


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read a rollout file.

    Raises:
        ConfigurationError: a version whose log is not known wrote it.
    """
    reading = _Reading()
    session = reading.session
    for phase, record in records(text, phases, session):
        kind, payload = record.get("type"), mapping(record.get("payload"))
        if kind == "session_meta":
            check_version("codex", payload.get("cli_version"), _KNOWN)
            session.ident = session.ident or str(payload.get("id") or "")
        elif kind == "token_usage_record":
            session.finish_turn(phase)
            session.add_tokens(_apart(payload.get("usage")), _TOKENS)
        elif kind == "response_item":
            _read_item(reading, phase, payload, from_iso(record.get("timestamp")))
        elif kind == "event_msg":
            _read_event(reading, phase, payload)
        elif kind not in _SILENT:
            session.unknown_records += 1
    for entry in reading.entries:
        session.events += _events(entry, surface_of) if isinstance(entry, _Call) else [entry]
    return session


def damage(text: str) -> str:
    """What shows that a rollout file is not whole; empty when nothing does. Its end may lack: see ``last_phase``."""
    for number, (_, record) in enumerate(records(text, (), Session())):
        if number == 0 and record.get("type") != "session_meta":
            return "its first record is missing"
        if record.get("ordinal") != number:
            return f"record {number} is missing"
    return ""


def _apart(usage: Any) -> Any:
    """Tokens with those from the cache taken out of the input, as all agents' counts have them."""
    counts = mapping(usage)
    given, cached = counts.get("input_tokens"), counts.get("cached_input_tokens")
    if isinstance(given, int) and isinstance(cached, int):
        return {**counts, "input_tokens": given - cached}
    return usage


def _read_item(reading: _Reading, phase: str, item: Mapping[str, Any], time: float | None) -> None:
    session, kind = reading.session, item.get("type")
    ident = str(item.get("call_id"))
    turn = session.turn + 1  # its record of tokens, which ends a turn, comes after it
    if kind == "message":
        if item.get("role") == "assistant":
            said = text_of(item.get("content"))
            reading.entries += [ActionEvent(turn, phase, text=bounded_text(said), timestamp=time)] if said else []
    elif kind in ("function_call", "custom_tool_call"):
        session.tool_calls += 1
        given = item.get("arguments") if kind == "function_call" else item.get("input")
        reading.calls[ident] = _Call(turn, phase, str(item.get("name", "")), given, time)
        reading.entries.append(reading.calls[ident])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        if ident in reading.calls:
            call, output = reading.calls[ident], item.get("output")
            call.output = call.output or (output if isinstance(output, str) else text_of(output))
    elif kind not in _SILENT_ITEMS:
        session.unknown_records += 1


def _read_event(reading: _Reading, phase: str, event: Mapping[str, Any]) -> None:
    session, kind = reading.session, event.get("type")
    if kind == "item_completed":
        _read_outcome(reading, mapping(event.get("item")))
    elif kind == "task_complete":
        error = mapping(event.get("error"))
        message = str(error.get("message") or "")
        session.end(phase, "error" if error else "stop", message, _status(error, message))
    elif kind == "turn_aborted":
        session.end(phase, "aborted")
    elif kind not in _SILENT:
        session.unknown_records += 1


def _read_outcome(reading: _Reading, item: Mapping[str, Any]) -> None:
    call = reading.calls.get(str(item.get("id")))
    if call is None:
        return  # texts and thoughts, which are response items, too
    call.failed = item.get("status") == "failed"
    if item.get("type") == "CommandExecution":
        call.output = str(item.get("aggregated_output") or call.output)
        parts = objects(item.get("parsed_cmd"))
        if parts and all(part.get("type") == "read" for part in parts):
            call.reads = str(parts[-1].get("path") or parts[-1].get("name") or "")


def _status(error: Mapping[str, Any], message: str) -> int:
    """The HTTP status of an error, which the log has in its text or under the error's name."""
    told = re.search(r"\bstatus:? (\d{3})\b", message)
    if told:
        return int(told[1])
    return 401 if error.get("codex_error_info") == "unauthorized" else 0


def _events(call: _Call, surface_of: SurfaceOf) -> Iterator[ActionEvent]:
    """The call; one event a file where it is a patch."""
    outcome = bounded_text(f"error: {call.output}" if call.failed else call.output)

    def event(tool: str, surface: str | None, params: Mapping[str, Any]) -> ActionEvent:
        return ActionEvent(call.turn, call.phase, tool, surface, bounded(params), outcome, call.time)

    if isinstance(call.given, str) and call.name == "apply_patch":
        sections = list(_SECTION.finditer(call.given))
        for number, section in enumerate(sections, start=1):
            end = sections[number].start() if number < len(sections) else len(call.given)
            path = section[2].strip()
            params = {"action": section[1].lower(), "path": path, "patch": call.given[section.start() : end]}
            yield event("apply_patch", surface_of(path), params)
        if sections:
            return
    try:
        arguments = json.loads(call.given) if isinstance(call.given, str) else call.given
    except (ValueError, RecursionError):
        arguments = {"input": call.given}
    params = dict(arguments) if isinstance(arguments, dict) else {"input": arguments}
    if call.reads:
        params["reads"] = call.reads
    yield event(call.name, surface_of(call.reads) if call.reads else None, params)


def _role(event: ActionEvent) -> str:
    if event.tool == "apply_patch":
        return {"add": "write", "update": "edit"}.get(str(event.params.get("action")), "apply_patch")
    if event.tool in ("exec_command", "shell"):
        return "read" if event.params.get("reads") else "shell"
    return event.tool or ""


class CodexHarness(AgentHarness):
    """The agent ``codex``.

    It offers its tool for patches to the models that it knows by name; others write by shell commands, which show no
    surface.
    """

    agent = Agent(
        name="codex",
        wires=("openai-responses",),
        surfaces=SURFACES,
        tools={"apply_patch": "edit", "exec_command": "shell"},
        role=_role,
        seed=first_files("AGENTS.md", ".agents/skills"),
        argv=_argv,
        environment=_environment,
        files=_files,
        read=read_session,
        damage=damage,
        log=("agent", "sessions/*/rollout-*.jsonl"),
        # it leaves its commands running when it is terminated, and ends them when it is interrupted
        stop_signal=signal.SIGINT,
        known=_KNOWN,
    )
