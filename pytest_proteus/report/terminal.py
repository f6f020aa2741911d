"""The report as lines for a terminal: one row an arm, then what failed. Plain text; whoever prints it may colour it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.report.counts import runs_by_arm
from pytest_proteus.report.shape import mapping
from pytest_proteus.report.statistics import statistic_lines
from pytest_proteus.report.tables import blocks, number, wrapped

#: Pieces of evidence that a session shows of one run; ``proteus audit`` shows more of them.
EVIDENCE = 3


def summary_lines(report: Mapping[str, Any], width: int = 80) -> list[str]:
    """Every sweep as a table of its arms, then the gates that did not pass and the reasons for the outcome.

    A line is longer than ``width`` columns only where one word is.
    """
    lines: list[str] = []
    for sweep in report["sweeps"]:
        lines += [*sweep_lines(sweep, report["gates"], width), ""]
    header, rows = baseline_table(report)
    if rows:
        lines += [*wrapped(baseline_title(report["baseline"]), width, "  "), *blocks(header, rows, width), ""]
    if report["budget"]["stopped_by"] == "decided":
        told = f"{report['budget']['blocks_bought']} seeds were run: they decide every declared gate"
        lines += wrapped(told, width, "")
    lines += [line for told in budget_texts(report) for line in wrapped(told, width, "")]
    lines += wrapped(gate_counts(report["gates"]), width, "")
    lines += wrapped(f"outcome: {report['outcome']}", width, "")
    for reason in report["outcome_reasons"]:
        lines += wrapped(f"- {reason}", width, "  ")
    return lines


def budget_texts(report: Mapping[str, Any]) -> list[str]:
    """What was spent of a budget, and what it bought where it did not suffice."""
    told = report["budget"]
    if told["max_tokens"] is None and told["max_usd"] is None:
        return []
    parts = []
    if told["max_tokens"] is not None:
        parts.append(f"{told['spent_tokens']:,} of {told['max_tokens']:,} tokens")
    if told["max_usd"] is not None:
        parts.append(f"{told['spent_usd']:.4f} of {told['max_usd']:.2f} US dollars")
    spent = f"budget: {' and '.join(parts)} spent"
    if told["stopped_by"] != "budget":
        return [spent]
    ledgers = [sweep["ledger"] for sweep in report["sweeps"]]
    complete, planned = (sum(ledger[name] for ledger in ledgers) for name in ("complete", "planned"))
    return [f"{spent}; it bought {complete} of {planned} cells, and {told['blocks_bought']} whole seeds"]


def sweep_lines(sweep: Mapping[str, Any], gates: Sequence[Mapping[str, Any]], width: int = 80) -> list[str]:
    """One sweep: its name and cells, a row an arm, and below it the counters of each arm and the statistics."""
    own = [gate for gate in gates if gate["sweep"] == sweep["name"]]
    lines = wrapped(f"{sweep['name']}: {ledger_text(sweep['ledger'])}", width, "  ")
    lines += blocks(*arm_table(sweep, own), width)
    counters = {
        key: sum_counters([run["counters"] for run in runs]) for key, runs in runs_by_arm(sweep["runs"]).items()
    }
    names = list(dict.fromkeys(name for found in counters.values() for name in found))
    if names:
        rows = [[key, *(number(found.get(name)) for name in names)] for key, found in counters.items()]
        lines += blocks(["counters", *names], rows, width)
    lines += statistic_lines(sweep["statistics"], sweep["runs"], width, evidence=EVIDENCE)
    return lines + [line for told in outside_texts(sweep) for line in wrapped(told, width, "  ")]


def outside_texts(sweep: Mapping[str, Any]) -> list[str]:
    """For each run during which something outside of it changed, a sentence that says what."""
    changed = mapping(mapping(mapping(sweep.get("sandbox")).get("enforcement")).get("changed_outside"))
    told = []
    for run in sweep["runs"]:
        if paths := changed.get(run["run_id"]):
            name = "/".join(
                str(part) for part in (run["harness"], run["model"], run["arm"], run["seed"]) if part not in (None, "")
            )
            told.append(
                f"warning: outside of run {name} these changed while it ran, by its doing or by another's: "
                f"{', '.join(map(str, paths))}"
            )
    return told


def arm_table(sweep: Mapping[str, Any], gates: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column names, and one row an arm: complete cells, episodes, gates, and the mean of each evaluator with its n.

    Means are of the last planned episode.
    """
    evaluators = list(sweep["evaluators"])
    with_gates = any(gate["arm"] in {run["arm"] for run in sweep["runs"]} for gate in gates)
    header = ["arm", "cells", "episodes", *evaluators, *(["gates"] if with_gates else [])]
    rows = []
    for key, runs in runs_by_arm(sweep["runs"]).items():
        done = sum(1 for run in runs if run["state"] == "complete")
        planned = [run["episodes_planned"] for run in runs]
        episodes = f"{sum(run['episodes_complete'] for run in runs)}/{'?' if None in planned else sum(planned)}"
        means = [metric_text(sweep["arms"][key]["metrics"][name]) for name in evaluators]
        row = [key, f"{done}/{len(runs)}", episodes, *means]
        if with_gates:
            row.append(_arm_gates(runs[0], gates))
        rows.append(row)
    return header, rows


def _arm_gates(run: Mapping[str, Any], gates: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [gate["verdict"] for gate in gates if gate["arm"] == run["arm"]]
    return f"{verdicts.count('pass')}/{len(verdicts)}" if verdicts else "-"


def baseline_title(told: Mapping[str, Any]) -> str:
    """The name and the commit of a baseline, and in which keys of the condition the session differs from it."""
    commit = f" of commit {told['commit'][:12]}" if told["commit"] else ""
    differs = [f"{sweep}: {key}" for sweep, keys in (told["differs"] or {}).items() for key in keys]
    return f"baseline {told['name']}{commit}" + (f"; the condition differs in {', '.join(differs)}" if differs else "")


def baseline_table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column names, and a row for each metric and arm that was held against a baseline; no rows without one."""
    header = ["metric", "baseline", "now", "effect", "interval", "n", "verdict"]
    if not report["baseline"]:
        return header, []
    rows: dict[tuple[Any, ...], list[str]] = {}
    for gate in report["gates"]:
        if gate["source"] == "baseline" and gate["effect"]:
            values = {**gate, **gate["effect"], "effect": gate["value"]}
            rows[gate["sweep"], gate["metric"], gate["stratum"], gate["arm"]] = _baseline_row(
                gate["name"], values, gate["verdict"]
            )
    for effect in report["baseline"]["effects"]:
        place = (effect["sweep"], effect["metric"], effect["stratum"], effect["arm"])
        shown = "/".join(str(part) for part in (effect["stratum"], effect["arm"]) if part)
        rows.setdefault(place, _baseline_row(f"{effect['metric']}[{shown}]", effect, "-"))
    return header, list(rows.values())


def _baseline_row(name: str, values: Mapping[str, Any], verdict: str) -> list[str]:
    ends = values["interval"]
    shown = f"{number(ends['low'])} to {number(ends['high'])}" if ends else "-"
    means = [number(values["baseline_mean"]), number(values["candidate_mean"])]
    missing = f" ({values['n_missing']} missing)" if values["n_missing"] else ""
    return [name, *means, number(values["effect"]), shown, f"{values['n']}{missing}", verdict]


def gate_counts(gates: Sequence[Mapping[str, Any]]) -> str:
    """How many gates ended how; empty without gates."""
    if not gates:
        return ""
    counts = {
        said: sum(1 for gate in gates if gate["verdict"] == verdict)
        for verdict, said in (
            ("pass", "passed"),
            ("fail", "failed"),
            ("undecided", "undecided"),
            ("unavailable", "unavailable"),
        )
    }
    return "gates: " + ", ".join(f"{count} {said}" for said, count in counts.items() if count)


def ledger_text(ledger: Mapping[str, Any]) -> str:
    """How the cells ended, as a phrase; states that no cell ended in are left out."""
    parts = [
        f"{ledger[state]} {state.replace('_', ' ')}"
        for state in ("complete", "timeout", "abort", "skipped", "errored", "lost", "not_run")
        if ledger[state]
    ]
    extra = [f"{ledger[name]} {name}" for name in ("reused", "retried") if ledger[name]]
    cells = "1 cell" if ledger["planned"] == 1 else f"{ledger['planned']} cells"
    return f"{cells}: {', '.join(parts) or 'none'}" + (f" ({', '.join(extra)})" if extra else "")


def metric_text(metric: Mapping[str, Any]) -> str:
    """A mean with the number of cells behind it; ``-`` where there is none."""
    return f"{number(metric['mean'])} (n={metric['n']})"


def sum_counters(counters: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers in nested counters, summed by dotted name."""
    total: dict[str, float] = {}
    for run in counters:
        for name, value in _numbers(run, ""):
            total[name] = total.get(name, 0) + value
    return total


def _numbers(counters: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    found = []
    for name, value in counters.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((f"{prefix}{name}", value))
    return found
