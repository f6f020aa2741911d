"""Dispositions: removable nudges that make the arms of an experiment differ.

A disposition is text added to prompts, configuration values, or a patch; taking it away leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Disposition:
    """A removable tendency given to an agent.

    Args:
        label: name of the arm, in reports and node ids; never shown to the agent.
        prompt_suffix: text that closes the prompt of every phase that has no text of its own in ``per_phase``.
        per_phase: phase → text that takes the place of ``prompt_suffix`` in that phase.
        config: values for adapters that express a disposition by configuration.
        patch: a unified diff for adapters that express one by changed files.

    Raises:
        ValueError: an empty label.
    """

    label: str
    prompt_suffix: str = ""
    per_phase: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("a Disposition needs a label")

    @property
    def is_empty(self) -> bool:
        """Whether it asks nothing at all of the agent."""
        return not (self.prompt_suffix or any(self.per_phase.values()) or self.config or self.patch)

    def phase_text(self, phase: str) -> str:
        """The text that this disposition adds to the prompt of ``phase``; may be empty."""
        return self.per_phase.get(phase, self.prompt_suffix)

    def __str__(self) -> str:
        return self.label


#: No disposition at all: the control arm.
NEUTRAL = Disposition("neutral")


def review(surface: str, label: str | None = None) -> Disposition:
    """The habit of looking through one surface at the end of each phase and amending it where needed.

    Args:
        surface: name of a declared surface.
        label: the arm's name; ``review_<surface>`` when not given.
    """
    return Disposition(
        label=label or f"review_{surface}",
        prompt_suffix=(
            f"When you are about to finish, look through your {surface} once more. Add what is missing, correct "
            f"what is wrong, or leave them as they are if nothing needs doing."
        ),
        config={"SURFACE": surface},
    )


def record(surface: str, label: str | None = None) -> Disposition:
    """The habit of writing to one surface as soon as there is something to write.

    Args:
        surface: name of a declared surface.
        label: the arm's name; ``record_<surface>`` when not given.
    """
    return Disposition(
        label=label or f"record_{surface}",
        prompt_suffix=(
            f"While you work, write to your {surface} at the moment you learn something that belongs there; do not "
            f"leave it for later."
        ),
        config={"SURFACE": surface},
    )
