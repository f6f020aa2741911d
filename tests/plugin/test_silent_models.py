"""Models that do not answer: asked once a session, and their cells are skipped while the sweep goes on."""

from __future__ import annotations

ADAPTER = """
import pathlib
from pytest_proteus import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness

class Talking(MinimalHarness):
    name = "talking"

    def silent(self, model):
        with (pathlib.Path(__file__).with_name("asked")).open("a") as file:
            file.write(model + "\\n")
        return "it said nothing" if model == "mute" else ""

    def run_episode(self, spec):
        if spec.model == "broken":
            return EpisodeResult(spec.episode, False, 0, "status 503")
        return super().run_episode(spec)
"""

SUITE = """
import pytest

pytestmark = pytest.mark.sweep(
    episodes=1, harness=["talking:Talking"], model=["good", "mute", "broken"], seed=range(7), arm=["neutral"]
)

def test_it(run):
    pass
"""


def test_cells_of_a_silent_model_are_skipped_and_too_many_failures_in_a_row_end_a_variant(suite, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(suite.folder))
    suite.write(ADAPTER, "talking")
    suite.write(SUITE)
    suite.run("-n", "2", "--proteus-max-missing=100%")
    asked = (suite.folder / "asked").read_text().split()
    assert sorted(asked) == ["broken", "good", "mute"], "once a session, whatever the number of processes"
    runs = suite.sweep["runs"]
    assert {run["state"] for run in runs if run["model"] == "good"} == {"complete"}
    assert {run["state"] for run in runs if run["model"] == "mute"} == {"skipped:it said nothing"}
    states = [run["state"] for run in runs if run["model"] == "broken"]
    assert states.count("errored") in (5, 6), "the other process may have begun one more"
    left = {state for state in states if state != "errored"}
    assert left
    assert all(state.endswith("runs in a row failed, the last one with: status 503") for state in left)
