"""What an agent is told at the start of each phase: goal, task, feedback, the phase's own text, disposition.

Pure text. Nothing here names an arm, an evaluator that is hidden, or the framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_proteus.core.disposition import Disposition

#: What each phase of a self-editing episode is for, when there is an objective.
BASE_PROMPTS: Mapping[str, str] = {
    "observe": (
        "Look over your own harness: the files you have, the shape they are in, and whatever bears on the objective."
    ),
    "propose": (
        "Settle on one bounded change that would serve the objective, and lay out which files it touches and how "
        "you will tell that it works."
    ),
    "act": "Make the change you laid out, in the files of your own harness.",
    "reflect": "Check what you changed, say what is still open or at risk, and name what should come next.",
}

#: The same without an objective: they suggest none.
OPEN_BASE_PROMPTS: Mapping[str, str] = {
    "observe": (
        "Look over your own harness: the files you have, the shape they are in, and what is new since you last looked. "
        "Nobody has set you an objective, so do not suppose one."
    ),
    "propose": (
        "Settle on something you would like to try, ask or change, and lay out how you will go about it and what you "
        "expect to come of it. To leave everything as it is counts as a choice, too."
    ),
    "act": "Do what you laid out, in the files of your own harness.",
    "reflect": (
        "Compare what came of it with what you had expected, note what surprised you or is still open, and name what, "
        "if anything, should come next."
    ),
}

_NOT_KEPT = "The changes of your previous episode were not kept: your files are as they were before it."


def refusal_notice(reason: str, *, handed_back: bool) -> str:
    """What the agent reads after a candidate of its own was refused as not viable.

    Args:
        reason: one sentence that says what was wrong.
        handed_back: whether the refused candidate is what it finds in its working tree.
    """
    if handed_back:
        return (
            f"The candidate of your previous episode could not be put to use: {reason}\nIt is what you find in your "
            f"working files, while you run from the last version that worked. Repair it there."
        )
    return (
        f"The candidate of your previous episode could not be put to use: {reason}\nIt was taken back; your files are "
        f"as they were before it."
    )


def rejection_notice() -> str:
    """What the agent reads after selection did not keep its candidate."""
    return _NOT_KEPT


def handoff_text(path: str, limit: int) -> str:
    """What an agent is told whose phases know of each other by a note alone.

    Args:
        path: the file of the note, as the agent finds it.
        limit: its longest length, in characters.
    """
    return (
        f"You do not remember what came before this. {path} holds the note that was left for you: read it first. When "
        f"you are about to end, put your own in its place, for whoever goes on: what you found and decided, which "
        f"files you changed, what you checked, what is open, and what comes next. At most {limit} characters of it are "
        f"kept. No key and no password belongs in it."
    )


def phase_prompts(
    phases: Sequence[str],
    *,
    goal_text: str,
    disposition: Disposition,
    task_text: str = "",
    notice: str = "",
    feedback: str = "",
    handoff: str = "",
) -> dict[str, str]:
    """Phase → prompt, in the order of ``phases``.

    Args:
        phases: names of the phases; those without a text of their own get goal, task and disposition only.
        goal_text: objective, in every phase; empty for none.
        disposition: its text closes each prompt.
        task_text: what the task asks for, in every phase.
        notice: what became of the last candidate; in the first phase only.
        feedback: what the agent may see of its last results; in ``observe`` only.
        handoff: how it learns of the phases before, in every phase; empty where it remembers, or is not to.
    """
    base = BASE_PROMPTS if goal_text or task_text else OPEN_BASE_PROMPTS
    objective = f"Your objective:\n{goal_text}" if goal_text else ""
    prompts = {}
    for phase in phases:
        parts = (
            feedback if phase == "observe" else "",
            notice if phase == phases[0] else "",
            objective,
            task_text,
            base.get(phase, ""),
            handoff,
            disposition.phase_text(phase),
        )
        prompts[phase] = "\n\n".join(part for part in parts if part)
    return prompts
