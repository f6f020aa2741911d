"""Runs or planned cells of a sweep, grouped: by arm, and by stratum. Imports nothing heavy and computes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

_Run = TypeVar("_Run", bound=Any)


def by_arm(runs: Iterable[_Run]) -> dict[str, list[_Run]]:
    """Arm → its runs, in the order given."""
    grouped: dict[str, list[_Run]] = {}
    for run in runs:
        grouped.setdefault(run.arm, []).append(run)
    return grouped


def stratum_of(run: Any, *, across_tasks: bool = False) -> str:
    """What of harness, model, task and further axes a run has, ``/`` between them; without the task across tasks."""
    further = [f"{axis}={value}" for axis, value in sorted(dict(run.axes).items())]
    parts = (run.harness, run.model, None if across_tasks else run.task)
    return "/".join([part for part in parts if part] + further)


def by_stratum(runs: Iterable[_Run], *, across_tasks: bool = False) -> dict[str, list[_Run]]:
    """Stratum → its runs; statistics never pool strata.

    Args:
        runs: any runs.
        across_tasks: whether runs of all tasks are in one stratum, for a mean over tasks.
    """
    grouped: dict[str, list[_Run]] = {}
    for run in runs:
        grouped.setdefault(stratum_of(run, across_tasks=across_tasks), []).append(run)
    return grouped
