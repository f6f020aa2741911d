"""The fixtures ``contrast`` and ``baseline``: an arm beside another one, or beside itself in a saved session.

Each stratum apart. The arithmetic is ``measure``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.contrasts import Contrast, contrast, read_margin
from pytest_proteus.measure.metrics import require_direction
from pytest_proteus.measure.placebo import placebo
from pytest_proteus.sweep.baseline import Against, Current
from pytest_proteus.sweep.declare import nearest
from pytest_proteus.sweep.expressions import Expression, check
from pytest_proteus.sweep.run import Run, Sweep

PLACEBO = "how often this gate would fail, pass or not decide an identical copy of an arm"


def between_arms(sweep: Sweep, statistic: Callable[..., Any]) -> Callable[..., Any]:
    """What the fixture gives.

    Args:
        sweep: the whole sweep.
        statistic: computes a statistic of each stratum and writes it down, as ``SweepSession.statistic`` does.
    """

    def between(
        metric: str,
        *,
        arm: str,
        against: str,
        margin: float | str,
        kind: str = "noninferior",
        scale: str = "difference",
    ) -> Any:
        """How much worse or better an arm is than another: runs of one seed are pairs.

        Args:
            metric: an evaluator (its score at the last planned episode), or ``episodes_complete``, ``seconds``,
                ``counters.<name>``, ``usage.<name>``.
            arm: the arm that is judged.
            against: the arm that it is held against.
            margin: what counts as no worse, above 0: in units of the metric, or a share of the other arm such as "20%".
            kind: ``noninferior``, ``superior`` (better by the margin, which may be 0) or ``equivalent``.
            scale: ``difference``, or ``log`` for the ratio of geometric means of values above 0.

        Returns:
            A ``Contrast``, which a gate takes without a bound; with several strata one for each, by stratum.

        Raises:
            LookupError: no such metric or arm.
            ConfigurationError: a margin that is none, or a metric without direction.
        """
        from pytest_proteus.measure.statistic import Statistic

        known = sweep.metric(metric)
        arms = list(sweep.by_arm())
        for label in (arm, against):
            if label not in arms:
                raise LookupError(f"contrast of {metric!r}: no arm is called {label!r}; {nearest(label, arms)}")
        if arm == against:
            raise ConfigurationError(f"contrast of {metric!r}: arm and against are both {arm!r}; name two arms")
        share, relative = read_margin(margin, f"contrast of {metric!r}", zero=kind == "superior")
        if kind != "equivalent":
            require_direction(known, f"{arm} against {against}")

        def between_two(runs: Sequence[Run], arm: str, against: str) -> Contrast:
            return contrast(
                [run for run in runs if run.arm == arm],
                [run for run in runs if run.arm == against],
                known,
                arm=arm,
                against=against,
                episode=sweep.episodes,
                margin=share,
                relative=relative,
                kind=kind,
                scale=scale,
                deterministic=sweep.is_deterministic(runs[0].harness),
            )

        asked = f"{kind}, margin {margin}, {scale}"
        for copy, original in sweep.copies().items():
            if original in (arm, against):

                def of_copy(runs: Sequence[Run], _: Any, copy: str = copy, original: str = original) -> Any:
                    return placebo(between_two(runs, copy, original), known.bounds)

                name = f"placebo {metric}: {copy} against {original}, {asked}"
                statistic(sweep, Statistic(name, of_copy, "neutral", "shares of swaps of identical runs", PLACEBO))

        def of(runs: Sequence[Run], _: Any) -> Contrast:
            return between_two(runs, arm, against)

        name = f"contrast {metric}: {arm} against {against}, {asked}"
        told = "how much worse an arm is than another, runs of one seed in pairs; a pass is no worse than the margin"
        return statistic(sweep, Statistic(name, of, known.direction, f"{scale} of {metric}", told))

    return between


def beside_baseline(sweep: Sweep, against: Against, statistic: Callable[..., Any]) -> Callable[..., Any]:
    """What the ``baseline`` fixture gives.

    Args:
        sweep: the whole sweep.
        against: what the session is held against.
        statistic: see ``between_arms``.
    """

    def beside(
        metric: str,
        *,
        margin: float | str,
        arm: str | None = None,
        kind: str = "noninferior",
        scale: str = "difference",
    ) -> Any:
        """How much worse or better an arm is than the same arm of the baseline: runs of one seed are pairs.

        Args:
            metric, margin, kind, scale: as ``contrast`` has them.
            arm: the arm; may be left out in a sweep of one.

        Returns:
            A ``Contrast``, which a gate takes without a bound; with several strata one for each, by stratum.

        Raises:
            ConfigurationError: the metric or the arm is not on both sides, or what ``contrast`` raises.
        """
        from pytest_proteus.measure.statistic import Statistic

        where = f"baseline({metric!r})"
        arms = list(sweep.by_arm())
        if arm is None and len(arms) > 1:
            raise ConfigurationError(f"{where}: this sweep has the arms {', '.join(arms)}; name one with arm='…'")
        share, relative = read_margin(margin, where, zero=kind == "superior")
        chosen = (("arm", arm or arms[0]),)
        asked = Expression(where, metric, chosen, share, relative and scale != "log", kind, scale)
        own = Current.of(sweep.manifest, sweep.runs)
        check(asked, [side for side in against.saved_sides if side.name == sweep.name], [own.side], against.allowed)

        def of(runs: Sequence[Run], _: Any) -> Contrast:
            (group,) = asked.groups(replace(own.side, runs=runs))
            return against.contrast(asked, own, group)

        name = f"baseline {against.baseline.name} {metric}: {chosen[0][1]}, {kind}, margin {margin}, {scale}"
        told = "how much worse an arm is than it was, runs of one seed in pairs; a pass is no worse than the margin"
        direction = asked.metric_in(own.side).direction
        return statistic(sweep, Statistic(name, of, direction, f"{scale} of {metric}", told))

    return beside
