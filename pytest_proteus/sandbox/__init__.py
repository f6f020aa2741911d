"""Where an episode's processes live: the rungs of isolation and how one is chosen.

A rung is chosen by name and never stepped down from. ``bwrap`` isolates; ``none`` does not, but supervises, so that
nothing that an episode started outlives its phase, as nothing does in ``bwrap``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox.bwrap import BwrapSandbox, Limits, let_in, open_folders
from pytest_proteus.sandbox.none import LocalSandbox, Outcome

#: Every rung that a user may name, weakest first.
RUNGS = ("none", "bwrap", "podman", "docker")

Sandbox: TypeAlias = LocalSandbox | BwrapSandbox


def choose(name: str, hidden: Sequence[str | Path] = ()) -> Sandbox:
    """The sandbox of a rung; ``auto`` is ``bwrap``. Whether it can be used here, its ``preflight`` says.

    Args:
        name: a rung.
        hidden: folders that no agent may see.

    Raises:
        ConfigurationError: an unknown rung, or one that this version cannot give.
    """
    if name == "none":
        return LocalSandbox()
    if name in ("auto", "bwrap"):
        return BwrapSandbox(hidden)
    if name in RUNGS:
        raise ConfigurationError(f"sandbox {name!r} is not available in this version; write bwrap or none")
    raise ConfigurationError(f"unknown sandbox {name!r}; choose one of auto, {', '.join(RUNGS)}")


def enforcement_of(name: str) -> Mapping[str, str]:
    """What a rung enforces: see ``enforcement`` of its class."""
    return BwrapSandbox.enforcement if name == "bwrap" else LocalSandbox.enforcement


__all__ = [
    "RUNGS", "BwrapSandbox", "Limits", "LocalSandbox", "Outcome", "Sandbox", "choose", "enforcement_of", "let_in",
    "open_folders",
]  # fmt: skip
