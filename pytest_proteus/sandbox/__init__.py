"""Where an episode's processes live: the rungs of isolation and how one is chosen.

A rung is chosen by name and never stepped down from. ``bwrap`` and containers isolate; ``none`` does not, but
supervises, so that nothing that an episode started outlives its phase, as nothing does in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox.bwrap import BwrapSandbox, Limits, let_in, open_folders
from pytest_proteus.sandbox.container import ContainerSandbox, named
from pytest_proteus.sandbox.none import LocalSandbox, Outcome

#: Every rung that a user may name, weakest first.
RUNGS = ("none", "bwrap", "podman", "docker")

Sandbox: TypeAlias = LocalSandbox | BwrapSandbox


def choose(name: str, hidden: Sequence[str | Path] = ()) -> Sandbox:
    """The sandbox of a rung; ``auto`` is ``bwrap``. Whether it can be used here, its ``preflight`` says.

    Args:
        name: a rung; ``podman:IMAGE`` or ``docker:IMAGE`` for a container.
        hidden: folders that no agent may see.

    Raises:
        ConfigurationError: an unknown rung, or one without its image.
    """
    if name == "none":
        return LocalSandbox()
    if name in ("auto", "bwrap"):
        return BwrapSandbox(hidden)
    if name.partition(":")[0] in ("podman", "docker"):
        return ContainerSandbox(*named(name), hidden)
    raise ConfigurationError(f"unknown sandbox {name!r}; choose one of auto, none, bwrap, podman:IMAGE, docker:IMAGE")


def enforcement_of(name: str) -> Mapping[str, str]:
    """What a rung enforces on this machine: see ``enforcement`` of its class. Empty for one that is not ours."""
    return choose(name).enforcement if name.partition(":")[0] in RUNGS else {}


__all__ = [
    "RUNGS", "BwrapSandbox", "ContainerSandbox", "Limits", "LocalSandbox", "Outcome", "Sandbox", "choose",
    "enforcement_of", "let_in", "open_folders",
]  # fmt: skip
