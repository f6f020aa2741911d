"""Statistics of a sweep as tables for people, each with its direction and its n: terminal and command line alike.

Renders entries of the report's ``statistics``; computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_proteus.report.ranking import ranking_lines
from pytest_proteus.report.tables import blocks, number, printable, wrapped

#: Fields shown of results that are no estimates, by the first word of a statistic's name; the report has all of them.
SHOWN = {
    "gap": ("growth", "p", "p_min", "alarm"),
    "placebo": ("verdict", "failed", "undecided", "passed"),
    "variance": ("seed", "task", "seed_task", "repeat", "stderr"),
    "crystallization": ("index", "p", "p_min", "shift_index", "shift_p", "episode"),
    "contrast": ("verdict", "effect", "margin", "p_pass", "p_fail", "p_min"),
    "reliability": ("ratio", "reliable", "within", "null", "p_structure"),
    "separation": ("R", "index", "within", "between", "p", "p_min"),
}
#: Fields that say how many runs are behind a result.
COUNTS = ("n", "n_runs")
#: Pieces of evidence shown of one run.
EVIDENCE = 20

_BETTER = {"higher": "higher is better", "lower": "lower is better", "neutral": "no better or worse"}
_FIELDS = 6


def statistic_lines(
    entries: Iterable[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    width: int = 80,
    *,
    evidence: int = EVIDENCE,
) -> list[str]:
    """Each statistic: a line with its scale and direction, then a table of its arms, runs or fields.

    Args:
        entries: the report's ``statistics``.
        runs: the report's ``runs``, or what has their ``run_id``, ``harness``, ``arm``, ``seed`` and axes.
        width: columns of the terminal.
        evidence: pieces of evidence shown of each run.
    """
    lines: list[str] = []
    labels = _labels(runs)
    for entry in entries:
        lines += wrapped(_title(entry), width, "  ")
        if entry["value"] is None:
            missing = entry["unavailable"]
            lines += _indented(f"unavailable: {_why(missing)}" if missing else "no value", width)
        elif entry["name"] == "audit":
            lines += _audit(entry["value"], labels, width, evidence)
        elif entry["name"] == "ranking":
            lines += [f"  {line}" for line in ranking_lines(entry["value"], width - 2)]
        else:
            lines += _table(entry, {str(run["arm"]) for run in runs}, width)
            lines += _indented(_finding(entry), width) if _finding(entry) else []
        for place, why in dict((entry["unavailable"] or {}).get("parts") or {}).items():
            lines += _indented(f"{labels.get(place, place)} is unavailable: {_why(why)}", width)
    return lines


def findings(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """What statistics have found in a sentence, of those that say it in one."""
    return [f"{_name(entry)}: {_finding(entry)}" for entry in entries if _finding(entry)]


def _finding(entry: Mapping[str, Any]) -> str:
    value = entry["value"]
    return str(value.get("finding") or "") if isinstance(value, dict) else ""


def _name(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']} [{entry['stratum']}]" if entry["stratum"] else str(entry["name"])


def _title(entry: Mapping[str, Any]) -> str:
    told = [str(entry["scale"] or ""), _BETTER.get(str(entry["direction"]), "")]
    return f"{_name(entry)} ({'; '.join(part for part in told if part)})"


def _why(missing: Mapping[str, Any]) -> str:
    return str(missing.get("detail") or missing.get("reason") or "no reason is told")


def _indented(text: str, width: int) -> list[str]:
    return [f"  {line}" for line in wrapped(text, width - 2, "  ")]


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(entry: Mapping[str, Any], arms: set[str], width: int) -> list[str]:
    value = entry["value"]
    by_key = isinstance(value, dict) and ((bool(value) and value.keys() <= arms) or not _is_result(value))
    rows = {str(key): _cells(entry, str(key), item) for key, item in (value if by_key else {"": value}).items()}
    header = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    if not header:
        return []
    table = [[key, *(cells.get(name, "-") for name in header)] for key, cells in rows.items()]
    return [f"  {line}" for line in blocks(["", *header], table, width - 2)]


def _cells(entry: Mapping[str, Any], arm: str, value: Any) -> dict[str, str]:
    """Column → text for one arm, or for the whole, which has no name."""
    if value is None:
        return {}
    if not isinstance(value, dict) or _is_estimate(value):
        behind = [run for run in entry["observations"] or () if arm in ("", run.get("arm"))]
        return {"value": _text(value), **({"n": str(len(behind))} if behind else {})}
    if not _is_result(value):
        return {name: _text(item) for name, item in value.items()}
    numbers = [name for name in value if _is_number(value[name])][:_FIELDS]
    shown = SHOWN.get(str(entry["name"]).partition(" ")[0]) or numbers
    cells = {name: _text(value.get(name)) for name in shown if name not in COUNTS}
    for name in COUNTS:
        if name in value:
            cells["n"] = _text(value[name])
    return cells


def _is_result(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is one result, and not arms or surfaces with a result each."""
    return _is_estimate(value) or not all(isinstance(item, dict) or item is None for item in value.values())


def _is_estimate(value: Any) -> bool:
    return isinstance(value, dict) and {"value", "interval", "n"} <= value.keys()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """A number; of an estimate also its interval and how many runs it is of."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_estimate(value):
        return number(value) if value is None or _is_number(value) else str(value)[:40]
    interval = value["interval"] or {}
    ends = [interval.get("low"), interval.get("high")]
    shown = f" [{', '.join(number(end) for end in ends)}]" if interval else ""
    missing = f", {value['n_missing']} missing" if value.get("n_missing") else ""
    return f"{number(value['value'])}{shown} (n={value['n']}{missing})"


# --- evidence ---------------------------------------------------------------------------------------------------------


def _audit(value: Mapping[str, Any], labels: Mapping[str, str], width: int, evidence: int) -> list[str]:
    seen = {labels.get(run_id, run_id): audit for run_id, audit in value.items() if audit}
    found = {label: audit for label, audit in seen.items() if not audit["no_evidence_found"]}
    episodes = sum(episode > 0 for audit in seen.values() for episode in audit["episodes"])
    lines = _indented(f"evidence in {len(found)} of {len(seen)} runs, {episodes} episodes looked at", width)
    if found:
        table = [[label, *(str(audit[kind]) for kind in ("escape", "awareness"))] for label, audit in found.items()]
        lines += [f"  {line}" for line in blocks(["", "escape", "awareness"], table, width - 2)]
    for label, audit in seen.items():
        for finding in audit["findings"][:evidence]:
            told = f"{label}: {finding['kind']}: {finding['place']}: {finding['detail']}"
            lines += _indented(told, width)
            lines += [f"    {line}" for line in wrapped(f"“{finding['quote']}”", width - 4, " ") if finding["quote"]]
        more = len(audit["findings"]) + audit["omitted"] - evidence
        lines += _indented(f"{label}: {more} more pieces of evidence in the report", width) if more > 0 else []
        lines += (
            _indented(f"{label}: not looked into: {printable(', '.join(audit['unread']))}", width)
            if audit["unread"]
            else []
        )
    return lines


def _labels(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Run id → what tells a run from others: its axes, as a node id has them."""
    found = {}
    for run in runs:
        parts = [run["harness"], run["arm"], f"s{run['seed']}", run["model"], run["task"], *dict(run["axes"]).values()]
        found[str(run["run_id"])] = "-".join(str(part) for part in parts if part is not None)
    return found
