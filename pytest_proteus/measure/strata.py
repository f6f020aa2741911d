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


def by_stratum(runs: Iterable[_Run]) -> dict[str, list[_Run]]:
    """Stratum (harness, model, task, further axes, ``/`` between them) → its runs; statistics never pool strata."""
    grouped: dict[str, list[_Run]] = {}
    for run in runs:
        further = [f"{axis}={run.axes[axis]}" for axis in sorted(run.axes)]
        stratum = "/".join([part for part in (run.harness, run.model, run.task) if part] + further)
        grouped.setdefault(stratum, []).append(run)
    return grouped
