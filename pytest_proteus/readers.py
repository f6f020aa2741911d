"""The sub-commands that read a finished sweep's folder: its statistics, computed anew from the artifacts.

They compute what the fixtures compute, with the same functions, and print the report's entries of it. They run no
agent and import no suite. ``rescore`` adds results of further evaluators to the records; the others change nothing.
What only one of them needs is imported by it: most of a short command's time is imports.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.records import write_override
from pytest_proteus.measure.statistic import STATISTICS, Statistic, reliability_at
from pytest_proteus.measure.statistic import entries as statistic_entries
from pytest_proteus.measure.strata import by_arm
from pytest_proteus.measure.sweeps import score_estimate
from pytest_proteus.report.statistics import statistic_lines
from pytest_proteus.report.tables import printable
from pytest_proteus.sweep.finished import FinishedSweep, open_sweep
from pytest_proteus.sweep.run import Run

if TYPE_CHECKING:
    from pytest_proteus.core.goal import EvaluatorSpec
    from pytest_proteus.measure.ranking import Ranking

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


def rank(options: argparse.Namespace) -> int:
    """``proteus rank DIR|TASK_HASH``: which variant is better, each task apart."""
    if not options.dir.exists() and re.fullmatch(r"[0-9a-f]{8,64}", str(options.dir)):
        return _rank_task(options, str(options.dir))
    from pytest_proteus.measure.ranking import rankings

    sweep = open_sweep(options.dir)
    found = rankings(sweep.runs, sweep.manifest, rank_by=options.rank_by)
    _show_rankings(options, {"sweep": sweep.name, "out": str(sweep.out)}, sweep.name, found)
    return 1 if _tell_gone(sweep) else 0


def _rank_task(options: argparse.Namespace, beginning: str) -> int:
    """The variants of all sweeps that tried a task, as the store has them."""
    from pytest_proteus.measure.ranking import rank as rank_attempts
    from pytest_proteus.sweep.experiments import STORE, Store

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
    from pytest_proteus.report.ranking import ranking_csv, ranking_lines

    found = {task: one.to_json() for task, one in rankings_of.items()}
    if options.json:
        _print({**told, "rankings": [*found.values()]})
    elif options.csv:
        print(ranking_csv([*found.values()]), end="")
    else:
        width = shutil.get_terminal_size().columns
        for task, one in found.items():
            print(printable(f"{title}{f' [{task}]' if task else ''}: variants by {one['rank_by']}"))
            print("\n".join(f"  {line}" for line in ranking_lines(one, width - 2)))


def override(options: argparse.Namespace) -> int:
    """``proteus override DIR RUN_ID --score S``: an operator's score beside the judge's; it counts in comparisons."""
    from pytest_proteus.measure.ranking import kinds_of, last_results

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
        _print({"run_id": run.run_id, **told})
    else:
        print(printable(f"{run.run_id}: {judge} counts as {options.score:g}, says {options.author}: {options.reason}"))
    return 0


def index(options: argparse.Namespace) -> int:
    """``proteus index [DIR]``: the store of experiments, made anew from the artifacts."""
    from pytest_proteus.sweep.experiments import STORE, index

    done = index(options.dir)
    if options.json:
        _print({"store": str(options.dir / STORE), **done.__dict__})
    else:
        print(f"{options.dir / STORE}: {done.runs} runs of {done.sweeps} sweeps")
        for problem in done.problems:
            print(f"left out: {printable(problem)}")
    return 1 if done.problems else 0


def rescore(options: argparse.Namespace) -> int:
    """``proteus rescore DIR --evaluator SPEC``: scores of further evaluators, from stored checkpoints and traces."""
    from pytest_proteus.core.rescore import Rescored
    from pytest_proteus.core.rescore import rescore as rescore_run
    from pytest_proteus.sweep.folder import is_live

    sweep = open_sweep(options.dir)
    if is_live(sweep.out):
        raise ConfigurationError(f"{sweep.out} is in use by a session; wait for it")
    sys.path.insert(0, str(Path.cwd()))  # where package.module:function is looked for, as pytest does
    specs = {run.harness: _specs(options.evaluator, sweep.surfaces_of(run.harness)) for run in sweep.runs}
    for named_specs in specs.values():
        _configure(named_specs, sweep, options)
    done, unreadable, runs = Rescored(), {}, []
    for run in sweep.runs:
        wanted = specs[run.harness]
        runs.append(replace(run, evaluators={**run.evaluators, **{spec.name: spec.version for spec in wanted}}))
        try:
            found = rescore_run(run.root, wanted, sweep.surfaces_of(run.harness), run.stored_records(), run.trace)
        except RecordError as error:
            unreadable[run.run_id] = str(error)
            continue
        done.computed, done.errors, done.stored = (
            getattr(done, name) + getattr(found, name) for name in ("computed", "errors", "stored")
        )
    scored = replace(sweep, runs=tuple(runs))
    named = {spec.name: spec for listed in specs.values() for spec in listed}
    entries = [entry for spec in named.values() for entry in statistic_entries(_scores(spec), scored)]
    told = {"computed": done.computed, "errors": done.errors, "stored": done.stored, "unreadable": unreadable}
    if options.json:
        _print({"sweep": sweep.name, "out": str(sweep.out), **told, "statistics": entries})
    else:
        print("\n".join(_lines(scored, entries)))
        failed = f", {done.errors} of them evaluator errors" if done.errors else ""
        print(f"{done.computed} results computed{failed}; {done.stored} were there")
        for run_id, why in unreadable.items():
            print(f"{run_id} cannot be read: {printable(why)}")
    return 1 if _tell_gone(sweep) or done.errors or unreadable else 0


def _specs(texts: Sequence[str], surfaces: Sequence[Surface]) -> list[EvaluatorSpec]:
    """The evaluators that ``--evaluator`` names, as a suite's marker would make them."""
    from pytest_proteus.core.goal import Visibility
    from pytest_proteus.sweep.condition import versioned
    from pytest_proteus.sweep.declare import EvaluatorMark, resolve_evaluator

    specs = [versioned(resolve_evaluator(EvaluatorMark(text, {}, (), "--evaluator"), surfaces)) for text in texts]
    for spec in specs:
        if spec.visibility is not Visibility.HIDDEN:
            raise ConfigurationError(f"--evaluator {spec.name}@observe: nobody can see it any more; leave out @observe")
        if [other.name for other in specs].count(spec.name) > 1:
            raise ConfigurationError(f"--evaluator {spec.name} is given twice; give it once")
    return specs


def _configure(specs: Sequence[EvaluatorSpec], sweep: FinishedSweep, options: argparse.Namespace) -> None:
    """Tell judges what the sweep was about.

    Raises:
        ConfigurationError: they have no endpoint.
    """
    from pytest_proteus.scoring.judge import Judge
    from pytest_proteus.scoring.repository import TaskRepository

    judges = [spec.run for spec in specs if isinstance(spec.run, Judge)]
    if not judges:
        return
    from pytest_proteus.sweep.options import parse_endpoints

    task = sweep.manifest.get("task")
    repository = TaskRepository(Path(task["repository"]), task["commit"], task["tree"]) if task else None
    endpoints, goal = parse_endpoints(options.endpoint), str(sweep.manifest.get("goal") or "")
    for judge in judges:
        judge.configure(goal, endpoints, repository, sweep.out / "judge")
        if told := judge.unconfigured():
            raise ConfigurationError(told)


def _scores(spec: EvaluatorSpec) -> Statistic:
    def compute(runs: Sequence[Run], _: Any) -> dict[str, Any]:
        return {
            arm: score_estimate(found, spec.name, direction=spec.direction, bounds=spec.bounds)
            for arm, found in by_arm(runs).items()
        }

    told = "mean score over runs at the last planned episode; a run that did not get there is missing"
    return Statistic(f"scores {spec.name} at last", compute, spec.direction, "score", told)


def _show(options: argparse.Namespace, sweep: FinishedSweep, statistics: Sequence[Statistic]) -> int:
    found = [entry for statistic in statistics for entry in statistic_entries(statistic, sweep)]
    if options.json:
        _print({"sweep": sweep.name, "out": str(sweep.out), "statistics": found})
    else:
        print("\n".join(_lines(sweep, found)))
    return 1 if _tell_gone(sweep) or any(_unreadable(entry["unavailable"]) for entry in found) else 0


def _tell_gone(sweep: FinishedSweep) -> bool:
    """Say what of the artifacts is not there; whether anything is not."""
    for why in sweep.gone:
        print(f"proteus: {printable(why)}", file=sys.stderr)
    return bool(sweep.gone)


def _print(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _lines(sweep: FinishedSweep, found: Sequence[Mapping[str, Any]]) -> list[str]:
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
