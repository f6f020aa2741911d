"""How often a gate fails two identical arms."""

from __future__ import annotations

import json
import random

import pytest

from pytest_proteus.measure.gate import compare
from pytest_proteus.measure.placebo import placebo


def compared(differences, margin, **more):
    baseline = dict(enumerate([10.0] * len(differences)))
    candidate = {seed: 10.0 + difference for seed, difference in enumerate(differences)}
    return compare(baseline, candidate, **{"direction": "higher", "margin": margin, **more})


def test_all_swaps_of_few_pairs_are_decided():
    found = placebo(compared([-2.0, -1.0, 0.5, 1.5, 2.5], margin=1))
    assert (found.swaps, found.exact, found.n) == (32, True, 5)
    assert found.failed + found.undecided + found.passed == pytest.approx(1)


def test_a_margin_far_beyond_the_scatter_always_passes():
    found = placebo(compared([-2.0, -1.0, 0.5, 1.5, 2.5], margin=100))
    assert (found.verdict, found.failed, found.passed) == ("pass", 0.0, 1.0)
    assert "passes 100%" in found.finding


def test_a_margin_within_the_scatter_mostly_decides_nothing():
    found = placebo(compared([-2.0, -1.0, 0.5, 1.5, 2.5], margin=0.01))
    assert found.undecided > 0.8


def test_a_gate_fails_identical_arms_no_more_often_than_its_alpha():
    source = random.Random(5)
    for n in (5, 6, 12):
        found = placebo(compared([source.gauss(0, 1) for _ in range(n)], margin=0.01))
        assert found.failed <= 0.05
        assert found.passed <= 0.1


def test_of_many_pairs_some_swaps_are_drawn():
    differences = [(-1) ** i * (i + 1) for i in range(12)]
    found = placebo(compared(differences, margin=5))
    assert (found.swaps, found.exact) == (128, False)
    assert found == placebo(compared(differences, margin=5))


def test_a_deterministic_harness_is_compared_as_it_is():
    found = placebo(compared([0.0] * 3, margin=1, assume="deterministic"))
    assert (found.verdict, found.passed) == ("pass", 1.0)


def test_missing_pairs_stay_missing():
    found = placebo(compare({i: 1.0 * i for i in range(7)}, {**{i: 1.0 * i for i in range(6)}, 6: None},
                            direction="higher", margin=1, bounds=(0, 10)), (0, 10))  # fmt: skip
    assert found.n_missing == 1
    json.dumps(found.to_json(), allow_nan=False)


def test_what_has_no_pairs_has_no_placebo():
    assert (
        placebo(compare({"a": 1.0, "b": 2.0}, {"c": 1.0, "d": 2.0}, direction="higher", margin=1)).reason
        == "not_paired"
    )
    assert placebo(compare({}, {}, direction="higher", margin=1)).reason == "not_paired"
