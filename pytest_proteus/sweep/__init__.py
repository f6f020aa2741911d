"""A declared grid becomes planned cells; each cell becomes a run exactly once.

The names of the serial sweep, for callers without pytest, are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_proteus.core.config import SweepConfig
    from pytest_proteus.sweep.serial import (
        SweepStateError,
        completed_episodes_in,
        completed_seeds,
        opaque_id,
        read_seed_records,
        run_sweep,
    )

__all__ = [
    "SweepConfig",
    "SweepStateError",
    "completed_episodes_in",
    "completed_seeds",
    "opaque_id",
    "read_seed_records",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "pytest_proteus.core.config" if name == "SweepConfig" else "pytest_proteus.sweep.serial"
    return getattr(import_module(room), name)
