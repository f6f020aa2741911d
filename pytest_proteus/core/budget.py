"""Turn budgets: how many model turns an episode may use and how they are spread over its phases.

The fields are validated and recorded here; the adapters that can count turns enforce them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TurnBudget:
    """Model turns of one episode.

    Args:
        max_turns: turns of an ordinary episode.
        min_turns_per_phase: turns kept for each phase, whatever the earlier ones used.
        phase_turns: phase → planned turns; when given they sum to ``max_turns``.
        hard_max_turns: ceiling that ``act`` may borrow up to; 0 means ``max_turns``.
        checkpoint_turns: last turns of each planned phase that are kept for writing down what matters.
        announce: whether the agent is told what is left; telling changes its behaviour, so it is part of the condition.

    Raises:
        ValueError: a negative number, a sum that differs from ``max_turns``, a ceiling below it.
    """

    max_turns: int = 100
    min_turns_per_phase: int = 0
    phase_turns: Mapping[str, int] = field(default_factory=dict)
    hard_max_turns: int = 0
    checkpoint_turns: int = 0
    announce: bool = False

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"TurnBudget: max_turns={self.max_turns} must be 1 or more")
        for name in ("min_turns_per_phase", "hard_max_turns", "checkpoint_turns"):
            if getattr(self, name) < 0:
                raise ValueError(f"TurnBudget: {name}={getattr(self, name)} must not be negative")
        if self.hard_max_turns and self.hard_max_turns < self.max_turns:
            raise ValueError(f"TurnBudget: hard_max_turns={self.hard_max_turns} is below max_turns={self.max_turns}")
        for phase, turns in self.phase_turns.items():
            if turns < 1:
                raise ValueError(f"TurnBudget: phase_turns[{phase!r}]={turns} must be 1 or more")
        if self.phase_turns and sum(self.phase_turns.values()) != self.max_turns:
            raise ValueError(
                f"TurnBudget: phase_turns sum to {sum(self.phase_turns.values())}, not to max_turns={self.max_turns}"
            )
