"""Task runs: the harness of a cell starts from an export of a repository; the class of a task by its goal.

What the agent changes is then its own work alone, from episode 0 on, in the history of the run. What the test command
says is the business of ``scoring.evidence``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import HarnessAdapter
from pytest_proteus.scoring.repository import TaskRepository

#: The classes of tasks, each with the words of a goal that speak for it; the first whose words occur first wins.
TASK_CLASSES = {
    "refactor": r"refactor\w*|restructur\w*|renam\w+|extract\w*|simplif\w+|clean(?:ed|ing)? ?up|deduplicat\w+",
    "bugfix": r"fix(?:e[sd]|ing)?|bugs?|repair\w*|broken|failing|fails?|crash\w*|wrong|incorrect\w*|regression",
    "new-feature": r"add(?:s|ed|ing)?|implement\w*|features?|support\w*|introduc\w+|creat\w+|new|writ(?:e|ing)",
    "migration": r"migrat\w+|upgrad\w+|port(?:s|ed|ing)?|mov(?:e|ing) to|switch\w* to|convert\w*",
    "debug": r"debug\w*|investigat\w+|diagnos\w+|find out why|root cause|why",
    "docs": r"docs?|document\w*|readme|docstrings?|changelog|comments?",
}


def task_class(goal: str) -> str | None:
    """The class of a task by the first word of its goal that speaks for one; None where no word does."""
    found = {
        name: match.start()
        for name, words in TASK_CLASSES.items()
        if (match := re.search(rf"\b(?:{words})\b", goal, re.I))
    }
    return min(found, key=lambda name: found[name]) if found else None


class TaskHarness:
    """An adapter whose first tree is a task's repository instead of the adapter's own; everything else is its own."""

    def __init__(self, adapter: HarnessAdapter, repository: TaskRepository) -> None:
        self._adapter = adapter
        self._repository = repository

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write the repository's files; no seed differs from another."""
        self._repository.export(Path(harness_root))
