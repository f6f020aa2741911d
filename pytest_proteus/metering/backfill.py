"""Usage that the wire did not tell, filled in later from the session log of claude, codex or pi.

A reply that is on record without its counts gets them, one that never came by is added as known by the log alone, and
what the wire has told stays. Agents write the usage of one reply several times: each counts once, by the reply's id. A
log is a hostile text: lines and sizes are bounded, and what is no count is none.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering.store import NAME, Store
from pytest_proteus.metering.totals import RunUsage, connect, usage_of
from pytest_proteus.metering.usage import KINDS, Usage, count

#: Bytes of a log that are read, and of one line of it.
MOST_BYTES, MOST_LINE = 1 << 28, 1 << 24


@dataclass(frozen=True)
class Filled:
    """What a log has brought: replies that it told of, those whose counts it filled in, those that it added."""

    told: int
    filled: int
    added: int
    usage: RunUsage


def backfill(folder: Path, task: str, log: Path) -> Filled:
    """Fill in a task's usage.

    Args:
        folder: where the store lies.
        task: id of the task, or of a run.
        log: the agent's session log.

    Raises:
        ConfigurationError: no such task, or no log of an agent that can be read.
        RecordError, StorageError: the store cannot be read, or written.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise ConfigurationError(f"nothing was metered in {folder}: there is no {NAME}")
    with contextlib.closing(connect(path)) as connection:
        last = "SELECT id, task_id, run_id FROM spans WHERE task_id = ? OR run_id = ? ORDER BY opened DESC LIMIT 1"
        span = connection.execute(last, (task, task)).fetchone()
    if span is None:
        raise ConfigurationError(f"no task {task!r} in {path}")
    replies = list(read(log))
    if not replies:
        raise ConfigurationError(f"{log} tells of no reply; give the session log of claude, codex or pi")
    rows = [
        {
            **reply,
            # the same log read again adds nothing
            "id": uuid.uuid5(uuid.NAMESPACE_URL, f"{span['run_id']}/{reply['provider']}/{reply['message_id']}").hex,
            "span": span["id"],
            "task_id": span["task_id"],
        }
        for reply in replies
    ]
    with contextlib.closing(Store(path)) as store:
        filled, added = store.add_logged(rows)
    return Filled(len(rows), filled, added, usage_of(folder, [span["run_id"]])[span["run_id"]])


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The replies that a log tells of, each once with its last counts: ``provider``, ``request_id``, ``message_id``,
    ``model``, ``began`` and a count for each kind of tokens.

    Raises:
        ConfigurationError: it cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in _records(path):
        for told in (_claude(record), _codex(record), _pi(record)):
            if told is not None:
                found[told["message_id"]] = told
    yield from found.values()


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"{path} is no regular file")
        seen = 0
        while seen < MOST_BYTES and (line := file.readline(MOST_LINE)):
            seen += len(line)
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _claude(record: Mapping[str, Any]) -> dict[str, Any] | None:
    message = _mapping(record.get("message"))
    usage = _mapping(message.get("usage"))
    if record.get("type") != "assistant" or not usage or message.get("model") == "<synthetic>":
        return None
    counts = Usage(
        input=count(usage.get("input_tokens")),
        output=count(usage.get("output_tokens")),
        cache_read=count(usage.get("cache_read_input_tokens")),
        cache_write=count(usage.get("cache_creation_input_tokens")),
    )
    return _reply("anthropic", message.get("id"), record.get("requestId"), message.get("model"), record, counts)


def _codex(record: Mapping[str, Any]) -> dict[str, Any] | None:
    payload = _mapping(record.get("payload"))
    usage = _mapping(payload.get("usage"))
    if record.get("type") != "token_usage_record" or not usage:
        return None
    given, read, written = (
        count(usage.get(name)) for name in ("input_tokens", "cached_input_tokens", "cache_write_input_tokens")
    )
    counts = Usage(
        input=None if given is None else max(given - (read or 0) - (written or 0), 0),
        output=count(usage.get("output_tokens")),
        cache_read=read,
        reasoning=count(usage.get("reasoning_output_tokens")),
    )
    return _reply("openai-responses", payload.get("response_id"), None, None, record, counts)


#: pi's name of a wire → ours.
_PI_WIRES = {
    "anthropic-messages": "anthropic",
    "openai-completions": "openai-chat",
    "openai-responses": "openai-responses",
    "google-generative-ai": "gemini",
}


def _pi(record: Mapping[str, Any]) -> dict[str, Any] | None:
    message = _mapping(record.get("message"))
    usage = _mapping(message.get("usage"))
    if record.get("type") != "message" or message.get("role") != "assistant" or not usage:
        return None
    if message.get("stopReason") in ("error", "aborted"):
        return None  # its zeros are none that anybody counted
    wire = _PI_WIRES.get(str(message.get("api")), "")
    counts = Usage(
        input=count(usage.get("input")),
        output=count(usage.get("output")),
        cache_read=count(usage.get("cacheRead")),
        cache_write=count(usage.get("cacheWrite")) if wire == "anthropic" else None,
        reasoning=count(usage.get("reasoning")),
    )
    return _reply(wire, message.get("responseId"), None, message.get("model"), record, counts) if wire else None


def _reply(
    provider: str, ident: Any, request: Any, model: Any, record: Mapping[str, Any], counts: Usage
) -> dict[str, Any] | None:
    if not isinstance(ident, str) or not 0 < len(ident) <= 200 or not counts.known:
        return None
    return {
        "provider": provider,
        "message_id": ident,
        "request_id": request[:200] if isinstance(request, str) and request else ident,
        "model": model[:200] if isinstance(model, str) else None,
        "began": _seconds(record.get("timestamp")),
        **{kind: getattr(counts, kind) for kind in KINDS},
    }


def _seconds(value: Any) -> float:
    try:
        return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
