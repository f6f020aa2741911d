"""A session beside a saved one: ``--proteus-save``, ``--proteus-compare`` and what fails it.

Reads the baseline once, before the first cell; refuses another condition; writes the gates of the comparison from the
artifacts on disk when the session ends, in the one process that reports. The tests of differences are ``measure``'s.
"""

from __future__ import annotations

import difflib
import math
import re
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import read_manifest
from pytest_proteus.core.records import as_path, write_json_atomic
from pytest_proteus.sweep import options
from pytest_proteus.sweep.condition import digest
from pytest_proteus.sweep.folder import SessionFolder, conditions_of, conflicts

if TYPE_CHECKING:
    from pytest_proteus.measure.contrasts import Contrast
    from pytest_proteus.measure.metrics import Metric
    from pytest_proteus.measure.sequential import Sequential
    from pytest_proteus.sweep.baseline_file import Baseline
    from pytest_proteus.sweep.expressions import Expression, Group, Side

#: Folder of baselines, beside the sweeps.
BASELINES = "baselines"
#: Level of a pass and of a fail, each.
ALPHA = 0.05

_FILES = re.compile(r"arms\..*\.files_sha256$")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


class Against:
    """What a session is held against, and what it is saved as.

    Args:
        config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._gates = 1

    # --- what was asked for -------------------------------------------------------------------------------------------

    @property
    def compares(self) -> bool:
        """Whether a baseline is named."""
        return bool(options.text(self.config, "compare"))

    @property
    def saves(self) -> str:
        """The name to save under; empty when none is given."""
        return options.text(self.config, "save")

    @cached_property
    def baseline(self) -> Baseline:
        """The baseline, read when first asked for.

        Raises:
            ConfigurationError: there is none of that name, or its file is no baseline.
        """
        from pytest_proteus.sweep.baseline_file import read_baseline

        given = options.text(self.config, "compare")
        path = self.path_of(given)
        if not path.exists():
            raise ConfigurationError(f"--proteus-compare={given}: there is no baseline at {path}; {self._hint(given)}")
        return read_baseline(path)

    def path_of(self, given: str) -> Path:
        """Where a baseline lies that is named, or given as a path."""
        if "/" in given or given.endswith(".json"):
            return Path(self.config.invocation_params.dir, given)
        return self._saved_as(given)

    def _saved_as(self, name: str) -> Path:
        return options.base_folder(self.config) / BASELINES / f"{name}.json"

    def _hint(self, given: str) -> str:
        known = sorted(path.stem for path in self._saved_as("x").parent.glob("*.json"))
        close = difflib.get_close_matches(given, known, n=1)
        told = f"did you mean {close[0]!r}? " if close else ""
        name = given if _NAME.fullmatch(given) else "NAME"
        return f"{told}one is saved by running the suite with --proteus-save={name} on what it is to be compared with"

    @cached_property
    def expressions(self) -> list[Expression]:
        """What fails the session.

        Raises:
            ConfigurationError: an expression that is none.
        """
        from pytest_proteus.sweep.expressions import parse_expressions

        return parse_expressions(options.listed(self.config, "compare-fail"))

    @property
    def allowed(self) -> list[str]:
        """Keys of the condition that may differ."""
        return options.listed(self.config, "compare-allow")

    @property
    def fewest(self) -> int | None:
        """Seeds after which the session may stop once every expression is decided; None where it may not.

        Raises:
            ConfigurationError: the option says neither a number nor a range.
        """
        return options.seeds(self.config)[1]

    # --- before the first cell ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what was asked for, before anything runs.

        Raises:
            ConfigurationError: something of it cannot be.
        """
        for option in ("save", "compare"):
            if self.config.getoption(f"proteus_{option}") == "":
                options.refuse(f"--proteus-{option}= names no baseline; write a name, or leave the option out")
        if self.saves and not _NAME.fullmatch(self.saves):
            options.refuse(f"--proteus-save={self.saves}: write a name of letters, digits, '.', '_', '+' and '-'")
        if self.fewest is not None and self.saves:
            options.refuse(f"--proteus-save={self.saves}: a baseline has all seeds; write a number for --proteus-seeds")
        if not self.compares:
            given = options.listed(self.config, "compare-fail")
            if given:
                options.refuse(f"--proteus-compare-fail={given[0]} compares with nothing; add --proteus-compare=NAME")
            return
        if self.saves and self.path_of(options.text(self.config, "compare")) == self._saved_as(self.saves):
            options.refuse(
                f"--proteus-save={self.saves}: a session does not replace what it is compared with; save it under "
                f"another name"
            )
        _ = self.baseline
        _ = self.expressions

    def check(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Hold the plan of a session against the baseline, before anything runs.

        Raises:
            ConfigurationError: the conditions differ, or an expression cannot be compared in whole.
        """
        from pytest_proteus.sweep.expressions import check

        self.load()
        if not self.compares:
            return
        self._check_allowed(manifests)
        keys = [f"{name}: {key}" for name, found in self._differing(manifests).items() for key in self._refused(found)]
        if keys:
            raise ConfigurationError(
                f"the baseline {self.baseline.name!r} was made under another condition; it differs in "
                f"{', '.join(keys)}. Save it again, or compare all the same with --proteus-compare-allow=KEY"
            )
        own = [Current.planned(one) for one in manifests]
        for expression in self.expressions:
            check(expression, self.saved_sides, [one.side for one in own], self.allowed)
        wanted = self._wanted(own)
        self._gates = len(wanted)
        self._check_seeds(wanted)

    def _check_allowed(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a key that neither side has: it would allow nothing."""
        from pytest_proteus.sweep.declare import nearest

        known = {key for sweep in (*manifests, *self.baseline.saved["sweeps"]) for key in _keys_of(sweep)}
        for key in self.allowed:
            if key not in known:
                tops = sorted(one for one in known if "." not in one)
                told = nearest(key, sorted(known))
                told = told if told.startswith("did you mean") else nearest(key, tops)
                raise ConfigurationError(f"--proteus-compare-allow={key}: no condition has that key; {told}")

    def _wanted(self, own: Sequence[Current]) -> list[tuple[Expression, Current, Group]]:
        """Every comparison that the expressions ask for."""
        return [
            (expression, one, group)
            for expression in self.expressions
            for one in own
            for group in expression.groups(one.side)
        ]

    def _check_seeds(self, wanted: Sequence[tuple[Expression, Current, Group]]) -> None:
        """Refuse a comparison that can never pass, or never fail, with the seeds that both sides have."""
        from pytest_proteus.measure.power import attainable

        for expression, one, group in wanted:
            runs = expression.groups(one.side)[group]
            seeds = {run.seed for run in runs} & {run.seed for run in self._saved_groups(group.sweep)[group]}
            if not seeds and self.fewest is not None:
                raise ConfigurationError(
                    f"{expression.where}: the baseline has no seed of {group}, to look at in order"
                )
            metric = expression.metric_in(one.side)
            if not seeds or (runs[0].harness in one.deterministic and metric.repeats):
                continue
            asked: dict[str, Any] = {
                "direction": metric.direction,
                "margin": expression.margin,
                "bounds": metric.bounds,
            }
            asked["relative"] = expression.relative
            alone = attainable(len(seeds), **asked, alpha=ALPHA)
            together = attainable(len(seeds), **asked, alpha=ALPHA / len(wanted))
            for can, needed, what in (
                (alone.can_pass, alone.n_pass, "pass"),
                (together.can_fail, together.n_fail, f"fail among {len(wanted)} comparisons"),
            ):
                if not can:
                    raise ConfigurationError(
                        f"{expression.where}: no outcome of {len(seeds)} seeds could {what} for {group}; run "
                        f"{needed} seeds on both sides" + (", or compare less" if len(wanted) > 1 else "")
                    )

    def told_before(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """What the baseline tells of a planned sweep before anything runs.

        Returns:
            ``mde``: comparison → the effect off its margin that is told with power 0.8, from the spread of the
            baseline's seeds; None for one that cannot be told, such as that of values that are mostly equal.
            ``tokens_low``, ``tokens_high``, ``usd_low`` and ``usd_high``: what the planned cells take if each is like
            the cheapest, and the dearest, run of its group in the baseline; None where one of those was not metered.
            All None without a baseline.
        """
        one = Current.planned(manifest)
        effects = {name: None if isinstance(found, str) else found for name, _, found in self._detectable([one])}
        told: dict[str, Any] = {"mde": effects or None}
        for key, metric in (("tokens", "usage.total_tokens"), ("usd", "usage.cost_usd")):
            told[f"{key}_low"], told[f"{key}_high"] = self._expected(one, metric) or (None, None)
        return told

    def _expected(self, one: Current, name: str) -> tuple[float, float] | None:
        """The least and the most that a planned sweep takes of something, after the baseline; None for unknown."""
        from pytest_proteus.measure.metrics import metric_of, observe

        metric = metric_of(name, {})
        saved = self._saved_groups(one.side.name) if self.compares else {}
        low = high = 0.0
        for group, planned in one.side.groups().items():
            found = [observe(run, metric, run.episodes)[0] for run in saved.get(group, ())] if metric else []
            values = [value for value in found if value is not None]
            if not values or len(values) < len(found):
                return None
            low, high = low + min(values) * len(planned), high + max(values) * len(planned)
        return low, high

    def _detectable(self, own: Sequence[Current]) -> list[tuple[str, int, float | str]]:
        """Name, pairs and detectable effect of each comparison, or why nothing tells it."""
        if not self.compares or not self.expressions:
            return []
        from pytest_proteus.measure.metrics import observe

        told: list[tuple[str, int, float | str]] = []
        for expression, one, group in self._wanted(own):
            saved = self._saved_groups(group.sweep)[group]
            metric = expression.metric_in(one.side)
            found = [observe(run, metric, run.episodes)[0] for run in saved]
            values = [value for value in found if value is not None]
            seeds = {run.seed for run in expression.groups(one.side)[group]} & {run.seed for run in saved}
            effect: float | str = "unknown: it takes two values of the baseline, and seeds that both have"
            if len(values) > 1 and seeds:
                varies = saved[0].harness not in one.deterministic
                effect = _told_from(values, len(seeds), expression, metric, varies=varies)
            told.append((f"{expression.metric}[{group.arm}]:{expression.shown_margin}", len(seeds), effect))
        return told

    def power_lines(self, manifests: Sequence[Mapping[str, Any]]) -> list[str]:
        """The same for readers of a plan."""
        lines = []
        detectable = self._detectable([Current.planned(manifest) for manifest in manifests])
        if detectable:
            lines.append(
                f"beside the baseline {self.baseline.name}, an effect is told with power 0.8 from so far off the "
                f"margin:"
            )
        for name, pairs, effect in detectable:
            lines.append(f"  {name}  {pairs} pairs  {effect if isinstance(effect, str) else f'{effect:.3g} or less'}")
        for manifest in manifests if self.compares else ():
            told = self.told_before(manifest)
            parts = [
                f"{told['tokens_low']:,.0f} to {told['tokens_high']:,.0f} tokens"
                if told["tokens_low"] is not None
                else "tokens unknown: the baseline has runs that were not metered",
                f"{told['usd_low']:.2f} to {told['usd_high']:.2f} USD"
                if told["usd_low"] is not None
                else "cost unknown: the baseline has runs without a price",
            ]
            lines.append(f"after the runs of the baseline, {manifest['name']} takes: {'; '.join(parts)}")
        return lines

    def _differing(self, manifests: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Sweep → keys in which its condition is not the baseline's, arms' files included."""
        found = {}
        for manifest in manifests:
            saved = self.baseline.sweep(manifest["name"])
            if saved is not None:
                keys = conflicts(dict(saved), dict(manifest))
                found[manifest["name"]] = keys + ["episodes"] * (saved["episodes"] != manifest["episodes"])
        if not found:
            theirs = ", ".join(sweep["name"] for sweep in self.baseline.saved["sweeps"])
            ours = ", ".join(manifest["name"] for manifest in manifests)
            raise ConfigurationError(
                f"the baseline {self.baseline.name!r} has the sweep {theirs}, and this session {ours}: nothing can be "
                f"compared; give the sweep its name back with sweep(name=…), or save the baseline again"
            )
        return found

    def _refused(self, keys: Sequence[str]) -> list[str]:
        """The keys that may not differ."""
        return [
            key
            for key in keys
            if not _FILES.match(key) and not any(key == one or key.startswith(f"{one}.") for one in self.allowed)
        ]

    @cached_property
    def saved_sides(self) -> list[Side]:
        """The sweeps of the baseline."""
        from pytest_proteus.sweep.baseline_file import runs_in
        from pytest_proteus.sweep.expressions import side_of_baseline

        return [side_of_baseline(sweep, runs_in(sweep)) for sweep in self.baseline.saved["sweeps"]]

    # --- at the end ---------------------------------------------------------------------------------------------------

    def is_decided(self, manifest: Mapping[str, Any], runs: Sequence[Any]) -> bool:
        """Whether runs of the first seeds of a sweep decide every expression that is about it."""
        one = Current.of(manifest, runs)
        wanted = self._wanted([Current.planned(manifest)])
        verdicts = [self._sequence(expression, one, group).verdict for expression, _, group in wanted]
        return set(verdicts) <= {"pass", "fail"}

    def _sequence(self, expression: Expression, one: Current, group: Group) -> Sequential:
        """What a group of runs is beside the same group of the baseline, looked at after each seed."""
        from pytest_proteus.measure.contrasts import sequence

        saved = {run.seed: run for run in self._saved_groups(group.sweep)[group]}
        planned = expression.groups(Current.planned(one.manifest).side)[group]
        order = {seed: place for place, seed in enumerate(dict.fromkeys(run.seed for run in planned))}
        runs = [run for run in expression.groups(one.side).get(group, ()) if run.seed in saved]
        return sequence(
            sorted(runs, key=lambda run: order[run.seed]),
            list(saved.values()),
            expression.metric_in(one.side),
            episode=min(run.episodes for run in (*runs, *saved.values())),
            n_max=len(order.keys() & saved.keys()),
            fewest=self.fewest or 1,
            gates=self._gates,
            margin=expression.margin,
            relative=expression.relative,
            deterministic=planned[0].harness in one.deterministic,
            alpha=ALPHA,
        )

    def record(
        self,
        folder: SessionFolder,
        sweeps: Sequence[Path],
        spared: frozenset[str],
        write_gate: Callable[[dict[str, Any]], None],
    ) -> None:
        """Compare what is on disk with the baseline, and write gates, statistics and the baseline's own entry.

        Args:
            folder: the session's.
            sweeps: folders of its sweeps.
            spared: ids of runs that were not needed to decide.
            write_gate: takes the entry of each gate; where nothing can be compared, one that says so.
        """
        if not self.compares:
            return
        from pytest_proteus.sweep.gates import Verdict, gate_entry

        try:
            self._record(folder, [Current.finished(out).without(spared) for out in sweeps], write_gate)
        except (OSError, RecordError, ConfigurationError) as error:
            name = f"baseline {options.text(self.config, 'compare')}"
            told = gate_entry(Verdict(name, "unavailable", None, "", None, str(error)))
            write_gate({**told, "source": "baseline"})

    def _record(
        self, folder: SessionFolder, own: Sequence[Current], write_gate: Callable[[dict[str, Any]], None]
    ) -> None:
        from pytest_proteus.measure.contrasts import sequenced
        from pytest_proteus.measure.families import correct
        from pytest_proteus.sweep.gates import contrast_entry, decide_contrast, gate_entry

        differs = self._differing([one.manifest for one in own])
        hashes = [self.baseline.sweep(name)["condition_sha256"] for name in differs]  # type: ignore[index]
        write_json_atomic(
            folder.path / "baseline.json",
            {
                "name": self.baseline.name,
                "commit": self.baseline.saved["commit"],
                "created_at": self.baseline.saved["created_at"],
                "condition_sha256": hashes[0] if len(hashes) == 1 else digest(hashes),
                "differs": {name: keys for name, keys in differs.items() if keys},
                "allowed": self.allowed,
                "effects": self._effects(own),
            },
        )
        wanted = self._wanted(own)
        self._gates = len(wanted)
        found: Sequence[Any] = [self.contrast(*asked) for asked in wanted]
        if self.fewest is None:
            found = correct(found)
        else:
            sequences = [self._sequence(*asked) for asked in wanted]
            found = [sequenced(made, verdict) for made, verdict in zip(found, sequences, strict=True)]
        for (expression, one, group), made in zip(wanted, found, strict=True):
            place = f"{group.stratum}/{group.arm}" if one.side.has_strata else group.arm
            name = f"{expression.metric}[{place}]:{expression.shown_margin}"
            entry = {**gate_entry(decide_contrast(name, made)), **contrast_entry(made), "source": "baseline"}
            family = f"baseline {self.baseline.name}"
            stratum = group.stratum if one.side.has_strata else None
            write_gate({**entry, "family": family, "sweep": group.sweep, "stratum": stratum})

    def _saved_groups(self, sweep: str) -> Mapping[Group, Sequence[Any]]:
        return next((side.groups() for side in self.saved_sides if side.name == sweep), {})

    def contrast(self, expression: Expression, one: Current, group: Group) -> Contrast:
        """What a group of runs is beside the same group of the baseline."""
        from pytest_proteus.measure.contrasts import contrast

        runs, saved = expression.groups(one.side)[group], self._saved_groups(group.sweep).get(group, ())
        return contrast(
            runs,
            saved,
            expression.metric_in(one.side),
            arm=group.arm,
            against=f"baseline {self.baseline.name}",
            episode=min(run.episodes for run in (*runs, *saved)),
            margin=expression.margin,
            relative=expression.relative,
            kind=expression.kind,
            scale=expression.scale,
            alpha=ALPHA,
            deterministic=runs[0].harness in one.deterministic,
        )

    def _effects(self, own: Sequence[Current]) -> list[dict[str, Any]]:
        """Effect and interval of every evaluator that both sides have, without a verdict: there is no margin."""
        effects = []
        for one in own:
            saved = self.baseline.sweep(one.side.name)
            shared = [name for name in one.side.evaluators if saved is not None and name in saved["evaluators"]]
            groups = [group for group in one.side.groups() if group in self._saved_groups(one.side.name)]
            effects += [self._effect(one, group, name) for name in shared for group in groups]
        return effects

    def _effect(self, one: Current, group: Group, name: str) -> dict[str, Any]:
        from pytest_proteus.sweep.expressions import Expression
        from pytest_proteus.sweep.gates import interval_entry

        known = one.side.evaluators[name]
        # a neutral metric has an effect as well: only its sign means nothing
        told = {**known, "direction": known["direction"].replace("neutral", "higher")}
        chosen = (("sweep", group.sweep), ("arm", group.arm))
        asked = Expression("", name, chosen, 0.0, False, kind="superior")
        found = self.contrast(asked, replace(one, side=replace(one.side, evaluators={name: told})), group)
        entry = {key: getattr(group, key) if one.side.has_strata or key != "stratum" else None for key in group._fields}
        shown = found.to_json()
        counted = ("effect", "effect_percent", "baseline_mean", "candidate_mean", "n", "n_missing")
        entry.update({key: shown[key] for key in counted})
        reason = None if isinstance(found.effect, float) else found.detail
        interval = interval_entry(found.interval) if self.fewest is None else None
        return {**entry, "metric": name, "interval": interval, "reason": reason}

    # --- saving -------------------------------------------------------------------------------------------------------

    def settle(self, report: dict[str, Any], now: float) -> bool:
        """Save the session where that was asked for; says whether the session has to fail.

        Args:
            report: the session's; why it was not saved is added to its reasons.
            now: seconds since the epoch.
        """
        why = self.save(report, now)
        if why:
            report["outcome_reasons"].append(why)
            if report["outcome"] in ("pass", "undecided"):
                report["outcome"] = "incomplete"
        undecided = [
            gate for gate in report["gates"] if gate["source"] == "baseline" and gate["verdict"] == "undecided"
        ]
        policy = options.one_of(self.config, "undecided", options.UNDECIDED)
        return report["outcome"] in ("fail", "incomplete") or bool(undecided and policy == "fail")

    def require(self) -> None:
        """Skip or fail a test that asks for the baseline in a session that has none."""
        if self.compares:
            return
        if self.saves:
            pytest.skip(f"this session saves the baseline {self.saves!r} and is held against none")
        pytest.fail(
            "the fixture baseline needs --proteus-compare=NAME; --proteus-save=NAME saves one to compare with",
            pytrace=False,
        )

    def save(self, report: Mapping[str, Any], now: float) -> str:
        """Save the session, if that was asked for and every cell was measured.

        Args:
            report: the session's.
            now: seconds since the epoch.

        Returns:
            Why it was not saved; empty when it was, or when nobody asked.
        """
        if not self.saves:
            return ""
        from pytest_proteus.sweep.baseline_file import saved_sweep, write_baseline

        why = _unfinished(report)
        if why:
            return f"the baseline {self.saves!r} was not saved: {why}"
        path = self._saved_as(self.saves)
        try:
            saved = []
            for sweep in report["sweeps"]:
                found = Current.finished(as_path(sweep["out"]))
                saved.append(saved_sweep(found.manifest, found.side.runs))
            commit = (report["environment"]["git"] or {}).get("commit")
            write_baseline(path, self.saves, saved, commit=commit, now=now)
        except (OSError, RecordError) as error:
            return f"the baseline {self.saves!r} was not saved: {error}"
        return ""


def _told_from(
    values: Sequence[float], pairs: int, expression: Expression, metric: Metric, *, varies: bool
) -> float | str:
    """How far off its margin an effect is told from, after the baseline's values, or why none is.

    Args:
        values: of the baseline, two or more.
        pairs: 1 or more.
        expression: what is asked.
        metric: of what.
        varies: whether runs of one seed may differ; pairs of which more than half are equal then decide nothing, unless
            both bounds are declared.
    """
    from pytest_proteus.measure import betting
    from pytest_proteus.measure.claims import Question
    from pytest_proteus.measure.power import detectable

    equal = math.fsum((values.count(value) / len(values)) ** 2 for value in set(values))
    if not varies or equal <= 0.5:
        # runs of one pair that have nothing in common; what they share makes it smaller
        return detectable(math.sqrt(2) * statistics.stdev(values), pairs)
    asked = (metric.direction, expression.kind, expression.margin, expression.relative, expression.scale)
    question = Question(*asked, "symmetric", metric.bounds, ALPHA)
    if question.range is None:
        return (
            "cannot be told: so many values of the baseline are equal that most pairs may be, and such pairs decide "
            "nothing without both bounds=(lowest, highest)"
        )
    found = betting.smallest_mean(pairs, *question.slack_range(question.claims[0]), ALPHA)
    return "cannot be told: no effect within the bounds is, by so few pairs" if found is None else found


def _dotted(value: Any, name: str) -> Iterator[str]:
    """The name of a part of a condition, and of every part of it."""
    yield name
    for key, item in value.items() if isinstance(value, Mapping) else ():
        yield from _dotted(item, f"{name}.{key}")


def _keys_of(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What may be called different in the comparison of a sweep with another."""
    yield from ("episodes", *_dotted(manifest["evaluators"], "evaluators"))
    condition = manifest["condition"]
    for key, value in (condition.get("sweep") or {}).items():
        yield from _dotted(value, key)
    for part in ("harnesses", "arms", "tasks"):
        yield part
        for label, found in (condition.get(part) or {}).items():
            for each in conditions_of(found):
                yield from _dotted(each, f"{part}.{label}")


def _unfinished(report: Mapping[str, Any]) -> str:
    """Why a session cannot be a baseline; empty when it can."""
    if report["session"]["exitstatus"] not in (0, 1):
        return "the session was cut short"
    for sweep in report["sweeps"]:
        ledger = sweep["ledger"]
        measured = ledger["complete"] + ledger["timeout"] + ledger["abort"]
        if measured < ledger["planned"]:
            return (
                f"{ledger['planned'] - measured} of the {ledger['planned']} cells of {sweep['name']} were not measured"
            )
    return "" if report["sweeps"] else "it has no sweep"


@dataclass(frozen=True)
class Current:
    """A sweep of this session, planned or finished.

    Args:
        side: the sweep as a side of a comparison.
        manifest: its manifest.
    """

    side: Side
    manifest: Mapping[str, Any]

    @property
    def deterministic(self) -> Sequence[str]:
        """Labels of the harnesses of which a seed always gives the same run."""
        return list(self.manifest.get("deterministic", ()))

    def without(self, run_ids: frozenset[str]) -> Current:
        """The same without some of its runs."""
        return replace(self, side=replace(self.side, runs=[run for run in self.side.runs if run.run_id not in run_ids]))

    @classmethod
    def planned(cls, manifest: Mapping[str, Any]) -> Current:
        """From a plan's manifest."""
        return cls.of(manifest, [types.SimpleNamespace(**run) for run in manifest["runs"]])

    @classmethod
    def finished(cls, out: Path) -> Current:
        """From a sweep's folder.

        Raises:
            RecordError: it has no manifest, or a cell's file cannot be read.
        """
        from pytest_proteus.sweep.run import runs_of

        manifest = read_manifest(out)
        if manifest is None:
            raise RecordError(f"{out} has no manifest.json")
        return cls.of(manifest, runs_of(out, manifest))

    @classmethod
    def of(cls, manifest: Mapping[str, Any], runs: Sequence[Any]) -> Current:
        """From a manifest and its runs."""
        from pytest_proteus.sweep.expressions import Side

        return cls(Side(manifest["name"], manifest["evaluators"], runs), manifest)
