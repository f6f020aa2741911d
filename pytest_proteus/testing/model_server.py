"""A model server that says what a script tells it to, over the real wire protocols, on the loopback interface.

    from pytest_proteus.testing import ModelServer, say, write

    with ModelServer([write("notes/a.md", "# A\\n"), say("Done.")]) as server:
        ... run an agent against server.url ...
    assert server.requests[0].prompt

It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, streamed or whole, below any path
prefix. It needs the extra ``[web]``. It is stateless but for counting repeated errors: what it answers follows from the
conversation that a request carries. ``python -m pytest_proteus.testing.model_server --port 8099`` runs it by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.testing.script import Conversation, Script, Step, Usage, choose, fill, say
from pytest_proteus.testing.wires import Answer, Anthropic, Gemini, OpenAIChat, OpenAIResponses

if TYPE_CHECKING:
    from aiohttp import web

Wire = type[Anthropic] | type[OpenAIChat] | type[OpenAIResponses] | type[Gemini]

#: Headers that are never kept: they carry keys.
_SECRET = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")


@dataclass(frozen=True)
class Request:
    """One request that was answered, for tests to look at; keys are left out.

    Args:
        wire, model, prompt, stream: as in ``Conversation``.
        path: with its prefix, without the query.
        answers: how often the model had answered before.
        tools: names of the tools that were offered, in order.
        step: number of the step in the script; None when the request was none for an answer (a list of models, say).
        status: HTTP status of the answer; 0 for one that never came.
        usage: tokens that were served; None with an error.
        headers: lower-case name → value.
        body: the request's body.
        seconds: time from request to the end of the answer.
    """

    wire: str
    path: str
    model: str
    prompt: str
    stream: bool
    answers: int
    tools: tuple[str, ...]
    step: int | None
    status: int
    usage: Usage | None
    headers: Mapping[str, str]
    body: Mapping[str, Any] = field(repr=False)
    seconds: float = 0.0


class ModelServer:
    """The server, running in a thread of its own between ``start`` and ``stop``, or as a context manager.

    Args:
        script: see ``Script``.
        port: port on 127.0.0.1; 0 for a free one.
        log: file that gets one JSON line a request, without bodies; None for none.

    Raises:
        ConfigurationError: aiohttp is not installed, or the port cannot be had.
    """

    def __init__(self, script: Script, *, port: int = 0, log: str | Path | None = None) -> None:
        try:
            importlib.import_module("aiohttp")
        except ImportError as error:
            raise ConfigurationError(
                "the scripted model server needs aiohttp: pip install 'pytest-proteus[web]'"
            ) from error
        self.script = script
        self.port = port
        self.log = log
        self._noted: list[tuple[int, Request]] = []
        self._arrived = 0
        self._answering = 0
        self._served: dict[tuple[str, int], int] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._error: BaseException | None = None

    @property
    def url(self) -> str:
        """Base URL; any path may follow it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> dict[str, str]:
        """Wire → base URL as that vendor's clients take it, for adapters and ``--proteus-endpoint``."""
        return {
            "anthropic": self.url,
            "openai-chat": f"{self.url}/v1",
            "openai-responses": f"{self.url}/v1",
            "gemini": f"{self.url}/v1beta",
        }

    def start(self) -> ModelServer:
        """Start serving; returns when the port is open."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="model-server", daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            self._thread.join()
            raise ConfigurationError(
                f"the model server cannot listen on port {self.port}: {self._error}"
            ) from self._error
        return self

    def stop(self) -> None:
        """Stop serving; open requests are cut. Harmless when it does not run."""
        if self._thread is None or self._loop is None or self._closing is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._thread = None

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self) -> None:
        """Until the server is stopped from elsewhere."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._error = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        from aiohttp import web

        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        application = web.Application(client_max_size=1 << 28)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", self.port)
            await site.start()
            self.port = runner.addresses[0][1]
            ready.set()
            await self._closing.wait()
        finally:
            await runner.cleanup()

    @property
    def requests(self) -> list[Request]:
        """Every answered request so far, in the order of arrival.

        A client has its answer a moment before the server is through with it, so requests under way are waited for, for
        a second at most.
        """
        until = time.monotonic() + 1.0
        while self._answering and time.monotonic() < until and threading.current_thread() is not self._thread:
            time.sleep(0.002)
        return [entry for _, entry in sorted(self._noted, key=lambda noted: noted[0])]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        wire = _wire(request.method, request.path)
        if wire is None:
            return _other(request)
        began = time.monotonic()
        try:
            body = json.loads(await request.read())
            conversation = wire.read(body, request.path)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"not a request that this server can read: {type(error).__name__}: {error}"
            return web.json_response(wire.error(400, reason), status=400)
        exchange = _Exchange(request, wire, conversation)
        self._arrived += 1
        self._answering += 1
        arrival = self._arrived
        number: int | None = None
        try:
            number, step = self._choose(conversation)
            return await exchange.answer(step, self._closing)
        except Exception as error:  # a mistake in the script is told to the agent, which puts it in its log
            reason = f"the script failed: {type(error).__name__}: {error}"
            exchange.status = 400
            return web.json_response(wire.error(400, reason), status=400)
        finally:
            entry = self._note(request, body, conversation, exchange, number, time.monotonic() - began)
            self._noted.append((arrival, entry))
            self._answering -= 1

    def _choose(self, conversation: Conversation) -> tuple[int, Step]:
        said = json.dumps([conversation.path, conversation.user_texts, conversation.answers])
        key = hashlib.sha256(said.encode()).hexdigest()
        number, step = choose(self.script, conversation, lambda number: self._served.get((key, number), 0))
        if step.error:
            self._served[key, number] = self._served.get((key, number), 0) + 1
        return number, step

    def _note(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        conversation: Conversation,
        exchange: _Exchange,
        number: int | None,
        seconds: float,
    ) -> Request:
        entry = Request(
            wire=conversation.wire,
            path=request.path,
            model=conversation.model,
            prompt=conversation.prompt,
            stream=conversation.stream,
            answers=conversation.answers,
            tools=tuple(conversation.tools),
            step=number,
            status=exchange.status,
            usage=exchange.usage,
            headers={name.lower(): value for name, value in request.headers.items() if name.lower() not in _SECRET},
            body=body,
            seconds=seconds,
        )
        if self.log is not None:
            line = {name: value for name, value in asdict(entry).items() if name not in ("body", "headers")}
            with Path(self.log).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return entry


class _Exchange:
    """One request and its answer."""

    def __init__(self, request: web.Request, wire: Wire, conversation: Conversation) -> None:
        self.request = request
        self.wire = wire
        self.conversation = conversation
        self.status = 0
        self.usage: Usage | None = None

    async def answer(self, step: Step, closing: asyncio.Event | None) -> web.StreamResponse:
        from aiohttp import web

        if isinstance(step.error, int) and step.error:
            self.status = step.error
            headers = {} if step.retry_after is None else {"retry-after": f"{step.retry_after:g}"}
            return web.json_response(
                self.wire.error(step.error, f"scripted error {step.error}"), status=step.error, headers=headers
            )
        if step.error == "hang":
            await _silence(closing)
            return self._reset(web.StreamResponse())
        answer = self._render(step)
        if step.error:
            return await self._broken(answer, str(step.error), closing)
        self.status, self.usage = 200, answer.usage
        if not self.conversation.stream:
            return web.json_response(self.wire.whole(answer))
        if self.wire is Gemini and self.request.query.get("alt") != "sse":
            return web.json_response(list(Gemini.values(answer)))
        response = await self._opened()
        for event in self.wire.events(answer):
            await response.write(event)
        await response.write_eof()
        return response

    def _render(self, step: Step) -> Answer:
        # a request that offers no tools (for a title, say) gets a text
        calls = tuple(fill(call, self.conversation.tools) for call in step.calls if self.conversation.tools)
        text = step.text or ("" if calls else "Done.")
        said = len(step.thinking) + len(text) + sum(len(str(call.arguments)) for call in calls)
        heard = sum(map(len, (self.conversation.system, *self.conversation.user_texts, *self.conversation.results)))
        return Answer(
            ident=uuid.uuid4().hex[:16],
            model=self.conversation.model,
            thinking=step.thinking,
            text=text,
            calls=calls,
            usage=step.usage or Usage(input=heard // 4 + 1, output=said // 4 + 1, reasoning=len(step.thinking) // 4),
            created=int(time.time()),
        )

    async def _opened(self) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(self.request)
        return response

    async def _broken(self, answer: Answer, trouble: str, closing: asyncio.Event | None) -> web.StreamResponse:
        """The first half of an answer; then silence, or the connection is reset."""
        response = await self._opened()
        self.status = 200
        events = list(self.wire.events(answer))
        for event in events[: max(len(events) // 2, 1)]:
            await response.write(event)
        if trouble == "stall":
            await _silence(closing)
        return self._reset(response)

    def _reset(self, response: web.StreamResponse) -> web.StreamResponse:
        if self.request.transport is not None:
            self.request.transport.abort()
        return response


async def _silence(closing: asyncio.Event | None) -> None:
    """Until the client goes away, which cancels this, or the server stops."""
    if closing is not None:
        await closing.wait()


def _wire(method: str, path: str) -> Wire | None:
    """The protocol that a request speaks, told by the end of its path."""
    if method != "POST":
        return None
    if path.endswith("/messages"):
        return Anthropic
    if path.endswith("/chat/completions"):
        return OpenAIChat
    if path.endswith("/responses"):
        return OpenAIResponses
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return Gemini
    return None


def _other(request: web.Request) -> web.StreamResponse:
    """Whatever else agents ask for before they start: whether the server is there, its models, a count of tokens."""
    from aiohttp import web

    if request.method == "HEAD":
        return web.Response()
    if request.method == "GET" and request.path.endswith("/models"):
        return web.json_response({"object": "list", "data": [], "models": []})
    if request.path.endswith(("/count_tokens", ":countTokens")):
        return web.json_response({"input_tokens": 1, "totalTokens": 1})
    return web.json_response({"error": {"message": f"nothing is served at {request.path}"}}, status=404)


def _loaded(spec: str) -> Script:
    module, _, name = spec.partition(":")
    try:
        script: Script = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"--script {spec}: {error}; write package.module:name") from error
    return script


def main(arguments: list[str] | None = None) -> int:
    """Run the server from a command line until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m pytest_proteus.testing.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; a free one by default")
    parser.add_argument("--script", help="package.module:name of a list of steps or of a function that gives them")
    parser.add_argument("--log", help="file that gets one JSON line a request")
    given = parser.parse_args(arguments)
    try:
        server = ModelServer(_loaded(given.script) if given.script else [say("Done.")], port=given.port, log=given.log)
        server.start()
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
