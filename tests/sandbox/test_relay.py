"""The relay by itself: what it passes on, what it bounds, and that it leaves nothing."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from urllib.parse import urlsplit

import pytest

from pytest_proteus.sandbox.relay import MOST_BYTES, MOST_FAILURES, MOST_REQUESTS, Relay, relay_to


class Endpoint:
    """A server that reads each request to its end, keeps it, and lets ``answer`` write to the connection."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}/base"
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(client,), daemon=True).start()

    def one(self, client: socket.socket) -> None:
        with client:
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            while len(body) < length:
                body += client.recv(65536)
            self.requests.append(head + b"\r\n\r\n" + body)
            self.answer(client)

    def __enter__(self) -> Endpoint:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(20)


@pytest.fixture
def relayed():
    """Start an endpoint and a relay to it; gives both and the relay's port."""
    started: list[tuple[Endpoint, Relay]] = []

    def start(answer, silence: float = 30.0, url: str = "") -> tuple[Endpoint, Relay, int]:
        endpoint = Endpoint(answer)
        endpoint.__enter__()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        relay = Relay(listener, url or endpoint.url, silence)
        started.append((endpoint, relay))
        return endpoint, relay, port

    yield start
    for endpoint, relay in started:
        relay.close()
        endpoint.__exit__()


def ask(port: int, method: str = "POST", path: str = "/base/x", body: bytes = b"asked", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body=body, headers=headers)
    return connection.getresponse()


def says(text: bytes) -> Callable[[socket.socket], None]:
    return lambda client: client.sendall(text)


def test_a_request_and_its_answer_pass_unchanged(relayed):
    answer = b"HTTP/1.1 201 Made\r\nX-One: 1\r\nContent-Length: 5\r\n\r\n\x00told"
    endpoint, relay, port = relayed(says(answer))
    response = ask(port, path="/base/x?a=b%20c", body=b"\xff\x00asked", authorization="Bearer key")
    assert (response.status, response.reason, response.getheader("X-One")) == (201, "Made", "1")
    assert response.read() == b"\x00told"
    (request,) = endpoint.requests
    assert request.startswith(b"POST /base/x?a=b%20c HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n\xff\x00asked")
    assert b"authorization: Bearer key\r\n" in request
    assert f"Host: {endpoint.url.split('/')[2]}".encode() in request
    assert (relay.calls, relay.refused) == (1, 0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate")
def test_an_endpoint_with_a_certificate_is_reached_and_one_without_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    secret = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secret.load_cert_chain("cert", "key")
    with socket.create_server(("127.0.0.1", 0)) as plain, secret.wrap_socket(plain, server_side=True) as server:

        def serve() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    client, _ = server.accept()
                    with client:
                        read = b""
                        while not read.endswith(b"asked") and (data := client.recv(65536)):
                            read += data
                        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")

        thread = threading.Thread(target=serve)
        thread.start()
        answers = []
        for trusted in ("", "cert"):
            monkeypatch.setenv("NODE_EXTRA_CA_CERTS", trusted)
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            relay = Relay(listener, f"https://localhost:{server.getsockname()[1]}")
            response = ask(port)
            answers.append((response.status, response.read()))
            relay.close()
        thread.join(30)
    assert answers[0][0] == 502
    assert b"certificate" in answers[0][1]
    assert answers[1] == (200, b"secret")


def test_a_stream_comes_piece_by_piece(relayed):
    go_on = threading.Event()

    def stream(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert go_on.wait(30)
        client.sendall(b"4\r\nlast\r\n0\r\n\r\n")

    _, _, port = relayed(stream)
    response = ask(port)
    assert response.read1(100) == b"first"
    go_on.set()
    assert response.read() == b"last"


def test_a_stream_that_breaks_off_does_not_look_whole(relayed):
    _, _, port = relayed(says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"))
    with pytest.raises(http.client.IncompleteRead):
        ask(port).read()


def test_questions_that_are_no_calls_are_not_counted(relayed):
    _, relay, port = relayed(says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    assert [ask(port, method, body=b"").status for method in ("GET", "HEAD")] == [200, 200]
    assert (relay.calls, relay.refused) == (0, 0)


def test_a_silent_endpoint_is_given_up(relayed):
    _, _, port = relayed(lambda client: client.recv(1), silence=0.3)
    response = ask(port)
    assert response.status == 504
    assert b"silent for 0.3 seconds" in response.read()


def test_an_endpoint_that_is_not_there_is_told(relayed):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    _, relay, port = relayed(says(b""), url=url)
    response = ask(port)
    assert response.status == 502
    assert b"cannot be reached" in response.read()
    assert relay.calls == 0


@pytest.mark.parametrize(
    "path", ["/", "/other", "/bas", "/base/../other", "/base/%2e%2e/other", "/base/./x", "/base//x"]
)
def test_other_paths_are_refused(relayed, path):
    endpoint, relay, port = relayed(says(b""))
    assert ask(port, path=path).status == 403
    assert (endpoint.requests, relay.calls, relay.refused) == ([], 0, 1)


@pytest.mark.parametrize("length", [str(MOST_BYTES + 1), "-1", "1e3", "²"])
def test_a_length_that_is_too_large_or_none_is_refused(relayed, length):
    endpoint, _, port = relayed(says(b""))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(f"POST /base/x HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    assert endpoint.requests == []


def test_what_is_no_request_is_answered_and_forgotten(relayed):
    _, relay, port = relayed(says(b""))
    for text in (b"\x16\x03\x01\x00\x05hello\r\n", b"GET\r\n\r\n", b"x" * 100_000 + b"\r\n"):
        client = socket.create_connection(("127.0.0.1", port), timeout=30)
        with client, contextlib.suppress(OSError):
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1000):
                pass
    assert relay.calls == 0


def test_connections_beyond_a_number_are_refused_and_others_go_on(relayed):
    _, relay, port = relayed(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(MOST_REQUESTS + 3)]
    for one in idle[MOST_REQUESTS:]:
        assert one.recv(1) == b""
    for one in idle:
        one.close()
    assert relay.refused == 3


def test_closing_ends_what_is_under_way_and_leaves_no_thread(relayed):
    asked = threading.Event()

    def hang(client: socket.socket) -> None:
        asked.set()
        client.recv(1)

    _, relay, port = relayed(hang)

    def wait() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(port)

    client = threading.Thread(target=wait)
    client.start()
    assert asked.wait(30)
    relay.close()
    client.join(30)
    assert not client.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name in ("relay", "relayed")]


OK, BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"


def plays(*answers: bytes) -> Callable[[socket.socket], None]:
    left = list(answers)
    return lambda client: client.sendall(left.pop(0))


def test_calls_beyond_the_allowed_turns_are_turned_away_and_do_not_reach_the_endpoint(relayed):
    endpoint, relay, port = relayed(says(OK))
    relay.allow(2)
    answers = [ask(port) for _ in range(3)]
    assert [one.status for one in answers] == [200, 200, 400]
    assert json.loads(answers[2].read())["error"]["message"] == "the turns of this part are used up"
    assert (relay.turns, relay.limited, len(endpoint.requests)) == (2, True, 2)


def test_a_call_that_fails_is_no_turn(relayed):
    _, relay, port = relayed(plays(BROKEN, OK, BROKEN, OK))
    relay.allow(2)
    assert [ask(port).status for _ in range(5)] == [503, 200, 503, 200, 400]
    assert relay.turns == 2


def test_what_no_model_answers_is_no_turn(relayed):
    _, relay, port = relayed(says(OK))
    relay.allow(1)
    assert [ask(port, path="/base/count_tokens").status, ask(port, "GET", body=b"").status] == [200, 200]
    assert (relay.turns, ask(port).status) == (0, 200)


def test_calls_that_fail_in_a_row_come_to_an_end_until_more_are_allowed(relayed):
    endpoint, relay, port = relayed(says(BROKEN))
    relay.allow(100)
    statuses = [ask(port).status for _ in range(MOST_FAILURES + 2)]
    assert statuses == [503] * MOST_FAILURES + [400, 400]
    assert (relay.turns, relay.limited, len(endpoint.requests)) == (0, False, MOST_FAILURES)
    relay.allow(100)
    assert ask(port).status == 503


def test_at_once_no_more_calls_are_let_in_than_there_are_turns(relayed):
    gate = threading.Event()

    def answer(client: socket.socket) -> None:
        gate.wait(30)
        client.sendall(OK)

    endpoint, relay, port = relayed(answer)
    relay.allow(3)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: ask(port).status) for _ in range(8)]
        turned_away = [one.result() for one in itertools.islice(as_completed(asked), 5)]
        gate.set()
        assert turned_away == [400] * 5
        assert sorted(one.result() for one in asked) == [200] * 3 + [400] * 5
    assert len(endpoint.requests) == 3


def test_a_relay_of_this_machine_has_an_address_with_the_endpoints_path(relayed):
    endpoint, _, _ = relayed(says(OK))
    with relay_to(endpoint.url) as relay:
        assert relay.address.endswith("/base")
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(relay.address).port, timeout=30)
        connection.request("POST", "/base/x", body=b"b")
        assert connection.getresponse().status == 200
