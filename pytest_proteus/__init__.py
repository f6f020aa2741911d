"""pytest-proteus: measurements of coding-agent harnesses as pytest tests.

The public names, loaded when first used; nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_proteus.core import (
        NEUTRAL,
        ActionEvent,
        Disposition,
        EpisodeResult,
        EpisodeSpec,
        EvalResult,
        EvaluatorSpec,
        GoalConfig,
        GoalContext,
        HarnessAdapter,
        RunConfig,
        RunResult,
        Surface,
        SweepConfig,
        TurnBudget,
        Visibility,
        record,
        review,
    )
    from pytest_proteus.report import load_report
    from pytest_proteus.sweep.arms import Arm, Files
    from pytest_proteus.sweep.statistic import statistic

_ROOMS = {
    "Arm": "pytest_proteus.sweep.arms",
    "Files": "pytest_proteus.sweep.arms",
    "load_report": "pytest_proteus.report",
    "statistic": "pytest_proteus.sweep.statistic",
}

__version__ = "0.1.0"

__all__ = [
    "NEUTRAL",
    "ActionEvent",
    "Arm",
    "Disposition",
    "EpisodeResult",
    "EpisodeSpec",
    "EvalResult",
    "EvaluatorSpec",
    "Files",
    "GoalConfig",
    "GoalContext",
    "HarnessAdapter",
    "RunConfig",
    "RunResult",
    "Surface",
    "SweepConfig",
    "TurnBudget",
    "Visibility",
    "load_report",
    "record",
    "review",
    "statistic",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ROOMS.get(name, "pytest_proteus.core")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
