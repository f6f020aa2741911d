"""Gates that markers declare on statistics of a sweep: read at collection, held after the body of their test.

``@pytest.mark.gate("<statistic>.<field>", <threshold>)`` names what is gated before anything runs. Computes no
statistic: it asks the fixtures for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sweep import declare
from pytest_proteus.sweep.declare import THRESHOLDS, Threshold, nearest
from pytest_proteus.sweep.gates import Gates
from pytest_proteus.sweep.grid import visible_definition
from pytest_proteus.sweep.plan import Plan
from pytest_proteus.sweep.run import Sweep

if TYPE_CHECKING:
    from pytest_proteus.measure.sequential import Sequential


@dataclass(frozen=True)
class DeclaredGate:
    """One ``gate`` marker.

    Args:
        statistic: name of the fixture.
        field: what of it is gated: a field, a surface, or an evaluator, as the statistic has them; empty for the whole
            value of a user's statistic.
        thresholds: the bounds.
        where: the test that carries the marker.
    """

    statistic: str
    field: str
    thresholds: tuple[Threshold, ...]
    where: str

    @property
    def name(self) -> str:
        """Name of the gate in the report, before what it was measured on."""
        return f"{self.statistic}.{self.field}" if self.field else self.statistic


def _numbers_of(kind: type) -> list[str]:
    """Fields of a result that are numbers, as far as their annotations say."""
    return [item.name for item in fields(kind) if str(item.type).split(" ")[0] in ("float", "int", "bool")]


def _fields_of_reliability(plan: Plan) -> list[str]:
    from pytest_proteus.measure.stream import Reliability

    return _numbers_of(Reliability)


def _fields_of_separation(plan: Plan) -> list[str]:
    from pytest_proteus.measure.stream import BetweenWithin

    return _numbers_of(BetweenWithin)


def _fields_of_crystallization(plan: Plan) -> list[str]:
    from pytest_proteus.measure.sweeps import Crystallization

    return _numbers_of(Crystallization) if plan.probe_episode is not None else []


def _surfaces(plan: Plan) -> list[str]:
    return sorted(set.intersection(*({surface.name for surface in found} for found in plan.surfaces.values())))


def _evaluators(plan: Plan) -> list[str]:
    return list(plan.attached)


#: Statistic → what a marker can name of it.
STATISTICS: dict[str, Callable[[Plan], list[str]]] = {
    "crystallization": _fields_of_crystallization,
    "reliability": _fields_of_reliability,
    "scores": _evaluators,
    "separation": _fields_of_separation,
    "structure": _surfaces,
    "travel": _surfaces,
}

#: Those that give estimates, which fail with a known error rate.
ESTIMATES = ("scores", "structure", "travel")


# --- reading ----------------------------------------------------------------------------------------------------------


#: Whether a name is that of a statistic which a user wrote.
Users = Callable[[str], bool]


def users_near(node: pytest.Item | pytest.Collector) -> Users:
    """The user's statistics that tests below a node see."""

    def is_one(name: str) -> bool:
        definition = visible_definition(node.session, node, name)
        return definition is not None and hasattr(definition.func, "proteus_statistic")

    return is_one


def read_gate(mark: pytest.Mark, where: str, users: Users) -> DeclaredGate:
    """One marker as data; whether its field exists is known once the sweep is planned.

    Args:
        mark: the marker.
        where: the test that carries it.
        users: tells the user's statistics; of these a field is known only when they are computed.

    Raises:
        ConfigurationError: no ``<statistic>.<field>``, an unknown statistic or keyword, or no bound.
    """
    place = f"{where}: gate marker"
    if len(mark.args) != 1 or not isinstance(mark.args[0], str):
        raise ConfigurationError(f"{place} takes one text, such as gate('separation.p', at_most=0.05)")
    statistic, dot, field = mark.args[0].partition(".")
    of_user = statistic not in STATISTICS and users(statistic)
    if statistic not in STATISTICS and not of_user:
        raise ConfigurationError(f"{place}: no statistic is called {statistic!r}; {nearest(statistic, [*STATISTICS])}")
    if bool(dot) != bool(field) or not (field or of_user):
        raise ConfigurationError(f"{place}: {mark.args[0]!r} names no field; write gate('{statistic}.<field>', …)")
    for keyword in mark.kwargs:
        if keyword not in THRESHOLDS:
            raise ConfigurationError(f"{place}: unknown keyword {keyword!r}; {nearest(keyword, THRESHOLDS)}")
    bounds = declare.read_thresholds(mark.kwargs, place)
    if not bounds:
        raise ConfigurationError(f"{place}: {mark.args[0]!r} has no bound; add one of {', '.join(THRESHOLDS)}")
    return DeclaredGate(statistic, field, bounds, where)


def gates_on(function: Any, where: str, users: Users) -> list[DeclaredGate]:
    """The gates that markers on one test function declare."""
    return [read_gate(mark, where, users) for mark in declare.own_marks(function) if mark.name == "gate"]


def gather_gates(holder: Any, where: str, users: Users, *, of_module: bool) -> list[DeclaredGate]:
    """The gates of a module or class, those of its classes without a sweep of their own included.

    Raises:
        ConfigurationError: a marker on the module or class itself, or what ``read_gate`` raises.
    """
    if any(mark.name == "gate" for mark in declare.own_marks(holder)):
        raise ConfigurationError(f"{where}: a gate marker belongs on a test function, not on a module or class")
    found = []
    for name, value in declare._tests_of(holder, of_module=of_module):
        place = f"{where}::{name}"
        if isinstance(value, type):
            if declare.sweep_mark(value) is None and value.__module__ == getattr(holder, "__module__", holder.__name__):
                found += gather_gates(value, place, users, of_module=False)
        elif callable(value):
            found += gates_on(value, place, users)
    return found


def ask_for_statistics(function: Any, users: Users) -> None:
    """Make a test with ``gate`` markers use the statistics that they name; which names are wrong is told later."""
    marks = declare.own_marks(function)
    used = {name for mark in marks if mark.name == "usefixtures" for name in mark.args}
    wanted = {str(mark.args[0]).partition(".")[0] for mark in marks if mark.name == "gate" and mark.args}
    for name in sorted(wanted - used):
        if name in STATISTICS or users(name):
            pytest.mark.usefixtures(name)(function)


def check_gate(gate: DeclaredGate, plan: Plan) -> None:
    """Refuse a field that the statistic does not have.

    Raises:
        ConfigurationError: names the nearest one.
    """
    if gate.statistic not in STATISTICS:
        return
    known = STATISTICS[gate.statistic](plan)
    if gate.field not in known:
        none = f"this sweep has nothing that {gate.statistic} could measure."
        if gate.statistic == "crystallization":
            none = "this sweep plans no probes; write sweep(probes='last')."
        told = nearest(gate.field, known) if known else none
        raise ConfigurationError(f"{gate.where}: gate marker: {gate.statistic} has no {gate.field!r}; {told}")
    if gate.statistic in ESTIMATES and any(bound.op == "equals" for bound in gate.thresholds):
        raise ConfigurationError(
            f"{gate.where}: gate marker: an estimate never equals a number; give {gate.name} at_least and at_most"
        )


# --- holding ----------------------------------------------------------------------------------------------------------


@dataclass
class Family:
    """The declared gates of one sweep, decided together.

    A sweep passes when all of its gates do, which needs no correction. Of many gates one fails by chance: a fail on an
    estimate counts when it is left after Holm's correction for all declared gates on estimates, selected or not.

    Args:
        name: as the report has it.
        gates: every declared gate of the sweep.
    """

    name: str
    gates: list[DeclaredGate]
    _adjusted: dict[tuple[Any, ...], tuple[float, float]] = field(default_factory=dict)
    _looks: Looks | None = None

    def look_in_order(self, fewest: int, plan: Plan) -> None:
        """Have the gates decided while seeds come in, from ``fewest`` of them on.

        Raises:
            ConfigurationError: a gate on what has no test that may look more than once.
        """
        for gate in self.gates:
            if gate.statistic not in ESTIMATES:
                raise ConfigurationError(
                    f"{gate.where}: the gate on {gate.name} is decided by all runs together, and not while seeds come "
                    f"in; write a number for --proteus-seeds, or gate {', '.join(ESTIMATES)}"
                )
        self._looks = Looks(fewest, tuple(dict.fromkeys(cell.seed for cell in plan.in_order())))

    def is_decided(self, sweep: Sweep) -> bool:
        """Whether the runs of the first seeds, a sweep narrowed to them, decide every gate."""
        held = list(_held(self.gates, _computed(sweep)))
        found = [self._sequence(value, bound, len(held)) for _, _, _, bound, value in held]
        return all(sequence is not None and sequence.verdict in ("pass", "fail") for sequence in found)

    def _sequence(self, value: Any, bound: Threshold, gates: int) -> Sequential | None:
        """What an estimate is beside a bound when it is looked at after each seed; None where it is not."""
        from pytest_proteus.measure.sequential import mean_in_sequence
        from pytest_proteus.measure.summary import Estimate

        if self._looks is None or not isinstance(value, Estimate):
            return None
        return mean_in_sequence(
            value.observations,
            bound.bound,
            above=bound.op in ("at_least", "above"),
            order=self._looks.order,
            n_min=self._looks.fewest,
            bounds=value.bounds,
            gates=gates,
        )

    def hold(self, own: Sequence[DeclaredGate], gates: Gates, fixture: Callable[[str], Any], *, blocking: bool) -> None:
        """Hold the statistics that a test's markers name against their bounds.

        Args:
            own: the gates of one test.
            gates: takes the verdicts.
            fixture: gives a fixture's value by name.
            blocking: False after a body that failed: recorded, not asserted.
        """
        held = list(_held(self.gates, fixture)) if self._looks is not None else []
        for gate, stratum, arm, bound, value in _held(own, fixture):
            sequence = self._sequence(value, bound, len(held))
            gates.record(
                _named(gate, stratum, arm),
                value,
                bound,
                source="marker",
                blocking=blocking,
                sequence=sequence,
                metric=gate.field if gate.statistic == "scores" else gate.name,
                stratum=stratum,
                arm=arm,
                **({"family": self.name} if sequence else self._told(gate, bound, stratum, arm, fixture)),
            )

    def _told(
        self, gate: DeclaredGate, bound: Threshold, stratum: str | None, arm: str | None, fixture: Callable[[str], Any]
    ) -> dict[str, Any]:
        """``family``, ``p`` (of a fail) and ``p_adjusted`` of a gate on an estimate; nothing of any other."""
        if not self._adjusted:
            self._adjusted = self._adjust(fixture)
        found = self._adjusted.get((gate.name, bound, stratum, arm))
        return {} if found is None else {"family": self.name, "p": found[0], "p_adjusted": found[1]}

    def _adjust(self, fixture: Callable[[str], Any]) -> dict[tuple[Any, ...], tuple[float, float]]:
        from pytest_proteus.measure.families import adjust
        from pytest_proteus.measure.summary import Estimate, p_beyond

        ps: dict[tuple[Any, ...], float] = {}
        tested = [gate for gate in self.gates if gate.statistic in ESTIMATES or gate.statistic not in STATISTICS]
        for gate, stratum, arm, bound, value in _held(tested, fixture):
            if isinstance(value, Estimate) and bound.op != "equals":
                p = p_beyond(value, bound.bound, above=bound.op in ("at_most", "below"))
                if p is not None:
                    ps[gate.name, bound, stratum, arm] = p
        adjusted = adjust(list(ps.values()))
        return {key: (p, q) for (key, p), q in zip(ps.items(), adjusted, strict=True) if q is not None}


@dataclass(frozen=True)
class Looks:
    """After which seeds gates are looked at: the first look is after ``fewest`` of those in ``order``."""

    fewest: int
    order: tuple[int, ...]


def _computed(sweep: Sweep) -> Callable[[str], Any]:
    """What the fixtures that give estimates would give of a sweep; nothing is written down."""
    from pytest_proteus.measure import statistic

    def of(computed: statistic.Statistic) -> Any:
        return statistic.joined({one.stratum: one.value for one in statistic.by_stratum(computed, sweep)})

    def score(metric: str, arm: str) -> Any:
        spec = sweep.evaluator(metric)
        return of(statistic.score_at(metric, arm, "last", direction=spec.direction, bounds=spec.bounds))

    def fixture(name: str) -> Any:
        given = {"sweep": sweep, "scores": score}
        return given[name] if name in given else of(statistic.STATISTICS[name])

    return fixture


def _held(
    gates: Sequence[DeclaredGate], fixture: Callable[[str], Any]
) -> Iterator[tuple[DeclaredGate, str | None, str | None, Threshold, Any]]:
    """(gate, stratum, arm, bound, value) of everything that is held against a bound."""
    for gate in gates:
        for stratum, arm, value in _measured(gate, fixture):
            for bound in gate.thresholds:
                yield gate, stratum, arm, bound, value


def _named(gate: DeclaredGate, stratum: str | None, arm: str | None) -> str:
    place = "/".join(part for part in (stratum, arm) if part)
    return f"{gate.name}[{place}]" if place else gate.name


def _measured(gate: DeclaredGate, fixture: Callable[[str], Any]) -> Iterator[tuple[str | None, str | None, Any]]:
    """(stratum, arm, value) of everything that the gate holds for; None where there is one stratum, or no arm."""
    if gate.statistic == "scores":
        sweep: Sweep = fixture("sweep")
        for arm in sweep.by_arm():
            found = fixture("scores")(gate.field, arm=arm)
            for stratum, value in found.items() if type(found) is dict else [(None, found)]:
                yield stratum, arm, value
        return
    found = fixture(gate.statistic)
    if gate.statistic not in STATISTICS:
        yield from _of_user(found, gate.field, fixture("sweep"))
        return
    if type(found) is not dict:
        yield None, None, getattr(found, gate.field)
        return
    for key, value in found.items():
        if gate.statistic in ("separation", "crystallization"):
            yield key, None, getattr(value, gate.field)
            continue
        stratum, arm = key if isinstance(key, tuple) else (None, key)
        yield stratum, arm, value[gate.field] if type(value) is dict else getattr(value, gate.field)


def _of_user(found: Any, name: str, sweep: Sweep) -> Iterator[tuple[str | None, str | None, Any]]:
    """The same of a user's statistic: a value of each arm where it is a mapping of arms, else one of each stratum."""
    strata, arms = sweep.strata(), sweep.by_arm().keys()
    by_stratum: dict[str | None, Any] = {None: found}
    if len(strata) > 1:
        by_stratum = {
            stratum: {key[1]: value for key, value in found.items() if key[0] == stratum}
            if all(isinstance(key, tuple) for key in found)
            else found[stratum]
            for stratum in strata
        }
    for stratum, value in by_stratum.items():
        if type(value) is dict and value and value.keys() <= arms:
            yield from ((stratum, arm, _field(item, name)) for arm, item in value.items())
        else:
            yield stratum, None, _field(value, name)


def _field(value: Any, name: str) -> Any:
    """A field of a result or of plain data; the value itself where none is named."""
    if not name:
        return value
    if type(value) is dict:
        return value.get(name)
    return getattr(value, name, None)
