"""Runs that an earlier session made longer are measured over the episodes that are planned now."""

from __future__ import annotations

SUITE = """
import pytest

pytestmark = [
    pytest.mark.sweep(name="demo", episodes=2, seed=range(3), arm=["neutral", "aa:neutral"]),
    pytest.mark.evaluator("units:notes", direction="higher"),
]

def test_runs(run):
    assert run.episodes_complete == run.episodes

def test_all(travel, structure, contrast, sweep, gate):
    for arm, found in travel.items():
        gate(f"travel {arm}", found["notes"].value, at_least=0)
    gate("calls", contrast("counters.writes.notes", arm="neutral_aa", against="neutral", margin=1, kind="equivalent"))
    gate("time", contrast("seconds", arm="neutral_aa", against="neutral", margin=1000.0), blocking=False)
"""


def test_nothing_of_the_episodes_beyond_the_plan_is_in_its_numbers(suite):
    suite.write(SUITE)
    suite.run()
    before = suite.proteus
    suite.run("--proteus-episodes=4", "--proteus-arm=neutral_aa", "-k", "test_runs")
    suite.run()
    after = suite.proteus
    numbers = [{gate["name"]: (gate["value"], gate["verdict"]) for gate in told["gates"]} for told in (before, after)]
    assert numbers[1].pop("time")[1] == "unavailable"
    assert numbers[0].pop("time")[0] is not None
    assert numbers[0] == numbers[1]
    for was, now in zip(before["sweeps"][0]["runs"], after["sweeps"][0]["runs"], strict=True):
        assert (was["counters"], was["episodes_complete"]) == (now["counters"], now["episodes_complete"])
        assert (now["seconds"] is None) == (now["arm"] == "neutral_aa")
