"""``proteus rescore``: scores of further evaluators, computed from what a finished sweep has stored."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.goal import EvaluatorSpec, Visibility
from pytest_proteus.core.rescore import Rescored
from pytest_proteus.core.rescore import rescore as rescore_run
from pytest_proteus.measure.statistic import Statistic
from pytest_proteus.measure.statistic import entries as statistic_entries
from pytest_proteus.measure.strata import by_arm
from pytest_proteus.measure.sweeps import score_estimate
from pytest_proteus.readers.output import print_json, tell_gone
from pytest_proteus.readers.statistics import sweep_lines
from pytest_proteus.report.tables import printable
from pytest_proteus.scoring.judge import Judge
from pytest_proteus.scoring.repository import TaskRepository
from pytest_proteus.sweep.condition import versioned
from pytest_proteus.sweep.declare import EvaluatorMark, resolve_evaluator
from pytest_proteus.sweep.finished import FinishedSweep, open_sweep
from pytest_proteus.sweep.folder import is_live
from pytest_proteus.sweep.run import Run


def rescore(options: argparse.Namespace) -> int:
    """``proteus rescore DIR --evaluator SPEC``: scores of further evaluators, from stored checkpoints and traces."""
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
        print_json({"sweep": sweep.name, "out": str(sweep.out), **told, "statistics": entries})
    else:
        print("\n".join(sweep_lines(scored, entries)))
        failed = f", {done.errors} of them evaluator errors" if done.errors else ""
        print(f"{done.computed} results computed{failed}; {done.stored} were there")
        for run_id, why in unreadable.items():
            print(f"{run_id} cannot be read: {printable(why)}")
    return 1 if tell_gone(sweep) or done.errors or unreadable else 0


def _specs(texts: Sequence[str], surfaces: Sequence[Surface]) -> list[EvaluatorSpec]:
    """The evaluators that ``--evaluator`` names, as a suite's marker would make them."""
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
    judges = [spec.run for spec in specs if isinstance(spec.run, Judge)]
    if not judges:
        return
    from pytest_proteus.sweep.options import parse_endpoints  # which needs pytest, as nothing else here does

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
