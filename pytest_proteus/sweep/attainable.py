"""What a planned sweep can decide, before anything runs: its pairs, the smallest p, and gates that decide nothing.

Looks at cells and at no result. The designs whose smallest p is asked for are ``measure``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.strata import by_arm, by_stratum
from pytest_proteus.measure.summary import Bounds
from pytest_proteus.sweep.declare import Threshold
from pytest_proteus.sweep.declared import ESTIMATES, STATISTICS, DeclaredGate
from pytest_proteus.sweep.gates import decide
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan

#: Level of a gate.
ALPHA = 0.05


def strata(plan: Plan) -> dict[str, dict[str, list[Cell]]]:
    """Stratum → arm → its cells."""
    return {stratum: by_arm(cells) for stratum, cells in by_stratum(plan.cells).items()}


def pairs(plan: Plan) -> int:
    """Seeds that all arms of a stratum have; of the stratum that has the fewest."""
    return min(
        len(set.intersection(*({cell.seed for cell in cells} for cells in arms.values())))
        for arms in strata(plan).values()
    )


def power(plan: Plan) -> dict[str, Any]:
    """``pairs``, ``p_min`` of a contrast or a comparison with a baseline, and ``separation_p_min``; None where neither.

    A harness that is deterministic is compared as it is: its smallest p is 0.
    """
    told = [_separation_p_min(plan, arms) for arms in strata(plan).values()]
    known = [p for p in told if p is not None]
    return {
        "pairs": pairs(plan),
        "p_min": p_min(plan),
        "separation_p_min": max(known) if len(known) == len(told) else None,
    }


def p_min(plan: Plan) -> float:
    """The smallest p of a contrast or a comparison with a baseline."""
    from pytest_proteus.measure import signflip

    exact = set(plan.harnesses_that_are("deterministic")) >= {cell.harness for cell in plan.cells}
    return 0.0 if exact else signflip.p_min(pairs(plan))


def power_lines(plan: Plan) -> list[str]:
    """The same for readers."""
    told = power(plan)
    lines = [f"  pairs      {told['pairs']:>4}  the smallest p of a contrast is {told['p_min']:.3g}"]
    if told["p_min"] > ALPHA:
        lines.append("                   no contrast can be decided: it takes 5 seeds in every arm")
    if told["separation_p_min"] is not None:
        lines.append(f"                   the smallest p of separation is {told['separation_p_min']:.3g}")
    return lines


def _separation_p_min(plan: Plan, arms: dict[str, list[Cell]]) -> float | None:
    """The smallest p that ``separation`` of a stratum can have; None where it has none."""
    from pytest_proteus.measure.stream import relabeling

    sizes = [len(cells) for cells in arms.values()]
    if len(sizes) < 2 or max(sizes) < 2:
        return None
    cells = [cell for listed in arms.values() for cell in listed]
    shared = cells[0].harness in plan.harnesses_that_are("seeded")
    design, _ = relabeling([cell.seed for cell in cells], sizes, shared, ALPHA, [])
    return float(design.p_min)


def check_attainable(gate: DeclaredGate, plan: Plan, family: Sequence[DeclaredGate]) -> None:
    """Refuse a declared gate that no outcome of the planned cells could pass, or that none could fail.

    Args:
        gate: the gate.
        plan: what is planned.
        family: all declared gates of the sweep, this one included: a fail has to be told among them.

    Raises:
        ConfigurationError: says what it takes.
    """
    low, high = _range_of(gate, plan)
    for bound in gate.thresholds:
        verdict = _beyond(bound, low, high)
        if verdict:
            ends = f"{'any number' if low is None else f'{low:g}'} to {'any number' if high is None else f'{high:g}'}"
            raise ConfigurationError(
                f"{gate.where}: the gate on {gate.name} can never {verdict}: its values go from {ends}; take a bound "
                f"between them"
            )
    for stratum, arms in strata(plan).items():
        told = _never(gate, plan, arms)
        verdict, why = ("pass", told) if told else _never_told(gate, plan, arms, _tested(family, plan))
        if why:
            raise ConfigurationError(f"{gate.where}: the gate on {gate.name} can never {verdict} in {stratum}: {why}")


def _range_of(gate: DeclaredGate, plan: Plan) -> Bounds:
    """The smallest and largest value that what is gated can have; None for an open end, or one that is not known."""
    if gate.statistic == "scores":
        return plan.attached[gate.field].spec.bounds or (None, None)
    if gate.statistic in ESTIMATES:
        return 0.0, None
    if gate.statistic not in STATISTICS:
        return None, None
    if gate.field.endswith("index"):
        return -1.0, 1.0
    is_p = gate.field == "p" or gate.field.startswith("p_") or gate.field.endswith("_p")
    return (0.0, 1.0) if is_p else (0.0, None) if gate.field in ("R", "ratio", "within", "between") else (None, None)


def _beyond(bound: Threshold, low: float | None, high: float | None) -> str:
    """``pass`` or ``fail``, whichever a bound allows for no value from ``low`` to ``high``; empty when for both."""
    if bound.op == "equals":
        return ""
    if bound.op in ("at_most", "below"):  # the same, turned around
        low, high = (None if high is None else -high), (None if low is None else -low)
    edge, strict = (bound.bound if bound.op in ("at_least", "above") else -bound.bound), bound.op in ("above", "below")
    if high is not None and (edge > high or (strict and edge >= high)):
        return "pass"
    return "fail" if low is not None and (edge < low or (not strict and edge <= low)) else ""


def _tested(family: Sequence[DeclaredGate], plan: Plan) -> int:
    """How many verdicts on estimates a family has: one a bound, arm and stratum."""
    arms = sum(len(found) for found in strata(plan).values())
    return arms * sum(len(gate.thresholds) for gate in family if gate.statistic in ESTIMATES)


def _never_told(gate: DeclaredGate, plan: Plan, arms: dict[str, list[Cell]], tested: int) -> tuple[str, str]:
    """What a gate on a score with declared bounds can never do, and why: equal scores at one end tell the most."""
    from pytest_proteus.measure.summary import Estimate, closed_bounds, estimate, p_beyond

    bounds = closed_bounds(plan.attached[gate.field].spec.bounds) if gate.statistic == "scores" else None
    n = min(len(cells) for cells in arms.values())
    if bounds is None or any(len({cell.seed for cell in cells}) < len(cells) for cells in arms.values()):
        return "", ""
    for bound in gate.thresholds:
        upwards = bound.op in ("at_least", "above")
        best, worst = (estimate([end] * n, bounds=bounds) for end in (reversed(bounds) if upwards else bounds))
        if bound.op == "equals" or not (isinstance(best, Estimate) and isinstance(worst, Estimate)):
            continue
        passed = decide("", best, bound.op, bound.bound)
        if passed.verdict == "undecided":
            return "pass", f"with {n} runs that all score {best.value:g}, the {passed.reason}; run more seeds"
        p = p_beyond(worst, bound.bound, above=not upwards)
        if p is not None and min(p * tested, 1) > ALPHA:
            among = f" among {tested} verdicts" if tested > 1 else ""
            return "fail", (
                f"with {n} runs that all score {worst.value:g}, p is {min(p * tested, 1):.3g}{among}; run more seeds, "
                f"or take a bound that a score can be beyond"
            )
    return "", ""


def _never(gate: DeclaredGate, plan: Plan, arms: dict[str, list[Cell]]) -> str:
    """Why a gate can never pass in a stratum; empty when it can."""
    fewest = min(len(cells) for cells in arms.values())
    if gate.statistic == "separation":
        smallest = _separation_p_min(plan, arms)
        if smallest is None:
            return "separation takes two arms, and one of them with two seeds"
        return _p_too_small(gate, smallest, arms)
    if gate.statistic == "reliability" and fewest < 2:
        return "one run says nothing of how alike runs are; run two seeds or more"
    if gate.statistic in ESTIMATES and fewest < 2 and not _bounded(gate, plan):
        return "one run has no interval; run two seeds or more"
    return ""


def _p_too_small(gate: DeclaredGate, smallest: float, arms: dict[str, list[Cell]]) -> str:
    for bound in gate.thresholds if gate.field in ("p", "p_R", "p_welch") else ():
        if (bound.op == "at_most" and smallest > bound.bound) or (bound.op == "below" and smallest >= bound.bound):
            sizes = " and ".join(str(len(cells)) for cells in arms.values())
            return f"with arms of {sizes} runs no p is below {smallest:.3g}; run more seeds"
    return ""


def _bounded(gate: DeclaredGate, plan: Plan) -> bool:
    bounds = plan.attached[gate.field].spec.bounds if gate.statistic == "scores" else None
    return bounds is not None and None not in bounds
