"""The harness ``llm``: a small agent of our own for any endpoint that speaks Anthropic Messages or OpenAI Chat
Completions. The loop runs in this process and asks the endpoint itself; what the model has run, runs in the sandbox.

It is as plain as can be: no streaming, no compaction, one answer after the other, every tool call in turn. Its log has
the form of those of the other agents.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import EpisodeSpec
from pytest_proteus.core.endpoints import opener
from pytest_proteus.core.trees import read_regular
from pytest_proteus.harnesses.agent import (
    KEYS,
    Agent,
    AgentHarness,
    Launch,
    first_files,
    own_folders,
    usual_surfaces,
)
from pytest_proteus.harnesses.install import FoundAgent
from pytest_proteus.harnesses.llm_tools import TOOLS, Tools, schema
from pytest_proteus.harnesses.session import (
    Call,
    Phases,
    Session,
    SurfaceOf,
    Transcript,
    mapping,
    objects,
    records,
    string,
    text_of,
)
from pytest_proteus.harnesses.traces import bounded_text, open_folder
from pytest_proteus.sandbox import Outcome

SURFACES = usual_surfaces("AGENTS.md", "skills", "write", "edit")

_PROMPT = """\
You are an agent that works with tools until what it is asked for is done. Your working folder is {folder}; paths are
relative to it. Commands have no network. When you are done, answer without a tool call.
"""

#: Longest page of instructions, in bytes, and most skills that the model is told of.
_PAGE_LIMIT, _SKILLS_LIMIT = 1 << 16, 200

#: Most tokens of an answer, bytes of one, and seconds of silence after which a request is given up.
_ANSWER_TOKENS, _ANSWER_BYTES, _SILENCE_SECONDS = 16_384, 32 << 20, 600.0

#: Seconds before each further try at a request that failed and might not fail again.
_PAUSES = (0.5, 2.0)

#: How an answer without calls ends, in the words of both wires → in those of all logs. A refusal is an answer, too.
_STOPS = {
    **dict.fromkeys(("end_turn", "stop_sequence", "stop", "refusal", "content_filter"), "stop"),
    **dict.fromkeys(("max_tokens", "length"), "length"),
}

_ANTHROPIC_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}
_CHAT_TOKENS = {"prompt_tokens": "input", "completion_tokens": "output"}


class _EndpointError(Exception):
    """The endpoint gave no answer; args: its HTTP status, 0 where there is none, and a sentence."""


class _Anthropic:
    """Anthropic Messages."""

    path = "/v1/messages"

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    @staticmethod
    def request(launch: Launch, system: str, talk: Sequence[Any]) -> dict[str, Any]:
        tools = [{"name": name, "description": TOOLS[name][0], "input_schema": schema(name)} for name in TOOLS]
        thinking = {"type": "enabled", "budget_tokens": _ANSWER_TOKENS // 2}
        return {
            "model": launch.model,
            "max_tokens": _ANSWER_TOKENS,
            "system": system,
            "messages": talk,
            "tools": tools,
            **({"thinking": thinking} if launch.reasoning else {}),
        }

    @staticmethod
    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as a record of the log, with the message that goes back to the endpoint."""
        content = objects(body.get("content"))
        calls = [
            {"id": string(part.get("id")), "tool": string(part.get("name")), "given": mapping(part.get("input"))}
            for part in content
            if part.get("type") == "tool_use"
        ]
        return {
            "message": {"role": "assistant", "content": content},
            "text": text_of([part for part in content if part.get("type") == "text"]),
            "calls": calls,
            "stop": string(body.get("stop_reason")),
            "tokens": _tokens(body.get("usage"), _ANTHROPIC_TOKENS),
        }

    @staticmethod
    def results(found: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
        parts = [
            {"type": "tool_result", "tool_use_id": ident, "content": said, "is_error": failed}
            for ident, said, failed in found
        ]
        return [{"role": "user", "content": parts}]


class _Chat:
    """OpenAI Chat Completions, as many serve them."""

    path = "/chat/completions"

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    @staticmethod
    def request(launch: Launch, system: str, talk: Sequence[Any]) -> dict[str, Any]:
        functions = [{"name": name, "description": TOOLS[name][0], "parameters": schema(name)} for name in TOOLS]
        return {
            "model": launch.model,
            "messages": [{"role": "system", "content": system}, *talk],
            "tools": [{"type": "function", "function": function} for function in functions],
            **({"reasoning_effort": "medium"} if launch.reasoning else {}),
        }

    @staticmethod
    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        """As that of ``_Anthropic``."""
        choice = next(iter(objects(body.get("choices"))), {})
        message = mapping(choice.get("message"))
        asked = [{**call, "type": "function"} for call in objects(message.get("tool_calls"))]
        calls = [
            {"id": string(call.get("id")), "tool": string(function.get("name")), "given": _arguments(function)}
            for call in asked
            for function in [mapping(call.get("function"))]
        ]
        usage = mapping(body.get("usage"))
        tokens = _tokens(usage, _CHAT_TOKENS)
        cached = mapping(usage.get("prompt_tokens_details")).get("cached_tokens")
        if tokens and "input" in tokens and isinstance(cached, int):
            tokens |= {"input": tokens["input"] - cached, "cache_read": cached}
        kept = {"role": "assistant", "content": message.get("content"), **({"tool_calls": asked} if asked else {})}
        return {
            "message": kept,
            "text": text_of(message.get("content")),
            "calls": calls,
            "stop": string(choice.get("finish_reason")),
            "tokens": tokens,
        }

    @staticmethod
    def results(found: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": ident, "content": said} for ident, said, _ in found]


_WIRES: Mapping[str, type[_Anthropic] | type[_Chat]] = {"anthropic": _Anthropic, "openai-chat": _Chat}


def _arguments(function: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(string(function.get("arguments")) or "{}"))
    except (ValueError, RecursionError):
        return {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _tokens(usage: Any, names: Mapping[str, str]) -> dict[str, int] | None:
    """What an answer says of its tokens; None when it does not."""
    found = {ours: usage[theirs] for theirs, ours in names.items() if _is_count(mapping(usage).get(theirs))}
    return found or None


# --- the log ----------------------------------------------------------------------------------------------------------


def read_session(text: str, phases: Phases, surface_of: SurfaceOf) -> Session:
    """Read the loop's own log. Where one answer does not tell its tokens, their sum is not known."""
    transcript = Transcript()
    session = transcript.session
    untold = False
    for phase, record in records(text, phases, session):
        time_ = record.get("time")
        seconds = float(time_) if isinstance(time_, (int, float)) and not isinstance(time_, bool) else None
        kind = record.get("type")
        if kind == "answer":
            turn = session.finish_turn(phase)
            transcript.say(turn, phase, string(record.get("text")), seconds)
            for call in objects(record.get("calls")):
                given = mapping(call.get("given"))
                path = string(given.get("path"))
                tool = string(call.get("tool"))
                transcript.call(string(call.get("id")), Call(turn, phase, tool, given, path, seconds))
            session.end(phase, "" if record.get("calls") else _STOPS.get(string(record.get("stop")), ""))
            untold = untold or not record.get("tokens")
            session.add_tokens(record.get("tokens"), {name: name for name in _ANTHROPIC_TOKENS.values()})
        elif kind == "result":
            transcript.result(string(record.get("id")), string(record.get("output")), bool(record.get("failed")))
        elif kind == "limit":
            session.end(phase, "limit")
        elif kind == "error":
            status = record.get("status")
            session.end(phase, "error", string(record.get("message")), status if isinstance(status, int) else 0)
        else:
            session.unknown_records += 1
    if untold:
        session.tokens.clear()
    return transcript.close(surface_of)


# --- the loop ---------------------------------------------------------------------------------------------------------


class LlmHarness(AgentHarness):
    """The harness ``llm``; arguments are those of ``AgentHarness`` but ``agent``: there is nothing to install."""

    agent = Agent(
        name="llm",
        wires=tuple(_WIRES),
        surfaces=SURFACES,
        tools={name: name for name in TOOLS},
        seed=first_files("AGENTS.md", "skills"),
        argv=lambda _: (),
        environment=lambda _: {},
        files=lambda _: {},
        read=read_session,
    )

    #: The session under way: its id, its system text and its messages.
    _talk: tuple[str, str, list[Any]] = ("", "", [])

    def _program(self) -> FoundAgent:
        # what stands for a program where one is asked whether it starts
        return FoundAgent(("/bin/true",), "", "given")

    def _run(self, spec: EpisodeSpec, launch: Launch, url: str) -> Outcome:
        began = time.monotonic()
        deadline = began + spec.phase_timeout
        if not launch.resume or self._talk[0] != launch.session:
            self._talk = (launch.session, _system(launch.harness), [])
        folders = own_folders(spec)
        seen = [launch.harness] if launch.harness != spec.harness_root else []

        def run(argv: Sequence[str], seconds: float) -> Outcome:
            return self._place.launch(
                argv,
                env={name: value for name, value in self._environment(spec, launch).items() if name not in _SECRET},
                cwd=launch.harness,
                timeout=seconds,
                stdout_limit=1 << 18,
                stderr_limit=1 << 18,
                writable=[*folders, launch.home.parent],
                readable=seen,
            )

        tools = Tools(launch.harness, folders, seen, run, deadline)
        key = next(iter(self._key(spec.model).values()), "")
        lines = []
        for record in self._work(replace(launch, url=url), key, tools):
            lines.append(json.dumps({**record, "time": time.time()}))
            if tools.exceeded or time.monotonic() >= deadline:
                break
        timed_out = not tools.exceeded and time.monotonic() >= deadline
        text = "".join(f"{line}\n" for line in lines)
        return Outcome(
            0, timed_out, text, "", False, False, time.monotonic() - began, left_over=None, exceeded=tools.exceeded
        )

    def _work(self, launch: Launch, key: str, tools: Tools) -> Iterator[dict[str, Any]]:
        """Ask, do what is asked for, and again; a record of the log for each step."""
        wire = _WIRES[launch.wire]
        _, system, talk = self._talk
        talk.append({"role": "user", "content": launch.prompt})
        for _ in range(launch.turns):
            try:
                answer = _asked(wire, launch, key, wire.request(launch, system, talk), tools.deadline)
            except _EndpointError as error:
                status, said = error.args
                yield {"type": "error", "status": status, "message": bounded_text(said)}
                return
            talk.append(answer.pop("message"))
            yield {"type": "answer", **answer}
            if not answer["calls"]:
                return
            found = []
            for call in answer["calls"]:
                said, failed = tools.use(call["tool"], call["given"])
                found.append((call["id"], said, failed))
                yield {"type": "result", "id": call["id"], "output": said, "failed": failed}
            talk += wire.results(found)
        yield {"type": "limit"}


#: Variables that hold keys: what runs in the sandbox asks no model.
_SECRET = frozenset(name for names in KEYS.values() for name in names)


def _system(folder: Path) -> str:
    """What the model is told before all else: the agent's page of instructions, and the skills that there are."""
    parts = [_PROMPT.format(folder=folder)]
    root = open_folder(folder)
    if root is not None:
        page = read_regular("AGENTS.md", _PAGE_LIMIT, root)
        os.close(root)
        if page:
            parts.append(page.decode("utf-8", "replace"))
    skills = list(_skills(folder))
    if skills:
        parts.append("\n".join(["Skills, to be read when they are needed:", *skills]))
    return "\n".join(parts)


def _skills(folder: Path) -> Iterator[str]:
    """A line for each skill: where it is, and what its front matter says that it is for."""
    above = open_folder(folder, "skills")
    if above is None:
        return
    try:
        names = sorted(os.listdir(above))[:_SKILLS_LIMIT]  # noqa: PTH208 - by descriptor
    finally:
        os.close(above)
    for name in names:
        inner = open_folder(folder, "skills", name)
        if inner is None:
            continue
        data = read_regular("SKILL.md", _PAGE_LIMIT, inner)
        os.close(inner)
        told = _described((data or b"").decode("utf-8", "replace"))
        if told:
            yield f"- skills/{name}/SKILL.md: {bounded_text(told, 500)}"


def _described(page: str) -> str:
    """What the front matter of a skill's page says that it is for; empty when it does not."""
    start, _, rest = page.partition("\n")
    matter, end, _ = rest.partition("\n---")
    told = [line for line in matter.split("\n") if line.startswith("description:")] if start == "---" and end else []
    return told[0].removeprefix("description:").strip() if told else ""


def _asked(
    wire: type[_Anthropic] | type[_Chat], launch: Launch, key: str, body: Mapping[str, Any], deadline: float
) -> dict[str, Any]:
    """The endpoint's answer; what might not fail again is tried again.

    Raises:
        _EndpointError: there is none.
    """
    pauses = list(_PAUSES)
    while True:
        try:
            return wire.answer(_post(wire, launch, key, body, deadline))
        except _EndpointError as error:
            status = error.args[0]
            left = deadline - time.monotonic()
            if not pauses or not (status in (0, 408, 429) or status >= 500) or left < pauses[0]:
                raise
            time.sleep(pauses.pop(0))


def _post(
    wire: type[_Anthropic] | type[_Chat], launch: Launch, key: str, body: Mapping[str, Any], deadline: float
) -> Mapping[str, Any]:
    """One request, and its whole answer."""
    base = launch.url if launch.wire == "anthropic" else launch.versioned_url
    headers = {"content-type": "application/json", **wire.headers(key)}
    request = urllib.request.Request(base + wire.path, json.dumps(body).encode(), headers, method="POST")
    try:
        seconds = max(min(_SILENCE_SECONDS, deadline - time.monotonic()), 0.1)
        with opener(launch.url).open(request, timeout=seconds) as response:
            data = bytearray()
            while piece := response.read1(1 << 16):
                data += piece
                if len(data) > _ANSWER_BYTES or time.monotonic() > deadline:
                    raise _EndpointError(0, "the answer of the model's endpoint is too long, or takes too long")
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(2000).decode("utf-8", "replace")
        raise _EndpointError(error.code, f"{error.code} {said}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _EndpointError(0, f"the model's endpoint gave no answer: {type(error).__name__}: {error}") from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _EndpointError(0, "the answer of the model's endpoint is no JSON object")
    return found
