"""A comparison of variants for people and spreadsheets: lines of a terminal, rows of a CSV file. Computes nothing.

Renders what ``measure.ranking`` made, as its JSON has it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_proteus.report.tables import blocks, number, wrapped

_GROUPS = ("failed", "ungated", "unscored")
_SUMMARY = ("mean", "stddev", "median", "min", "max", "n", "n_missing")


def ranking_lines(found: Mapping[str, Any], width: int = 80) -> list[str]:
    """A table of the ranked variants, then the others with the reason why they are not.

    Args:
        found: the comparison.
        width: columns of the terminal.
    """
    lines: list[str] = []
    if found["ranked"]:
        cost = f"cost ({found['cost_unit']}) per success"
        header = ["rank", "variant", found["rank_by"], "success", cost]
        ranks = [one["rank"] for one in found["ranked"]]
        rows = [
            [
                f"{one['rank']}{'=' if ranks.count(one['rank']) > 1 else ''}",
                one["variant"],
                _with_interval(one["value"], one["interval"]),
                f"{one['successes']}/{one['attempts']} {_interval(one['success_rate'])}",
                _ratio(one["cost_per_success"]),
            ]
            for one in found["ranked"]
        ]
        widest = max(len("variant"), *(len(row[1]) for row in rows))
        keyed = [[f"{row[0]:<4} {row[1]:<{widest}}", *row[2:]] for row in [header, *rows]]
        lines += blocks(keyed[0], keyed[1:], width)
    for group in _GROUPS:
        for one in found[group]:
            lines += wrapped(f"{group}: {one['variant']}: {one['reason']}", width, "  ")
    return [*lines, *wrapped(found.get("finding") or "", width, "  ")]


def _ratio(told: Mapping[str, Any] | None) -> str:
    return "-" if told is None else _with_interval(told["value"], told["interval"])


def _with_interval(value: Any, interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return number(value)
    high = "open" if interval["high"] is None else number(interval["high"])
    return f"{number(value)} [{number(interval['low'])}, {high}]"


def _interval(estimate: Mapping[str, Any] | None) -> str:
    ends = (estimate or {}).get("interval")
    return f"[{number(ends['low'])}, {number(ends['high'])}]" if ends else ""


def ranking_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """One row a variant, header first; what is not known is empty.

    Args:
        found: comparisons, of one or more tasks.
    """
    rows = [_row(comparison, one) for comparison in found for one in _all(comparison)]
    header = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _all(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for group in ("ranked", *_GROUPS) for one in comparison[group]]


def _row(comparison: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    row = {
        "task_hash": comparison["task_hash"],
        "group": one["group"],
        "rank": one["rank"],
        "variant": one["variant"],
        "reason": one["reason"],
        "rank_by": comparison["rank_by"],
        "value": one["value"],
        **_ends("value", one["interval"]),
        **{name: one[name] for name in ("runs", "attempts", "successes")},
    }
    for name in ("success_rate", "cost_per_success", "composite"):
        told = one[name] or {}
        row[name] = told.get("value")
        row |= _ends(name, told.get("interval"))
    for metric, summary in one["metrics"].items():
        row |= {f"{metric}_{field}": summary[field] for field in _SUMMARY}
    return row


def _ends(name: str, interval: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"{name}_{end}": (interval or {}).get(end) for end in ("low", "high")}
