"""One small request to a model, to learn whether it answers at all. What it says is not looked at."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

from pytest_proteus.core.continuity import redacted
from pytest_proteus.core.endpoints import opener

#: Seconds that one try may take, seconds before the second and the third one, and tokens of an answer.
SECONDS, BACKOFF, TOKENS = 30.0, (0.5, 2.0), 16

_SHOWN = 300
_ASK = "Answer with one word."


def _anthropic(url: str, model: str, key: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    body = {"model": model, "max_tokens": TOKENS, "messages": [{"role": "user", "content": _ASK}]}
    return f"{url}/messages", {"x-api-key": key, "anthropic-version": "2023-06-01"}, body


def _chat(url: str, model: str, key: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    body = {"model": model, "max_completion_tokens": TOKENS, "messages": [{"role": "user", "content": _ASK}]}
    return f"{url}/chat/completions", {"Authorization": f"Bearer {key}"}, body


def _responses(url: str, model: str, key: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    body = {"model": model, "max_output_tokens": TOKENS, "input": _ASK}
    return f"{url}/responses", {"Authorization": f"Bearer {key}"}, body


def _gemini(url: str, model: str, key: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    settings = {"maxOutputTokens": TOKENS}
    body = {"contents": [{"role": "user", "parts": [{"text": _ASK}]}], "generationConfig": settings}
    return f"{url}/models/{model}:generateContent", {"x-goog-api-key": key}, body


_REQUESTS: Mapping[str, Callable[[str, str, str], tuple[str, dict[str, str], dict[str, Any]]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}


def round_trip(wire: str, url: str, model: str, key: str) -> str:
    """Ask a model for a word.

    Args:
        wire: ``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``.
        url: base URL with its version.
        model: its name, as the endpoint knows it.
        key: goes into the header that the wire has for it.

    Returns:
        Why it does not answer, in one sentence; empty when it does. A refused connection, silence, 429 and 5xx are
        tried again twice.
    """
    address, headers, body = _REQUESTS[wire](url, model, key)
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    reason = ""
    for wait in (*BACKOFF, None):
        try:
            with opener(url).open(urllib.request.Request(address, data, headers), timeout=SECONDS) as answer:
                answer.read(1 << 16)
            return ""
        except urllib.error.HTTPError as error:
            said = error.read(1 << 16).decode("utf-8", "replace")
            reason = f"status {error.code}: {' '.join(said.split())[:_SHOWN]}".rstrip(": ")
            error.close()
            if error.code != 429 and error.code < 500:
                break
        except (OSError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        if wait:
            time.sleep(wait)
    return redacted(f"the model {model!r} does not answer at {url}: {reason}", [key])
