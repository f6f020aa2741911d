"""What a report works out from its own runs, whether or not a test asked for it: variances, gaps, and ranked variants.

Arithmetic is that of ``measure``. No gate is decided here, and nothing is read but the entries of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_proteus.core.records import plain
from pytest_proteus.report.counts import grouped, score_at, stratum_of
from pytest_proteus.report.shape import mapping

Entry = Mapping[str, Any]

VARIANCE = "what single scores of an arm differ by: the seed, the task, or both beyond that; and what to buy more of"
GAP = "how much the score that the agent is shown flatters beside the hidden one, and whether that grew; no verdict"


def derived(evaluators: Mapping[str, Any], runs: Sequence[Entry], goal: str = "") -> list[dict[str, Any]]:
    """Entries of statistics that follow from the runs of a sweep.

    Args:
        evaluators: name → what the manifest says of each.
        runs: the report's entries of the runs.
        goal: what the agents were asked for.
    """
    declared = {name: mapping(given) for name, given in evaluators.items()}
    return [*_variances(declared, runs), *_gaps(declared, runs), *_rankings(declared, runs, goal)]


def _entry(name: str, stratum: str | None, value: Any, scale: str, interpretation: str) -> dict[str, Any]:
    return {
        "name": name,
        "stratum": stratum,
        "value": plain(value.to_json()),
        "unavailable": value.as_dict() if hasattr(value, "as_dict") else None,
        "direction": "neutral",
        "scale": scale,
        "interpretation": interpretation,
    }


def _strata(runs: Sequence[Entry], *, across_tasks: bool) -> Iterator[tuple[str | None, list[Entry]]]:
    """The strata by name; None for the name where there is one only."""
    named = [stratum_of({**run, "task": None} if across_tasks else run) for run in runs]
    found = grouped(runs, named)
    for stratum, own in found.items():
        yield stratum if len(found) > 1 else None, own


def _variances(evaluators: Mapping[str, Any], runs: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    if len({str(run["task"]) for run in runs}) < 2:
        return
    from pytest_proteus.measure.variance import variance_components

    for stratum, own in _strata(runs, across_tasks=True):
        for name in evaluators:
            found = variance_components(
                [score_at(run, name) for run in own],
                seeds=[str(run["seed"]) for run in own],
                tasks=[str(run["task"]) for run in own],
                arms=[run["arm"] for run in own],
            )
            yield _entry(f"variance {name}", stratum, found, "squared units of the score", VARIANCE)


def visible_and_hidden(evaluators: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(visible, hidden) evaluators of one thing: declared by ``checks``, or called ``x@observe`` and ``x@hidden``."""
    found = {
        (str(entry["checks"]), name): None
        for name, entry in evaluators.items()
        if entry.get("checks") in evaluators
    }  # fmt: skip
    for name in evaluators:
        stem, at, visibility = name.rpartition("@")
        if at and visibility == "observe" and f"{stem}@hidden" in evaluators:
            found[name, f"{stem}@hidden"] = None
    return list(found)


def _gaps(evaluators: Mapping[str, Any], runs: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    pairs = visible_and_hidden(evaluators)
    if not pairs:
        return
    from pytest_proteus.measure.goodhart import goodhart_gap
    from pytest_proteus.measure.metrics import metric_of
    from pytest_proteus.measure.unavailable import Unavailable

    for visible, hidden in pairs:
        metrics = [metric_of(name, evaluators) for name in (visible, hidden)]
        told = {metric.direction for metric in metrics if metric is not None} - {"neutral"}
        direction = min(told) if told else "higher"
        for stratum, own in _strata(runs, across_tasks=False):
            for arm, listed in grouped(own, [str(run["arm"]) for run in own]).items():
                found: Any = Unavailable("not_measured", f"{visible!r} and {hidden!r} have opposite directions")
                if len(told) < 2:
                    courses = ([_course(run, name) for run in listed] for name in (visible, hidden))
                    found = goodhart_gap(*courses, direction=direction)
                name = f"gap {visible} / {hidden}[{arm}]"
                yield _entry(name, stratum, found, "score that is shown - score that is hidden", GAP)


def _course(run: Entry, evaluator: str) -> list[float | None]:
    """The score of every planned episode, None where there is none."""
    return [score_at(run, evaluator, episode) for episode in range(run["episodes_planned"] or 0)]


def _rankings(evaluators: Mapping[str, Any], runs: Sequence[Entry], goal: str) -> Iterator[dict[str, Any]]:
    """The variants of each task, in a sweep that has a gate."""
    if not any(told.get("kind") == "gate" for told in evaluators.values()):
        return
    from pytest_proteus.measure.ranking import attempt, by_task, entry, kinds_of, was_stopped

    kinds = kinds_of(evaluators)
    told = [{**run, "stopped": was_stopped(str((run["error"] or {}).get("message") or ""))} for run in runs]
    found = by_task([(run["task"], attempt(run, _last_results(run), kinds)) for run in told], goal)
    for task, ranking in found.items():
        yield entry(task, ranking)


def _last_results(run: Entry) -> dict[str, dict[str, Any]]:
    """What each evaluator said at the last planned episode; nothing of a run that did not get there."""
    at = (run["episodes_planned"] or 0) - 1
    return {
        name: {
            "score": told["scores"][at],
            "passed": told["passed"][at],
            "error": told["errors"][at] is not None,
            "data": told["last_data"] if at + 1 == len(told["scores"]) else None,
        }
        for name, told in run["evaluators"].items()
        if 0 <= at < len(told["scores"]) and told["errors"][at] != "no result"
    }
