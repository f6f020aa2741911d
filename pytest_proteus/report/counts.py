"""Counts of cells and means of scores at the last planned episode, from the entries of runs; strata are never pooled.

Statistics are of that episode, too: a run that did not get there is missing from both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pytest_proteus.core.errors import GRADED
from pytest_proteus.core.ledger import count
from pytest_proteus.report.runs import USAGE
from pytest_proteus.report.shape import fields

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Mapping[str, Any])


def stratum_of(run: Mapping[str, Any]) -> str:
    """The stratum of a run as one word: what of harness, model, task and further axes it has, ``/`` between them."""
    further = [f"{axis}={run['axes'][axis]}" for axis in sorted(run["axes"])]
    return "/".join([str(run[key]) for key in ("harness", "model", "task") if run[key]] + further)


def count_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the runs ended: whole, ``by_arm`` and ``by_stratum``."""
    by_arm = grouped(runs, [str(run["arm"]) for run in runs])
    by_stratum = grouped(runs, [stratum_of(run) for run in runs])
    return {
        **_counts(runs),
        "by_arm": {key: _counts(group) for key, group in sorted(by_arm.items())},
        "by_stratum": {key: _counts(group) for key, group in sorted(by_stratum.items())},
    }


def _counts(runs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    states = [run["state"].split(":", 1)[0] for run in runs]
    return {
        **count(states),
        "reused": sum(1 for run in runs if run["reused"]),
        "retried": sum(1 for run in runs if run["attempts"] > 1),
    }


def grouped(items: Sequence[_T], keys: Sequence[str]) -> dict[str, list[_T]]:
    """The items by key; keys in the order of their first item."""
    found: dict[str, list[_T]] = {}
    for item, key in zip(items, keys, strict=True):
        found.setdefault(key, []).append(item)
    return found


def runs_by_arm(runs: Sequence[_R]) -> dict[str, list[_R]]:
    """The runs by the name under which their arm is reported: its label, with the stratum where there are several."""
    strata = [stratum_of(run) for run in runs]
    several = len(set(strata)) > 1
    keys = [
        f"{run['arm']} [{stratum}]" if several else str(run["arm"]) for run, stratum in zip(runs, strata, strict=True)
    ]
    return grouped(runs, keys)


def arm_entries(
    runs: Sequence[Mapping[str, Any]], evaluators: Sequence[str], statistics: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Every arm's means, each stratum apart; of comparisons among the statistics success rates, and costs in USD."""
    return {
        key: {
            "metrics": {name: metric([score_at(run, name) for run in group]) for name in evaluators},
            "usage": fields(usage_together([run["usage"] for run in group]), USAGE),
            **_succeeded(group[0], statistics),
        }
        for key, group in runs_by_arm(runs).items()
    }


def _succeeded(run: Mapping[str, Any], statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``success_rate`` and ``cost_per_success`` of the variant that a run is of; None where they are not known."""
    found: dict[str, Any] = {"success_rate": None, "cost_per_success": None}
    for entry in statistics:
        if entry["name"] != "ranking" or entry["stratum"] != (run["task"] or None):
            continue
        from pytest_proteus.measure.ranking import GROUPS, labels_of, variant_of

        own = variant_of(labels_of(run))
        for told in (one for group in GROUPS for one in entry["value"][group] if one["variant"] == own):
            found["success_rate"] = (told["success_rate"] or {}).get("value")
            if entry["value"]["cost_unit"] == "usd":
                found["cost_per_success"] = (told["cost_per_success"] or {}).get("value")
    return found


def usage_together(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What runs used together, of those whose total is known; ``discrepancy`` says how many those are, and how many
    others something was to be metered of. Nothing where that is none."""
    metered = [usage for usage in usages if usage["token_source"] is not None]
    known = [usage for usage in metered if usage["total_tokens"] is not None]
    if not metered:
        return {}
    summed = [name for name in USAGE if name.endswith("_tokens") or name in ("cost_usd", "requests")]
    together: dict[str, Any] = {}
    for name in summed:
        told = [usage[name] for usage in known]
        # a cost that is not known of one of them is not known of all together
        whole = told and None not in told if name == "cost_usd" else any(item is not None for item in told)
        together[name] = math.fsum(told) if whole and name == "cost_usd" else sum(filter(None, told)) if whole else None
    for name in ("token_source", "price_source"):
        found = sorted({usage[name] for usage in known if usage[name]})
        together[name] = ", ".join(found) or None
    if not known:
        together["token_source"] = "unmeasured"
    return {**together, "discrepancy": {"n": len(known), "n_missing": len(metered) - len(known)}}


def score_at(run: Mapping[str, Any], evaluator: str, episode: int = -1) -> float | None:
    """The score of one planned episode (from 0; -1 for the last one planned), None where the run did not get there."""
    planned = run["episodes_planned"] or 0
    at = episode if episode >= 0 else planned - 1
    if run["state"] not in GRADED or evaluator not in run["evaluators"]:
        return None
    scores: list[float | None] = run["evaluators"][evaluator]["scores"]
    return scores[at] if 0 <= at < len(scores) else None


def metric(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and spread of what is there of ``values``; ``std`` divides by n - 1 and is None when n < 2."""
    known = [float(value) for value in values if value is not None]
    return {
        "mean": math.fsum(known) / len(known) if known else None,
        "n": len(known),
        "n_missing": len(values) - len(known),
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "min": min(known) if known else None,
        "max": max(known) if known else None,
    }
