"""Four wire protocols of model providers, from the serving side: requests read, answers rendered.

Pure functions of plain data: no sockets, no clock, no script. Each wire is one class with ``read`` (request body →
``Conversation``), ``whole`` (the answer as one JSON value) and ``events`` (the same answer as streamed chunks).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_proteus.testing.script import Conversation, FilledCall, Usage

Body = Mapping[str, Any]

#: What agents put beside what a user says.
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What a wire has to render.

    Args:
        ident: a fresh id, letters and digits only.
        model: name of the model, as asked for.
        thinking, text: empty for none.
        calls: tool calls, in order.
        usage: tokens.
        created: seconds since the epoch.
    """

    ident: str
    model: str
    thinking: str
    text: str
    calls: tuple[FilledCall, ...]
    usage: Usage
    created: int

    def call_id(self, number: int) -> str:
        """Id of the call of that number."""
        return f"call_{self.ident}_{number}"


def _pieces(text: str) -> Iterator[str]:
    """A text in the pieces in which it is streamed: two, so that clients have to join them."""
    middle = (len(text) + 1) // 2
    yield from (piece for piece in (text[:middle], text[middle:]) if piece)


def _text_of(content: Any) -> str:
    """The text in a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "\n".join(part for part in parts if isinstance(part, str))


def _sse(value: Any, event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


class _Reader:
    """Collects what the messages of a conversation say, in their order."""

    def __init__(self) -> None:
        self.user_texts: list[str] = []
        self.results: list[str] = []
        self.answers = 0
        self.new_answers = 0
        self._answering = False

    def user(self, text: str) -> None:
        self._answering = False
        if text:
            self.user_texts.append(text)
            self.new_answers = 0

    def result(self, text: str) -> None:
        self._answering = False
        self.results.append(text)

    def model(self) -> None:
        """Part of an answer of the model; parts that follow each other are one answer."""
        if not self._answering:
            self.answers += 1
            self.new_answers += 1
        self._answering = True

    def conversation(self, wire: str, path: str, model: str, **more: Any) -> Conversation:
        return Conversation(
            wire,
            path,
            model,
            user_texts=tuple(self.user_texts),
            results=tuple(self.results),
            answers=self.answers,
            new_answers=self.new_answers,
            **more,
        )


class Anthropic:
    """Anthropic Messages."""

    name = "anthropic"

    @staticmethod
    def read(body: Body, path: str) -> Conversation:
        """The conversation of a request."""
        reader = _Reader()
        for message in body.get("messages") or ():
            if message.get("role") == "assistant":
                reader.model()
                continue
            content = message.get("content")
            parts = content if isinstance(content, list) else []
            results = [part for part in parts if part.get("type") == "tool_result"]
            for part in results:
                reader.result(_text_of(part.get("content")))
            # an agent that was cut off in its work puts what it is asked next behind the results; what agents remind
            # their models of there nobody has said
            others = [part for part in parts if part.get("type") != "tool_result"]
            text = _REMINDER.sub("", _text_of(others)).strip() if results else _text_of(content)
            if text or not results:
                reader.user(text)
        return reader.conversation(
            "anthropic",
            path,
            str(body.get("model", "")),
            system=_text_of(body.get("system")),
            tools={tool["name"]: tool.get("input_schema") or {} for tool in body.get("tools") or ()},
            stream=bool(body.get("stream")),
        )

    @staticmethod
    def usage(usage: Usage) -> dict[str, int]:
        """Tokens as this wire tells them."""
        return {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": usage.output,
        }

    @classmethod
    def whole(cls, answer: Answer) -> dict[str, Any]:
        """The answer as one value."""
        return {
            "id": f"msg_{answer.ident}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": cls._blocks(answer),
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": cls.usage(answer.usage),
        }

    @classmethod
    def events(cls, answer: Answer) -> Iterator[bytes]:
        """The answer as server-sent events."""
        whole = cls.whole(answer)
        start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
        yield _sse({"type": "message_start", "message": start}, "message_start")
        for index, block in enumerate(whole["content"]):
            yield from cls._block_events(index, block)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": answer.usage.output}
        yield _sse({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
        yield _sse({"type": "message_stop"}, "message_stop")

    @staticmethod
    def error(status: int, message: str) -> dict[str, Any]:
        """The body of an HTTP error."""
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}

    @staticmethod
    def _blocks(answer: Answer) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if answer.thinking:
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": "c2NyaXB0ZWQ="})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        for number, call in enumerate(answer.calls):
            given = call.arguments if isinstance(call.arguments, dict) else {"input": call.arguments}
            blocks.append(
                {"type": "tool_use", "id": f"toolu_{answer.ident}_{number}", "name": call.name, "input": given}
            )
        return blocks

    @staticmethod
    def _block_events(index: int, block: dict[str, Any]) -> Iterator[bytes]:
        deltas: list[dict[str, Any]]
        if block["type"] == "text":
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif block["type"] == "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            empty = {**block, "input": {}}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in _pieces(json.dumps(block["input"]))
            ]
        yield _sse({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
        for delta in deltas:
            yield _sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield _sse({"type": "content_block_stop", "index": index}, "content_block_stop")


def _openai_error(status: int, message: str) -> dict[str, Any]:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_exceeded"}
    kind = kinds.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": kind if status == 429 else None}}


class OpenAIChat:
    """OpenAI Chat Completions."""

    name = "openai-chat"
    error = staticmethod(_openai_error)

    @staticmethod
    def read(body: Body, path: str) -> Conversation:
        """The conversation of a request."""
        reader = _Reader()
        system = []
        for message in body.get("messages") or ():
            text = _text_of(message.get("content"))
            role = message.get("role")
            if role == "assistant":
                reader.model()
            elif role == "tool":
                reader.result(text)
            elif role == "user":
                reader.user(text)
            elif role in ("system", "developer"):
                system.append(text)
        functions = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
        return reader.conversation(
            "openai-chat",
            path,
            str(body.get("model", "")),
            system="\n".join(system),
            tools={function["name"]: function.get("parameters") or {} for function in functions},
            stream=bool(body.get("stream")),
        )

    @staticmethod
    def usage(usage: Usage) -> dict[str, Any]:
        """Tokens as this wire tells them: the prompt's include those from a cache."""
        prompt = usage.input + usage.cache_read
        return {
            "prompt_tokens": prompt,
            "completion_tokens": usage.output,
            "total_tokens": prompt + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        }

    @classmethod
    def whole(cls, answer: Answer) -> dict[str, Any]:
        """The answer as one value."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [cls._call(answer, number) for number in range(len(answer.calls))]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.calls else "stop"}
        return {**cls._head(answer, "chat.completion"), "choices": [choice], "usage": cls.usage(answer.usage)}

    @classmethod
    def events(cls, answer: Answer) -> Iterator[bytes]:
        """The answer as server-sent events; the last but one tells the tokens."""
        head = cls._head(answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            return _sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in _pieces(answer.thinking):
            yield chunk({"reasoning_content": piece})
        for piece in _pieces(answer.text):
            yield chunk({"content": piece})
        for number in range(len(answer.calls)):
            call = cls._call(answer, number)
            function = call["function"]
            opened = {**call, "index": number, "function": {"name": function["name"], "arguments": ""}}
            yield chunk({"tool_calls": [opened]})
            for piece in _pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        yield chunk({}, "tool_calls" if answer.calls else "stop")
        yield _sse({**head, "choices": [], "usage": cls.usage(answer.usage)})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _head(answer: Answer, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{answer.ident}", "object": kind, "created": answer.created, "model": answer.model}

    @staticmethod
    def _call(answer: Answer, number: int) -> dict[str, Any]:
        call = answer.calls[number]
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        return {
            "id": answer.call_id(number),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }


class OpenAIResponses:
    """OpenAI Responses."""

    name = "openai-responses"
    error = staticmethod(_openai_error)

    @staticmethod
    def read(body: Body, path: str) -> Conversation:
        """The conversation of a request."""
        reader = _Reader()
        system = [body.get("instructions") or ""]
        given = body.get("input")
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else given or ():
            if str(item.get("type", "")).endswith("_call_output"):
                reader.result(_text_of(item.get("output")))
            elif item.get("role") == "user":
                reader.user(_text_of(item.get("content")))
            elif item.get("role") in ("system", "developer"):
                system.append(_text_of(item.get("content")))
            else:
                reader.model()
        tools: dict[str, Mapping[str, Any] | None] = {}
        for tool in body.get("tools") or ():
            if tool.get("type") == "function":
                tools[tool["name"]] = tool.get("parameters") or {}
            elif tool.get("type") == "custom":
                tools[tool["name"]] = None
        return reader.conversation(
            "openai-responses",
            path,
            str(body.get("model", "")),
            system="\n".join(filter(None, system)),
            tools=tools,
            stream=bool(body.get("stream")),
        )

    @staticmethod
    def usage(usage: Usage) -> dict[str, Any]:
        """Tokens as this wire tells them: the input's include those from a cache."""
        given = usage.input + usage.cache_read
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": usage.cache_read},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": given + usage.output,
        }

    @classmethod
    def whole(cls, answer: Answer) -> dict[str, Any]:
        """The answer as one value."""
        return {
            "id": f"resp_{answer.ident}",
            "object": "response",
            "created_at": answer.created,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": answer.model,
            "output": cls._items(answer),
            "parallel_tool_calls": True,
            "usage": cls.usage(answer.usage),
        }

    @classmethod
    def events(cls, answer: Answer) -> Iterator[bytes]:
        """The answer as server-sent events with ascending ``sequence_number``."""
        for number, (kind, value) in enumerate(cls._numbered(answer)):
            yield _sse({"type": kind, "sequence_number": number, **value}, kind)

    @classmethod
    def _numbered(cls, answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
        whole = cls.whole(answer)
        started = {**whole, "status": "in_progress", "output": [], "usage": None}
        yield "response.created", {"response": started}
        yield "response.in_progress", {"response": started}
        for index, item in enumerate(whole["output"]):
            yield from cls._item_events(index, item)
        yield "response.completed", {"response": whole}

    @staticmethod
    def _items(answer: Answer) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if answer.thinking:
            summary = [{"type": "summary_text", "text": answer.thinking}]
            items.append({"id": f"rs_{answer.ident}", "type": "reasoning", "summary": summary})
        if answer.text:
            content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
            head = {"id": f"msg_{answer.ident}", "type": "message", "status": "completed", "role": "assistant"}
            items.append({**head, "content": content})
        for number, call in enumerate(answer.calls):
            head = {"status": "completed", "call_id": answer.call_id(number), "name": call.name}
            if isinstance(call.arguments, str):
                head |= {"id": f"ctc_{answer.ident}_{number}", "type": "custom_tool_call"}
                items.append({**head, "input": call.arguments})
            else:
                head |= {"id": f"fc_{answer.ident}_{number}", "type": "function_call"}
                items.append({**head, "arguments": json.dumps(call.arguments)})
        return items

    @classmethod
    def _item_events(cls, index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        place = {"output_index": index, "item_id": item["id"]}
        emptied = {name: value for name, value in item.items() if name not in ("summary", "content")}
        kind = item["type"]
        if kind == "reasoning":
            emptied["summary"] = []
            inner = cls._part_events(
                place, item["summary"][0], "summary_index", "reasoning_summary_part", "reasoning_summary_text"
            )
        elif kind == "message":
            emptied |= {"content": [], "status": "in_progress"}
            inner = cls._part_events(place, item["content"][0], "content_index", "content_part", "output_text")
        else:
            named, event = (
                ("input", "custom_tool_call_input")
                if kind == "custom_tool_call"
                else ("arguments", "function_call_arguments")
            )
            emptied |= {named: "", "status": "in_progress"}
            inner = cls._call_events(place, item[named], named, event)
        yield "response.output_item.added", {"output_index": index, "item": emptied}
        yield from inner
        yield "response.output_item.done", {"output_index": index, "item": item}

    @staticmethod
    def _part_events(
        place: dict[str, Any], part: dict[str, Any], counter: str, outer: str, text: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        place = {**place, counter: 0}
        yield f"response.{outer}.added", {**place, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield f"response.{text}.delta", {**place, "delta": piece}
        yield f"response.{text}.done", {**place, "text": part["text"]}
        yield f"response.{outer}.done", {**place, "part": part}

    @staticmethod
    def _call_events(place: dict[str, Any], text: str, named: str, event: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for piece in _pieces(text):
            yield f"response.{event}.delta", {**place, "delta": piece}
        yield f"response.{event}.done", {**place, named: text}


class Gemini:
    """Gemini ``generateContent`` and ``streamGenerateContent``."""

    name = "gemini"

    @staticmethod
    def read(body: Body, path: str) -> Conversation:
        """The conversation of a request; model and streaming are told by its path."""
        reader = _Reader()
        for content in body.get("contents") or ():
            parts = content.get("parts") or ()
            results = [part["functionResponse"] for part in parts if "functionResponse" in part]
            for result in results:
                reader.result(json.dumps(result.get("response")))
            if content.get("role") == "model":
                reader.model()
            elif not results:
                reader.user(_text_of(parts))
        declared = [one for tool in body.get("tools") or () for one in tool.get("functionDeclarations") or ()]
        model, _, method = path.rpartition("/")[2].partition(":")
        return reader.conversation(
            "gemini",
            path,
            model,
            system=_text_of((body.get("systemInstruction") or {}).get("parts")),
            tools={one["name"]: one.get("parametersJsonSchema") or one.get("parameters") or {} for one in declared},
            stream=method.startswith("stream"),
        )

    @staticmethod
    def usage(usage: Usage) -> dict[str, int]:
        """Tokens as this wire tells them: prompt with the cached ones, candidates without the reasoning."""
        prompt = usage.input + usage.cache_read
        return {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "totalTokenCount": prompt + usage.output,
        }

    @classmethod
    def whole(cls, answer: Answer) -> dict[str, Any]:
        """The answer as one value."""
        return cls._response(answer, cls._parts(answer), "STOP")

    @classmethod
    def events(cls, answer: Answer) -> Iterator[bytes]:
        """The answer as server-sent events, one a part."""
        for value in cls.values(answer):
            yield _sse(value)

    @classmethod
    def values(cls, answer: Answer) -> Iterator[dict[str, Any]]:
        """The streamed answer's values, for clients that ask for a JSON array in place of events."""
        for part in cls._parts(answer):
            pieces = _pieces(part["text"]) if "text" in part else ()
            for piece in pieces:
                yield cls._response(answer, [{**part, "text": piece}], None)
            if "text" not in part:
                yield cls._response(answer, [part], None)
        yield cls._response(answer, [], "STOP")

    @staticmethod
    def error(status: int, message: str) -> dict[str, Any]:
        """The body of an HTTP error."""
        kinds = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        return {"error": {"code": status, "message": message, "status": kinds.get(status, "INTERNAL")}}

    @staticmethod
    def _parts(answer: Answer) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if answer.thinking:
            parts.append({"text": answer.thinking, "thought": True})
        if answer.text:
            parts.append({"text": answer.text})
        for call in answer.calls:
            given = call.arguments if isinstance(call.arguments, dict) else {"input": call.arguments}
            parts.append({"functionCall": {"name": call.name, "args": given}})
        return parts

    @classmethod
    def _response(cls, answer: Answer, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        value: dict[str, Any] = {"candidates": [candidate], "modelVersion": answer.model, "responseId": answer.ident}
        if finish:
            candidate["finishReason"] = finish
            value["usageMetadata"] = cls.usage(answer.usage)
        return value
