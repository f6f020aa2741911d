"""Reports of real sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import jsonschema
import pytest

from pytest_proteus.report.models import SCHEMA_PATH

CLOCKS = {"id", "started_at", "finished_at", "seconds", "working_seconds", "argv", "workers", "created_at", "out"}


@pytest.fixture
def session(pytester, monkeypatch):
    """Run a suite in a process of its own; gives pytest's result and our part of its JSON report."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*words):
        result = pytester.runpytest_subprocess("-p", "proteus", "--json-report", "--json-report-file=r.json", *words)
        return result, json.loads((pytester.path / "r.json").read_text())["proteus"]

    return run


def without_clocks(value):
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCKS}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


SUITE = """
    import pytest

    pytestmark = [
        pytest.mark.sweep(episodes=2, seed=[0, 1], arm=["neutral", "review:notes"]),
        pytest.mark.evaluator("units:notes", at_least=0),
        pytest.mark.evaluator("raises:it", name="raises"),
    ]

    def test_completes(run):
        assert run.episodes_complete == 2

    def test_whole(sweep, gate):
        gate("cells", len(sweep.runs), equals=4)
        gate("too many", len(sweep.runs), at_most=3, blocking=False)
"""


def run_suite(folder, *words):
    """Run the suite above in a process of its own; gives its exit status and our part of its report."""
    (folder / "raises.py").write_text("def it(trace, ctx): raise OSError('no')")
    (folder / "test_it.py").write_text(textwrap.dedent(SUITE))
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    options = ["-p", "proteus", "-p", "no:cacheprovider", "--json-report", "--json-report-file=r.json"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words], cwd=folder, env=env, check=False, stdout=subprocess.DEVNULL
    )
    return done.returncode, json.loads((folder / "r.json").read_text())["proteus"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The suite run in one process: folder, exit status, report."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, *run_suite(folder)


def test_the_report_of_a_session_keeps_to_the_schema(alone):
    _, status, report = alone
    assert status == 0
    jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).validate(report)


def test_an_evaluator_that_failed_is_missing_and_not_zero(alone):
    report = alone[2]
    for run in report["sweeps"][0]["runs"]:
        assert run["evaluators"]["raises"]["scores"] == [None, None]
        assert "OSError" in run["evaluators"]["raises"]["errors"][0]
    assert report["sweeps"][0]["arms"]["neutral"]["metrics"]["raises"]["n_missing"] == 2


def test_each_bound_of_each_test_is_a_gate(alone):
    report = alone[2]
    whole = {gate["name"]: gate["verdict"] for gate in report["gates"] if gate["source"] == "gate"}
    assert whole == {"cells": "pass", "too many": "fail"}
    arms = [gate["arm"] for gate in report["gates"] if gate["name"] == "units:notes"]
    assert arms == ["neutral"] * 2 + ["review_notes"] * 2
    assert report["outcome"] == "pass"


def test_the_report_in_the_sweep_folder_is_that_of_the_session(alone):
    folder, _, report = alone
    (path,) = folder.glob(".proteus/*/*/report.json")
    assert json.loads(path.read_text()) == report


def test_one_process_and_two_workers_give_one_report(alone, tmp_path):
    _, shared = run_suite(tmp_path, "-n", "2")
    assert without_clocks(shared) == without_clocks(alone[2])


def test_cells_are_reused_once_a_report_has_had_them(tmp_path):
    reused = []
    run_suite(tmp_path)
    for path in tmp_path.glob(".proteus/*/*/sessions.jsonl"):
        path.unlink()  # as if the session had been killed before its report
    for _ in range(2):
        reused.append(run_suite(tmp_path)[1]["sweeps"][0]["ledger"]["reused"])
    assert reused == [0, 4]


def test_a_gate_that_passes_when_its_test_is_run_again_has_passed(session, pytester):
    pytester.makepyfile("""
        import pytest
        pytestmark = pytest.mark.sweep(episodes=1, seed=[0])
        tried = []
        def test_flaky(run, gate):
            tried.append(1)
            gate("tried", len(tried), at_least=2)
    """)
    result, report = session("--reruns", "1")
    assert result.ret == 0
    assert [(gate["value"], gate["verdict"]) for gate in report["gates"]] == [(2, "pass")]
    assert report["outcome"] == "pass"


def test_a_worker_that_dies_takes_nothing_of_the_report_along(session, pytester):
    pytester.makepyfile(
        mine="""
            from pytest_proteus.harnesses.minimal import MinimalHarness
            class Fragile(MinimalHarness):
                def __init__(self):
                    super().__init__(crash_at=[(1, 2)])
        """,
        test_it="""
            import pytest
            pytestmark = pytest.mark.sweep(episodes=2, seed=range(3), harness=["mine:Fragile"])
            def test_completes(run):
                pass
        """,
    )
    pytester.syspathinsert()
    result, report = session("-n", "2")
    assert result.ret == 1
    ledger = report["sweeps"][0]["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["lost"]) == (3, 2, 1)
    assert report["outcome"] == "fail"
    lost = report["sweeps"][0]["runs"][1]
    assert (lost["state"], lost["episodes_complete"]) == ("lost", 1)
