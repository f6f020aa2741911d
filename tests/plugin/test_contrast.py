"""Two arms of one sweep side by side, paired by seed, with a verdict that needs no bound."""

from __future__ import annotations

import pytest

NOISY = """
import zlib
from pathlib import Path
from pytest_proteus import EvalResult
from pytest_proteus.harnesses.minimal import MinimalHarness

class Noisy(MinimalHarness):
    name = "noisy"
    deterministic = False

def load(trace, ctx):
    # tools called, and a fraction that the files of the harness decide
    files = b"".join(path.read_bytes() for path in sorted(Path(ctx.harness_root).rglob("*.md")))
    return EvalResult("load", sum(1 for event in trace if event.tool) + zlib.crc32(files) % 997 / 997, True, "")
"""

HEAD = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(episodes=3, harness=["noisy_agent:Noisy"], arm=[NEUTRAL, review("notes")], seed=range(6)),
    pytest.mark.evaluator("units:notes", direction="higher"),
    pytest.mark.evaluator("noisy_agent:load", name="load", at_most=400),
    pytest.mark.evaluator("units:tools"),
]
"""


@pytest.fixture
def noisy(suite):
    """A suite over a harness whose runs vary."""
    suite.write(NOISY, "noisy_agent")
    return suite


def gates(suite):
    return {gate["name"]: gate for gate in suite.proteus["gates"]}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_gate_on_it_needs_no_bound_and_is_an_entry_with_everything_it_came_from(noisy, workers):
    noisy.write(
        HEAD
        + """
def test_it(contrast, gate):
    gate("back", contrast("load", arm="neutral", against="review_notes", margin=1))
    calls = contrast("load", arm="review_notes", against="neutral", margin="20%")
    assert calls.verdict == "fail" and calls.direction == "lower"
    gate("calls", calls, blocking=False)
    gate("bound", calls, below=1000, blocking=False)
"""
    )
    noisy.run("-n", workers).assert_outcomes(passed=1)
    found = gates(noisy)
    assert {name: gate["verdict"] for name, gate in found.items()} == {"back": "pass", "calls": "fail", "bound": "pass"}
    calls = found["calls"]
    assert (calls["metric"], calls["arm"], calls["against"]) == ("load", "review_notes", "neutral")
    assert (calls["kind"], calls["margin"], calls["direction"]) == ("noninferior", "20%", "lower")
    assert (calls["n"], calls["n_missing"], calls["alpha"], calls["threshold"]) == (6, 0, 0.05, None)
    assert calls["value"] == calls["effect"]["difference"] > 0
    assert calls["interval"]["low"] <= calls["value"] <= calls["interval"]["high"]
    assert calls["p"] == 1 / 64
    assert calls["p_min"] == 1 / 64
    assert "symmetric" in calls["assumption"]
    assert found["bound"]["threshold"] == {"op": "below", "bound": 1000.0}
    (entry,) = [item for item in noisy.sweep["statistics"] if item["name"].startswith("contrast load: review_notes")]
    assert [(pair["baseline"] is None, pair["candidate"] is None) for pair in entry["value"]["pairs"]] == [
        (False, False)
    ] * 6


def test_numbers_that_every_run_has_are_metrics(noisy):
    noisy.write(
        HEAD
        + """
def test_it(contrast, gate):
    def of(metric, **options):
        return contrast(metric, arm="review_notes", against="neutral", margin=1, **options)
    assert of("episodes_complete").effect == 0
    assert of("seconds").n == 6
    assert of("counters.writes.notes", kind="equivalent").effect > 0
    gate("tokens", of("usage.total_tokens"), blocking=False)
    gate("nothing", of("counters.nothing", kind="equivalent"), blocking=False)
"""
    )
    noisy.run().assert_outcomes(passed=1)
    found = gates(noisy)
    assert {gate["verdict"] for gate in found.values()} == {"unavailable"}
    assert "no usage was metered" in found["tokens"]["reason"]
    assert "the run has no counters.nothing" in found["nothing"]["reason"]


def test_a_deterministic_harness_is_compared_as_it_is(suite):
    suite.write(
        """
import pytest
from pytest_proteus import NEUTRAL, review
pytestmark = [
    pytest.mark.sweep(episodes=2, arm=[NEUTRAL, review("notes")], seed=[3]),
    pytest.mark.evaluator("tool-calls", direction="lower"),
]

def test_it(contrast, gate):
    gate("calls", contrast("tool-calls", arm="review_notes", against="neutral", margin="1%"), blocking=False)
    gate("back", contrast("tool-calls", arm="neutral", against="review_notes", margin="1%"))
"""
    )
    suite.run().assert_outcomes(passed=1)
    found = gates(suite)
    assert (found["calls"]["verdict"], found["back"]["verdict"]) == ("fail", "pass")
    assert found["back"]["n"] == 1
    assert found["back"]["interval"]["method"] == "deterministic"


def test_strata_are_compared_apart(noisy):
    noisy.write(
        HEAD.replace("seed=range(6)", "seed=range(2), model=['small', 'large']")
        + """
def test_it(contrast, gate):
    found = contrast("load", arm="review_notes", against="neutral", margin="20%")
    assert sorted(found) == ["Noisy/large", "Noisy/small"]
    for stratum, value in found.items():
        gate(stratum, value, blocking=False)
"""
    )
    noisy.run().assert_outcomes(passed=1)
    assert {gate["n"] for gate in noisy.proteus["gates"]} == {2}
    assert {gate["verdict"] for gate in noisy.proteus["gates"]} == {"undecided"}


def test_what_cannot_be_compared_says_what_to_write(noisy):
    noisy.write(
        HEAD.replace("range(6)", "[0]")
        + """
@pytest.mark.parametrize(("metric", "options", "told"), [
    ("laod", {}, "did you mean 'load'?"),
    ("load", {"arm": "revue_notes"}, "did you mean 'review_notes'?"),
    ("load", {"arm": "neutral"}, "name two arms"),
    ("load", {"margin": 0}, "must be above 0"),
    ("load", {"margin": "-5%"}, "must be above 0"),
    ("units:tools", {}, "declare direction='lower'"),
])
def test_told(contrast, metric, options, told):
    with pytest.raises((LookupError, ValueError)) as error:
        contrast(metric, **{"arm": "review_notes", "against": "neutral", "margin": 1, **options})
    assert told in str(error.value)
"""
    )
    noisy.run().assert_outcomes(passed=6)
