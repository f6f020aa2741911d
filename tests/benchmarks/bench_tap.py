"""Measures what docs/benchmarks.md claims of the tap, beside a plain aiohttp forwarder and LiteLLM's proxy.

The same streamed replies of one scripted upstream pass through each of them, in one run: single calls by turns for what
each adds to a reply, then many streams at once for throughput, memory, and whether every byte came in its order. Each
proxy is a process of its own. Exits 1 when a claim fails. Not collected by pytest; `tox -e bench` runs it. LiteLLM's
proxy takes part with ``--litellm PYTHON``, an interpreter that has ``litellm[proxy]``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Seconds that the tap may add to a reply at the median, and streams at once.
ADDED_SECONDS, STREAMS = 0.002, 500

EVENTS = 60

UPSTREAM = """
import asyncio, json, sys
from aiohttp import web
EVENTS = {events}
def sse(kind, value): return f"event: {{kind}}\\ndata: {{json.dumps({{'type': kind, **value}})}}\\n\\n".encode()
async def messages(request):
    await request.read()
    response = web.StreamResponse(headers={{"content-type": "text/event-stream"}})
    await response.prepare(request)
    usage = {{"input_tokens": 1000, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 5, "output_tokens": 1}}
    message = {{"id": "msg_1", "type": "message", "role": "assistant", "model": "some-model", "content": []}}
    message["usage"] = usage
    await response.write(sse("message_start", {{"message": message}}))
    await response.write(sse("content_block_start", {{"index": 0, "content_block": {{"type": "text", "text": ""}}}}))
    for number in range(EVENTS):
        delta = {{"index": 0, "delta": {{"type": "text_delta", "text": f"piece {{number}} " + "x" * 40}}}}
        await response.write(sse("content_block_delta", delta))
        if number % 10 == 9: await asyncio.sleep({pause})
    await response.write(sse("content_block_stop", {{"index": 0}}))
    ended = {{"delta": {{"stop_reason": "end_turn"}}, "usage": {{"output_tokens": 200}}}}
    await response.write(sse("message_delta", ended))
    await response.write(sse("message_stop", {{}}))
    await response.write_eof()
    return response
app = web.Application(client_max_size=1 << 28)
app.router.add_post("/v1/messages", messages)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""

FORWARDER = """
import sys
from aiohttp import ClientSession, TCPConnector, web
async def forward(request):
    body = await request.read()
    headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length", "connection")}
    async with request.app["client"].post(sys.argv[2] + request.path_qs, data=body, headers=headers) as answer:
        response = web.StreamResponse(status=answer.status, headers={"content-type": answer.headers["content-type"]})
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response
async def client(app):
    async with ClientSession(connector=TCPConnector(limit=0), auto_decompress=False) as app["client"]:
        yield
app = web.Application(client_max_size=1 << 28)
app.cleanup_ctx.append(client)
app.router.add_route("*", "/{path:.*}", forward)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""

LITELLM = {
    "model_list": [
        {"model_name": "some-model", "litellm_params": {"model": "anthropic/some-model", "api_key": "none"}}
    ],
    "litellm_settings": {"telemetry": False},
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Process:
    """A server in a process of its own, which is ended with the block."""

    def __init__(self, command: list[str], port: int, seconds: float = 60.0, **env: str) -> None:
        self.port = port
        self.process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{command[:4]} did not start")
            time.sleep(0.05)

    def megabytes(self) -> float:
        """The most memory that it has had."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


async def once(session, url: str) -> tuple[float, float, bytes]:
    """Seconds to the first byte and to the last, and the reply."""
    body = {
        "model": "some-model",
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": "x" * 20_000}],
    }
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
    began = time.perf_counter()
    async with session.post(url + "/v1/messages", json=body, headers=headers) as answer:
        first, data = 0.0, []
        async for piece in answer.content.iter_any():
            first = first or time.perf_counter() - began
            data.append(piece)
        assert answer.status == 200, b"".join(data)[:300]
        return first, time.perf_counter() - began, b"".join(data)


async def measure(places: dict[str, str], calls: int, streams: int) -> dict[str, dict[str, float]]:
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    found: dict[str, dict[str, float]] = {name: {} for name in places}
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600)) as session:
        whole: dict[str, list[float]] = {name: [] for name in places}
        firsts: dict[str, list[float]] = {name: [] for name in places}
        wanted = hashlib.sha256((await once(session, places["direct"]))[2]).hexdigest()
        for number in range(calls + 5):
            for name, url in places.items():
                first, last, _ = await once(session, url)
                if number >= 5:
                    firsts[name].append(first)
                    whole[name].append(last)
        for name, url in places.items():
            found[name]["first_ms"] = statistics.median(firsts[name]) * 1e3
            found[name]["whole_ms"] = statistics.median(whole[name]) * 1e3
            added = [(one - direct) * 1e3 for one, direct in zip(whole[name], whole["direct"], strict=True)]
            found[name]["added_ms"] = statistics.median(added)
            began = time.perf_counter()
            replies = await asyncio.gather(*(once(session, url) for _ in range(streams)))
            found[name]["streams_a_second"] = streams / (time.perf_counter() - began)
            found[name]["changed"] = sum(hashlib.sha256(data).hexdigest() != wanted for _, _, data in replies)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between every ten events")
    parser.add_argument("--litellm", metavar="PYTHON", help="an interpreter that has litellm[proxy]")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:

        def started(command: list[str], port: int, **more) -> Process:
            process = Process(command, port, **more)
            stack.callback(process.end)
            return process

        port = free_port()
        upstream = UPSTREAM.format(events=EVENTS, pause=options.pause)
        started([sys.executable, "-c", upstream, str(port)], port)
        target = f"http://127.0.0.1:{port}"
        places, processes = {"direct": target}, {}
        port = free_port()
        processes["forwarder"] = started([sys.executable, "-c", FORWARDER, str(port), target], port)
        places["forwarder"] = f"http://127.0.0.1:{port}"
        port = free_port()
        command = [sys.executable, "-m", "pytest_proteus.cli", "tap", "--port", str(port), "--upstream", target]
        processes["tap"] = started([*command, "--dir", scratch], port)
        places["tap"] = f"http://127.0.0.1:{port}"
        if options.litellm:
            config = Path(scratch, "litellm.json")
            LITELLM["model_list"][0]["litellm_params"]["api_base"] = target  # type: ignore[index]
            config.write_text(json.dumps(LITELLM))
            port = free_port()
            command = [options.litellm, str(Path(options.litellm).with_name("litellm")), "--config", str(config)]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            processes["litellm"] = started(command, port, seconds=180.0, LITELLM_LOCAL_MODEL_COST_MAP="True")
            places["litellm"] = f"http://127.0.0.1:{port}"
        found = asyncio.run(measure(places, options.calls, options.streams))
        for name, process in processes.items():
            found[name]["megabytes"] = process.megabytes()
        rows = _rows(Path(scratch))
    for name, numbers in found.items():
        print(name.ljust(10), "  ".join(f"{key} {value:.2f}" for key, value in numbers.items()))
    asked = options.calls + 5 + options.streams
    claims = {
        f"the tap adds at most {ADDED_SECONDS * 1e3:g} ms to a reply": found["tap"]["added_ms"] <= ADDED_SECONDS * 1e3,
        f"{options.streams} streams at once, no byte lost or out of order": found["tap"]["changed"] == 0,
        "every call is on record, with its tokens": rows == (asked, asked * 1210),
    }
    for claim, held in claims.items():
        print("ok  " if held else "FAIL", claim)
    return 0 if all(claims.values()) else 1


def _rows(folder: Path) -> tuple[int, int]:
    """Calls on record, and their tokens."""
    import sqlite3

    connection = sqlite3.connect(folder / "usage.db")
    sums = "count(*), sum(input + output + cache_read + cache_write)"
    found: tuple[int, int] = connection.execute(f"SELECT {sums} FROM token_usage").fetchone()
    connection.close()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
