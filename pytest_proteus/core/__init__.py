"""One run: the episode transaction and its records. Knows nothing of pytest.

The names below are what harness adapters, evaluators and callers without pytest need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_proteus.core.adapter import (
    PHASES,
    ActionEvent,
    EpisodeResult,
    EpisodeSpec,
    HarnessAdapter,
    Surface,
)
from pytest_proteus.core.budget import TurnBudget
from pytest_proteus.core.config import RunConfig, RunResult, SweepConfig
from pytest_proteus.core.disposition import NEUTRAL, Disposition, record, review
from pytest_proteus.core.goal import (
    EvalResult,
    Evaluator,
    EvaluatorSpec,
    Goal,
    GoalConfig,
    GoalContext,
    Visibility,
)

if TYPE_CHECKING:
    from pytest_proteus.core.episode import run

__all__ = [
    "NEUTRAL",
    "PHASES",
    "ActionEvent",
    "Disposition",
    "EpisodeResult",
    "EpisodeSpec",
    "EvalResult",
    "Evaluator",
    "EvaluatorSpec",
    "Goal",
    "GoalConfig",
    "GoalContext",
    "HarnessAdapter",
    "RunConfig",
    "RunResult",
    "Surface",
    "SweepConfig",
    "TurnBudget",
    "Visibility",
    "record",
    "review",
    "run",
]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_proteus.core.episode import run

    return run
