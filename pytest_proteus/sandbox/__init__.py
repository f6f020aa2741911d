"""Where an episode's processes live: the rungs of isolation and how one is chosen.

A rung is chosen by name and never stepped down from. So far there is ``none``: no isolation, but supervision, so that
nothing that an episode started outlives its phase.
"""

from __future__ import annotations

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox.none import LocalSandbox, Outcome, kill_all

#: Every rung that a user may name, weakest first.
RUNGS = ("none", "bwrap", "podman", "docker")


def choose(name: str) -> LocalSandbox:
    """The sandbox of a rung.

    Raises:
        ConfigurationError: an unknown rung, or one that this version cannot give.
    """
    if name == "none":
        return LocalSandbox()
    if name in (*RUNGS, "auto"):
        raise ConfigurationError(
            f"sandbox {name!r} is not available in this version; write --proteus-sandbox=none, which supervises the "
            f"agent's processes but does not keep them from reading or writing outside their run"
        )
    raise ConfigurationError(f"unknown sandbox {name!r}; choose one of auto, {', '.join(RUNGS)}")


__all__ = ["RUNGS", "LocalSandbox", "Outcome", "choose", "kill_all"]
