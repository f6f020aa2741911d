"""A tap that stands alone: for agents that somebody runs by hand, and for whatever else calls a model.

A call belongs to the task whose token is in its path, else to the one that its ``x-task-id`` names, else to its agent's
slot, else to the slot for everybody; else it is on record and belongs to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering import always_on, slots
from pytest_proteus.metering.store import NAME, Store
from pytest_proteus.metering.tap import TASK_HEADER, Binding, Tap

#: How agents call themselves → their names; what is in the way of others comes first.
AGENTS = {
    "opencode": "opencode",
    "claude": "claude",
    "codex": "codex",
    "copilot": "copilot",
    "qwen": "qwen",
    "gemini": "gemini",
    "litellm": "mini-swe-agent",
    "pi/": "pi",
}


class Router:
    """Finds where a call leads and which task it belongs to.

    Args:
        folder: where slots and store lie.
        store: the store.
        upstreams: wire → base URL.
    """

    def __init__(self, folder: Path, store: Store, upstreams: Mapping[str, str]) -> None:
        self.folder, self.store, self.upstreams = folder, store, upstreams

    def __call__(self, token: str, wire: str, headers: Mapping[str, str]) -> Binding | str:
        """The binding of a call, or why there is none."""
        upstream = self.upstreams.get(wire or _likely_wire(headers)) or (
            next(iter(self.upstreams.values())) if len(set(self.upstreams.values())) == 1 else ""
        )
        if not upstream:
            return f"no upstream is configured for {wire or 'this'}: proteus tap --upstream [WIRE=]URL"
        if token:
            found = [slot for slot in slots.open_slots(self.folder) if slot.token == token]
            if not found:
                return "this address leads nowhere, or not any more"
            return Binding(self.store, found[0].span, found[0].task_id, upstream)
        named = headers.get(TASK_HEADER, "")[:200]
        if named:
            span = next((slot.span for slot in slots.open_slots(self.folder) if slot.task_id == named), "")
            return Binding(self.store, span, named, upstream)
        slot = self._ambient(agent_of(headers))
        return Binding(self.store, slot.span if slot else "", slot.task_id if slot else "", upstream)

    def _ambient(self, agent: str) -> slots.Slot | None:
        own = slots.read(slots.path_of(self.folder, agent)) if agent else None
        if own is None and agent in always_on.FINDERS and always_on.is_on(self.folder):
            return None  # between two sessions; another's measurement is no business of it
        return own or slots.read(slots.path_of(self.folder))


def agent_of(headers: Mapping[str, str]) -> str:
    """The agent that a call comes from, by how it calls itself; empty for none that is known."""
    said = headers.get("User-Agent", "").lower()
    return next((name for sign, name in AGENTS.items() if sign in said), "")


def _likely_wire(headers: Mapping[str, str]) -> str:
    """The wire of a request that is no call of a model."""
    if "anthropic-version" in headers:
        return "anthropic"
    return "gemini" if "x-goog-api-key" in headers else "openai-responses"


def serve(folder: Path, upstreams: Mapping[str, str], port: int) -> tuple[Tap, Store]:
    """Start a tap that stands alone.

    Raises:
        ConfigurationError: no upstream, no aiohttp, or the port cannot be had.
    """
    if not upstreams:
        raise ConfigurationError(
            "proteus tap needs to know where the model is: --upstream [WIRE=]URL, such as "
            "anthropic=https://api.anthropic.com"
        )
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder / NAME)
    return Tap(port=port, fallback=Router(folder, store, upstreams)).start(), store
