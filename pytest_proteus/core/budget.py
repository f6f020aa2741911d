"""Turn budgets: how many model turns an episode may use, and how many of them each of its phases.

Arithmetic alone: who counts turns and ends a phase is the adapter, which asks here before each phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The phase that may borrow what the earlier ones left, and what lies between the normal and the hard limit.
BORROWER = "act"


@dataclass(frozen=True)
class TurnBudget:
    """Model turns of one episode; ``allowance`` says what they mean for a phase.

    Args:
        max_turns: turns of an ordinary episode.
        min_turns_per_phase: turns kept for each phase, whatever the earlier ones used.
        phase_turns: phase → planned turns of every phase; when given they sum to ``max_turns``.
        hard_max_turns: ceiling that ``act`` may borrow up to; 0 means ``max_turns``.
        checkpoint_turns: last turns of each phase, which an agent that has used up the others gets for writing down
            what it needs to go on.
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

    @property
    def hard_limit(self) -> int:
        """Turns that no episode exceeds."""
        return self.hard_max_turns or self.max_turns

    def problem(self, phases: Sequence[str]) -> str:
        """Why this budget cannot be kept by episodes of these phases, in one sentence; empty when it can."""
        plan, floor = self.phase_turns, self.min_turns_per_phase
        if plan and set(plan) != set(phases):
            return f"phase_turns names {', '.join(plan)}, and the phases are {', '.join(phases)}: name each of them"
        if floor * len(phases) > self.max_turns:
            return (
                f"min_turns_per_phase={floor} needs {floor * len(phases)} turns for {len(phases)} phases, and "
                f"max_turns is {self.max_turns}"
            )
        if plan and floor > min(plan.values()):
            return f"min_turns_per_phase={floor} is more than phase_turns has for a phase: leave it out"
        if self.hard_limit > self.max_turns and BORROWER not in phases:
            return f"hard_max_turns={self.hard_max_turns} is for a phase {BORROWER!r} to borrow: there is none"
        least = min(plan.values()) if plan else self.max_turns
        if self.checkpoint_turns >= least:
            return f"checkpoint_turns={self.checkpoint_turns} leaves no turn of {least} for the work of a phase"
        return ""

    def reserve(self, turns: int) -> int:
        """How many of the ``turns`` of a phase are kept for its checkpoint: never the only one."""
        return max(min(self.checkpoint_turns, turns - 1), 0)


def budget_of(given: Any) -> TurnBudget:
    """The budget that the fields of a ``RunConfig`` or an ``EpisodeSpec`` spell.

    Raises:
        ValueError: as ``TurnBudget``.
    """
    return TurnBudget(
        max_turns=given.max_turns,
        min_turns_per_phase=given.min_turns_per_phase,
        phase_turns=given.phase_turns,
        hard_max_turns=given.hard_max_turns,
        checkpoint_turns=given.checkpoint_turns,
        announce=given.announce_budget,
    )


def allowance(budget: TurnBudget, phases: Sequence[str], phase: str, used: int) -> int:
    """Turns that a phase may use, its checkpoint included.

    The later phases keep what is theirs: their ``phase_turns``, or ``min_turns_per_phase`` without such a plan. Of the
    rest ``act`` may use all up to the hard limit. Any other phase gets its own ``phase_turns``; without a plan, what is
    left of ``max_turns``, and its minimum at least. When every phase keeps to this, none gets less than its minimum.

    Args:
        budget: as declared; ``budget.problem(phases)`` is empty.
        phases: the phases of the episode, in order.
        phase: the one that begins.
        used: turns that the earlier ones used, 0 or more.

    Returns:
        0 or more; together with ``used`` never above the hard limit, if ``used`` was not.
    """
    plan, floor = budget.phase_turns, budget.min_turns_per_phase
    kept = sum(plan.get(later, floor) for later in phases[list(phases).index(phase) + 1 :])
    most = budget.hard_limit - used - kept
    if phase == BORROWER:
        wanted = most
    elif plan:
        wanted = plan[phase]
    else:
        wanted = max(budget.max_turns - used - kept, floor)
    return max(min(wanted, most), 0)


def announcement(budget: TurnBudget, turns: int, used: int) -> str:
    """What an agent is told of its turns at the start of a phase that may use ``turns`` after ``used`` ones."""
    reserve = budget.reserve(turns)
    kept = f", the last {reserve} of them for writing down what you need to go on" if reserve else ""
    end = f", and it ends at {budget.hard_limit} at the latest" if budget.hard_limit > budget.max_turns else ""
    return (
        f"A turn is one answer of yours. You have used {used} so far, and may use {turns} in this part{kept}. The "
        f"whole session is planned for {budget.max_turns}{end}."
    )


def checkpoint_prompt(turns: int) -> str:
    """What an agent is told that has used up the turns of a phase but for its checkpoint's."""
    left = "One turn is" if turns == 1 else f"{turns} turns are"
    return (
        f"{left} left in this part. Begin nothing new: write down, in your own files, what you will need to go on: "
        f"what you found, what you changed, and what is left to do."
    )
