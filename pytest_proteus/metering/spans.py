"""Spans: the calls of one episode, bound to its run by an address of their own.

A process has one tap for all its runs, started with the first call that comes through it, and one store for each
sweep's folder. ``Meter`` is what a harness is given; without one it goes straight to its endpoint.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering.store import NAME, Store

if TYPE_CHECKING:
    from pytest_proteus.metering.budget import Budget, Limits
    from pytest_proteus.metering.tap import Binding, Tap

_lock = threading.Lock()
_tap: Tap | None = None
_stores: dict[Path, Store] = {}
_budget: tuple[Path, Limits] | None = None  # of this process's session
_open_budget: Budget | None = None
_owner = 0  # the process that these are of: a fork has none


class Meter:
    """What a harness meters a run with.

    Args:
        out: the sweep's folder, in which the store lies.
        run_id: the run.
        task_id: the run, spelt for people; the run's id where nothing better is known.
    """

    def __init__(self, out: Path, run_id: str, task_id: str = "") -> None:
        self.out, self.run_id, self.task_id = Path(out), run_id, task_id or run_id

    def __repr__(self) -> str:
        return "<meter>"  # an adapter may hand its spec on as a text, and this one knows of conditions

    def open(self, episode: int, *, agent: str, model: str, upstream: str) -> Span:
        """Open the span of an episode. One of this run that a killed process left open is closed as ``abort``.

        Args:
            episode: one-based number.
            agent: name of the harness.
            model: the model that it is told to use.
            upstream: base URL of its endpoint; empty for an agent that chooses its own, whose calls cannot be seen.

        Raises:
            StorageError, RecordError: the store cannot be written.
            ConfigurationError: there is a budget, and these calls cannot be seen.
        """
        from pytest_proteus.metering.prices import prices_of
        from pytest_proteus.metering.tap import Binding, missing

        store = _store(self.out)
        store.abort_left_open(self.run_id)  # whoever opens it holds the run's lock, so nobody is at it
        note = missing() if upstream else "the agent chooses its own endpoint"
        bound = bool(upstream) and not note
        budget = _session_budget()
        if budget is not None and not bound:
            raise ConfigurationError(f"a budget can only be kept where calls are metered: {note}")
        ident = store.open_span(
            self.task_id,
            run_id=self.run_id,
            episode=episode,
            agent=agent,
            model=model,
            bound=bound,
            note=note,
        )
        if not bound:
            return Span(store, ident, upstream)
        tap = _running_tap()
        binding = Binding(store, ident, self.task_id, upstream, budget, prices_of(self.out))
        token, url = tap.bind(binding)
        return Span(store, ident, url, tap, token, binding)


class Span:
    """An open span.

    Args:
        url: base URL at which its calls are metered, in place of the endpoint's.
    """

    def __init__(
        self,
        store: Store,
        ident: str,
        url: str,
        tap: Tap | None = None,
        token: str = "",
        binding: Binding | None = None,
    ) -> None:
        self.url = url
        self._store, self._ident, self._tap, self._token, self._binding = store, ident, tap, token, binding

    @property
    def spent(self) -> bool:
        """Whether a call was turned away because the budget is used up."""
        return self._binding is not None and self._binding.spent.is_set()

    def close(self, state: str, log: Mapping[str, int] | None) -> None:
        """Close it: nothing more is let through at its address.

        Args:
            state: how the agent ended: ``complete``, ``timeout``, ``abort`` or ``errored``.
            log: kind → tokens by the agent's own log; None where it tells none.
        """
        if self._tap is not None:
            self._tap.release(self._token)
        self._store.close_span(self._ident, state, log)


def path_of(url: str) -> str:
    """The path of an endpoint's base URL, whether it is metered or not."""
    return re.sub(r"^/t/[\w-]+", "", urlsplit(url).path)


def set_budget(path: Path, limits: Limits) -> None:
    """Limit what all processes of a session spend together.

    Args:
        path: a file that they share.
        limits: what they may spend.
    """
    global _budget
    with _lock:
        _budget = (path, limits)


def has_budget() -> bool:
    """Whether this process's session has one."""
    return _budget is not None


def budget_is_spent(tokens: float = 0.0, usd: float = 0.0) -> bool:
    """Whether there is a budget, and it is used up, or would be by so much more."""
    from pytest_proteus.metering.budget import is_over, spent

    if _budget is None:
        return False
    path, limits = _budget
    taken = spent(path) or (0, 0.0)
    return is_over(path) or not limits.allow(taken[0] + max(int(tokens), 1), taken[1] + usd)


def close() -> None:
    """Stop this process's tap, let its stores go and forget its budget; the next span starts them anew."""
    global _tap, _budget, _open_budget
    with _lock:
        if _owner == os.getpid():
            if _tap is not None:
                _tap.close()
            for store in _stores.values():
                store.close()
            if _open_budget is not None:
                _open_budget.close()
        _tap = _budget = _open_budget = None
        _stores.clear()


def _own() -> None:
    """Forget what a fork has of its parent: its threads are not there. Call it with the lock held."""
    global _tap, _open_budget, _owner
    if _owner != os.getpid():
        if not _owner:
            atexit.register(close)
        _tap, _open_budget, _owner = None, None, os.getpid()
        _stores.clear()


def _store(out: Path) -> Store:
    with _lock:
        _own()
        key = out.resolve()
        if key not in _stores:
            _stores[key] = Store(key / NAME)
        return _stores[key]


def _session_budget() -> Budget | None:
    from pytest_proteus.metering.budget import Budget

    global _open_budget
    with _lock:
        _own()
        if _budget is not None and _open_budget is None:
            _open_budget = Budget(*_budget)
        return _open_budget


def _running_tap() -> Tap:
    from pytest_proteus.metering.tap import Tap

    global _tap
    with _lock:
        _own()
        if _tap is None:
            _tap = Tap().start()
        return _tap
