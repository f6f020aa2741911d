"""The tap: a reverse proxy on the loopback interface that passes model calls through and reads what they cost.

It changes nothing in what it passes on but what is between two hops, holds nothing back but the one piece of a reply
that tells its cost, until that is on record, and leads to upstreams that it was given and nowhere else. Keys pass in
headers and are kept nowhere. It needs aiohttp, and runs in a thread of its own with its own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import posixpath
import secrets
import ssl
import threading
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pytest_proteus.core.endpoints import trusted
from pytest_proteus.core.errors import ConfigurationError, ProteusError
from pytest_proteus.metering.anatomy import anatomy
from pytest_proteus.metering.budget import SPENT, WAIT, Budget, cost_of, most
from pytest_proteus.metering.prices import Prices, builtin
from pytest_proteus.metering.store import Store
from pytest_proteus.metering.usage import Reader, Usage, encodings, wire_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web

NEEDS_AIOHTTP = "metering of model calls needs aiohttp: pip install 'pytest-proteus[web]'"

#: Seconds of silence, of either side, after which a call is given up.
SILENCE_SECONDS = 600.0

#: Seconds that reaching the upstream may take, that a request's head and then its body may take to come, and that
#: closing waits for calls under way.
CONNECT_SECONDS, HEAD_SECONDS, BODY_SECONDS, CLOSE_SECONDS = 30.0, 30.0, 120.0, 5.0

#: Bytes of one request's body, and of those of all requests under way.
MOST_BYTES, MOST_BYTES_TOGETHER = 32 << 20, 512 << 20

#: Seconds between two looks at a budget of which others' calls hold the rest.
_WAIT_SECONDS = 0.2

#: Seconds for which an upstream is left alone at most when it asks for that.
MOST_PAUSE = 30.0

#: Requests under way at once.
MOST_CALLS = 1024

#: Bytes of a line of a head.
MOST_HEAD = 1 << 16

#: Headers that are between two hops, or that each hop sets anew.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "expect", "content-length"),
    )
)

#: The header that names a task; it is for the tap and goes no further.
TASK_HEADER = "x-task-id"

#: Headers by which providers tell the id of a request.
_REQUEST_IDS = ("request-id", "x-request-id", "x-goog-request-id", "apim-request-id")


def missing() -> str:
    """Why there can be no tap here, in one sentence; empty when there can."""
    return "" if importlib.util.find_spec("aiohttp") else NEEDS_AIOHTTP


@dataclass(frozen=True)
class Binding:
    """Where the calls that come to one address lead, and to which span they belong.

    Args:
        store: where they are noted.
        span: id of the span; empty for calls that belong to none.
        task_id: its task; empty for none.
        upstream: base URL; only paths below its own are passed on.
        budget: what limits them; None for nothing.
        prices: by which the budget counts.
        spent: set once the budget has turned one of its calls away; all later ones are, too.
    """

    store: Store
    span: str
    task_id: str
    upstream: str
    budget: Budget | None = None
    prices: Prices = field(default_factory=builtin)
    spent: threading.Event = field(default_factory=threading.Event)


#: Finds the binding of a call whose token nobody here has given, or that has none (then it is empty), by that, its wire
#: and its headers; a sentence says why there is none.
Fallback = Callable[[str, str, Mapping[str, str]], "Binding | str"]


class Tap:
    """A tap, running from ``start`` to ``close``.

    Args:
        port: port on 127.0.0.1; 0 for a free one.
        fallback: for calls without a token of this tap's; None refuses them.
        silence: seconds of silence after which a call is given up.
        head_seconds: seconds that the head of a request may take.

    Raises:
        ConfigurationError: aiohttp is not installed, or the port cannot be had.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        fallback: Fallback | None = None,
        silence: float = SILENCE_SECONDS,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        if missing():
            raise ConfigurationError(NEEDS_AIOHTTP)
        self.port = port
        self.silence, self.head_seconds = silence, head_seconds
        self.refused = 0  # requests that were not passed on
        self.held = 0  # bytes of requests under way
        self.exchanges: set[_Exchange] = set()
        self._fallback = fallback
        self._bindings: dict[str, Binding] = {}
        self._client: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)
        self._unheard: set[Any] = set()  # connections whose first request has not come

    # ------------------------------------------------------------------------------------------- for other threads

    def start(self) -> Tap:
        """Start serving; returns when the port is open."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise ConfigurationError(f"the tap cannot listen on port {self.port}: {self._error}") from self._error
        return self

    def close(self) -> None:
        """Stop serving; calls under way are cut, and noted as such."""
        if self._loop is not None and self._closing is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def wait(self) -> None:
        """Until it is closed from elsewhere."""
        self._thread.join()

    def bind(self, binding: Binding) -> tuple[str, str]:
        """Give a binding an address: its token, and the base URL in place of its upstream's."""
        token = secrets.token_urlsafe(18)
        self._bindings[token] = binding
        path = urlsplit(binding.upstream).path.rstrip("/")
        return token, f"http://127.0.0.1:{self.port}/t/{token}{path}"

    def release(self, token: str) -> None:
        """Let nothing more through at a token's address."""
        self._bindings.pop(token, None)

    # ------------------------------------------------------------------------------------------------ in its thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        server = web.Server(
            self._handle,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            max_line_size=MOST_HEAD,
            max_field_size=MOST_HEAD,
            lingering_time=1.0,
            keepalive_timeout=self.head_seconds,
        )
        connector = TCPConnector(limit=0, ttl_dns_cache=60)
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._client = ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_line_size=MOST_HEAD,
            max_field_size=MOST_HEAD,
        )
        watch = asyncio.ensure_future(self._watch())
        listening = None
        try:
            listening = await self._loop.create_server(
                lambda: self._accept(server), "127.0.0.1", self.port, backlog=1024
            )
            self.port = listening.sockets[0].getsockname()[1]
            self._ready.set()
            await self._closing.wait()
        finally:
            watch.cancel()
            if listening is not None:
                listening.close()
            await server.shutdown(CLOSE_SECONDS)
            await self._client.close()

    def _accept(self, server: Any) -> Any:
        """A connection; one whose first request does not come is closed."""
        protocol = server()
        self._unheard.add(protocol)

        def look() -> None:
            if protocol in self._unheard:
                self._unheard.discard(protocol)
                protocol.force_close()

        assert self._loop is not None
        self._loop.call_later(self.head_seconds, look)
        return protocol

    async def _watch(self) -> None:
        """Give up calls in which nothing moves."""
        while True:
            await asyncio.sleep(min(self.silence / 4, 5.0))
            late = time.monotonic() - self.silence
            for exchange in [one for one in self.exchanges if one.moved < late]:
                exchange.give_up()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        self._unheard.discard(request.protocol)
        exchange = _Exchange(self, request)
        self.exchanges.add(exchange)
        try:
            return await exchange.run()
        except (_Refused, ProteusError) as refused:
            self.refused += 1
            status = refused.status if isinstance(refused, _Refused) else 503
            body = {"type": "error", "error": {"type": "tap_error", "code": status, "message": str(refused)}}
            response = web.json_response(body, status=status)
            response.force_close()
            return response
        finally:
            self.exchanges.discard(exchange)
            exchange.end()

    def bound(self, path: str, wire: str, headers: Mapping[str, str]) -> tuple[Binding, str]:
        """The binding of a request and the path that it asks of its upstream.

        Raises:
            _Refused: there is none, or the path leads elsewhere.
        """
        token, rest = "", path
        if path.startswith("/t/"):
            token, _, rest = path[3:].partition("/")
            rest = f"/{rest}"
        binding: Binding | str | None = self._bindings.get(token)
        if binding is None and self._fallback is not None and (token or rest == path):
            binding = self._fallback(token, wire, headers)
        if not isinstance(binding, Binding):
            raise _Refused(403, binding or "this address leads nowhere, or not any more")
        if not _is_below(rest, urlsplit(binding.upstream).path):
            raise _Refused(403, "this address leads to the model's endpoint only")
        return binding, rest

    def accepted(self, headers: Mapping[str, str]) -> str | None:
        """The encodings that a client accepts and that can be read here; None where it does not say."""
        told = headers.get("Accept-Encoding")
        if told is None:
            return None
        readable = encodings()
        kept = [one.strip() for one in told.split(",") if one.split(";")[0].strip().lower() in readable]
        return ", ".join(kept) or "identity"

    def context(self, url: str) -> ssl.SSLContext | bool:
        """What certificates of an upstream are held against."""
        return trusted() if urlsplit(url).scheme == "https" else True


class _Refused(Exception):
    """Why a request is not passed on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False)
class _Exchange:
    """One request and its reply."""

    tap: Tap
    request: web.BaseRequest
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)
    moved: float = field(default_factory=time.monotonic)
    size: int = 0
    wire: str = ""
    reader: Reader | None = None
    store: Store | None = None
    told: dict[str, Any] = field(default_factory=dict)
    settled: Mapping[str, Any] | None = None
    model: str = ""
    upstream: str = ""
    body: bytes = b""
    begun: Future[Any] | None = None  # its row, which is on record before the request is passed on
    binding: Binding | None = None  # of a call that has reserved something

    def give_up(self) -> None:
        """Cut both sides."""
        if self.request.transport is not None:
            self.request.transport.abort()

    def end(self) -> None:
        """Let go of what it held; a call that did not come to its end is noted as cut."""
        self.tap.held -= self.size
        self._pay()
        if self.store is not None and self.told.get("state") == "open":
            over = self.reader is not None and self.reader.usage.final
            self.told |= {"state": "complete" if over else "cut", "ended": time.time()}
            self._settle()
        if self.begun is not None and self.body:
            asyncio.get_running_loop().run_in_executor(None, self._note_sizes, self.body)

    def _note_sizes(self, body: bytes) -> None:
        """Note what the request was made of; in another thread, since large ones take a while."""
        sizes = anatomy(self.wire, body)
        if sizes is not None and self.store is not None:
            self.store.note_sizes(self.ident, sizes)

    async def run(self) -> web.StreamResponse:
        """Pass the request on, and its reply back."""
        request = self.request
        asked, _, query = request.raw_path.partition("?")
        self.wire = wire_of(request.method, asked)
        binding, path = self.tap.bound(asked, self.wire, request.headers)
        if len(self.tap.exchanges) > MOST_CALLS:
            raise _Refused(503, "too much is under way")
        body = await self._body()
        if self.wire:
            self.store, self.body = binding.store, body
            self.model, self.upstream = _model(self.wire, path, body) or "", urlsplit(binding.upstream).netloc
            await self._reserve(binding, body)
            row = {
                "id": self.ident,
                "span": binding.span or None,
                "task_id": binding.task_id or None,
                "provider": self.wire,
                "model": self.model or None,
                "process": request.headers.get("User-Agent", "").partition(" ")[0][:80] or None,
                "began": time.time(),
                "upstream": self.upstream,
            }
            self.told = {"state": "open", "status": None, "request_id": "", "first_byte": None, "ended": None}
            self.begun = self.store.begin(row, at_once=True)
            await self._wait_until(await _kept(self.begun))
        async with self._asked(binding.upstream, path + (f"?{query}" if query else ""), body) as answer:
            return await self._pass_back(answer)

    async def _wait_until(self, moment: float) -> None:
        """Hold the call back while its upstream is to be left alone."""
        while (left := moment - time.time()) > 0:
            self.moved = time.monotonic()
            await asyncio.sleep(min(left, 1.0))

    async def _reserve(self, binding: Binding, body: bytes) -> None:
        """Take what the call may cost at most from the budget.

        Raises:
            _Refused: there is not so much left. It is a status that no agent tries again.
        """
        budget = binding.budget
        if budget is None:
            return
        self.binding = binding
        tokens, usd = most(self.wire, body, self.model, binding.prices)
        if usd is None and budget.limits.max_usd is not None:
            raise _Refused(400, f"the model {self.model!r} has no price, so no call of it can be within the budget")
        while not binding.spent.is_set():
            answer = await asyncio.wrap_future(budget.reserve(self.ident, tokens, usd or 0.0))
            if answer == SPENT:
                binding.spent.set()
            elif answer != WAIT:
                return
            else:
                self.moved = time.monotonic()
                await asyncio.sleep(_WAIT_SECONDS)
        raise _Refused(400, "the budget of this work is used up")

    def _pay(self) -> None:
        """Settle with the budget: an error costs nothing, and of what broke off nobody knows what it cost."""
        if self.binding is None or self.binding.budget is None:
            return
        status = self.told.get("status")
        tokens, usd = (None, None)
        if self.begun is None or self.told.get("state") == "failed" or (status is not None and status >= 400):
            tokens, usd = 0, 0.0
        elif self.reader is not None:
            tokens, usd = cost_of(self.reader.usage, self.model, self.binding.prices)
        self.binding.budget.settle(self.ident, tokens, usd)

    async def _body(self) -> bytes:
        declared = self.request.content_length or 0
        if declared > MOST_BYTES:
            raise _Refused(413, f"a request may have {MOST_BYTES} bytes")
        data = bytearray()
        deadline = time.monotonic() + BODY_SECONDS
        while True:
            try:
                piece = await asyncio.wait_for(self.request.content.readany(), max(deadline - time.monotonic(), 0.01))
            except asyncio.TimeoutError:
                raise _Refused(408, f"the request did not come within {BODY_SECONDS:g} seconds") from None
            if not piece:
                return bytes(data)
            self.moved = time.monotonic()
            data += piece
            self.size += len(piece)
            self.tap.held += len(piece)
            if len(data) > MOST_BYTES:
                raise _Refused(413, f"a request may have {MOST_BYTES} bytes")
            if self.tap.held > MOST_BYTES_TOGETHER:
                raise _Refused(503, "too much is under way")

    @contextlib.asynccontextmanager
    async def _asked(self, upstream: str, path: str, body: bytes) -> AsyncIterator[ClientResponse]:
        from aiohttp import ClientError
        from multidict import CIMultiDict
        from yarl import URL

        base = urlsplit(upstream)
        url = URL(f"{base.scheme}://{base.netloc.rpartition('@')[2]}{path}", encoded=True)
        passed = {*_HOP, TASK_HEADER, *_named(self.request.headers.get("Connection", ""))}
        headers = CIMultiDict(
            (name, value) for name, value in self.request.headers.items() if name.lower() not in passed
        )
        accepted = self.tap.accepted(self.request.headers) if self.wire else None
        if accepted is not None:
            headers["Accept-Encoding"] = accepted
        assert self.tap._client is not None
        sends = bool(body) or self.request.method in ("POST", "PUT", "PATCH")
        try:
            answer = await self.tap._client.request(
                self.request.method,
                url,
                headers=headers,
                data=body if sends else None,
                allow_redirects=False,
                proxy=_proxy(base.scheme, base.hostname or ""),
                ssl=self.tap.context(upstream),
            )
        except (ClientError, OSError, ValueError) as error:
            self.told |= {"state": "failed", "ended": time.time(), "note": f"{type(error).__name__}"[:200]}
            if self.store is not None:
                await _kept(self._settle())
            raise _Refused(502, f"the model's endpoint cannot be reached: {type(error).__name__}") from None
        try:
            yield answer
        finally:
            answer.close()

    async def _pass_back(self, answer: ClientResponse) -> web.StreamResponse:
        from aiohttp import ClientError, web
        from multidict import CIMultiDict

        self.moved = time.monotonic()
        dropped = {*_HOP, *_named(answer.headers.get("Connection", ""))}
        headers = CIMultiDict((name, value) for name, value in answer.headers.items() if name.lower() not in dropped)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        response.force_close()
        length = answer.content_length
        if length is not None:
            response.content_length = length
        if self.store is not None:
            self.reader = Reader(self.wire, answer.headers.get("Content-Encoding", ""))
            self.told["status"] = answer.status
            if pause := _pause(answer):
                self.store.leave_alone(self.upstream, time.time() + pause)
            self.told["request_id"] = next(
                (answer.headers[name] for name in _REQUEST_IDS if name in answer.headers), ""
            )
            self.told["request_id"] = self.told["request_id"][:200]
        try:
            await response.prepare(self.request)
            await self._stream(answer, response)
            await response.write_eof()
        except (ClientError, OSError, ValueError, ProteusError):
            self.give_up()  # what is not whole must not look whole
        return response

    async def _stream(self, answer: ClientResponse, response: web.StreamResponse) -> None:
        """Pass the reply on piece by piece. The piece that ends it waits until the counts are on record."""
        reader = self.reader
        kept = b""
        async for piece in answer.content.iter_any():
            self.moved = time.monotonic()
            if reader is None or reader.trouble:
                await response.write(piece)
                continue
            if self.told["first_byte"] is None:
                self.told["first_byte"] = time.time()
            reader.feed(piece)
            if kept:
                await response.write(kept)
                kept = b""
            if not reader.streamed:
                kept = piece  # it may be the last one
                continue
            if reader.usage.final and self.settled is None:
                await self._record("open")
            await response.write(piece)
            self.moved = time.monotonic()
        if reader is not None:
            reader.close()
            await self._record("complete")
            if kept:
                await response.write(kept)

    async def _record(self, state: str) -> None:
        """Put what is known on record; ``open``: the counts are whole, the reply is not over yet."""
        assert self.reader is not None
        if state == "complete":
            self.told |= {"state": state, "ended": time.time(), "note": self.reader.trouble}
        self.settled = self.reader.usage.counts()
        await _kept(self._settle())

    def _settle(self) -> Future[Any]:
        assert self.store is not None
        usage = self.reader.usage if self.reader is not None else Usage()
        told = {**self.told, "note": self.told.get("note") or (self.reader.trouble if self.reader else "")}
        return self.store.settle(self.ident, usage, told, at_once=self.begun is not None and self.begun.done())


async def _kept(change: Future[Any]) -> Any:
    """Wait until a change is committed; gives what it gives."""
    return change.result() if change.done() else await asyncio.wrap_future(change)


def _pause(answer: ClientResponse) -> float:
    """Seconds for which an answer asks that its upstream be left alone; 0 for one that does not."""
    told = answer.headers.get("retry-after", "")
    if answer.status not in (429, 503, 529) or (answer.status != 429 and not told):
        return 0.0
    try:
        seconds = float(told or 1.0)
    except ValueError:
        seconds = 1.0  # a date, or nothing that says how long
    return min(seconds, MOST_PAUSE) if seconds > 0 else 0.0


def _named(connection: str) -> list[str]:
    """The headers that a ``Connection`` header declares to be between two hops."""
    return [name.strip().lower() for name in connection.split(",")]


def _model(wire: str, path: str, body: bytes) -> str | None:
    """The model that a request asks for."""
    if wire == "gemini":
        return unquote(path.rpartition("/")[2].partition(":")[0])[:200] or None
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        model = json.loads(body).get("model")
        return model[:200] if isinstance(model, str) else None
    return None


def _is_below(path: str, base: str) -> bool:
    """Whether a path lies at or below an upstream's, however it is spelt."""
    base = base.rstrip("/")
    plain = unquote(path)
    clean = posixpath.normpath(plain)
    whole = plain.rstrip("/") in (clean, "") and not any(letter in plain for letter in "\\\0\r\n")
    return path.startswith("/") and whole and (clean == base or clean.startswith(base + "/"))


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that our own environment names for an upstream."""
    if host in ("localhost", "::1") or host.startswith("127.") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(scheme)
