"""What a session may spend: every call reserves what it may cost at most before it goes out, and settles after.

One file for all processes of a session, so that calls at once cannot together pass the limit. A call that was killed
keeps its reservation: it may have been paid for.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.metering.prices import Prices
from pytest_proteus.metering.store import Store
from pytest_proteus.metering.usage import Usage

#: Name of the file in a session's folder.
NAME = "budget.db"

#: Tokens of output that a call may have that does not say how many it wants.
MOST_OUTPUT = 16_384

#: Bytes of a request that are taken for one token of prompt; the texts of agents have three and more.
BYTES_A_TOKEN = 2.5

_TABLE = """CREATE TABLE IF NOT EXISTS reserved (
    id TEXT PRIMARY KEY, tokens INTEGER NOT NULL, usd REAL NOT NULL, settled INTEGER NOT NULL DEFAULT 0)"""
_SUMS = "SELECT coalesce(sum(tokens), 0), coalesce(sum(usd), 0) FROM reserved"

#: Id of the row that is there once a call was turned away.
_OVER = "over"

#: Answers of ``Budget.reserve``: it is reserved; others' reservations are in the way; what is left is too little.
RESERVED, WAIT, SPENT = "reserved", "wait", "spent"


@dataclass(frozen=True)
class Limits:
    """What a session may spend; None where there is no limit."""

    max_tokens: int | None = None
    max_usd: float | None = None

    def __bool__(self) -> bool:
        return self.max_tokens is not None or self.max_usd is not None

    def allow(self, tokens: int, usd: float) -> bool:
        """Whether so much together is within them."""
        return (self.max_tokens is None or tokens <= self.max_tokens) and (self.max_usd is None or usd <= self.max_usd)


class Budget:
    """The budget of a session, as one of its processes sees it.

    Args:
        path: the file that all its processes share.
        limits: what they may spend together.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.limits = limits
        self._store = Store(path)
        self._store.submit(lambda connection: connection.execute(_TABLE)).result()

    def close(self) -> None:
        """Let the file go."""
        self._store.close()

    def reserve(self, ident: str, tokens: int, usd: float) -> Future[Any]:
        """Ask for room for a call; gives ``RESERVED``, ``WAIT`` or ``SPENT``."""

        def change(connection: sqlite3.Connection) -> str:
            if connection.execute("SELECT 1 FROM reserved WHERE id = ?", (ident,)).fetchone():
                return RESERVED
            taken = connection.execute(_SUMS).fetchone()
            if self.limits.allow(taken[0] + tokens, taken[1] + usd):
                connection.execute("INSERT INTO reserved (id, tokens, usd) VALUES (?, ?, ?)", (ident, tokens, usd))
                return RESERVED
            settled = connection.execute(f"{_SUMS} WHERE settled").fetchone()
            if self.limits.allow(settled[0] + tokens, settled[1] + usd):
                return WAIT
            connection.execute(
                "INSERT OR IGNORE INTO reserved (id, tokens, usd, settled) VALUES (?, 0, 0, 1)", (_OVER,)
            )
            return SPENT

        return self._store.submit(change)

    def settle(self, ident: str, tokens: int | None, usd: float | None) -> Future[Any]:
        """Put what a call did cost in place of what it might have; None leaves that standing."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE reserved SET tokens = coalesce(?, tokens), usd = coalesce(?, usd), settled = 1 WHERE id = ?",
                (tokens, usd, ident),
            )

        return self._store.submit(change)


def spent(path: Path) -> tuple[int, float] | None:
    """Tokens and US dollars that a session has spent, reservations of calls that never ended included; None where it
    has no budget."""
    if not path.exists():
        return None
    with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as connection:
        tokens, usd = connection.execute(_SUMS).fetchone()
    return int(tokens), float(usd)


def is_over(path: Path) -> bool:
    """Whether a session has had to turn a call away."""
    if not path.exists():
        return False
    with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as connection:
        return connection.execute("SELECT 1 FROM reserved WHERE id = ?", (_OVER,)).fetchone() is not None


def most(wire: str, body: bytes, model: str, prices: Prices) -> tuple[int, float | None]:
    """Tokens and US dollars that a call may cost at most; None where its model has no price.

    The prompt is estimated from the request's bytes, the output is what the request allows.
    """
    given = int(len(body) / BYTES_A_TOKEN) + 1
    said = _output(wire, body)
    dear = max((given * kind for kind in _input_prices(model, prices)), default=0.0) / 1e6
    output = prices.cost(model, {"input": 0, "output": said, "cache_read": 0, "cache_write": 0}, given)
    return given + said, None if output is None else dear + output


def cost_of(usage: Usage, model: str, prices: Prices) -> tuple[int | None, float | None]:
    """Tokens and US dollars that a call did cost; None for what is not known."""
    return usage.total, prices.cost(usage.model or model, usage.counts())


def _input_prices(model: str, prices: Prices) -> list[float]:
    found: Mapping[str, Any] = prices.models.get(prices.of(model), {})
    return [
        float(table[kind])
        for table in (found, found.get("above") or {})
        for kind in ("input", "cache_write")
        if table.get(kind) is not None
    ]


def _output(wire: str, body: bytes) -> int:
    """Tokens of output that a request allows."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        value = json.loads(body)
        if wire == "gemini":
            value = value.get("generationConfig") or {}
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"):
            found = value.get(name)
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return MOST_OUTPUT
