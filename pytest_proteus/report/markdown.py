"""The report as Markdown: for a pull request's comment or a CI job's summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.report.outcome import gate_comparison
from pytest_proteus.report.statistics import findings
from pytest_proteus.report.tables import printable
from pytest_proteus.report.terminal import arm_table, baseline_table, baseline_title, gate_counts, ledger_text


def markdown(report: Mapping[str, Any]) -> str:
    """Outcome and reasons, a table of arms for each sweep, and the gates, those that passed folded away."""
    blocks = [f"# Sweep report: {report['outcome']}"]
    if report["outcome_reasons"]:
        blocks.append("\n".join(f"- {_escaped(reason)}" for reason in report["outcome_reasons"]))
    for sweep in report["sweeps"]:
        own = [gate for gate in report["gates"] if gate["sweep"] == sweep["name"]]
        header, rows = arm_table(sweep, own)
        blocks += [f"## {_escaped(sweep['name'])}", _escaped(ledger_text(sweep["ledger"])), table(header, rows)]
        said = "\n".join(f"- {_escaped(finding)}" for finding in findings(sweep["statistics"]))
        blocks += [said] if said else []
    header, rows = baseline_table(report)
    if rows:
        blocks += ["## Baseline", _escaped(baseline_title(report["baseline"])), table(header, rows)]
    if report["gates"]:
        blocks += ["## Gates", gate_counts(report["gates"]), *_gates(report["gates"])]
    return "\n\n".join(blocks) + "\n"


def _gates(gates: Sequence[Mapping[str, Any]]) -> list[str]:
    """The gates that did not pass, and folded away those that did."""
    passed = [gate for gate in gates if gate["verdict"] == "pass"]
    others = [gate for gate in gates if gate["verdict"] != "pass"]
    texts = [_gate_table(others)] if others else []
    if passed:
        texts.append(f"<details><summary>{len(passed)} passed</summary>\n\n{_gate_table(passed)}\n\n</details>")
    return texts


def _gate_table(gates: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [gate["verdict"], gate["name"], gate["reason"] or gate_comparison(gate), gate["nodeid"] or ""] for gate in gates
    ]
    return table(["verdict", "gate", "why", "test"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, its cells escaped."""
    head, *body = [[_escaped(cell) for cell in row] for row in (header, *rows)]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Text that stays one line and means nothing to Markdown or HTML."""
    line = " ".join(printable(str(text)).split())
    for mark in "\\`*_[]|#~!":
        line = line.replace(mark, f"\\{mark}")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
