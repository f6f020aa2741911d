"""What a gate says of a value that there is none of."""

from __future__ import annotations

from pytest_proteus.measure.summary import estimate
from pytest_proteus.measure.unavailable import Unavailable
from pytest_proteus.sweep.gates import decide


def test_a_gate_on_an_estimate_of_no_value_counts_all_runs_that_are_missing():
    found = decide("notes", estimate([None] * 6), "at_least", 1)
    assert (found.verdict, found.n, found.n_missing) == ("unavailable", 0, 6)


def test_a_gate_on_no_value_at_all_misses_one():
    found = decide("notes", None, "at_least", 1)
    assert (found.verdict, found.n, found.n_missing) == ("unavailable", 0, 1)


def test_unavailable_is_said_once():
    for value in (Unavailable("no_values"), estimate([1.0])):
        assert str(decide("notes", value, "at_least", 1)).count("unavailable") == 1
