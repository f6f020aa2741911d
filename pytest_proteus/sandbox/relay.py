"""The one door of a box: requests that come to its listener are passed on to the configured endpoint, and nowhere else.

It changes nothing in what it passes on, bounds what it keeps and how long it waits, counts, and turns calls away that
are over a limit. What a call costs is not known here.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import posixpath
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_proteus.core.endpoints import trusted

#: Seconds of silence, from either side, after which a request is given up.
SILENCE_SECONDS = 600.0

#: Seconds that reaching the endpoint may take, and that closing waits for requests to end.
CONNECT_SECONDS, CLOSE_SECONDS = 30.0, 5.0

#: Requests under way at once, and bytes of a request's body.
MOST_REQUESTS, MOST_BYTES = 32, 32 << 20

#: Calls in a row that may fail; further ones are turned away, since some agents would try again without end.
MOST_FAILURES = 6

#: How the paths of calls end that count a prompt's tokens: no model answers them.
_NO_TURN = ("/count_tokens", ":countTokens")

#: Headers that are between two hops, or that each hop sets anew.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "expect", "content-length"),
    )
)


class Relay:
    """Passes requests from a listener on to an endpoint until it is closed.

    Args:
        listener: a listening socket; the relay's own from here on.
        url: base URL of the endpoint. Only paths below its own are passed on.
        silence: seconds of silence after which a request is given up.
    """

    def __init__(self, listener: socket.socket, url: str, silence: float = SILENCE_SECONDS) -> None:
        self.url = urlsplit(url)
        self.silence = silence
        self.calls = 0  # requests with a body that the endpoint was sent, which is what a call of a model is
        self.refused = 0  # requests that were not passed on
        self.turns = 0  # calls that the endpoint answered, or is answering
        self.limited = False  # whether a call was turned away since the turns were used up
        self.failures = 0  # calls that failed since the last one that was answered
        self._most: int | None = None
        self.closed = False
        self._lock = threading.Lock()
        self._listener = listener
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """End every request that is under way. One that is just being connected ends when it is."""
        with self._lock:
            self.closed = True
            for one in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            threads = [self._acceptor, *self._threads]
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        self._listener.close()

    def count(self, *, passed: bool) -> None:
        """Count a request."""
        with self._lock:
            if passed:
                self.calls += 1
            else:
                self.refused += 1

    @property
    def address(self) -> str:
        """The base URL at which a relay of this machine leads to its endpoint."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}{self.url.path}"

    def allow(self, turns: int) -> None:
        """Count from 0 on, and turn away every call after so many that were answered."""
        with self._lock:
            self.calls = self.refused = self.turns = self.failures = 0
            self.limited, self._most = False, turns

    def admit(self) -> str:
        """Let a call take a turn; why not, in one sentence, when it is turned away."""
        with self._lock:
            if self._most is not None and self.turns >= self._most:
                self.limited = True
                return "the turns of this part are used up"
            if self.failures >= MOST_FAILURES:
                return f"the model's endpoint failed {self.failures} times in a row"
            self.turns += 1
            return ""

    def settle(self, status: int) -> None:
        """What became of a call that was let in: one that failed was no turn."""
        with self._lock:
            self.turns -= status >= 400
            self.failures = self.failures + 1 if status == 429 or status >= 500 else 0

    def hold(self, one: socket.socket) -> None:
        """Have a socket shut down when the relay is closed, which may have been already."""
        with self._lock:
            self._open.add(one)
            if self.closed:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def let_go(self, one: socket.socket) -> None:
        """The opposite of ``hold``."""
        with self._lock:
            self._open.discard(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                full = self.closed or len(self._threads) >= MOST_REQUESTS
                if not full:
                    thread = threading.Thread(target=self._serve, args=(client,), name="relayed", daemon=True)
                    self._threads.add(thread)
                    thread.start()
            if full:
                self.count(passed=False)
                client.close()

    def _serve(self, client: socket.socket) -> None:
        self.hold(client)
        try:
            client.settimeout(self.silence)
            with contextlib.suppress(OSError, ValueError):
                _Request(client, ("127.0.0.1", 0), self)  # type: ignore[arg-type]
        finally:
            self.let_go(client)
            client.close()
            with self._lock:
                self._threads.discard(threading.current_thread())


@contextlib.contextmanager
def relay_to(url: str) -> Iterator[Relay]:
    """A relay at an address of this machine, for whoever is on it."""
    relay = Relay(socket.create_server(("127.0.0.1", 0)), url)
    try:
        yield relay
    finally:
        relay.close()


class _Request(http.server.BaseHTTPRequestHandler):
    """One request: read whole, passed on, and its answer passed back as it comes."""

    protocol_version = "HTTP/1.1"
    server: Relay  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the agent's own log tells."""

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        relay = self.server
        path = self.path.partition("?")[0]
        if not _is_below(path, relay.url.path):
            self._refuse(403, "this address leads to the model's endpoint only")
            return
        if self.headers.get("Transfer-Encoding"):
            self._refuse(411, "the request must say how long it is")
            return
        length = self.headers.get("Content-Length") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > MOST_BYTES:
            self._refuse(413, "the request is too long")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return
        is_call = bool(body) and not path.endswith(_NO_TURN)
        turned_away = relay.admit() if is_call else ""
        if turned_away:
            self._say(400, turned_away)
            return
        upstream = _connection(relay.url.scheme, relay.url.hostname or "", relay.url.port)
        try:
            answer, problem = self._ask(upstream, body)
            status = answer.status if answer else 504 if "silent" in problem else 502
            if is_call:
                relay.settle(status)  # before the agent hears of it, and tries again
            if answer:
                self._pass_back(answer)
            else:
                self._say(status, problem)
        finally:
            if upstream.sock is not None:
                relay.let_go(upstream.sock)
            upstream.close()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do_GET  # noqa: N815

    def _ask(self, upstream: http.client.HTTPConnection, body: bytes) -> tuple[http.client.HTTPResponse | None, str]:
        """The answer to a request, or why there is none."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        headers["Host"] = self.server.url.netloc.rpartition("@")[2]
        headers["Connection"] = "close"
        if body or self.command in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(body))
        try:
            upstream.connect()
            upstream.sock.settimeout(self.server.silence)
            self.server.hold(upstream.sock)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            if body:
                self.server.count(passed=True)
            return upstream.getresponse(), ""
        except TimeoutError:
            return None, f"the model's endpoint was silent for {self.server.silence:g} seconds"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return None, f"the model's endpoint cannot be reached: {error}"

    def _pass_back(self, answer: http.client.HTTPResponse) -> None:
        length = answer.headers.get("Content-Length")
        empty = self.command == "HEAD" or answer.status in (204, 304)
        chunked = length is None and not empty
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", length)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        if empty:
            return
        # an answer that breaks off gets no last chunk, so that the client sees that it is not whole
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while data := answer.read1(1 << 16):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            if chunked and answer.isclosed():
                self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, text: str) -> None:
        self.server.count(passed=False)
        self._say(status, text)

    def _say(self, status: int, text: str) -> None:
        told = {"type": "invalid_request_error" if status == 400 else "relay_error", "code": status, "message": text}
        body = json.dumps({"type": "error", "error": told}).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _is_below(path: str, base: str) -> bool:
    """Whether a request's path lies at or below the endpoint's, however it is spelt."""
    base = base.rstrip("/")
    plain = unquote(path)
    clean = posixpath.normpath(plain)
    return path.startswith("/") and plain.rstrip("/") in (clean, "") and (clean == base or clean.startswith(base + "/"))


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
    return http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=trusted())
