"""Which variant of a task is better: every variant in one group, with its numbers, and a rank where it has earned one.

A variant is what its runs share beside the seed: harness, arm, model and further axes. The fixture, the command line
and the report call ``rank``; none of them has arithmetic of its own. Nothing is read here and nothing written.

Averages over successful runs alone crown a variant that passes one time in ten. So each variant also has its success
rate and what a success costs with all the attempts that failed; a variant with a decidedly lower success rate never
stands above another, and variants whose intervals overlap share a rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_proteus.core.errors import GRADED, ConfigurationError
from pytest_proteus.core.goal import task_hash
from pytest_proteus.measure.summary import (
    Estimate,
    Interval,
    Observation,
    Summary,
    estimate,
    fieller_terms,
    number,
    summarise,
    t_interval,
)
from pytest_proteus.measure.unavailable import Finding, Result, Unavailable

__all__ = [
    "GROUPS",
    "RANK_BY",
    "Attempt",
    "Ranking",
    "RatioEstimate",
    "Variant",
    "attempt",
    "by_task",
    "entry",
    "kinds_of",
    "labels_of",
    "last_results",
    "rank",
    "rankings",
    "ratio_estimate",
    "task_hash",
    "told_of",
    "variant_of",
    "was_stopped",
]

#: What variants can be ranked by → which values are better.
RANK_BY = {
    "composite": "lower",
    "tokens": "lower",
    "wallclock": "lower",
    "score": "higher",
    "cost_per_success": "lower",
}
GROUPS = ("ranked", "failed", "ungated", "unscored")
#: ``rank_by`` that is a mean over successful runs → name of the metric.
_MEANS = {"tokens": "total_tokens", "wallclock": "wallclock", "score": "score"}
#: How the error of a run begins that the session stopped; see ``core.episode``.
_STOPPED = "stopped before episode"
#: States of runs that cost something, whatever became of them.
_SPENT = (*GRADED, "errored", "lost")
#: Metrics that every attempt has a place for.
METRICS = ("total_tokens", "cost_usd", "wallclock", "score", "goal_aligned_ratio")
#: Those that an attempt takes, whatever becomes of it.
_COSTS = METRICS[:3]


@dataclass(frozen=True)
class Attempt:
    """One run of a variant.

    Args:
        labels: axis → label of whatever tells variants apart.
        state: how the run ended, one of ``core.errors.STATES``.
        gate: ``passed``, ``failed``, or ``none`` where there is no verdict.
        score_state: ``scored``, ``not_scored:"trivial"``, ``pending``; empty where no judge is attached.
        metrics: name → number, None where it is missing; see ``METRICS``.
        run_id: its id.
        seed: its seed.
    """

    labels: Mapping[str, str]
    state: str
    gate: str = "none"
    score_state: str = ""
    metrics: Mapping[str, float | None] | None = None
    run_id: str = ""
    seed: Any = None

    @property
    def variant(self) -> str:
        """Its name."""
        return variant_of(self.labels)


def attempt(
    run: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, str],
) -> Attempt:
    """An attempt from what is known of a run.

    Args:
        run: ``harness``, ``arm``, ``model``, ``axes``, ``seed``, ``run_id``, ``state``, ``seconds``, ``usage``; whether
            its last tree was ``refused``, and whether the session ``stopped`` it.
        results: evaluator → its result at the last planned episode, where the run got there: ``score``, ``passed``,
            ``error`` and ``data``.
        kinds: evaluator → its kind. Those of kind ``gate`` decide whether the run is a success, all of them together;
            the first one of kind ``judge`` gives the score.
    """
    usage = run.get("usage")
    state = str(run.get("state") or "not_run").partition(":")[0]
    judged = next((results[name] for name, kind in kinds.items() if kind == "judge" and name in results), None)
    has_judge = "judge" in kinds.values()
    data = dict((judged or {}).get("data") or {})
    override = dict(data.get("override") or {})
    scored = judged is not None and not judged.get("error")
    score = number(data.get("score", (judged or {}).get("score"))) if scored else None
    ratio = number(data.get("goal_aligned_ratio", score)) if scored else None
    if override:  # an operator's word counts, whatever the judge said
        score, ratio = number(override.get("score")), number(override.get("goal_aligned_ratio", ratio))
    metrics = {
        "total_tokens": number(_field(usage, "total_tokens")),
        "cost_usd": number(_field(usage, "cost_usd")),
        "wallclock": number(run.get("seconds")),
        "score": score,
        "goal_aligned_ratio": ratio,
    }
    for name, kind in kinds.items():
        if kind == "route":
            found = results.get(name) or {}
            metrics[name] = None if found.get("error") else number(found.get("score"))
    return Attempt(
        labels=labels_of(run),
        state=state,
        gate=_gate(run, state, [results.get(name) for name, kind in kinds.items() if kind == "gate"]),
        score_state=_score_state(data, score) if has_judge else "",
        metrics=metrics,
        run_id=str(run.get("run_id") or ""),
        seed=run.get("seed"),
    )


def labels_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Axis → label of what makes a run's variant."""
    labels = {axis: str(run.get(axis) or "") for axis in ("harness", "arm", "model")}
    further = sorted(dict(run.get("axes") or {}).items())
    return {**labels, **{str(axis): f"{axis}={label}" for axis, label in further}}


def variant_of(labels: Mapping[str, str]) -> str:
    """Name of a variant: its labels with ``/`` between them."""
    return "/".join(label for label in labels.values() if label) or "(unknown)"


def _score_state(data: Mapping[str, Any], score: float | None) -> str:
    if data.get("override"):
        return "scored"
    return str(data.get("state") or ("scored" if score is not None else "pending"))


def _field(usage: Any, name: str) -> Any:
    return usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)


def _gate(run: Mapping[str, Any], state: str, found: Sequence[Mapping[str, Any] | None]) -> str:
    """The verdict of a run's gates. What an agent can bring about itself, so as to be judged by no gate, is a failure:
    time that runs out, an end before the end, a tree that cannot be kept. That the session was stopped is none."""
    if not found or state not in GRADED or run.get("stopped"):
        return "none"
    if state in ("timeout", "abort") or run.get("refused"):
        return "failed"
    told = [one for one in found if one is not None and not one.get("error")]
    if any(not one.get("passed") for one in told):
        return "failed"
    return "passed" if len(told) == len(found) else "none"


# --- of a sweep -------------------------------------------------------------------------------------------------------


def rankings(
    runs: Iterable[Any], manifest: Mapping[str, Any], *, rank_by: str = "composite"
) -> dict[str | None, Ranking]:
    """Task → the comparison of the variants that tried it; one, whose task is None, for a sweep without tasks.

    Args:
        runs: finished runs, as ``sweep.runs`` has them.
        manifest: of their sweep: its ``goal``, and the kind of each of its ``evaluators``.
        rank_by: one of ``RANK_BY``.

    Raises:
        RecordError: the records of a run cannot be read.
    """
    kinds = kinds_of(manifest.get("evaluators"))
    found = [(run.task, attempt(told_of(run), last_results(run), kinds)) for run in runs]
    return by_task(found, str(manifest.get("goal") or ""), rank_by=rank_by)


def kinds_of(evaluators: Any) -> dict[str, str]:
    """Evaluator → its kind, from a mapping of names, or from the list that older manifests have."""
    if isinstance(evaluators, Mapping):
        listed = [(name, told) for name, told in evaluators.items()]
    else:
        listed = [(told.get("name"), told) for told in evaluators or () if isinstance(told, Mapping)]
    return {str(name): str(told.get("kind") or "") if isinstance(told, Mapping) else "" for name, told in listed}


def told_of(run: Any) -> dict[str, Any]:
    """What ``attempt`` needs of a finished run."""
    names = ("harness", "arm", "model", "axes", "seed", "run_id", "state", "seconds", "usage")
    last = [record for record in run.records if record["episode"] == run.episodes]
    refused = any(record.get("failure_kind") for record in last)
    return {**{name: getattr(run, name) for name in names}, "refused": refused, "stopped": was_stopped(run.error)}


def was_stopped(error: str) -> bool:
    """Whether a run was cut short because the session was asked to stop, by what it ended with."""
    return error.startswith(_STOPPED)


def last_results(run: Any) -> dict[str, Mapping[str, Any]]:
    """The results at the last planned episode; none of a run that did not get there."""
    found = [record for record in run.records if record["episode"] == run.episodes]
    return {result["name"]: result for record in found for result in record.get("results") or ()}


def by_task(
    attempts: Iterable[tuple[str | None, Attempt]], goal: str, *, rank_by: str = "composite"
) -> dict[str | None, Ranking]:
    """Task → the comparison of the attempts at it."""
    grouped: dict[str | None, list[Attempt]] = {}
    for task, one in attempts:
        grouped.setdefault(task or None, []).append(one)
    return {task: rank(own, task_hash(goal, task), rank_by=rank_by) for task, own in grouped.items()}


def entry(task: str | None, found: Ranking) -> dict[str, Any]:
    """The report's entry of a comparison."""
    return {
        "name": "ranking",
        "stratum": task,
        "value": found.to_json(),
        "unavailable": None,
        "direction": found.direction,
        "scale": f"variants by {found.rank_by}",
        "interpretation": "which variant of the task is better; ranks are shared where intervals overlap, and what did "
        "not pass, has no verdict or no score stands apart with its reason",
    }


# --- ratios of means --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RatioEstimate(Result):
    """A mean divided by a mean, over the same runs.

    Args:
        value: the ratio.
        interval: Fieller's interval, open above (infinite) where the divisor cannot be told from zero.
        n: runs that have both numbers.
        n_missing: runs that lack one of them.
        unit: what is divided by what.
    """

    value: float
    interval: Interval | Unavailable
    n: int
    n_missing: int
    unit: str


def ratio_estimate(
    pairs: Sequence[tuple[float | None, float | None]], level: float, unit: str
) -> RatioEstimate | Unavailable:
    """Mean of the firsts ÷ mean of the seconds, over the pairs that have both; all numbers are 0 or more.

    The interval is Fieller's (1954) with n - 1 degrees of freedom: those r for which the mean of first - r · second
    is not told from zero. With seconds that are all 1 it is Student's interval of the mean of the firsts.

    Args:
        pairs: (dividend, divisor) of each run.
        level: coverage of the interval.
        unit: what is divided by what, for readers.
    """
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    n, missing = len(known), len(pairs) - len(known)
    if not known:
        return Unavailable("no_values", f"none of {missing} runs has both numbers" if missing else "", 0)
    above, below = math.fsum(a for a, _ in known) / n, math.fsum(b for _, b in known) / n
    if below <= 0:
        return Unavailable("not_positive", f"the mean of what is divided by ({unit}) is {below:g}", n)
    return RatioEstimate(above / below, _fieller(known, level), n, missing, unit)


def _fieller(pairs: Sequence[tuple[float, float]], level: float) -> Interval | Unavailable:
    n = len(pairs)
    if n < 2:
        return Unavailable("n_below_minimum", "a single run has no spread", n)
    if all(pair == pairs[0] for pair in pairs):
        return Unavailable("identical_values", n=n)
    a, b, c = fieller_terms([top for top, _ in pairs], [bottom for _, bottom in pairs], level)
    root = b * b - a * c
    if a > 0:
        far = math.sqrt(max(root, 0.0))
        return Interval("fieller", level, max(0.0, (b - far) / a), (b + far) / a)
    note = "open above: the divisor cannot be told from zero"
    low = 0.0
    if c > 0:  # zero is no such ratio: they begin at the positive root
        low = (b - math.sqrt(root)) / a if a else c / (2 * b)
    return Interval("fieller", level, max(0.0, low), math.inf, note)


# --- variants ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant(Result):
    """One variant in the comparison.

    Args:
        variant: its name.
        labels: axis → label.
        group: ``ranked``, ``failed`` (no attempt passed the gate), ``ungated`` (no attempt has a verdict) or
            ``unscored`` (some passed, and what ranks is not known of them).
        reason: why it is in that group; empty for ``ranked``.
        rank: 1 is best; None outside of ``ranked``. Equal ranks are ties.
        tied_with: ranked variants that it cannot be told apart from by ``value``.
        value: what it is ranked by.
        interval: the interval of ``value``.
        runs: planned runs.
        attempts: runs with a verdict.
        successes: runs that passed.
        states: state → number of runs.
        score_states: state of the judge's score → number of runs; empty without a judge.
        success_rate: successes / attempts with Wilson's interval; ``with_missing`` counts runs without a verdict as
            failures for its lower and successes for its upper end.
        cost_per_success: what all runs cost together, failed, timed out and crashed ones included, for each success.
        composite: mean total tokens ÷ mean goal-aligned ratio, over successful runs that have both; lower is better.
        metrics: name → description over successful runs.
        attempted: the same of ``total_tokens``, ``cost_usd`` and ``wallclock`` over all runs that began.
        run_ids: ids of its runs.
    """

    variant: str
    labels: Mapping[str, str]
    group: str
    reason: str
    rank: int | None
    tied_with: tuple[str, ...]
    value: float | Unavailable
    interval: Interval | Unavailable
    runs: int
    attempts: int
    successes: int
    states: Mapping[str, int]
    score_states: Mapping[str, int]
    success_rate: Estimate | Unavailable
    cost_per_success: RatioEstimate | Unavailable
    composite: RatioEstimate | Unavailable
    metrics: Mapping[str, Summary]
    attempted: Mapping[str, Summary]
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Ranking(Finding):
    """The variants of one task.

    Args:
        task_hash: see ``task_hash``.
        rank_by: one of ``RANK_BY``.
        direction: which values of it are better.
        level: coverage of all intervals.
        cost_unit: ``usd`` where the price of every run is known, else ``tokens``.
        ranked: best first.
        failed, ungated, unscored: by name, each with its reason.
        warnings: what a reader of the ranks must know.
    """

    task_hash: str
    rank_by: str
    direction: str
    level: float
    cost_unit: str
    ranked: tuple[Variant, ...]
    failed: tuple[Variant, ...]
    ungated: tuple[Variant, ...]
    unscored: tuple[Variant, ...]
    warnings: tuple[str, ...]
    given: tuple[Attempt, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data; the single attempts are left to the runs of the report."""
        told = super().to_json()
        del told["given"]
        return told

    @property
    def finding(self) -> str:
        """What was found, in a sentence."""
        if self.ranked:
            best = [one.variant for one in self.ranked if one.rank == 1]
            told = f"{best[0]} is best by {self.rank_by}" if len(best) == 1 else f"{', '.join(best)} tie"
            return "; ".join([told, *self.warnings])
        if self.unscored:
            return f"nothing is ranked: variants passed the gate, but their {self.rank_by} is not known"
        return "nothing is ranked: no variant passed the gate"

    def variants(self) -> list[Variant]:
        """All of them, group by group."""
        return [one for group in GROUPS for one in getattr(self, group)]

    def variant(self, name: str) -> Variant:
        """The variant of that name.

        Raises:
            LookupError: there is none.
        """
        found = {one.variant: one for one in self.variants()}
        if name not in found:
            raise LookupError(f"no variant is called {name!r}; there are {', '.join(sorted(found)) or 'none'}")
        return found[name]

    def by(self, rank_by: str) -> Ranking:
        """The same variants ranked by something else."""
        return rank(self.given, self.task_hash, rank_by=rank_by, level=self.level)


def rank(attempts: Iterable[Attempt], task_hash: str, *, rank_by: str = "composite", level: float = 0.9) -> Ranking:
    """Compare the variants that tried one task.

    A variant's rank is 1 + the longest chain of variants above it, each decidedly better than the next: by an interval
    of ``rank_by`` that lies wholly on the better side, or by a success rate whose interval does. Where the two
    contradict each other the success rate counts, and a warning says so.

    Args:
        attempts: every run of the task.
        task_hash: what the runs have in common.
        rank_by: one of ``RANK_BY``.
        level: coverage of the intervals; at 0.9 each end is a one-sided test at 0.05.

    Raises:
        ConfigurationError: an unknown ``rank_by``.
    """
    if rank_by not in RANK_BY:
        raise ConfigurationError(f"rank_by={rank_by!r} is not known; write one of {', '.join(RANK_BY)}")
    given = tuple(attempts)
    spent = [one for one in given if one.state in _SPENT]
    unit = "usd" if spent and all(_metric(one, "cost_usd") is not None for one in spent) else "tokens"
    grouped: dict[str, list[Attempt]] = {}
    for one in given:
        grouped.setdefault(one.variant, []).append(one)
    found = [_described(name, own, rank_by, unit, level) for name, own in sorted(grouped.items())]
    groups = {group: tuple(one for one in found if one.group == group) for group in GROUPS}
    direction = RANK_BY[rank_by]
    ranked, warnings = _ranked(groups.pop("ranked"), direction, rank_by)
    return Ranking(task_hash, rank_by, direction, level, unit, ranked, **groups, warnings=warnings, given=given)


def _metric(one: Attempt, name: str) -> float | None:
    return number((one.metrics or {}).get(name))


def _described(name: str, own: Sequence[Attempt], rank_by: str, unit: str, level: float) -> Variant:
    passed = [one for one in own if one.gate == "passed"]
    spent = [one for one in own if one.state in _SPENT]
    names = list(dict.fromkeys([*METRICS, *(metric for one in own for metric in one.metrics or {})]))
    composite = ratio_estimate(
        [(_metric(one, "total_tokens"), _metric(one, "goal_aligned_ratio")) for one in passed],
        level,
        "total tokens / goal-aligned ratio",
    )
    made = Variant(
        variant=name,
        labels={axis: label for axis, label in own[0].labels.items() if label},
        group="ranked",
        reason="",
        rank=None,
        tied_with=(),
        value=Unavailable("no_values", n=0),
        interval=Unavailable("no_values", n=0),
        runs=len(own),
        attempts=sum(one.gate != "none" for one in own),
        successes=len(passed),
        states=dict(sorted(Counter(one.state for one in own).items())),
        score_states=dict(sorted(Counter(one.score_state for one in own if one.score_state).items())),
        success_rate=_rate(own, level),
        cost_per_success=_cost(spent, unit, level),
        composite=composite,
        metrics={metric: summarise([(one.metrics or {}).get(metric) for one in passed]) for metric in names},
        attempted={metric: summarise([(one.metrics or {}).get(metric) for one in spent]) for metric in _COSTS},
        run_ids=tuple(one.run_id for one in own),
    )
    value, interval = _value(made, passed, rank_by, level)
    group, reason = _grouped(made, value, rank_by)
    return replace(made, group=group, reason=reason, value=value, interval=interval)


def _rate(own: Sequence[Attempt], level: float) -> Estimate | Unavailable:
    verdicts = [None if one.gate == "none" else float(one.gate == "passed") for one in own]
    seen = [
        Observation(value, one.labels.get("harness"), one.labels.get("arm"), one.seed, one.run_id)
        for value, one in zip(verdicts, own, strict=True)
    ]
    return estimate(
        verdicts,
        kind="binary",
        bounds=(0.0, 1.0),
        level=level,
        direction="higher",
        scale="share of attempts that passed the gate, 0 to 1",
        observations=seen,
    )


def _cost(spent: Sequence[Attempt], unit: str, level: float) -> RatioEstimate | Unavailable:
    """What all of ``spent`` cost for each success; one run of unknown cost makes the sum unknown."""
    name = "cost_usd" if unit == "usd" else "total_tokens"
    pairs = [(_metric(one, name), float(one.gate == "passed")) for one in spent]
    unknown = sum(cost is None for cost, _ in pairs)
    if unknown:
        return Unavailable("missing_runs", f"{unknown} of {len(pairs)} runs that began have no {name}", len(pairs))
    if pairs and not any(success for _, success in pairs):
        return Unavailable("not_positive", "no run succeeded, so a success has no cost", len(pairs))
    return ratio_estimate(pairs, level, f"{unit} of all runs / success")


def _value(
    made: Variant, passed: Sequence[Attempt], rank_by: str, level: float
) -> tuple[float | Unavailable, Interval | Unavailable]:
    if rank_by in _MEANS:
        summary = made.metrics[_MEANS[rank_by]]
        known = [value for one in passed if (value := _metric(one, _MEANS[rank_by])) is not None]
        return summary.mean, t_interval(known, level) if known else Unavailable("no_values", n=0)
    ratio = made.composite if rank_by == "composite" else made.cost_per_success
    return (ratio, ratio) if isinstance(ratio, Unavailable) else (ratio.value, ratio.interval)


def _grouped(made: Variant, value: float | Unavailable, rank_by: str) -> tuple[str, str]:
    ends = ", ".join(f"{count} {state}" for state, count in made.states.items())
    if not made.attempts:
        return "ungated", f"none of its runs has a verdict of a gate ({ends})"
    if not made.successes:
        return "failed", f"none of {made.attempts} attempts passed the gate ({ends})"
    if isinstance(value, Unavailable):
        return "unscored", f"{rank_by} is not known of its successful runs: {_why_unscored(made, value, rank_by)}"
    return "ranked", ""


def _why_unscored(made: Variant, value: Unavailable, rank_by: str) -> str:
    wanted = {"composite": ("total_tokens", "goal_aligned_ratio"), **{k: (v,) for k, v in _MEANS.items()}}
    gone = [name for name in wanted.get(rank_by, ()) if not made.metrics[name].n]
    if not gone:
        return str(value.as_dict()["detail"])
    judged = ", ".join(f"{count} {state}" for state, count in made.score_states.items())
    of_judge = f" (scores: {judged or 'no judge'})" if set(gone) & {"score", "goal_aligned_ratio"} else ""
    return f"none has {' nor '.join(gone)}{of_judge}"


# --- ranks ------------------------------------------------------------------------------------------------------------


def _ranked(found: Sequence[Variant], direction: str, rank_by: str) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    sign = 1.0 if direction == "lower" else -1.0

    def badness(one: Variant) -> float:
        return sign * float(one.value)

    order: list[Variant] = []
    left = sorted(found, key=lambda one: (badness(one), one.variant))
    while left:  # the best one of those that no other is decidedly more successful than
        order.append(next(one for one in left if not any(_succeeds_more(other, one) for other in left)))
        left.remove(order[-1])
    ranks: dict[str, int] = {}
    for at, one in enumerate(order):
        above = [ranks[other.variant] for other in order[:at] if _beats(other, one, sign)]
        ranks[one.variant] = 1 + max(above, default=0)
    placed = [
        replace(
            one,
            rank=ranks[one.variant],
            tied_with=tuple(
                other.variant
                for other in order
                if other is not one and not _beats(other, one, sign) and not _beats(one, other, sign)
            ),
        )
        for one in order
    ]
    placed.sort(key=lambda one: one.rank or 0)  # stable: within a rank as they were
    warnings = tuple(
        f"{one.variant} has the better {rank_by}, but succeeds in {one.successes} of {one.attempts} attempts where "
        f"{other.variant} does in {other.successes} of {other.attempts}: it stands below"
        for one in order
        for other in order
        if badness(one) < badness(other) and _succeeds_more(other, one)
    )
    return tuple(placed), warnings


def _beats(one: Variant, other: Variant, sign: float) -> bool:
    """Whether ``one`` is decidedly better: more successful, or of a better value and not decidedly less successful."""
    if _succeeds_more(one, other) or _succeeds_more(other, one):
        return _succeeds_more(one, other)
    return _below(one.interval, other.interval) if sign > 0 else _below(other.interval, one.interval)


def _succeeds_more(one: Variant, other: Variant) -> bool:
    return _below(_rate_interval(other), _rate_interval(one))


def _rate_interval(one: Variant) -> Interval | Unavailable:
    rate = one.success_rate
    return rate if isinstance(rate, Unavailable) else rate.with_missing


def _below(one: Interval | Unavailable, other: Interval | Unavailable) -> bool:
    """Whether all of an interval lies below all of another; without both nothing is decided."""
    return isinstance(one, Interval) and isinstance(other, Interval) and one.high < other.low
