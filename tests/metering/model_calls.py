"""How a call of a model looks on each wire, and what replies tell; shared by the tests of metering."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from pytest_proteus.testing import ModelServer, Step
from pytest_proteus.testing.script import Usage

WIRES = ("anthropic", "openai-chat", "openai-responses", "gemini")

#: What the scripted server serves, and what each wire can tell of it.
SERVED = Usage(input=1000, output=200, cache_read=300, cache_write=40, reasoning=50)
TOLD = {
    "anthropic": {"input": 1000, "output": 200, "cache_read": 300, "cache_write": 40, "reasoning": None},
    "openai-chat": {"input": 1000, "output": 200, "cache_read": 300, "cache_write": None, "reasoning": 50},
    "openai-responses": {"input": 1000, "output": 200, "cache_read": 300, "cache_write": None, "reasoning": 50},
    "gemini": {"input": 1000, "output": 200, "cache_read": 300, "cache_write": None, "reasoning": 50},
}

_PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "gemini": "/models/some-model:generateContent",
}
_STREAMED = {**_PATHS, "gemini": "/models/some-model:streamGenerateContent?alt=sse"}


def served(**more: object) -> ModelServer:
    return ModelServer([Step(text="Grüße, " * 20, thinking="hm", usage=SERVED, **more)])


def request(wire: str, stream: bool = True) -> tuple[str, bytes]:
    """Path below the base URL, and body, of a call."""
    body = {
        "model": "some-model",
        "stream": stream,
        "messages": [{"role": "user", "content": "hello"}],
        "input": "hello",
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
    }
    return (_STREAMED if stream else _PATHS)[wire], json.dumps(body).encode()


def ask(url: str, wire: str, stream: bool = True, **headers: str) -> tuple[int, bytes]:
    """Status and body of a call at a base URL."""
    path, body = request(wire, stream)
    return send(url, path, body, **headers)


def send(url: str, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    base = urlsplit(url)
    connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", base.path + path, body, {"Content-Type": "application/json", **named})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
