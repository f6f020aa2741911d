"""Runs of a sweep, grouped: by arm, and by stratum. Imports nothing heavy and computes nothing."""

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


def stratum_of(run: Any) -> str:
    """What of harness, model, task and further axes a run has, ``/`` between them."""
    further = [f"{axis}={run.axes[axis]}" for axis in sorted(run.axes)]
    return "/".join([part for part in (run.harness, run.model, run.task) if part] + further)


def by_stratum(runs: Iterable[_Run]) -> dict[str, list[_Run]]:
    """Stratum (harness, model, task, further axes, ``/`` between them) → its runs; statistics never pool strata."""
    grouped: dict[str, list[_Run]] = {}
    for run in runs:
        grouped.setdefault(stratum_of(run), []).append(run)
    return grouped
