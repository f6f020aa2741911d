"""Is a candidate worse than a baseline by more than a margin? A verdict whose error rates are known, or none.

Both sides give one value a run; runs of the same harness, seed and task are pairs. A pass and a fail are two tests,
each at its own level: a candidate that is worse than the margin passes with probability alpha at most, one that is not
fails with probability alpha at most, and whatever neither test refutes is undecided. Nothing is read or run here, and
what a verdict does to a pull request is decided elsewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_proteus.measure import betting
from pytest_proteus.measure.claims import Claim, Question
from pytest_proteus.measure.power import POWER, detectable, pairs_needed
from pytest_proteus.measure.samples import ROUNDING, Given, Pair, Paired, Unpaired
from pytest_proteus.measure.summary import Bounds, Interval
from pytest_proteus.measure.unavailable import REASONS, Result, Unavailable

__all__ = ["ASSUMED", "MISSING", "Comparison", "Pair", "compare", "decide"]

#: The largest share of missing pairs with which a verdict is given.
MISSING = 0.2
#: Method → what has to hold for its error rates to do so.
ASSUMED = {
    "sign-flip": "differences of pairs are symmetric about their mean",
    "t": "differences of pairs are normally distributed",
    "welch": "runs are not paired; the mean of either side is normally distributed",
    "betting": "values lie within {}, and nothing else",
    "deterministic": "the same run always gives the same value",
}


@dataclass(frozen=True)
class Comparison(Result):
    """What is known of a candidate beside its baseline.

    Args:
        verdict: ``pass``, ``fail``, ``undecided``, or ``unavailable`` where there is nothing to compare.
        reason: why it is neither a pass nor a fail, one of ``REASONS``; empty otherwise.
        detail: that reason in a sentence, for this case.
        kind: ``noninferior``, ``superior`` or ``equivalent``.
        direction: which values are better.
        scale: ``difference`` or ``log``.
        margin: as declared.
        relative: whether the margin is a share of the baseline.
        alpha: level of the pass and of the fail, each.
        baseline_mean: mean of the baseline's paired values, the geometric one on the log scale.
        candidate_mean: the same of the candidate.
        effect: candidate - baseline, whichever direction is better; on the log scale their ratio - 1.
        effect_percent: the same in percent of the baseline.
        d_z: mean difference in standard deviations of the differences.
        p_better: probability that the candidate's value of a pair is the better one (larger, for a neutral metric), a
            tie counted as one half.
        interval: of ``effect``; each of its ends is a test at alpha.
        interval_percent: of ``effect_percent``, of the ratio of the means; what a margin in percent is held against.
        p_pass: p of the claim that the margin is kept.
        p_fail: p of the claim that it is not.
        p_adjusted: ``p_fail`` corrected for the other gates of its family; unavailable until that is done.
        p_min: the smallest ``p_pass`` that so many pairs can give.
        mde: how far the true effect has to be from the margin to be told from it with power 0.8, in units of
            ``effect``; for ``betting`` that of differences that do not vary.
        n_needed: pairs with which a verdict has power 0.8: for a margin that is allowed if nothing changed, and where
            so many pairs were not enough, or a gain is asked for, if the effect is what it was here. For ``betting``
            the pairs that decide it if further ones are like these.
        rare_event_bound: a failure more frequent than this would have been seen among n pairs with probability
            1 - alpha; rarer ones no method sees.
        n: pairs (clusters of pairs) that count as independent; without pairs, values of the smaller side.
        n_missing: pairs of which one value or both are missing.
        n_unpaired: keys that one side alone has, left out because others are paired.
        paired: whether runs were compared with their own pair.
        method: ``sign-flip``, ``t``, ``welch``, ``betting`` or ``deterministic``; empty where nothing was tested.
        assumption: what has to hold for the error rates to do so.
        pairs: the values it came from, missing ones included.
    """

    verdict: str
    reason: str
    detail: str
    kind: str
    direction: str
    scale: str
    margin: float
    relative: bool
    alpha: float
    baseline_mean: float | Unavailable
    candidate_mean: float | Unavailable
    effect: float | Unavailable
    effect_percent: float | Unavailable
    d_z: float | Unavailable
    p_better: float | Unavailable
    interval: Interval | Unavailable
    interval_percent: Interval | Unavailable
    p_pass: float | Unavailable
    p_fail: float | Unavailable
    p_adjusted: float | Unavailable
    p_min: float | Unavailable
    mde: float | Unavailable
    n_needed: int | Unavailable
    rare_event_bound: float | Unavailable
    n: int
    n_missing: int
    n_unpaired: int
    paired: bool
    method: str
    assumption: str
    pairs: tuple[Pair, ...]

    def __bool__(self) -> bool:
        raise TypeError("a Comparison is neither true nor false; compare its .verdict, or give it to a gate")

    def __str__(self) -> str:
        margin = f"{self.margin:.6g}" if not (self.relative or self.scale == "log") else f"{self.margin:.6g} (share)"
        said = [f"{self.kind} by a margin of {margin}: {self.verdict}"]
        if self.detail:
            said.append(self.detail)
        if isinstance(self.effect, float):
            percent = f" ({self.effect_percent:+.3g} %)" if isinstance(self.effect_percent, float) else ""
            said.append(f"effect {self.effect:+.4g}{percent}")
        for name, ends, unit in (("interval", self.interval, ""), ("in percent", self.interval_percent, " %")):
            if isinstance(ends, Interval):
                said.append(f"{ends.level:.3g} {name} {ends.low:.4g} to {ends.high:.4g}{unit}")
        if isinstance(self.mde, float):
            said.append(f"smallest effect told at power {POWER}: {self.mde:.4g}")
        if self.verdict == "undecided" and isinstance(self.n_needed, int):
            said.append(f"n needed: {self.n_needed}")
        if self.verdict == "pass" and isinstance(self.rare_event_bound, float):
            said.append(f"blind to failures rarer than {self.rare_event_bound:.1%}")
        said.append(f"alpha {self.alpha:g}, n = {self.n}" + (f", {self.n_missing} missing" if self.n_missing else ""))
        return "; ".join(said) + (f". Assumed: {self.assumption}" if self.assumption else "")


def compare(
    baseline: Mapping[Hashable, Any],
    candidate: Mapping[Hashable, Any],
    *,
    direction: str,
    margin: float,
    kind: str = "noninferior",
    relative: bool = False,
    scale: str = "difference",
    assume: str = "symmetric",
    bounds: Bounds | None = None,
    alpha: float = 0.05,
    clusters: Mapping[Hashable, Hashable] | None = None,
) -> Comparison:
    """Compare the values of a candidate with those of a baseline.

    Runs are pairs where their key is on both sides; keys of one side alone are then left out. Where no key is on both,
    the two means are compared by Welch's t.

    Args:
        baseline: key (harness, seed, task, …) of each run → its value; whatever is no finite number is missing. Give a
            run that was planned and has no value as None, or nobody knows that it is missing.
        candidate: the same.
        direction: ``higher`` or ``lower`` when that is better, ``neutral`` when neither is.
        margin: what still counts as no worse, above 0; for ``superior`` what has to be gained, 0 or more. In units of
            the metric.
        kind: ``noninferior`` (not worse than the margin), ``superior`` (better than the margin), or ``equivalent``
            (neither worse nor better than the margin: both one-sided tests have to pass, Schuirmann 1987; a fail has
            two ways to come about and pays for both).
        relative: whether the margin is a share of the baseline's mean: 0.1 is 10 %.
        scale: ``difference``, or ``log`` for values above zero that vary in proportion, such as tokens: the ratio of
            the geometric means is compared, and the margin is a share: 0.1 allows a ratio of 1.1, or of 1 / 1.1.
        assume: ``symmetric`` (differences are symmetric about their mean: the sign-flip test), ``normal`` (Student's
            t, the only one for two to four pairs, and often wrong there), ``bounded`` (nothing but ``bounds``: betting,
            which takes many pairs), or ``deterministic`` (the same run gives the same value: what differs, differs).
        bounds: smallest and largest possible value. A value outside of them makes the comparison
            unavailable. With both, missing values are filled in at their worst and at
            their best, and a verdict that this turns is undecided; and differences of which more than half are equal,
            which otherwise decide nothing, are tested by betting.
        alpha: level of the pass and of the fail, each; the interval has level 1 - 2 alpha.
        clusters: key → cluster (such as the seed of several tasks): the mean of a cluster is then what counts as one
            value. A key that is not in it is a cluster of its own.

    Raises:
        ConfigurationError: arguments that contradict each other.
    """
    question = Question(direction, kind, float(margin), relative, scale, assume, bounds, alpha)
    return decide(Given.of(question, baseline, candidate, clusters or {}))


def decide(given: Given) -> Comparison:
    """The comparison of values that are put together already."""
    if given.unusable is not None:
        return _made(given, "unavailable", 0, given.unusable, given.unusable)
    sample = Paired(given) if given.paired else Unpaired(given)
    if sample.n == 0:
        said = "no pair has both of its values" if given.paired else "one side has no value at all"
        why = Unavailable("no_values", said, 0)
        return _made(given, "unavailable", 0, why, why)
    return _Answer(given, sample).verdict()


def _made(
    given: Given, verdict: str, n: int, why: Unavailable | None, otherwise: Unavailable, **found: Any
) -> Comparison:
    """A comparison; ``otherwise`` is why the fields that are not found are not."""
    ask = given.question
    fields: dict[str, Any] = dict.fromkeys(_COMPUTED, otherwise)
    fields["p_adjusted"] = Unavailable("not_measured", "no family of gates was declared", n)
    return Comparison(
        verdict=verdict,
        reason="" if why is None else why.reason,
        detail="" if why is None else why.as_dict()["detail"],
        kind=ask.kind,
        direction=ask.direction,
        scale=ask.scale,
        margin=ask.margin,
        relative=ask.relative,
        alpha=ask.alpha,
        n=n,
        n_missing=given.n_missing,
        n_unpaired=given.n_unpaired,
        paired=given.paired,
        pairs=given.pairs,
        **{"method": "", "assumption": "", **fields, **found},
    )


class _Answer:
    """A comparison in the making."""

    def __init__(self, given: Given, sample: Paired | Unpaired) -> None:
        self._given, self._question, self._sample = given, given.question, sample
        self._level = 1 - 2 * self._question.alpha
        self._found = self._described()

    def verdict(self) -> Comparison:
        given = self._given
        if given.share_missing > MISSING:
            said = f"{given.n_missing} of {len(given.rows)} are missing, more than {MISSING:.0%}"
            return self._undecided("missing_fraction", said)
        if self._question.assume == "deterministic":
            return self._exact()
        return self._tested()

    def _decided(self, verdict: str, otherwise: str) -> Comparison:
        n = self._sample.n
        return _made(self._given, verdict, n, None, Unavailable(otherwise, n=n), **self._found)

    def _undecided(self, reason: str, detail: str = "") -> Comparison:
        why = Unavailable(reason, detail, self._sample.n)
        return _made(self._given, "undecided", why.n or 0, why, why, **self._found)

    def _back(self, value: float) -> float:
        """From the scale of the question to the unit of ``effect``."""
        return math.expm1(value) if self._question.scale == "log" else value

    def _described(self) -> dict[str, Any]:
        """What can be said without a test."""
        sample, log = self._sample, self._question.scale == "log"
        means = [statistics.fmean(side) for side in (sample.baseline, sample.candidate)]
        effect = self._back(sample.effect())
        percent: float | Unavailable = Unavailable("not_positive", n=sample.n)
        if log or means[0] > 0:
            percent = 100 * (effect if log else effect / means[0])
        return {
            "baseline_mean": math.exp(means[0]) if log else means[0],
            "candidate_mean": math.exp(means[1]) if log else means[1],
            "effect": effect,
            "effect_percent": percent,
            "d_z": sample.d_z(),
            "p_better": sample.p_better(),
            "rare_event_bound": 1 - self._question.alpha ** (1 / sample.n),
        }

    def _exact(self) -> Comparison:
        """Values that have no spread are compared as they are."""
        sample, ask = self._sample, self._question
        means = [statistics.fmean(side) for side in (sample.baseline, sample.candidate)]
        slacks = [ask.slack(claim, *means) for claim in ask.claims]
        near = ROUNDING * self._given.magnitude
        # a margin that is allowed may be used up; one that has to be gained has to be exceeded
        kept = min(slacks) > near if ask.kind == "superior" else min(slacks) >= -near
        none = Unavailable("deterministic", n=sample.n)
        percent = self._found["effect_percent"]
        self._found.update(
            interval=self._point(self._found["effect"]),
            interval_percent=percent if isinstance(percent, Unavailable) else self._point(percent),
            d_z=none,
            p_pass=0.0 if kept else 1.0,
            p_fail=1.0 if kept else 0.0,
            p_min=0.0,
            mde=0.0,
            n_needed=1,
            rare_event_bound=none,
            method="deterministic",
            assumption=ASSUMED["deterministic"],
        )
        return self._decided("pass" if kept else "fail", "deterministic")

    def _point(self, value: float) -> Interval:
        return Interval("deterministic", self._level, value, value, REASONS["deterministic"])

    def _tested(self) -> Comparison:
        """Values with a spread: two tests, one for a pass and one for a fail."""
        sample, ask = self._sample, self._question
        if ask.assume == "bounded" and not self._given.paired:
            return self._undecided("not_paired", "betting compares pairs, and there are none")
        method = sample.method()
        self._found.update(method=method, assumption=self._assumption(method), p_min=sample.p_min(method))
        if sample.n < 2 and method != "betting":
            return self._undecided("n_below_minimum", "one value says nothing of how values vary")
        if method != "betting" and sample.one_value_prevails():
            said = "more than half of them are equal, so they tell nothing about what is rare; declare bounds"
            return self._undecided("degenerate_differences", said)
        self._found.update(
            interval=self._interval(method), interval_percent=self._interval_percent(method), **self._powers(method)
        )
        p_pass, p_fail = self._tests(method, sample.p_of)
        self._found.update(p_pass=p_pass, p_fail=p_fail)
        if p_pass <= ask.alpha or p_fail <= ask.alpha:
            return self._held("pass" if p_pass <= ask.alpha else "fail")
        smallest = self._found["p_min"]
        if smallest > ask.alpha:
            said = (
                f"no outcome of n = {sample.n} could give a p of {ask.alpha:g} or less; the smallest is {smallest:.4g}"
            )
            return self._undecided("p_min_above_alpha", said)
        self._found["n_needed"] = self._more_needed()
        return self._undecided("straddles")

    def _held(self, verdict: str) -> Comparison:
        """The verdict, unless missing values could turn it and their bounds say how far."""
        given, method = self._given, self._found["method"]
        if given.n_missing and self._question.range is not None:
            p_pass, p_fail = self._tests(method, self._sample.p_filled)
            if (p_pass if verdict == "pass" else p_fail) > self._question.alpha:
                return self._undecided("missing_runs", f"{given.n_missing} missing values could turn a {verdict}")
        return self._decided(verdict, "not_measured")

    def _tests(self, method: str, p: Callable[[str, Claim, bool], float]) -> tuple[float, float]:
        """p of a pass, for which all claims have to hold, and of a fail, for which one is enough."""
        claims = self._question.claims
        p_pass = max(p(method, claim, False) for claim in claims)
        return p_pass, min(1.0, len(claims) * min(p(method, claim, True) for claim in claims))

    def _interval(self, method: str) -> Interval | Unavailable:
        found = self._sample.interval(method, self._level)
        if isinstance(found, Unavailable) or self._question.scale == "difference":
            return found
        return Interval(found.method, found.level, self._back(found.low), self._back(found.high), found.note)

    def _interval_percent(self, method: str) -> Interval | Unavailable:
        sample = self._sample
        if self._question.scale == "log":
            found = self._interval(method)
        elif min(sample.baseline) < 0 or max(sample.baseline) <= 0:
            return Unavailable("not_positive", n=sample.n)
        else:
            found = sample.interval_of_ratio(method, self._level)
        if isinstance(found, Unavailable):
            return found
        return Interval(found.method, found.level, 100 * found.low, 100 * found.high, found.note)

    def _powers(self, method: str) -> dict[str, Any]:
        """``mde`` and ``n_needed``."""
        sample, ask = self._sample, self._question
        if method == "betting":
            return self._powers_of_betting()
        stderr, sides = sample.stderr(), len(ask.claims)
        away = self._distance()
        fewest = math.ceil(-math.log2(ask.alpha)) if method == "sign-flip" else 2
        spread = stderr * math.sqrt(sample.n)
        return {
            "mde": abs(self._back(detectable(stderr, 1, alpha=ask.alpha, claims=sides))),
            "n_needed": max(fewest, pairs_needed(spread, away, alpha=ask.alpha, claims=sides))
            if away
            else self._never(),
        }

    def _more_needed(self) -> int | Unavailable:
        """``n_needed`` of what so many pairs left undecided: where no change needs no more, by the effect as it was."""
        sample, ask = self._sample, self._question
        planned: int | Unavailable = self._found["n_needed"]
        if isinstance(planned, Unavailable) or planned > sample.n:
            return planned
        baseline, candidate = (statistics.fmean(side) for side in (sample.baseline, sample.candidate))
        away = min(abs(ask.slack(claim, baseline, candidate)) for claim in ask.claims)
        if away <= ROUNDING * self._given.magnitude:
            return self._never()
        spread = sample.stderr() * math.sqrt(sample.n)
        return max(sample.n + 1, pairs_needed(spread, away, alpha=ask.alpha, claims=len(ask.claims)))

    def _never(self) -> Unavailable:
        said = "the effect is the margin itself, which no number of runs tells from it"
        return Unavailable("straddles", said, self._sample.n)

    def _distance(self) -> float:
        """From the margin to no change, or to the effect that was seen where no change is no pass."""
        sample, ask = self._sample, self._question
        baseline = statistics.fmean(sample.baseline)
        seen = statistics.fmean(sample.candidate) if ask.kind == "superior" else baseline
        return ask.slack(ask.claims[0], baseline, seen)

    def _powers_of_betting(self) -> dict[str, Any]:
        sample, ask = self._sample, self._question
        assert isinstance(sample, Paired)
        passes, fails = [], []
        for claim in ask.claims:
            low, high = ask.slack_range(claim)
            slacks = sample.slacks(claim)
            passes.append(betting.values_needed(slacks, low, ask.alpha))
            fails.append(betting.values_needed([-slack for slack in slacks], -high, ask.alpha / len(ask.claims)))
        needed = min(max(passes), *fails)
        low, high = ask.slack_range(ask.claims[0])
        smallest = betting.smallest_mean(sample.n, low, high, ask.alpha)
        return {
            "mde": Unavailable("p_min_above_alpha", n=sample.n) if smallest is None else abs(self._back(smallest)),
            "n_needed": int(needed)
            if math.isfinite(needed)
            else Unavailable("straddles", "pairs like these decide nothing, however many there are", sample.n),
        }

    def _assumption(self, method: str) -> str:
        if method != "betting":
            return ASSUMED[method]
        because = "" if self._question.assume == "bounded" else ", because more than half of the differences are equal"
        return ASSUMED[method].format(self._question.bounds) + because


_COMPUTED = (
    "baseline_mean", "candidate_mean", "effect", "effect_percent", "d_z", "p_better", "interval", "interval_percent",
    "p_pass", "p_fail", "p_adjusted", "p_min", "mde", "n_needed", "rare_event_bound",
)  # fmt: skip
