"""``proteus rank``, ``override`` and ``index``: which variant of a task is better, within a sweep and across sweeps."""

from __future__ import annotations

import argparse
import re
import shutil
import time
from collections.abc import Mapping
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.records import write_override
from pytest_proteus.measure.ranking import Ranking, kinds_of, last_results, rankings
from pytest_proteus.measure.ranking import rank as rank_attempts
from pytest_proteus.readers.output import print_json, tell_gone
from pytest_proteus.report.ranking import ranking_csv, ranking_lines
from pytest_proteus.report.tables import printable
from pytest_proteus.sweep.experiments import STORE, Store
from pytest_proteus.sweep.experiments import index as make_store
from pytest_proteus.sweep.finished import open_sweep


def rank(options: argparse.Namespace) -> int:
    """``proteus rank DIR|TASK_HASH``: which variant is better, each task apart."""
    if not options.dir.exists() and re.fullmatch(r"[0-9a-f]{8,64}", str(options.dir)):
        return _rank_task(options, str(options.dir))
    sweep = open_sweep(options.dir)
    found = rankings(sweep.runs, sweep.manifest, rank_by=options.rank_by)
    _show_rankings(options, {"sweep": sweep.name, "out": str(sweep.out)}, sweep.name, found)
    return 1 if tell_gone(sweep) else 0


def _rank_task(options: argparse.Namespace, beginning: str) -> int:
    """The variants of all sweeps that tried a task, as the store has them."""
    store = Store(options.base)
    tasks = store.tasks(beginning)
    if len(tasks) != 1:
        told = f"{len(tasks)} tasks" if tasks else "no task"
        raise ConfigurationError(f"{options.base / STORE} has {told} whose hash begins with {beginning}")
    ((task, goal),) = tasks.items()
    found = rank_attempts(store.attempts(task), task, rank_by=options.rank_by)
    _show_rankings(options, {"store": str(options.base / STORE), "goal": goal}, goal, {None: found})
    return 0


def _show_rankings(
    options: argparse.Namespace, told: Mapping[str, Any], title: str, rankings_of: Mapping[str | None, Ranking]
) -> None:
    found = {task: one.to_json() for task, one in rankings_of.items()}
    if options.json:
        print_json({**told, "rankings": [*found.values()]})
    elif options.csv:
        print(ranking_csv([*found.values()]), end="")
    else:
        width = shutil.get_terminal_size().columns
        for task, one in found.items():
            print(printable(f"{title}{f' [{task}]' if task else ''}: variants by {one['rank_by']}"))
            print("\n".join(f"  {line}" for line in ranking_lines(one, width - 2)))


def override(options: argparse.Namespace) -> int:
    """``proteus override DIR RUN_ID --score S``: an operator's score beside the judge's; it counts in comparisons."""
    sweep = open_sweep(options.dir)
    run = next((run for run in sweep.runs if run.run_id == options.run_id), None)
    if run is None:
        raise ConfigurationError(f"{sweep.out} has no run {options.run_id}; proteus rank --json lists their ids")
    kinds = kinds_of(sweep.manifest.get("evaluators"))
    judge = next((name for name in last_results(run) if kinds.get(name) == "judge"), None)
    if judge is None:
        raise ConfigurationError(
            f"{options.run_id} has no result of an evaluator of kind judge, so nothing to override"
        )
    told = {
        "evaluator": judge,
        "score": options.score,
        **({} if options.ratio is None else {"goal_aligned_ratio": options.ratio}),
        "author": options.author,
        "reason": options.reason,
        "at": time.time(),
    }
    write_override(run.root, run.episodes, told)
    if options.json:
        print_json({"run_id": run.run_id, **told})
    else:
        print(printable(f"{run.run_id}: {judge} counts as {options.score:g}, says {options.author}: {options.reason}"))
    return 0


def index(options: argparse.Namespace) -> int:
    """``proteus index [DIR]``: the store of experiments, made anew from the artifacts."""
    done = make_store(options.dir)
    if options.json:
        print_json({"store": str(options.dir / STORE), **done.__dict__})
    else:
        print(f"{options.dir / STORE}: {done.runs} runs of {done.sweeps} sweeps")
        for problem in done.problems:
            print(f"left out: {printable(problem)}")
    return 1 if done.problems else 0
