"""The report of a session, made from the artifacts on disk alone, so that a worker that died takes nothing along.

``build_report`` reads, ``write_sweep_reports`` writes each sweep's own part into its folder. What cannot be read
becomes a sentence in ``outcome_reasons`` and never takes the rest with it. What follows from the runs alone is worked
out by ``report.derived``; no gate is decided here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_proteus.core.ledger import read_json, read_manifest
from pytest_proteus.core.records import as_path, plain, write_json_atomic
from pytest_proteus.report.counts import arm_entries, count_runs
from pytest_proteus.report.derived import derived
from pytest_proteus.report.environment import environment
from pytest_proteus.report.outcome import TESTS_FAILED, judge
from pytest_proteus.report.runs import Runs, declared_evaluators, wanted_by
from pytest_proteus.report.shape import (
    UNREADABLE,
    anything,
    attempt,
    count,
    fields,
    in_words,
    listed,
    mapping,
    number,
    one_of,
    record_of,
    text,
)

SCHEMA_VERSION = 1

BUDGET = {
    "max_usd": number,
    "max_tokens": count,
    "max_seconds": number,
    "spent_usd": number,
    "spent_tokens": count,
    "stopped_by": text,
    "blocks_bought": count,
}
EVALUATOR = {
    "spec": text,
    "kind": text,
    "visibility": one_of("hidden", "observe"),
    "direction": one_of("higher", "lower", "neutral"),
    "bounds": lambda value: [number(end) for end in value] if isinstance(value, list) else None,
    "source_sha256": text,
}
SANDBOX = {"requested": text, "used": text, "enforcement": anything}
PLAN = {
    "cells": count,
    "p_min": number,
    "mde": anything,
    "tokens_low": number,
    "tokens_high": number,
    "usd_low": number,
    "usd_high": number,
}
STATISTIC = {
    "name": text,
    "stratum": anything,
    "value": anything,
    "unavailable": anything,
    "direction": text,
    "scale": text,
    "interpretation": text,
    "observations": anything,
    "seconds": number,
}
INTERVAL = record_of(method=text, level=number, low=number, high=number)
GATE = {
    **dict.fromkeys(("nodeid", "name", "source", "sweep"), text),
    "stratum": anything,
    **dict.fromkeys(("metric", "arm", "against", "kind", "direction"), text),
    **dict.fromkeys(("margin", "value"), anything),
    "threshold": record_of(op=text, bound=anything),
    "alpha": number,
    "effect": anything,
    "interval": INTERVAL,
    **dict.fromkeys(("n", "n_missing"), count),
    **dict.fromkeys(("p", "p_adjusted"), number),
    "family": text,
    "p_min": number,
    "mde": anything,
    **dict.fromkeys(("n_needed", "rare_event_bound"), number),
    "assumption": text,
    "blocking": lambda value: value is not False,
    "verdict": one_of("pass", "fail", "undecided", "unavailable"),
    "reason": text,
}
EFFECT = {
    **dict.fromkeys(("sweep", "stratum", "arm", "metric"), text),
    **dict.fromkeys(("effect", "effect_percent", "baseline_mean", "candidate_mean"), number),
    "interval": INTERVAL,
    **dict.fromkeys(("n", "n_missing"), count),
    "reason": text,
}
BASELINE = {
    "name": text,
    "commit": text,
    "created_at": number,
    "condition_sha256": text,
    "differs": mapping,
    "allowed": listed,
    "effects": lambda value: [fields(item, EFFECT) for item in listed(value)],
}


def build_report(
    session_dir: Path | str,
    *,
    exitstatus: int | None = None,
    finished_at: float | None = None,
    max_missing: int | str = 0,
    tests_failed: bool = False,
) -> dict[str, Any]:
    """The whole report of one session, as plain data that JSON can hold.

    Args:
        session_dir: the session's folder.
        exitstatus: what pytest ends with.
        finished_at: seconds since the epoch.
        max_missing, tests_failed: see ``report.outcome.judge``.
    """
    session_dir = Path(session_dir)
    problems: list[str] = []
    told = _session(session_dir, problems)
    nodes = _mapping(session_dir / "nodes.json", problems)
    plans = _mapping(session_dir / "plans.json", problems)
    statistics_of = _by_sweep(read_lines(session_dir / "statistics", problems))
    sweeps = []
    for name, out in _folders(session_dir, told, problems):
        plan = mapping(plans.get(name))
        make = partial(_sweep, name, out, told, nodes, plan, statistics_of.get(name, []), problems)
        sweep = attempt(make, None, f"sweep {name}: cannot be reported", problems)
        if sweep is not None:
            sweeps.append(sweep)
    rootdir = told.get("rootdir")
    report = {
        "schema_version": SCHEMA_VERSION,
        "outcome": "pass",
        "outcome_reasons": [],
        "session": {
            "id": text(told.get("id")),
            "started_at": number(told.get("started_at")),
            "finished_at": finished_at,
            "argv": [str(word) for word in listed(told.get("argv"))],
            "workers": count(told.get("workers")),
            "exitstatus": None if exitstatus is None else int(exitstatus),
        },
        "environment": environment(as_path(rootdir) if rootdir and isinstance(rootdir, str) else None),
        "budget": fields(told.get("budget"), BUDGET),
        "sweeps": sweeps,
        "gates": _gates(read_lines(session_dir / "gates", problems), problems),
        "baseline": _baseline(_mapping(session_dir / "baseline.json", problems)),
    }
    report["outcome"], report["outcome_reasons"] = judge(
        report, max_missing=max_missing, problems=problems, tests_failed=tests_failed
    )
    checked: dict[str, Any] = plain(report)
    return checked


def write_sweep_reports(report: dict[str, Any], *, max_missing: int | str = 0, comparisons: Path | None = None) -> None:
    """Write each sweep's own entry and its gates as ``report.json`` in the sweep's folder.

    A folder that cannot be written is a sentence in ``report["outcome_reasons"]``; the others are written all the same.

    Args:
        report: what ``build_report`` made.
        max_missing: see ``report.outcome.judge``.
        comparisons: folder that gets each comparison of variants as ``<task_hash>.json``, too.
    """
    for sweep in report["sweeps"]:
        path = as_path(sweep["out"]) / "report.json"
        found = [item["value"] for item in sweep["statistics"] if item["name"] == "ranking"]
        try:
            write_json_atomic(path, _narrowed(report, sweep, max_missing))
            if comparisons is not None:
                for value in found:
                    path = comparisons / f"{value['task_hash']}.json"
                    write_json_atomic(path, value)
        except UNREADABLE as error:
            report["outcome_reasons"].append(f"sweep {sweep['name']}: {path.name} cannot be written: {in_words(error)}")
            if report["outcome"] in ("pass", "undecided"):
                report["outcome"] = "incomplete"


def _narrowed(report: Mapping[str, Any], sweep: Mapping[str, Any], max_missing: int | str) -> dict[str, Any]:
    """The report as if the session had had this one sweep."""
    gates = [gate for gate in report["gates"] if gate["sweep"] == sweep["name"]]
    own = {
        **report,
        "sweeps": [sweep],
        "gates": gates,
        "baseline": _narrowed_baseline(report["baseline"], sweep["name"]),
    }
    tests_failed = TESTS_FAILED in report["outcome_reasons"]
    _, judged = judge(report, max_missing=max_missing, tests_failed=tests_failed)
    other = tuple(f"sweep {entry['name']}: " for entry in report["sweeps"] if entry is not sweep)
    problems = [reason for reason in report["outcome_reasons"] if reason not in judged and not reason.startswith(other)]
    own["outcome"], own["outcome_reasons"] = judge(
        own, max_missing=max_missing, problems=problems, tests_failed=tests_failed
    )
    return own


def _narrowed_baseline(told: Mapping[str, Any] | None, sweep: str) -> dict[str, Any] | None:
    if told is None:
        return None
    differs = {name: keys for name, keys in told["differs"].items() if name == sweep}
    return {**told, "differs": differs, "effects": [item for item in told["effects"] if item["sweep"] == sweep]}


# --- the session's folder ---------------------------------------------------------------------------------------------


def _session(session_dir: Path, problems: list[str]) -> dict[str, Any]:
    told = _mapping(session_dir / "session.json", problems)
    if not told:
        problems.append(f"the session has no session.json in {session_dir}")
    return told


def _folders(session_dir: Path, told: Mapping[str, Any], problems: list[str]) -> list[tuple[str, Path]]:
    """Name and folder of every sweep of the session, by name."""
    found = {}
    for file in sorted((session_dir / "sweeps").glob("*.json")):
        entry = _mapping(file, problems)
        if entry.get("out"):
            found[str(entry.get("name") or file.stem)] = as_path(str(told.get("rootdir") or "")) / as_path(
                str(entry["out"])
            )
        elif entry:
            problems.append(f"sweep {file.stem}: {file} does not say where its folder is")
    return sorted(found.items())


def _mapping(file: Path, problems: list[str]) -> dict[str, Any]:
    """The JSON object in ``file``; empty when there is none, with a sentence when it cannot be read."""
    value = attempt(lambda: read_json(file), None, f"{file} cannot be read", problems)
    if value is None or isinstance(value, dict):
        return value or {}
    problems.append(f"{file} holds no JSON object")
    return {}


def read_lines(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Every object in the JSON-lines files of ``folder``: worker by worker, in the order of their numbers."""
    found = []
    for file in sorted(folder.glob("*.jsonl"), key=lambda path: _natural(path.stem)):
        read = partial(file.read_text, encoding="utf-8", errors="replace")
        lines = attempt(read, "", f"{file} cannot be read", problems).splitlines()
        for at, line in enumerate(lines, start=1):
            value: Any = attempt(partial(json.loads, line), None, f"{file}:{at} is not JSON", problems)
            if isinstance(value, dict):
                found.append(value)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts gw2 before gw10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _by_sweep(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(str(line.get("sweep")), []).append(line)
    return found


def _baseline(told: Mapping[str, Any]) -> dict[str, Any] | None:
    return fields(told, BASELINE) if told else None


# --- a sweep ----------------------------------------------------------------------------------------------------------


def _sweep(
    name: str,
    out: Path,
    told: Mapping[str, Any],
    nodes: Mapping[str, Any],
    plan: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    problems: list[str],
) -> dict[str, Any]:
    found = attempt(lambda: read_manifest(out), None, f"sweep {name}: its manifest cannot be read", problems)
    manifest = mapping(found)
    cells = [
        cell for cell in listed(manifest.get("runs")) if isinstance(cell, dict) and isinstance(cell.get("id"), str)
    ]
    if not isinstance(manifest.get("runs"), list) or len(cells) < len(manifest["runs"]):
        problems.append(f"sweep {name}: {out / 'manifest.json'} does not list its runs")
    reader = Runs(name, out, manifest, str(told.get("id")), wanted_by(name, nodes), problems)
    runs = [reader.entry(cell) for cell in cells]
    evaluators = declared_evaluators(manifest)
    goal = str(manifest.get("goal") or "")
    worked_out = attempt(
        partial(derived, evaluators, runs, goal), [], f"sweep {name}: statistics of its runs", problems
    )
    return {
        "name": name,
        "out": str(out),
        "condition": manifest.get("condition"),
        "condition_sha256": text(manifest.get("condition_sha256")),
        "measurement_sha256": text(manifest.get("measurement_sha256")),
        "surfaces": {
            harness: [surface for surface in listed(surfaces) if isinstance(surface, dict)]
            for harness, surfaces in mapping(manifest.get("surfaces")).items()
        },
        "harnesses": [str(harness) for harness in listed(manifest.get("harnesses"))],
        "evaluators": {evaluator: fields(given, EVALUATOR) for evaluator, given in evaluators.items()},
        "sandbox": _sandbox(manifest.get("sandbox"), reader.changed_outside),
        "plan": fields({**mapping(manifest.get("plan")), **plan}, PLAN),
        "ledger": count_runs(runs),
        "runs": runs,
        "arms": arm_entries(runs, list(evaluators), worked_out),
        "statistics": _statistics([*lines, *worked_out]),
    }


def _sandbox(recorded: Any, changed_outside: Mapping[str, list[str]]) -> dict[str, Any]:
    """What was planned of the isolation, and during which runs something outside of them changed."""
    entry = fields(recorded, SANDBOX)
    if changed_outside:
        entry["enforcement"] = {**mapping(entry["enforcement"]), "changed_outside": dict(changed_outside)}
    return entry


# --- statistics and gates ---------------------------------------------------------------------------------------------


def _statistics(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each name and stratum, by name: several workers may have computed the same."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        entry = fields(line, STATISTIC)
        entry["name"] = entry["name"] or ""
        found.setdefault((entry["name"], _sortable(entry["stratum"])), entry)
    return [found[key] for key in sorted(found)]


def _gates(lines: Sequence[Mapping[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    """The gates by test and name. A test that was run again has decided again: only its last ``attempt`` counts."""
    attempts = [(text(line.get("nodeid")), text(line.get("attempt"))) for line in lines]
    last = dict(attempts)
    kept = [line for line, (nodeid, tried) in zip(lines, attempts, strict=True) if tried == last[nodeid]]
    once = {json.dumps(entry, sort_keys=True): entry for entry in (_gate(line, problems) for line in kept)}
    return sorted(once.values(), key=lambda entry: (_sortable(entry["nodeid"]), entry["name"]))


def _gate(line: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    entry = fields(line, GATE)
    entry["name"] = entry["name"] or ""
    if entry["verdict"] is None:
        problems.append(f"gate {entry['name']} in {entry['nodeid']}: {line.get('verdict')!r} is no verdict")
        entry["verdict"] = "unavailable"
    return entry


def _sortable(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
