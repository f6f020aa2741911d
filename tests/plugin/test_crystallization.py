"""Probes: checkpoints mounted anew under the neutral disposition, run once, and compared with the runs' endpoints."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_proteus.core import snapshot
from pytest_proteus.core.records import read_records

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = pytest.mark.sweep(name="demo", episodes=2, arm=[NEUTRAL, review("notes")], seed=range(4), {more})

def test_it(crystallization, gate):
    gate("p", crystallization.p, at_most=1, blocking=False)

{mark}
def test_ledger(sweep):
    assert sweep.ledger["planned"] == len(sweep) == 8
"""


def out_of(suite):
    (out,) = (suite.folder / ".proteus" / "demo").iterdir()
    return out


def entry_of(suite):
    (entry,) = [item for item in suite.sweep["statistics"] if item["name"] == "crystallization"]
    return entry


def probes_of(out):
    """Run id → folder of its probe."""
    told = json.loads((out / "manifest.json").read_text())["probes"]
    return {run_id: out / "runs" / probe for run_id, probe in told["runs"].items()}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_run_has_a_probe_and_they_are_compared(suite, workers):
    suite.write(SUITE.format(more='probes="last"', mark="@pytest.mark.gate('crystallization.p', below=1)"))
    result = suite.run("-n", workers)
    result.assert_outcomes(passed=2)
    gates = {gate["name"]: gate["verdict"] for gate in suite.proteus["gates"]}
    assert gates == {"p": "pass", "crystallization.p": "pass"}
    value = entry_of(suite)["value"]
    assert (value["episode"], value["n"], value["n_missing"], value["missing"]) == (2, 8, 0, {})
    assert -1 <= value["index"] <= 1
    assert 0 < value["p_min"] <= value["p"] <= 1
    assert set(value["fidelity"]) == {run["run_id"] for run in suite.sweep["runs"]}
    assert value["arm_shift"]["sizes"] == {"neutral": 4, "review_notes": 4}
    result.stdout.fnmatch_lines(["crystallization (index: -1 to 1; no better or worse)", "*index*shift_index*", "* 8"])
    out = out_of(suite)
    for run_id, probe in probes_of(out).items():
        assert len(read_records(probe)) == 1
        mounted, evolved = (
            snapshot.Reader(snapshot.git_dir_of(root / "harness")) for root in (probe, out / "runs" / run_id)
        )
        start = mounted.tree_entries(mounted.commit_for_episode(0))
        end = evolved.tree_entries(evolved.commit_for_episode(2))
        assert {path: start.get(path) for path in end if path.startswith(b"notes/")} == {
            path: entry for path, entry in end.items() if path.startswith(b"notes/")
        }
        mounted.close()
        evolved.close()


def test_probes_are_run_once_and_come_to_a_sweep_that_had_none(suite):
    suite.write(SUITE.format(more="", mark=""))
    suite.run().assert_outcomes(passed=2)
    assert entry_of(suite)["value"] is None
    assert entry_of(suite)["unavailable"]["detail"] == "the sweep plans no probes; write sweep(probes='last')"
    suite.write(SUITE.format(more="probes=1", mark=""))
    suite.run().assert_outcomes(passed=2)
    assert suite.sweep["ledger"]["reused"] == 8
    first = entry_of(suite)["value"]
    assert (first["episode"], first["n"]) == (1, 8)
    records = {probe: read_records(probe) for probe in probes_of(out_of(suite)).values()}
    suite.run().assert_outcomes(passed=2)
    assert {probe: read_records(probe) for probe in records} == records
    assert entry_of(suite)["value"] == first
    done = suite.pytester.run(sys.executable, "-m", "pytest_proteus.cli", "measure", str(out_of(suite)), "--json")
    told = {entry["name"]: entry["value"] for entry in json.loads("\n".join(done.outlines))["statistics"]}
    assert told["crystallization"] == first


def test_a_probe_that_fails_is_missing_and_says_so(suite):
    (suite.folder / "brittle.py").write_text(
        """
from pytest_proteus.core import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness

class Brittle(MinimalHarness):
    def run_episode(self, spec):
        if spec.episode == 1 and list((spec.harness_root / "notes").glob("*")) and spec.seed == 0:
            return EpisodeResult(1, False, error="it broke")
        return super().run_episode(spec)
"""
    )
    suite.write(SUITE.format(more='probes="last", harness=["brittle:Brittle"]', mark=""))
    suite.run().assert_outcomes(passed=2)
    assert suite.sweep["ledger"]["complete"] == 8
    value = entry_of(suite)["value"]
    assert value["n_missing"] >= 1
    assert set(value["missing"].values()) == {"its probe was not run, or did not complete"}
    cells = [json.loads(path.read_text()) for path in (out_of(suite) / "cells").glob("*.json")]
    assert "it broke" in {cell["probe"]["error"] for cell in cells}


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ("probes=3", "probes=3 is beyond the 2 episodes of a run"),
        ("probes=0", "must be 'last' or the number of an episode"),
        ("", "this sweep plans no probes; write sweep(probes='last')"),
    ],
)
def test_what_cannot_be_probed_is_a_usage_error(suite, probes, message):
    suite.write(SUITE.format(more=probes, mark="@pytest.mark.gate('crystallization.p', below=1)"))
    result = suite.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{message}*"])
