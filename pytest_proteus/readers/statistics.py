"""``proteus measure``, ``reliability`` and ``audit``: statistics of runs and arms."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.measure.statistic import STATISTICS, Statistic, entries, reliability_at
from pytest_proteus.readers.output import print_json, tell_gone
from pytest_proteus.report.statistics import statistic_lines
from pytest_proteus.sweep.finished import FinishedSweep, open_sweep

#: What ``--level`` calls the levels of distances.
LEVELS = {"freq": "freq", "order": "order", "procedure": "ncd"}


def measure(options: argparse.Namespace) -> int:
    """``proteus measure DIR``: what was built, how far it travelled, whether arms differ, and what probes say."""
    sweep = open_sweep(options.dir)
    wanted = ["structure", *(["travel"] if options.travel else []), "separation"]
    wanted += ["crystallization"] if sweep.probes else []
    return _show(options, sweep, [STATISTICS[name] for name in wanted])


def reliability(options: argparse.Namespace) -> int:
    """``proteus reliability DIR``: does each arm reproduce itself?"""
    return _show(options, open_sweep(options.dir), [reliability_at(LEVELS[options.level])])


def audit(options: argparse.Namespace) -> int:
    """``proteus audit DIR``: evidence of reaching outside and of awareness, quoted with its place."""
    return _show(options, open_sweep(options.dir), [STATISTICS["audit"]])


def _show(options: argparse.Namespace, sweep: FinishedSweep, statistics: Sequence[Statistic]) -> int:
    found = [entry for statistic in statistics for entry in entries(statistic, sweep)]
    if options.json:
        print_json({"sweep": sweep.name, "out": str(sweep.out), "statistics": found})
    else:
        print("\n".join(sweep_lines(sweep, found)))
    return 1 if tell_gone(sweep) or any(_unreadable(entry["unavailable"]) for entry in found) else 0


def sweep_lines(sweep: FinishedSweep, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sweep's name, its complete runs, and the report's entries of statistics, as wide as the terminal."""
    complete = sum(run.state == "complete" for run in sweep.runs)
    runs = [
        {name: getattr(run, name) for name in ("run_id", "harness", "arm", "seed", "model", "task", "axes")}
        for run in sweep.runs
    ]
    width = shutil.get_terminal_size().columns
    return [f"{sweep.name}: {complete} of {len(runs)} runs complete", *statistic_lines(found, runs, width)]


def _unreadable(missing: Mapping[str, Any] | None) -> bool:
    """Whether something is missing because a file is, rather than for a reason of the data."""
    parts = [missing or {}, *dict((missing or {}).get("parts") or {}).values()]
    return any(part.get("reason") == "unreadable" for part in parts)
