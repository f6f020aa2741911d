"""The tap before a scripted model server: what passes, what is kept of it, and what a hostile client can do."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from model_calls import SERVED, TOLD, WIRES, ask, request, send, served
from waiting import until

from pytest_proteus.core.errors import RecordError
from pytest_proteus.metering import spans
from pytest_proteus.metering import store as store_module
from pytest_proteus.metering.spans import Meter, Span
from pytest_proteus.metering.store import NAME, PACE_SECONDS, Store
from pytest_proteus.metering.tap import MOST_BYTES, Binding, Tap
from pytest_proteus.metering.totals import usage_of

KEY = "sk-secret-key-of-somebody"


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    spans.close()


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def opened(out: Path, url: str, run: str = "r1") -> Span:
    return Meter(out, run).open(1, agent="pi", model="some-model", upstream=url)


def rows(out: Path) -> list[sqlite3.Row]:
    connection = sqlite3.connect(out / NAME)
    connection.row_factory = sqlite3.Row
    found = connection.execute("SELECT * FROM token_usage ORDER BY began").fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_served_is_passed_on_and_on_record(tmp_path, server, wire, stream):
    span = opened(tmp_path, server.endpoint[wire])
    status, body = ask(span.url, wire, stream, Authorization=f"Bearer {KEY}", X_Task_Id="somebody else's")
    direct = ask(server.endpoint[wire], wire, stream)[1]
    assert (status, len(body)) == (200, len(direct)), "the ids in it differ"
    assert "x-task-id" not in server.requests[-2].headers
    (row,) = rows(tmp_path)
    assert {kind: row[kind] for kind in TOLD[wire]} == TOLD[wire]
    assert (row["state"], row["status"], row["provider"], row["model"]) == ("complete", 200, wire, "some-model")
    span.close("complete", None)
    usage = usage_of(tmp_path)["r1"]
    assert usage.total_tokens == sum(value or 0 for kind, value in TOLD[wire].items() if kind != "reasoning")
    assert (usage.requests, usage.token_source) == (1, "wire")


def test_no_key_prompt_or_token_is_in_the_store(tmp_path, server):
    span = opened(tmp_path, server.endpoint["anthropic"])
    ask(span.url, "anthropic", X_Api_Key=KEY)
    span.close("complete", None)
    spans.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"hello" not in data
    assert KEY.encode() not in data
    assert urlsplit(span.url).path.split("/")[2].encode() not in data


def test_twenty_runs_at_once_are_each_told_their_own(tmp_path, server):
    def one(number: int) -> str:
        span = opened(tmp_path, server.endpoint[WIRES[number % 4]], f"r{number}")
        for _ in range(number % 3 + 1):
            assert ask(span.url, WIRES[number % 4])[0] == 200
        span.close("complete", None)
        return f"r{number}"

    with ThreadPoolExecutor(20) as pool:
        names = list(pool.map(one, range(20)))
    used = usage_of(tmp_path)
    for number, name in enumerate(names):
        assert used[name].requests == number % 3 + 1
        assert used[name].output_tokens == (number % 3 + 1) * SERVED.output
    modes = sqlite3.connect(tmp_path / NAME).execute("SELECT DISTINCT execution_mode FROM spans").fetchall()
    assert ("parallel",) in modes


@pytest.mark.parametrize(
    "path",
    [
        "/t/{other}/v1/messages",
        "/v1/messages",
        "/t/../t/x/v1/messages",
        "/t//v1/messages",
        "http://127.0.0.1:1/v1/messages",
    ],
)
def test_an_address_that_is_nobodys_leads_nowhere(tmp_path, server, path):
    span = opened(tmp_path, server.endpoint["anthropic"])
    port = urlsplit(span.url).port
    status, _ = send(f"http://127.0.0.1:{port}", path.format(other="A" * 24), b"{}")
    assert status in (400, 403)
    assert rows(tmp_path) == []
    span.close("complete", None)
    assert ask(span.url, "anthropic")[0] == 403, "a span that is closed lets nothing through"


@pytest.mark.parametrize(
    "path", ["/../admin", "/%2e%2e/admin", "/..%2fadmin", "/v1/../../admin", "//admin", "/v1\\..\\x"]
)
def test_only_paths_below_the_endpoints_own_are_passed_on(tmp_path, server, path):
    span = opened(tmp_path, server.url + "/models/v1")
    before = len(server.requests)
    assert send(span.url, path, b"{}")[0] in (400, 403)
    assert len(server.requests) == before
    span.close("complete", None)


def test_an_error_passes_with_its_retry_after_and_costs_nothing(tmp_path):
    with served(error=429, times=1, retry_after=7) as server:
        span = opened(tmp_path, server.url)
        path, body = request("anthropic")
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(span.url).port)
        connection.request("POST", urlsplit(span.url).path + path, body)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        answer.read()
        connection.close()
        span.close("errored", None)
    assert [(row["status"], row["input"]) for row in rows(tmp_path)] == [(429, None)]
    assert usage_of(tmp_path)["r1"].total_tokens is None


def test_a_stream_that_breaks_off_breaks_off_and_keeps_what_it_told(tmp_path):
    with served(error="drop", times=1) as server:
        span = opened(tmp_path, server.url)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            ask(span.url, "anthropic")
        span.close("errored", None)
    usage = usage_of(tmp_path)["r1"]
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1000, None, None)
    assert usage.discrepancy["cut_requests"] == 1


def test_a_body_that_is_too_long_is_refused_and_not_read(tmp_path, server):
    span = opened(tmp_path, server.url)
    base = urlsplit(span.url)
    with socket.create_connection(("127.0.0.1", base.port)) as client:
        head = f"POST {base.path}/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 30}\r\n\r\n"
        client.sendall(head.encode())
        assert b" 413 " in client.recv(200)
    with socket.create_connection(("127.0.0.1", base.port)) as client:
        client.sendall(
            f"POST {base.path}/v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        with_length = b"%x\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20))
        with contextlib.suppress(OSError):
            for _ in range(MOST_BYTES // (1 << 20) + 64):
                client.sendall(with_length)
    assert rows(tmp_path) == []
    span.close("complete", None)


def test_a_client_that_never_sends_its_request_is_dropped(tmp_path):
    tap = Tap(head_seconds=0.5).start()
    try:
        with socket.create_connection(("127.0.0.1", tap.port), timeout=60) as client:
            client.sendall(b"POST /t/x HTTP/1.1\r\nHost")
            assert client.recv(10) == b""
    finally:
        tap.close()


RAW = {
    "too short": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}",
    "no http": b"\x00\x01\x02 what\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
    "nothing": b"",
    "a header of a megabyte": b"HTTP/1.1 200 OK\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n{}",
}


@pytest.mark.parametrize("name", RAW)
def test_an_upstream_that_speaks_no_http_is_an_error_of_that_call_alone(tmp_path, server, name):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            client, _ = listener.accept()
            client.recv(1 << 16)
            with contextlib.suppress(OSError):
                client.sendall(RAW[name])
            client.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        span = opened(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            status, _ = ask(span.url, "anthropic")
        except (http.client.HTTPException, OSError):
            status = 0
        thread.join()
    assert status in (0, 502)
    span.close("errored", None)
    assert rows(tmp_path)[0]["state"] in ("cut", "failed")
    other = opened(tmp_path, server.url, "r2")
    assert ask(other.url, "anthropic")[0] == 200
    other.close("complete", None)


def test_a_store_that_cannot_be_written_lets_no_call_through(tmp_path, server):
    store = Store(tmp_path / NAME)
    tap = Tap().start()
    with contextlib.closing(tap):
        _, url = tap.bind(Binding(store, "", "t", server.url))
        connection = sqlite3.connect(tmp_path / NAME)
        connection.execute("DROP TABLE token_usage")
        connection.close()
        before = len(server.requests)
        assert ask(url, "anthropic")[0] == 503
        assert len(server.requests) == before
    store.close()


#: Serves a tap until it is killed; prints the address.
VICTIM = """
import sys, time
from pathlib import Path
from pytest_proteus.metering.spans import Meter
print(Meter(Path(sys.argv[1]), "r1").open(1, agent="a", model="m", upstream=sys.argv[2]).url, flush=True)
time.sleep(600)
"""


def killed(out: Path, server, delay: float) -> tuple[int, int]:
    """Kill a tap under load; how many answers were seen whole, and how many are on record."""
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(out), server.url], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    url = victim.stdout.readline().strip()
    whole: list[int] = []

    def client() -> None:
        while True:
            try:
                status, body = ask(url, "anthropic")
            except (OSError, http.client.HTTPException):
                return
            if status == 200 and b"message_stop" in body:
                whole.append(1)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(client)
        assert until(lambda: len(whole) >= 1)
        time.sleep(delay)
        os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    found = [row for row in rows(out) if row["output"] == SERVED.output]
    return len(whole), len(found)


#: Seconds under load before the kill; ``PROTEUS_TEST_KILLS=50`` draws so many.
DELAYS = [0.0, 0.037, 0.11] + [
    random.Random(n).uniform(0, 0.5) for n in range(int(os.environ.get("PROTEUS_TEST_KILLS", 0)))
]


@pytest.mark.parametrize("delay", DELAYS)
def test_a_kill_loses_no_answer_that_was_seen(tmp_path, server, delay):
    whole, found = killed(tmp_path, server, delay)
    assert whole <= found <= whole + 4, "four were under way"
    span = opened(tmp_path, server.url)
    ask(span.url, "anthropic")
    span.close("complete", None)
    states = sqlite3.connect(tmp_path / NAME).execute("SELECT state FROM spans ORDER BY opened").fetchall()
    assert states == [("abort",), ("complete",)]
    assert usage_of(tmp_path)["r1"].output_tokens == (found + 1) * SERVED.output


def test_a_429_holds_every_call_to_that_upstream_back_whoever_makes_it(tmp_path):
    with served(error=429, times=1, retry_after=1) as server:
        first, second = opened(tmp_path, server.url, "r1"), opened(tmp_path, server.url, "r2")
        assert ask(first.url, "anthropic")[0] == 429
        assert until(lambda: sqlite3.connect(tmp_path / NAME).execute("SELECT count(*) FROM pace").fetchone()[0])
        began = time.time()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: ask((first, second)[number % 2].url, "anthropic")[0], range(8)))
        assert answers == [200] * 8
        (held,) = sqlite3.connect(tmp_path / NAME).execute("SELECT until FROM pace").fetchone()
        first.close("complete", None)
        second.close("complete", None)
    firsts = sorted(row["first_byte"] for row in rows(tmp_path) if row["status"] == 200)
    assert firsts[0] >= held - 8 * PACE_SECONDS - 0.001, "none went out before the moment that the 429 named"
    assert held > began


def test_a_store_of_an_earlier_version_is_brought_to_this_one(tmp_path):
    connection = sqlite3.connect(tmp_path / NAME)
    for statement in store_module._VERSIONS[0].split(";\n"):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    with contextlib.closing(Store(tmp_path / NAME)) as store:
        store.leave_alone("u", 1.0).result()
    connection = sqlite3.connect(tmp_path / NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for reader in (lambda: Store(tmp_path / NAME), lambda: usage_of(tmp_path)):
        with pytest.raises(RecordError, match="was written by a later pytest-proteus"):
            reader()


def test_rows_beyond_the_bound_become_sums_and_no_token_is_lost(tmp_path, server):
    for number in range(4):
        span = opened(tmp_path, server.url, f"r{number}")
        for _ in range(3):
            ask(span.url, "anthropic")
        span.close("complete", None)
    spans.close()
    before = usage_of(tmp_path)
    connection = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    assert store_module.fold(connection, 5) == 9
    connection.close()
    assert usage_of(tmp_path) == before
    assert len(rows(tmp_path)) == 3
