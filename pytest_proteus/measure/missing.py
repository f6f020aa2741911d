"""What missing runs could make of a number: the least and the most it is when they are put in as different extremes.

A stream that nobody has seen can be anything, so no bound is certain. The runs are put in as like their own arm, as
like each other arm, and as unlike everything; a verdict that this turns is no verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pytest_proteus.measure.stream import Stream, distances
from pytest_proteus.measure.summary import Interval
from pytest_proteus.measure.unavailable import Result, Unavailable

__all__ = ["Uncertain", "bounded", "completions"]

#: An action that no harness has.
_UNLIKE = "\0"

Streams = Mapping[str, Sequence["Stream | None"]]
_R = TypeVar("_R", bound=Result)


class Uncertain(float):
    """A number of the runs that are there, which a gate takes like an estimate: missing runs that turn it undecide it.

    ``low`` and ``high`` are the least and the most it is with the missing runs put in; None where that has no number.
    """

    low: float | None
    high: float | None
    n: int
    n_missing: int

    def __new__(cls, value: float, low: float | None, high: float | None, n: int, n_missing: int) -> Uncertain:
        """The number and its two ends."""
        made = super().__new__(cls, value)
        made.low, made.high, made.n, made.n_missing = low, high, n, n_missing
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Uncertain, (float(self), self.low, self.high, self.n, self.n_missing)

    @property
    def value(self) -> float:
        """The plain number."""
        return float(self)

    @property
    def interval(self) -> Interval:
        """The number itself: it is no estimate of anything but for the runs that are missing."""
        return Interval("number of the runs that are there", 1.0, self.value, self.value)

    @property
    def with_missing(self) -> Interval | Unavailable:
        """From the least to the most."""
        if self.low is None or self.high is None:
            return Unavailable("missing_runs", "with the missing runs put in it has no number", self.n)
        return Interval("missing runs like their own arm, like others and like none", 1.0, self.low, self.high)


def completions(streams: Streams, level: str) -> Iterator[dict[str, list[Stream]]]:
    """The streams with all missing ones put in: like their own arm, like each arm in turn, and like nothing.

    What is like an arm is the stream of its most central run, the one with the least mean distance to the others.
    """
    known = {arm: [stream for stream in own if stream is not None] for arm, own in streams.items()}
    lengths = sorted(len(stream) for own in known.values() for stream in own)
    if not lengths:
        return
    none = [_UNLIKE] * max(2, lengths[len(lengths) // 2])
    centre = {arm: _centre(own, level) or none for arm, own in known.items()}
    fills: list[Mapping[str, Stream]] = [centre, *(dict.fromkeys(streams, other) for other in centre.values())]
    for fill in (*fills, dict.fromkeys(streams, none)):
        yield {
            arm: [fill[arm] if stream is None else stream for stream in own] for arm, own in streams.items()
        }  # fmt: skip


def _centre(streams: Sequence[Stream], level: str) -> Stream | None:
    usable = sorted((list(stream) for stream in streams if len(stream) > (level == "order")), key=list)
    if not usable:
        return None
    return usable[int(np.argmin(distances(usable, level).sum(axis=0).round(12)))]


def _with_missing(found: _R, others: Sequence[_R | Unavailable], n: int, n_missing: int) -> _R:
    """``found`` with every number that is a float made ``Uncertain``, and the ends by name in ``with_missing``.

    Args:
        found: a result of the runs that are there, with a field ``with_missing``.
        others: the same of each completion.
        n: runs that are there.
        n_missing: runs that are missing.
    """
    ends: dict[str, tuple[float | None, float | None]] = {}
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(found):  # type: ignore[arg-type]
        value = getattr(found, field.name)
        if type(value) is not float or field.name in ("alpha", "p_min") or field.name.endswith(("_se", "_sd")):
            continue
        seen = [value, *(getattr(other, field.name) for other in others)]
        known = all(isinstance(one, float) and math.isfinite(one) for one in seen)
        low, high = (min(seen), max(seen)) if known else (None, None)
        ends[field.name] = (low, high)
        changed[field.name] = Uncertain(value, low, high, n, n_missing)
    replaced: _R = dataclasses.replace(found, **changed, with_missing=ends)  # type: ignore[type-var]
    return replaced


def bounded(
    streams: Streams, level: str, of: Callable[[Streams], _R | Unavailable], found: _R | Unavailable
) -> _R | Unavailable:
    """A statistic of streams with what missing runs could make of it, where some are.

    Args:
        streams: arm → one stream a run, None for a missing one.
        level: level of the distances.
        of: the statistic.
        found: what it is of ``streams``.
    """
    n_missing = sum(stream is None for own in streams.values() for stream in own)
    if not n_missing or isinstance(found, Unavailable):
        return found
    n = sum(len(own) for own in streams.values()) - n_missing
    return _with_missing(found, [of(filled) for filled in completions(streams, level)], n, n_missing)
