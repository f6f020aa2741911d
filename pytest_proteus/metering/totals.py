"""What a run used, from the store of its sweep; reads only.

The wire comes first. The agent's own log verifies it, and fills in what a reply did not say. A run whose calls did not
come by, or of which some reply's cost is not known, has no total: it is never a smaller one.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import RecordError
from pytest_proteus.metering.prices import Prices, prices_of
from pytest_proteus.metering.store import NAME, check_version
from pytest_proteus.metering.usage import KINDS


@dataclass(frozen=True)
class RunUsage:
    """What the calls of a run used, failed attempts included.

    Args:
        input_tokens: prompt tokens that came from no cache and went to none.
        output_tokens: tokens that were generated, ``reasoning_tokens`` included.
        cache_read_tokens, cache_write_tokens: prompt tokens that did come from, or go to, a cache.
        reasoning_tokens: part of the output; None where no reply tells it.
        total_tokens: input, output and both of the caches; None where it is not known.
        cost_usd: what that costs; None where no price is known.
        price_source: where the prices are from.
        requests: calls of a model, those that failed and those that were tried again included; None where they cannot
            be seen.
        token_source: ``wire``, ``log``, ``wire+log`` or ``unmeasured``.
        discrepancy: ``badge`` (``reconciled``, ``log-fallback``, ``discrepancy``, ``wire-only`` or ``unmeasured``),
            ``reason`` of what is unmeasured, ``differences`` (kind → ``wire`` and ``log``), ``cut_requests`` (replies
            that broke off: what they had told until then is counted), ``untold_requests`` (whole replies that did not
            tell their cost), ``known`` (what is known of the total where that is not), ``unpriced_models`` (for
            which no price is known).
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    price_source: str | None = None
    requests: int | None = None
    token_source: str = "unmeasured"
    discrepancy: Mapping[str, Any] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """The ``usage`` block of a report."""
        return asdict(self)


@dataclass
class _Span:
    """One span with the sums of its rows."""

    model: str
    bound: bool
    state: str
    log: Mapping[str, int] | None
    note: str
    requests: int = 0
    logged: int = 0
    answered: int = 0
    untold: int = 0
    cut: int = 0
    sums: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(KINDS))
    parts: list[Mapping[str, Any]] = field(default_factory=list)  # the same by model and length of prompts

    def add(self, sums: Mapping[str, Any]) -> None:
        self.parts.append(sums)
        for name in ("requests", "logged", "answered", "untold", "cut"):
            setattr(self, name, getattr(self, name) + (sums[name] or 0))
        for kind in KINDS:
            if sums[kind] is not None:
                self.sums[kind] = (self.sums[kind] or 0) + sums[kind]


#: Sums over the rows of each span, model, and number of limits of length that their prompts pass. A reply counts as
#: whole when its status is good and it did not break off, or when its counts were on record before its end was seen.
_SUMS = f"""
SELECT span, model, {{passed}} AS passed, count(*) AS requests,
    sum(source = 'log' OR coalesce(note, '') = 'counts from the log') AS logged,
    sum(status < 300 AND (state = 'complete' OR input IS NOT NULL AND output IS NOT NULL)) AS answered,
    sum(status < 300 AND state = 'complete' AND (input IS NULL OR output IS NULL)) AS untold,
    sum(state = 'cut' OR state = 'open' AND (input IS NULL OR output IS NULL)) AS cut,
    {", ".join(f"sum({kind}) AS {kind}" for kind in KINDS)}
FROM token_usage WHERE span IN (SELECT id FROM spans WHERE run_id IN ({{runs}}))
GROUP BY span, model, passed
UNION ALL
SELECT span, model, 0, requests, 0, answered, untold, cut, {", ".join(KINDS)}
FROM folded WHERE span IN (SELECT id FROM spans WHERE run_id IN ({{runs}}))
"""


def usage_of(out: Path, run_ids: Sequence[str] | None = None) -> dict[str, RunUsage]:
    """Run id → what it used, of the runs of a sweep's folder that something was to be metered of.

    Args:
        out: the sweep's folder.
        run_ids: the runs that are asked for; None for all.

    Raises:
        RecordError: the store is damaged, or of a later version.
    """
    path = Path(out) / NAME
    if not path.exists():
        return {}
    try:
        with contextlib.closing(connect(path)) as connection:
            check_version(connection, path)
            known = "SELECT DISTINCT run_id FROM spans WHERE run_id NOT NULL"
            wanted = [row[0] for row in connection.execute(known)] if run_ids is None else list(run_ids)
            found: dict[str, RunUsage] = {}
            prices = prices_of(out)
            for start in range(0, len(wanted), 500):
                found |= _read(connection, wanted[start : start + 500], prices)
            return found
    except sqlite3.Error as error:
        raise RecordError(f"the usage store {path} cannot be read: {error}") from error


def so_far(out: Path) -> tuple[int, int] | None:
    """Calls of a sweep's folder and the tokens that are known of them, while it runs; None where nothing is metered."""
    path = Path(out) / NAME
    if not path.exists():
        return None
    counted = " + ".join(f"coalesce(sum({kind}), 0)" for kind in KINDS if kind != "reasoning")
    try:
        with contextlib.closing(connect(path)) as connection:
            calls, tokens = connection.execute(f"SELECT count(*), {counted} FROM token_usage").fetchone()
    except sqlite3.Error:
        return None  # whoever needs the store says what is wrong with it
    return (int(calls), int(tokens)) if calls else None


def connect(path: Path) -> sqlite3.Connection:
    """A connection that reads, also where the folder cannot be written."""
    quoted = str(Path(path).resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(f"file:{quoted}?{mode}", uri=True, timeout=30.0)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            if "immutable" in mode:
                raise
            continue
        break
    return connection


def _read(connection: sqlite3.Connection, run_ids: Sequence[str], prices: Prices) -> dict[str, RunUsage]:
    marks = ", ".join("?" * len(run_ids))
    connection.execute("BEGIN")
    spans: dict[str, _Span] = {}
    of_run: dict[str, list[_Span]] = defaultdict(list)
    for row in connection.execute(f"SELECT * FROM spans WHERE run_id IN ({marks})", run_ids):
        span = _Span(row["model"] or "", bool(row["bound"]), row["state"], _log(row["log"]), row["note"] or "")
        spans[row["id"]] = span
        of_run[row["run_id"]].append(span)
    prompt = "coalesce(input, 0) + coalesce(cache_read, 0) + coalesce(cache_write, 0)"
    passed = " + ".join([f"({prompt} > {limit})" for limit in prices.limits]) or "0"
    for row in connection.execute(_SUMS.format(runs=marks, passed=passed), [*run_ids, *run_ids]):
        spans[row["span"]].add(dict(row))
    connection.execute("COMMIT")
    return {run_id: combined(found, prices) for run_id, found in of_run.items()}


def _log(text: str | None) -> Mapping[str, int] | None:
    value = json.loads(text) if text else None
    return value if isinstance(value, dict) and value else None


def combined(spans: Iterable[_Span], prices: Prices) -> RunUsage:
    """What the spans of one run come to."""
    spans = list(spans)
    requests = sum(span.requests for span in spans)
    reason = next(filter(None, (_unmeasured(span) for span in spans)), "")
    if not reason and not any(span.log for span in spans):
        if not requests:
            reason = "no call of a model came by"
        elif not any(span.answered or span.cut or span.untold for span in spans):
            reason = "no call of a model was answered"
    seen = any(span.bound for span in spans)
    if reason:
        return RunUsage(requests=requests if seen else None, discrepancy={"badge": "unmeasured", "reason": reason})
    totals: dict[str, int | None] = dict.fromkeys(KINDS)
    whole, filled, compared = True, any(span.logged for span in spans), False
    differences: dict[str, dict[str, int]] = {}
    for span in spans:
        counts, complete, by_log = _of_span(span)
        whole, filled = whole and complete, filled or by_log
        for kind, value in counts.items():
            if value is not None:
                totals[kind] = (totals[kind] or 0) + value
        if span.log is not None and span.requests:
            compared = True
            for kind, (by_wire, log) in _differences(span).items():
                both = differences.setdefault(kind, {"wire": 0, "log": 0})
                both["wire"] += by_wire
                both["log"] += log
    total = _total(totals)
    told: dict[str, Any] = {
        "badge": "discrepancy"
        if differences
        else "log-fallback"
        if filled
        else "reconciled"
        if compared
        else "wire-only"
    }
    if differences:
        told["differences"] = differences
    told |= {
        name: number
        for name, number in (
            ("cut_requests", sum(span.cut for span in spans)),
            ("untold_requests", sum(span.untold for span in spans)),
        )
        if number
    }
    if not whole:
        told |= {"known": total, "reason": "some replies did not tell their cost"}
        totals, total = dict.fromkeys(KINDS), None
    cost, sources, unpriced = _cost(spans, prices) if total is not None else (None, (), ())
    if unpriced:
        told["unpriced_models"] = list(unpriced)
    logged = sum(span.logged for span in spans)
    source = "log" if logged == requests else "wire+log" if compared or logged else "wire"
    return RunUsage(
        input_tokens=totals["input"],
        output_tokens=totals["output"],
        cache_read_tokens=totals["cache_read"],
        cache_write_tokens=totals["cache_write"],
        reasoning_tokens=totals["reasoning"],
        total_tokens=total,
        cost_usd=cost,
        price_source=", ".join(sources) or None,
        requests=requests if seen else None,
        token_source=source if whole else "unmeasured",
        discrepancy=told,
    )


def _cost(spans: Iterable[_Span], prices: Prices) -> tuple[float | None, Sequence[str], Sequence[str]]:
    """US dollars, where the prices are from, and the models that have none, for which there is no cost at all."""
    costs: list[float] = []
    sources: set[str] = set()
    unpriced: set[str] = set()
    for span in spans:
        counts, _, filled = _of_span(span)
        parts: list[Mapping[str, Any]] = span.parts
        if filled or not parts:  # the log does not say which call it was
            parts = [{"model": span.model, "passed": 0, **counts}]
        for part in parts:
            if not any(part[kind] for kind in KINDS):
                continue
            known = {**part, "input": part["input"] or 0, "output": part["output"] or 0}
            passed = part["passed"]
            cost = prices.cost(part["model"] or "", known, prices.limits[passed - 1] + 1 if passed else 0)
            if cost is None:
                unpriced.add(part["model"] or "(not named)")
            else:
                costs.append(cost)
                sources.add(prices.sources[prices.of(part["model"])])
    if unpriced or not costs:
        return None, (), sorted(unpriced)
    return math.fsum(costs), sorted(sources), ()


def _unmeasured(span: _Span) -> str:
    """Why nothing can be said of a span; empty when something can."""
    if span.bound:
        spent = span.log is not None and any(span.log.values())
        return "its agent tells of calls that did not come by" if spent and not span.requests else ""
    return "" if span.log is not None and span.state != "open" else span.note or "its calls cannot be seen"


def _of_span(span: _Span) -> tuple[dict[str, int | None], bool, bool]:
    """Kind → tokens, whether that is all, and whether the log had to fill something in."""
    counts = dict(span.sums)
    log = span.log or {}
    if not span.requests:
        counts.update({kind: log.get(kind) for kind in KINDS})
        return counts, span.log is not None or span.bound, span.log is not None
    filled = False
    for kind in KINDS:
        gap = span.untold and kind in ("input", "output")
        if kind in log and (counts[kind] is None or (gap and log[kind] >= (counts[kind] or 0))):
            filled = filled or bool(log[kind])
            counts[kind] = log[kind]
    told = not span.untold or (filled and counts["input"] is not None and counts["output"] is not None)
    return counts, told, filled


def _differences(span: _Span) -> dict[str, tuple[int, int]]:
    """Kind → tokens by the wire and by the log, where both tell and they differ."""
    assert span.log is not None
    found = {}
    for kind in (kind for kind in KINDS if kind in span.log):
        wire, log = span.sums[kind], span.log[kind]
        if wire is None or wire == log or (span.untold and wire < log):
            continue
        # an input that is told without its cached parts may have them within
        inside = [span.sums[part] or 0 for part in ("cache_read", "cache_write") if part not in span.log]
        if kind == "input" and log == wire + sum(inside):
            continue
        found[kind] = wire, log
    return found


def _total(counts: Mapping[str, int | None]) -> int | None:
    if counts["input"] is None or counts["output"] is None:
        return None
    return counts["input"] + counts["output"] + (counts["cache_read"] or 0) + (counts["cache_write"] or 0)
