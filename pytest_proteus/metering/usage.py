"""Counts of tokens, read from the bytes of a model's reply as they pass; pure, incremental and bounded.

One convention for all wires: ``input`` are prompt tokens that came from no cache and went to none, ``cache_read`` and
``cache_write`` those that did, ``output`` everything that the model generated, reasoning included, of which
``reasoning`` is the part. A total is ``input + output + cache_read + cache_write``. What a reply does not say is None.

How the wires say it: Anthropic tells the input without its cached parts; both of OpenAI's and Gemini tell a prompt with
them; OpenAI's outputs include reasoning, Gemini's ``candidatesTokenCount`` does not.
"""

from __future__ import annotations

import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Kinds of tokens that are counted.
KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")

#: Bytes of one event, or of a reply in one piece, that are held while it is read.
MOST_HELD = 8 << 20

#: Bytes that a compressed reply may unfold to, and by which it is unfolded at a time.
MOST_UNFOLDED, STEP = 64 << 20, 1 << 16

#: Names of tools that are kept of one reply, and letters of one name.
MOST_TOOLS, MOST_LETTERS = 64, 200

_LARGEST = 1 << 53
_LINE_END = re.compile(rb"\r\n|\n|\r")

#: An event is looked into only when it has one of these.
_TELLING = (b"usage", b"message_start", b"message_stop", b"[DONE]", b"finish", b"tool", b"function", b'"error"')


@dataclass
class Usage:
    """What one reply says.

    Args:
        input, output, cache_read, cache_write, reasoning: tokens; see the module. None: the reply does not say.
        model: the model that answered, as the reply names it.
        message_id: the reply's own id.
        tools: names of the tools that the model called, in order, as far as they are kept.
        final: whether the reply has said that it is over: nothing that matters comes after.
    """

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    model: str = ""
    message_id: str = ""
    tools: list[str] = field(default_factory=list)
    final: bool = False

    @property
    def known(self) -> bool:
        """Whether input and output are both known."""
        return self.input is not None and self.output is not None

    @property
    def total(self) -> int | None:
        """All tokens; None where input or output is not known."""
        if self.input is None or self.output is None:
            return None
        return self.input + self.output + (self.cache_read or 0) + (self.cache_write or 0)

    def counts(self) -> dict[str, int | None]:
        """Kind → tokens."""
        return {kind: getattr(self, kind) for kind in KINDS}


def wire_of(method: str, path: str) -> str:
    """The protocol of a call of a model, told by the end of its path; empty for what is no such call."""
    if method != "POST":
        return ""
    path = path.rstrip("/")
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith("/completions"):
        return "openai-chat"
    if path.endswith("/responses"):
        return "openai-responses"
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return "gemini"
    return ""


# --------------------------------------------------------------------------------------------------- the four wires


def count(value: Any) -> int | None:
    """A count of tokens, or None for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _name(value: Any) -> str:
    return value[:MOST_LETTERS] if isinstance(value, str) else ""


def _call(usage: Usage, name: Any) -> None:
    if isinstance(name, str) and name and len(usage.tools) < MOST_TOOLS:
        usage.tools.append(name[:MOST_LETTERS])


def _identify(usage: Usage, ident: Any, model: Any) -> None:
    usage.message_id = _name(ident) or usage.message_id
    usage.model = _name(model) or usage.model


def _keep(usage: Usage, **counts: int | None) -> None:
    """Later counts of a reply replace earlier ones: they are sums so far."""
    for kind, value in counts.items():
        if value is not None:
            setattr(usage, kind, value)


def _apart(whole: int | None, *parts: int | None) -> int | None:
    """A prompt without its cached parts; parts that are more than the whole are none of it."""
    if whole is None:
        return None
    inside = sum(part or 0 for part in parts)
    return whole - inside if inside <= whole else whole


def _anthropic(usage: Usage, value: Mapping[str, Any]) -> None:
    kind = value.get("type")
    message = _mapping(value.get("message")) if kind == "message_start" else value
    if kind in ("message", "message_start"):
        _identify(usage, message.get("id"), message.get("model"))
    if kind == "content_block_start":
        block = _mapping(value.get("content_block"))
        if block.get("type") in ("tool_use", "server_tool_use"):
            _call(usage, block.get("name"))
    for block in _objects(message.get("content")) if kind == "message" else ():
        if block.get("type") in ("tool_use", "server_tool_use"):
            _call(usage, block.get("name"))
    told = _mapping(message.get("usage"))
    details = _mapping(told.get("output_tokens_details"))
    # the output that a start tells is that of its first moment, and says nothing of what will have been served
    _keep(
        usage,
        input=count(told.get("input_tokens")),
        cache_read=count(told.get("cache_read_input_tokens")),
        cache_write=count(told.get("cache_creation_input_tokens")),
        output=None if kind == "message_start" else count(told.get("output_tokens")),
        reasoning=count(details.get("reasoning_tokens", details.get("thinking_tokens"))),
    )
    stopped = kind == "message_delta" and usage.output is not None
    usage.final = usage.final or kind in ("message", "message_stop") or stopped


def _openai_counts(usage: Usage, told: Mapping[str, Any], given: str, said: str) -> None:
    inner = _mapping(told.get(f"{given}_details"))
    outer = _mapping(told.get(f"{said}_details"))
    read, written = count(inner.get("cached_tokens")), count(inner.get("cache_write_tokens"))
    _keep(
        usage,
        input=_apart(count(told.get(given)), read, written),
        output=count(told.get(said)),
        cache_read=read,
        cache_write=written,
        reasoning=count(outer.get("reasoning_tokens")),
    )


def _chat(usage: Usage, value: Mapping[str, Any]) -> None:
    _identify(usage, value.get("id"), value.get("model"))
    for choice in _objects(value.get("choices")):
        said = _mapping(choice.get("delta") or choice.get("message"))
        for call in _objects(said.get("tool_calls")):
            _call(usage, _mapping(call.get("function")).get("name"))
    told = _mapping(value.get("usage"))
    _openai_counts(usage, told, "prompt_tokens", "completion_tokens")
    if told and "completion_tokens" not in told and count(told.get("prompt_tokens")) is not None:
        usage.output = usage.output or 0  # embeddings have no output
    usage.final = usage.final or usage.known or str(value.get("object")) in ("chat.completion", "text_completion")


def _responses(usage: Usage, value: Mapping[str, Any]) -> None:
    kind = str(value.get("type") or "")
    response = _mapping(value.get("response")) if kind else value
    if response:
        _identify(usage, response.get("id"), response.get("model"))
        _openai_counts(usage, _mapping(response.get("usage")), "input_tokens", "output_tokens")
    if kind == "response.output_item.done" or not kind:
        for item in [_mapping(value.get("item"))] if kind else _objects(value.get("output")):
            if str(item.get("type") or "").endswith("_call"):
                _call(usage, item.get("name") or item.get("type"))
    ended = ("response.completed", "response.incomplete", "response.failed", "error")
    usage.final = usage.final or kind in ended or (not kind and value.get("object") == "response")


def _gemini(usage: Usage, value: Mapping[str, Any]) -> None:
    _identify(usage, value.get("responseId"), value.get("modelVersion"))
    finished = False
    for candidate in _objects(value.get("candidates")):
        finished = finished or bool(candidate.get("finishReason"))
        for part in _objects(_mapping(candidate.get("content")).get("parts")):
            _call(usage, _mapping(part.get("functionCall")).get("name"))
    told = _mapping(value.get("usageMetadata"))
    prompt, read = count(told.get("promptTokenCount")), count(told.get("cachedContentTokenCount"))
    said, thought = count(told.get("candidatesTokenCount")), count(told.get("thoughtsTokenCount"))
    used, total = count(told.get("toolUsePromptTokenCount")), count(told.get("totalTokenCount"))
    output = None if said is None and thought is None else (said or 0) + (thought or 0)
    if output is None and total is not None and prompt is not None:
        output = max(total - prompt - (used or 0), 0)
    given = None if prompt is None else prompt + (used or 0)
    _keep(usage, input=_apart(given, read), cache_read=read, output=output, reasoning=thought)
    usage.final = usage.final or (finished and usage.known)


_READERS: Mapping[str, Callable[[Usage, Mapping[str, Any]], None]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}


# ------------------------------------------------------------------------------------------------------ from bytes


class Unreadable(Exception):
    """Why a reply cannot be read; what was read before it stands."""


def _identity(data: bytes) -> Iterator[bytes]:
    yield data


class _Zlib:
    """gzip and deflate, unfolded by steps; deflate with or without a header."""

    def __init__(self) -> None:
        self._folded: Any = None

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._folded is None:
                gzip, headed = data[:1] == b"\x1f", (data[0] & 0x0F) == 8
                self._folded = zlib.decompressobj(31 if gzip else 15 if headed else -15)
            yield self._folded.decompress(data, STEP)
            if self._folded.eof:
                data, self._folded = self._folded.unused_data, None
            else:
                data = self._folded.unconsumed_tail


class _Zstd:
    """zstd, by whichever library there is."""

    def __init__(self, decompressor: Any) -> None:
        self._folded = decompressor()

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if hasattr(self._folded, "needs_input"):
            yield self._folded.decompress(data, STEP)
            while not self._folded.needs_input and not self._folded.eof:
                yield self._folded.decompress(b"", STEP)
            return
        for start in range(0, len(data), 1 << 10):  # this library has no bound for what comes out
            yield self._folded.decompress(data[start : start + (1 << 10)])


def _zstd() -> Callable[[], Any] | None:
    for module in ("compression.zstd", "backports.zstd"):
        try:
            found: Callable[[], Any] = importlib.import_module(module).ZstdDecompressor
        except (ImportError, AttributeError):
            continue
        return found
    try:
        library = importlib.import_module("zstandard")
    except ImportError:
        return None
    return lambda: library.ZstdDecompressor().decompressobj()


def encodings() -> tuple[str, ...]:
    """The content encodings that can be read here."""
    return ("identity", "gzip", "x-gzip", "deflate", *(("zstd",) if _zstd() else ()))


def _unfolder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return _identity
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Zlib()
    zstd = _zstd() if encoding == "zstd" else None
    if zstd is not None:
        return _Zstd(zstd)
    raise Unreadable(f"the reply's encoding {encoding[:40]!r} cannot be read here")


class Reader:
    """Reads a reply while it passes: ``feed`` each piece, then ``close``; ``usage`` is what it has said so far.

    Whatever comes, nothing is raised: ``trouble`` says in one sentence why the rest was not read; empty when all was.

    Args:
        wire: protocol, as of ``wire_of``.
        encoding: the reply's ``Content-Encoding``.
        most_held: bytes of one event that are held.
    """

    def __init__(self, wire: str, encoding: str = "", most_held: int = MOST_HELD) -> None:
        self.usage = Usage()
        self.trouble = ""
        self.streamed = False  # whether it came as events
        self._read = _READERS[wire]
        self._most = most_held
        self._unfolded = 0
        self._begun = False
        self._held = bytearray()  # of the line, or of the value, that is not whole yet
        self._data: list[bytes] = []  # of the event that is not whole yet
        self._size = 0
        self._skip = False  # the rest of an event that is too long
        try:
            self._unfold = _unfolder(encoding)
        except Unreadable as error:
            self.trouble = str(error)

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        if self.trouble or not data:
            return
        try:
            for piece in self._unfold(data):
                self._unfolded += len(piece)
                if self._unfolded > MOST_UNFOLDED:
                    raise Unreadable("the reply unfolds to more than can be read")
                self._take(piece)
        except Unreadable as error:
            self._give_up(str(error))
        except Exception as error:  # of a library that was handed rubbish
            self._give_up(f"the reply cannot be unfolded: {type(error).__name__}")

    def close(self) -> None:
        """The reply is over."""
        if self.trouble:
            return
        if self.streamed:
            self._line(bytes(self._held))
            self._line(b"")
        elif self._held.strip():
            try:
                self._value(bytes(self._held))
            except (ValueError, RecursionError):
                self._give_up("the reply is no JSON, or not whole")
        self._held.clear()

    def _give_up(self, why: str) -> None:
        self.trouble = why
        self._held.clear()
        self._data.clear()

    def _take(self, piece: bytes) -> None:
        if not self._begun:
            self._held += piece
            start = bytes(self._held.lstrip(b"\xef\xbb\xbf \t\r\n")[:1])
            if not start:
                self._check()
                return
            self._begun, self.streamed = True, start not in (b"{", b"[")
            piece = bytes(self._held)
            self._held.clear()
        if self.streamed:
            self._lines(piece)
        else:
            self._held += piece
            self._check()

    def _check(self) -> None:
        if len(self._held) > self._most:
            raise Unreadable("the reply is longer than can be read in one piece")

    def _lines(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) == len(piece) or b"\n" in piece or b"\r" in piece:
            ready = bytes(self._held)
            cut = ready.endswith(b"\r")  # the other half of a line end may follow
            *lines, rest = _LINE_END.split(ready[:-1] if cut else ready)
            self._held = bytearray(rest + b"\r" if cut else rest)
            for line in lines:
                self._line(line)
        if len(self._held) > self._most:  # one event is lost, and what it would have said
            self._held.clear()
            self._skip = True

    def _line(self, line: bytes) -> None:
        if not line:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            if data and not self._skip:
                self._event(data)
            self._skip = False
        elif line.startswith(b"data:"):
            self._size += len(line)
            if self._size > self._most:
                self._skip = True
            if self._skip:
                self._data.clear()
            else:
                self._data.append(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.usage.final = True
        elif any(word in data for word in _TELLING):
            try:
                self._value(data)
            except (ValueError, RecursionError):
                return  # one malformed event says nothing of the next

    def _value(self, data: bytes) -> None:
        value = json.loads(data)
        for one in _objects(value) if isinstance(value, list) else [_mapping(value)]:
            self._read(self.usage, one)
