"""One run: the episode transaction and its records. Knows nothing of pytest.

The names below are what harness adapters, evaluators and callers without pytest need.
"""

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
]
