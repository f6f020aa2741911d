"""What a statistic returns: a result of named fields, or the reason why there is none. Computes nothing.

A value that cannot be known is ``Unavailable``, never a plausible zero, and null in JSON with its reason beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from pytest_proteus.core.records import plain

__all__ = ["REASONS", "Finding", "Result", "Unavailable"]

#: The reasons that measurements give, and what each of them says to a reader.
REASONS: dict[str, str] = {
    "empty_stream": "a stream without actions has no composition",
    "fewer_than_two_actions": "a stream of fewer than two actions has no order",
    "fewer_than_two_labels": "one arm alone has nothing to differ from",
    "no_label_with_two_streams": "no arm has two runs, so nothing says how much runs of one arm differ",
    "within_zero": "runs of one arm do not differ at all, so a ratio to their difference has no size",
    "all_streams_identical": "all runs are identical, so there is no difference to compare",
    "null_zero_single_tool": "runs of one tool only are alike whatever their policy",
    "fewer_than_two_runs": "one run says nothing about how much runs differ",
    "to_others_zero": "the distance to the other endpoints is zero, so a ratio to it has no size",
    "endpoints_indistinguishable": "the probe is at distance zero from its own and from the other endpoints",
    "no_other_endpoints": "there is no other endpoint to be closer to",
    "p_min_above_alpha": "no outcome at this number of runs could give a p below alpha",
    "missing_fraction": "too many values are missing",
    "degenerate_differences": "the differences do not vary, so they tell nothing about their spread",
    "identical_values": "all values are identical, so they tell nothing about their spread",
    "not_deterministic": "values declared deterministic differ",
    "n_below_minimum": "there are too few values",
    "missing_runs": "not every run has it, and which ones have may depend on what they did",
    "no_values": "there is no value at all",
    "no_bounds": "no bounds are declared, so what is missing could be anything",
    "baseline_fingerprint_mismatch": "the baseline was made under another condition",
    "welch_needs_dispersion": "an arm of one run, or of runs that do not differ, has no dispersion to weigh it by",
    "straddles": "the interval lies on both sides of the margin",
    "more_runs_to_come": "nothing is settled yet, and more runs are planned",
    "not_paired": "no run of one side has its pair on the other",
    "outside_bounds": "a value lies outside of the bounds that are declared possible",
    "too_large": "a value is too large to be compared with others",
    "no_ratio_interval": "this method has no interval of a ratio",
    "not_positive": "a value of zero or less has no logarithm and no percentage",
    "not_significant_in_family": "one of so many gates fails like this by chance",
    "deterministic": "the values are declared deterministic, so nothing is estimated",
    "order_not_counted": "this level does not look at the order of actions",
    "not_measured": "the measurement was not asked for",
    "unreadable": "artifacts that it needs cannot be read",
    "failed": "the function that computes it raised an exception",
    "not_json": "the function that computes it returned something that JSON cannot hold",
    "changed_artifacts": "the function that computes it changed what it was to read",
}


@dataclass(frozen=True)
class Unavailable:
    """A value that cannot be known, and why.

    It is false, has no number, and cannot be compared with one. Any field of it is unavailable too, for the same
    reason, so that ``result.ratio`` needs no question first.

    Args:
        reason: a short name, mostly one of ``REASONS``.
        detail: what it was in this case; the general sentence when left out.
        n: how many values, runs or streams there were, where that is the matter.
        n_missing: how many of the values are missing, where that is known.
    """

    reason: str
    detail: str = ""
    n: int | None = None
    n_missing: int | None = None

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        said = self.detail or REASONS.get(self.reason, "")
        return f"unavailable: {self.reason}" + (f" ({said})" if said else "")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("tolist", "item", "shape", "dtype"):  # no array, no protocol but its own
            raise AttributeError(name)
        return self

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise TypeError(str(self))
        return self.as_dict().get(name)

    def _refuse(self, other: object) -> NoReturn:
        raise TypeError(f"cannot be compared with {other!r}: {self}")

    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def as_dict(self) -> dict[str, Any]:
        """``{"status": "unavailable", "reason", "detail", "n"}`` with the sentence filled in."""
        return {
            "status": "unavailable",
            "reason": self.reason,
            "detail": self.detail or REASONS.get(self.reason, ""),
            "n": self.n,
        }

    def to_json(self) -> None:
        """Null: the value is not there. ``as_dict`` has the reason."""
        return


class Result(Mapping[str, Any]):
    """Base of the frozen dataclasses that measurements return.

    As attributes, values that cannot be known are ``Unavailable``. As a mapping a result reads as its JSON does: such a
    value is None, and ``<field>_reason`` says why.
    """

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        out: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            out[field.name] = _json(value)
            if isinstance(value, Unavailable):
                out[f"{field.name}_reason"] = value.reason
        return out

    def __getitem__(self, name: str) -> Any:
        return self.to_json()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())


class Finding(Result):
    """Base of results that say in a sentence what was found; their JSON has the sentence where it is not empty."""

    @property
    def finding(self) -> str:
        """What was found."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The fields, and the finding where there is one."""
        return {**super().to_json(), **({"finding": self.finding} if self.finding else {})}


def _json(value: Any) -> Any:
    if isinstance(value, (Unavailable, Result)):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    return plain(value)
