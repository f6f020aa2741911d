"""Gates: a number held against a bound gives a verdict, recorded at once and failed together after the test's body.

A plain number passes or fails. An estimate passes when its whole interval lies on the right side of the bound, fails
when it lies on the wrong side, and is undecided in between. A contrast has a margin, and so a verdict of its own. What
cannot be computed never passes.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.records import plain
from pytest_proteus.sweep.declare import THRESHOLDS, Threshold
from pytest_proteus.sweep.run import Run

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
    "equals": operator.eq,
}
WORDS = {
    "at_least": "at least",
    "at_most": "at most",
    "above": "above",
    "below": "below",
    "equals": "equal to",
}

#: The fields of a gate's entry in the report; those that plain numbers do not have are null.
FIELDS = (
    "nodeid", "name", "source", "sweep", "stratum", "metric", "arm", "against", "kind", "direction", "margin", "value",
    "threshold", "alpha", "effect", "interval", "n", "n_missing", "p", "p_adjusted", "family", "p_min", "mde",
    "n_needed", "rare_event_bound", "assumption", "blocking", "verdict", "reason",
)  # fmt: skip

#: Those that a contrast knows by itself.
CONTRASTED = (
    "metric", "arm", "against", "kind", "direction", "alpha", "n", "n_missing", "p_adjusted", "p_min", "mde",
    "n_needed", "rare_event_bound",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What a gate decided.

    Args:
        name: name of the gate.
        verdict: ``pass``, ``fail``, ``undecided`` or ``unavailable``. Only ``pass`` is true.
        value: the number, or None where there was none.
        interval: the interval of an estimate, as plain data; None for a plain number.
        n: values behind it.
        n_missing: values that are missing.
        mde: how far from the bound the true mean has to be to be told from it with power 0.8; None where unknown.
        n_needed: runs that would tell with that power, if the true mean is the one that was found.
        op: one of ``THRESHOLDS``; empty for a verdict by margin.
        bound: the bound; None for a verdict by margin.
        reason: why it is unavailable or undecided, and what it was decided on; empty for a plain number.
        blocking: whether anything but a pass fails the test.
    """

    name: str
    verdict: str
    value: float | None
    op: str
    bound: float | None
    reason: str = ""
    blocking: bool = True
    interval: Mapping[str, Any] | None = None
    n: int | None = None
    n_missing: int | None = None
    mde: float | None = None
    n_needed: int | None = None

    def __bool__(self) -> bool:
        return self.verdict == "pass"

    def __str__(self) -> str:
        if self.bound is None:
            return f"{self.name}: {self.reason}"
        wanted = f"{WORDS[self.op]} {self.bound:g}"
        if self.value is None:
            return f"{self.name}: {self.verdict}: {self.reason}; wanted {wanted}"
        return f"{self.name} = {self.value:.6g}, wanted {wanted}: {self.verdict}" + (
            f" ({self.reason})" if self.reason else ""
        )


def number(value: Any) -> tuple[float | None, str]:
    """A plain finite number and no reason, or None and why it is none."""
    if value is None:
        return None, "there is no value"
    if isinstance(getattr(value, "reason", None), str) and not hasattr(value, "__float__"):
        return None, str(value).removeprefix("unavailable: ")
    if isinstance(value, (str, bytes)):
        return None, f"{value!r} is a text, not a number"
    try:
        found = float(value)
    except Exception:
        return None, f"a {type(value).__name__} is not a number"
    return (found, "") if math.isfinite(found) else (None, f"the value is {found}")


def decide(name: str, value: Any, op: str, bound: float, *, blocking: bool = True) -> Verdict:
    """The verdict on a plain number, an estimate, or the effect of a contrast."""
    if is_contrast(value) or (not isinstance(getattr(value, "reason", None), str) and hasattr(value, "interval")):
        return _decide_estimate(name, value, op, bound, blocking)
    found, reason = number(value)
    if found is None:
        counts = [getattr(value, key, None) for key in ("n", "n_missing")]
        n, n_missing = counts if isinstance(counts[1], int) else (0, 1)
        return Verdict(name, "unavailable", None, op, bound, reason, blocking, n=n, n_missing=n_missing)
    passed = OPERATORS[op](found, bound)
    return Verdict(name, "pass" if passed else "fail", found, op, bound, "", blocking, n=1, n_missing=0)


def decide_contrast(name: str, value: Any, *, blocking: bool = True) -> Verdict:
    """The verdict that a contrast has by its margin."""
    effect = value.effect if isinstance(value.effect, float) else None
    counts = {"n": value.n, "n_missing": value.n_missing}
    return Verdict(
        name, value.verdict, effect, "", None, str(value), blocking, interval_entry(value.interval), **counts
    )


def contrast_entry(value: Any) -> dict[str, Any]:
    """The fields of a gate's entry that a contrast has. ``p`` is that of a fail; that of a pass is in ``effect``."""
    shown = value.to_json()
    effect = {"difference": shown["effect"], "percent": shown["effect_percent"]}
    effect.update({key: shown[key] for key in ("baseline_mean", "candidate_mean", "d_z", "p_better", "p_pass")})
    effect["interval_percent"] = interval_entry(value.interval_percent)
    return {
        **{key: shown[key] for key in CONTRASTED},
        "margin": f"{value.margin * 100:.6g}%" if value.relative or value.scale == "log" else value.margin,
        "effect": effect,
        "p": shown["p_fail"],
        "assumption": shown["assumption"] or None,
    }


def gate_entry(verdict: Verdict) -> dict[str, Any]:
    """A verdict as an entry of the report; what a verdict does not say is null."""
    return {
        **dict.fromkeys(FIELDS),
        "name": verdict.name,
        "kind": "threshold",
        "value": verdict.value,
        "threshold": {"op": verdict.op, "bound": verdict.bound} if verdict.op else None,
        "interval": verdict.interval,
        "alpha": _alpha(verdict.interval["level"]) if verdict.interval and verdict.interval["level"] < 1 else None,
        "n": verdict.n,
        "n_missing": verdict.n_missing,
        "mde": verdict.mde,
        "n_needed": verdict.n_needed,
        "blocking": verdict.blocking,
        "verdict": verdict.verdict,
        "reason": verdict.reason or None,
    }


def _alpha(level: float) -> float:
    """The level of the one-sided test that each end of an interval of this level is."""
    return round((1 - level) / 2, 12)


def is_contrast(value: Any) -> bool:
    """Whether a value has a verdict of its own."""
    return isinstance(getattr(value, "verdict", None), str) and hasattr(value, "interval_percent")


def interval_entry(interval: Any) -> dict[str, Any] | None:
    """An interval as the report has it, open ends null; None for one that is unavailable."""
    if not isinstance(getattr(interval, "low", None), float):
        return None
    ends = {"method": interval.method, "level": interval.level, "low": interval.low, "high": interval.high}
    return {key: None if isinstance(end, float) and math.isinf(end) else end for key, end in ends.items()}


def _decide_estimate(name: str, value: Any, op: str, bound: float, blocking: bool) -> Verdict:
    """Each end of a two-sided interval of level 0.9 is a one-sided test at 0.05: a pass and a fail are both tested."""
    from pytest_proteus.measure.gate import MISSING
    from pytest_proteus.measure.summary import Estimate, deciding

    counts: dict[str, Any] = {"n": value.n, "n_missing": value.n_missing}
    value = deciding(value) if isinstance(value, Estimate) else value
    interval, found = value.interval, value.effect if is_contrast(value) else value.value
    if not isinstance(getattr(interval, "low", None), float):
        known = found if isinstance(found, float) else None
        told = str(interval).removeprefix("unavailable: ")
        return Verdict(name, "unavailable", known, op, bound, told, blocking, **counts)
    if op == "equals":
        told = "an estimate never equals a number; give it at_least and at_most"
        return Verdict(name, "unavailable", found, op, bound, told, blocking, **counts)
    verdict, wider = _side(interval, op, bound), getattr(value, "with_missing", interval)
    known = wider is not interval and isinstance(getattr(wider, "low", None), float)
    if isinstance(value, Estimate):
        counts |= _told_apart(value, bound, verdict)
        shown = _shown(interval, counts)
    elif is_contrast(value):
        shown = f"{interval.method} interval {interval.low:.6g} to {interval.high:.6g}, n = {value.n}"
    else:  # a number that is known but for what is missing
        shown = f"{found:.6g} of the {value.n} runs that are there"
        if known:
            interval, shown = wider, f"{shown}, {wider.low:.6g} to {wider.high:.6g} with the missing ones"
    reason, few = shown, is_contrast(value) and value.n_missing <= MISSING * (value.n + value.n_missing)
    if verdict == "undecided":
        reason = f"{shown}: it straddles the bound"
    elif value.n_missing and not few and not (known and _side(wider, op, bound) == verdict):
        verdict, reason = "undecided", f"{value.n_missing} missing runs could turn it; {shown}"
    return Verdict(name, verdict, found, op, bound, reason, blocking, interval_entry(interval), **counts)


def _shown(interval: Any, counts: Mapping[str, Any]) -> str:
    """An estimate's interval in words, and how small an effect, or how many runs, it takes to tell."""
    told = f"{interval.method} interval {interval.low:.6g} to {interval.high:.6g}, n = {counts['n']}"
    if counts.get("mde") is not None:
        told += f", alpha {_alpha(interval.level):g}, smallest effect told at power 0.8: {counts['mde']:.4g}"
    return told + (f", n needed: {counts['n_needed']}" if counts.get("n_needed") is not None else "")


def _told_apart(value: Any, bound: float, verdict: str) -> dict[str, Any]:
    """``mde`` of an estimate, and ``n_needed`` of an undecided one; nothing where its values have no spread."""
    from pytest_proteus.measure.power import detectable, pairs_needed

    spread = value.summary.stddev
    if not isinstance(spread, float) or spread <= 0 or value.n != value.summary.n:
        return {}
    told: dict[str, Any] = {"mde": detectable(spread, value.n)}
    if verdict == "undecided" and value.value != bound:
        told["n_needed"] = pairs_needed(spread, value.value - bound)
    return told


def _sequenced(name: str, value: Any, threshold: Threshold, sequence: Any, blocking: bool) -> Verdict:
    """The verdict of the look that decided; an interval is that of one look, and left out."""
    return Verdict(
        name, sequence.verdict, value.value, threshold.op, threshold.bound, sequence.told, blocking, None,
        value.n, value.n_missing,
    )  # fmt: skip


def _side(interval: Any, op: str, bound: float) -> str:
    held = [OPERATORS[op](end, bound) for end in (interval.low, interval.high)]
    return "pass" if all(held) else "undecided" if any(held) else "fail"


@dataclass
class Gates:
    """The gates of one test: the ``gate`` fixture.

    Args:
        nodeid: the test.
        sweep: name of its sweep, or None.
        arm: label of its arm, where it runs in one cell.
        write: takes each entry as soon as it is decided.
        verdicts: what was decided so far.
        attempt: marks the entries of one attempt at the test; a report keeps those of the last.
        caveat: what the body's verdicts on intervals have to say of themselves; empty for nothing.
    """

    nodeid: str
    sweep: str | None
    arm: str | None
    write: Callable[[dict[str, Any]], None]
    verdicts: list[Verdict] = field(default_factory=list)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    caveat: str = ""
    _told: list[tuple[str, str]] = field(default_factory=list)

    def __call__(
        self,
        name: object,
        value: Any,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        above: float | None = None,
        below: float | None = None,
        equals: float | None = None,
        blocking: bool = True,
    ) -> Verdict:
        """Hold a number against a bound; the verdict is recorded at once, and a test fails after its body.

        Args:
            name: name of the gate, in the report and in the message; anything that ``str`` makes a text of.
            value: a finite number, an estimate or a contrast. Anything else makes the gate ``unavailable``, which
                fails.
            at_least, at_most, above, below, equals: the bound; give one, or a lower and an upper one. A contrast needs
                none; with one, its effect is held against it in place of the margin.
            blocking: False records the verdict without failing the test.

        Returns:
            The verdict; with two bounds that of the one that fails, where one does.

        Raises:
            ConfigurationError: no bound, or one that is no finite number.
        """
        name = _text(name)
        given = {"at_least": at_least, "at_most": at_most, "above": above, "below": below, "equals": equals}
        bounds = [Threshold(op, _bound(name, op, bound)) for op, bound in given.items() if bound is not None]
        if not bounds and is_contrast(value):
            return self.record_contrast(name, value, source="gate", blocking=blocking)
        if not bounds:
            raise ConfigurationError(f"gate {name!r} has no bound; give one of {', '.join(THRESHOLDS)}")
        told = {key: getattr(value, key) for key in ("metric", "arm", "against")} if is_contrast(value) else {}
        decided = [self.record(name, value, item, source="gate", blocking=blocking, **told) for item in bounds]
        return next((verdict for verdict in decided if not verdict), decided[0])

    def record_contrast(self, name: str, value: Any, *, source: str, blocking: bool, **told: str | None) -> Verdict:
        """Write the verdict that a contrast has by its margin; for the arguments see ``record``."""
        verdict = self._qualified(decide_contrast(self._once(name, ""), value, blocking=blocking), source)
        self._enter(verdict, source=source, **{**contrast_entry(value), **told})
        return verdict

    def record(
        self,
        name: str,
        value: Any,
        threshold: Threshold,
        *,
        source: str,
        blocking: bool,
        sequence: Any = None,
        **told: Any,
    ) -> Verdict:
        """Decide one bound and write its entry; a name used before gets a number, so that none hides another.

        Args:
            name, value: of the gate.
            threshold: the bound.
            source: what declared it: ``gate``, ``evaluator`` or ``marker``.
            blocking: False records the verdict without failing the test.
            sequence: the ``Sequential`` of an estimate that was looked at after each seed, which then decides.
            told: further fields of the entry. A fail whose ``p_adjusted`` is above alpha is undecided.
        """
        label = self._once(name, threshold.op)
        if sequence is None:
            verdict = self._qualified(decide(label, value, threshold.op, threshold.bound, blocking=blocking), source)
        else:
            verdict = _sequenced(label, value, threshold, sequence, blocking)
            told = {**told, "alpha": sequence.alpha, "assumption": sequence.assumption}
        p = told.get("p_adjusted") or 0
        if verdict.verdict == "fail" and verdict.interval and p > _alpha(verdict.interval["level"]):
            why = f"a fail by itself (p = {told['p']:.3g}), and not in its family (p = {told['p_adjusted']:.3g})"
            verdict = replace(verdict, verdict="undecided", reason=f"{why}; {verdict.reason}")
        self._enter(verdict, source=source, **told)
        return verdict

    def _qualified(self, verdict: Verdict, source: str) -> Verdict:
        if not self.caveat or source != "gate" or verdict.interval is None:
            return verdict
        return replace(verdict, reason="; ".join(filter(None, (verdict.reason, self.caveat))))

    def _once(self, name: str, op: str) -> str:
        name = _text(name)
        twins = self._told.count((name, op))
        self._told.append((name, op))
        return f"{name}#{twins + 1}" if twins else name

    def _enter(self, verdict: Verdict, **told: Any) -> None:
        entry = {**gate_entry(verdict), "nodeid": self.nodeid, "sweep": self.sweep, "arm": self.arm, **told}
        self.verdicts.append(verdict)
        self.write(plain({**entry, "attempt": self.attempt}))

    def thresholds(self, run: Run, wanted: Mapping[str, Sequence[Threshold]], *, blocking: bool) -> None:
        """Hold a run's scores against the thresholds of its evaluators (name → bounds)."""
        for name, bounds in wanted.items():
            for bound in bounds:
                self._threshold(run, name, bound, blocking)

    def _threshold(self, run: Run, name: str, bound: Threshold, blocking: bool) -> None:
        scores = run.scores(name)
        if not scores:
            chosen: list[tuple[str, Any]] = [(name, None)]
        elif bound.when == "last":
            chosen = [(name, scores[-1])]
        else:
            failing = [
                (f"{name}[episode {number}]", score)
                for number, score in enumerate(scores, start=1)
                if not decide(name, score, bound.op, bound.bound)
            ]
            chosen = failing or [(name, scores[-1])]
        for label, score in chosen:
            self.record(label, score, bound, source="evaluator", blocking=blocking, metric=name)

    def failures(self, *, undecided: bool = True) -> list[str]:
        """One line for each blocking verdict that is no pass; ``undecided`` says whether those that are count."""
        counted = [item for item in self.verdicts if item.blocking and not item]
        return [str(item) for item in counted if undecided or item.verdict != "undecided"]


def _text(name: object) -> str:
    """A name as reports can hold it: lone surrogates escaped."""
    return str(plain(str(name)))


def _bound(name: str, op: str, bound: Any) -> float:
    found, reason = number(bound)
    if found is None or isinstance(bound, bool):
        raise ConfigurationError(
            f"gate {name!r}: {op}={bound!r} must be a finite number" + (f": {reason}" if reason else "")
        )
    return found
