"""One word for a report, with the sentences that it stands on. Reads the report and nothing else.

``fail`` when a cell was lost, a blocking gate failed or had nothing to decide on, or tests failed for another reason;
else ``incomplete`` when cells that the session wanted are missing; else ``undecided`` when a blocking gate could not
tell; else ``pass``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_proteus.core.errors import ConfigurationError

#: Outcomes, the strongest first.
OUTCOMES = ("fail", "incomplete", "undecided", "pass")

Reason = tuple[str, str]  # outcome, sentence


#: Reason of a fail that no gate and no cell explains.
TESTS_FAILED = "tests failed"


def judge(
    report: Mapping[str, Any],
    *,
    max_missing: int | str = 0,
    problems: Iterable[str] = (),
    tests_failed: bool = False,
) -> tuple[str, list[str]]:
    """The outcome of ``report`` and its reasons, the strongest first.

    Args:
        report: ``sweeps``, ``gates`` and ``session`` are read.
        max_missing: how many cells of a sweep may be missing: a count, or a share of all such as ``"10%"``.
        problems: sentences about artifacts that could not be read; with one of them nothing is a ``pass``.
        tests_failed: whether a test failed for another reason than its gates.
    """
    reasons = [reason for sweep in report["sweeps"] for reason in _sweep_reasons(sweep, max_missing)]
    reasons += [reason for gate in report["gates"] for reason in _gate_reasons(gate)]
    reasons += [("incomplete", sentence) for sentence in problems]
    reasons += _session_reasons(report["session"]["exitstatus"], reasons, tests_failed)
    reasons.sort(key=lambda reason: OUTCOMES.index(reason[0]))
    return (reasons[0][0] if reasons else "pass"), [sentence for _, sentence in reasons]


def allowed_missing(max_missing: int | str, planned: int) -> int:
    """The count that ``max_missing`` means for ``planned`` cells.

    Raises:
        ConfigurationError: neither a count nor a percentage.
    """
    text = str(max_missing).strip()
    try:
        if text.endswith("%"):
            return math.floor(float(text[:-1]) / 100 * planned)
        return int(text)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"--proteus-max-missing={text!r} is neither a count such as 2 nor a share such as 10%"
        ) from None


def _sweep_reasons(sweep: Mapping[str, Any], max_missing: int | str) -> list[Reason]:
    ledger, name = sweep["ledger"], sweep["name"]
    reasons: list[Reason] = []
    if ledger["lost"]:
        lost = [run["run_id"] for run in sweep["runs"] if run["state"] == "lost"]
        verb = "cell was" if len(lost) == 1 else "cells were"
        reasons.append(("fail", f"sweep {name}: {len(lost)} {verb} lost with its process: {_listed(lost)}"))
    wanted = sum(1 for run in sweep["runs"] if run["state"] == "not_run" and run["nodeids"])
    cut = sum(1 for run in sweep["runs"] if _is_cut_by_budget(run))
    missing = {"errored": ledger["errored"], "lost": ledger["lost"], "not_run": wanted, "beyond the budget": cut}
    total, allowed = sum(missing.values()), allowed_missing(max_missing, ledger["planned"])
    if total > allowed:
        parts = ", ".join(f"{count} {state}" for state, count in missing.items() if count)
        reasons.append(
            (
                "incomplete",
                f"sweep {name}: {total} of {ledger['planned']} cells missing ({parts}); at most {allowed} may be",
            )
        )
    elif ledger["skipped"] and not ledger["complete"] + ledger["timeout"] + ledger["abort"]:
        reasons.append(("incomplete", f"sweep {name}: nothing was measured: {ledger['skipped']} cells skipped"))
    return reasons


def _is_cut_by_budget(run: Mapping[str, Any]) -> bool:
    return run["state"] == "skipped:budget" or (run["error"] or {}).get("class") == "budget"


def _gate_reasons(gate: Mapping[str, Any]) -> list[Reason]:
    if gate["verdict"] == "pass" or not gate["blocking"]:
        return []
    outcome = "undecided" if gate["verdict"] == "undecided" else "fail"
    said = {"fail": "failed", "undecided": "is undecided", "unavailable": "has nothing to decide on"}[gate["verdict"]]
    why = gate["reason"] or gate_comparison(gate)
    place = f" in {gate['nodeid']}" if gate["nodeid"] else ""
    return [(outcome, f"gate {gate['name']}{place} {said}" + (f": {why}" if why else ""))]


def gate_comparison(gate: Mapping[str, Any]) -> str:
    """``value`` beside the bound it was held to; empty when the gate has no threshold."""
    threshold = gate["threshold"]
    if not threshold or threshold["op"] is None:
        return ""
    wanted = {"equals": "exactly"}.get(threshold["op"], str(threshold["op"]).replace("_", " "))
    return f"{_shown(gate['value'])}, wanted {wanted} {_shown(threshold['bound'])}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "missing" if value is None else str(value)


def _session_reasons(exitstatus: int | None, known: Sequence[Reason], tests_failed: bool) -> list[Reason]:
    told = {outcome for outcome, _ in known}
    if exitstatus == 1 and "fail" not in told and (tests_failed or "undecided" not in told):
        return [("fail", TESTS_FAILED)]
    if exitstatus == 2:
        return [("incomplete", "the session was interrupted")]
    if exitstatus == 3:
        return [("fail", "pytest ended with an internal error")]
    return []


def _listed(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
