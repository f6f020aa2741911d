"""What a report says of the artifacts that a session left."""

from __future__ import annotations

import json
import math

import pytest

from pytest_proteus.core.ledger import cell_path
from pytest_proteus.core.records import EPISODES, private_record_dir
from pytest_proteus.report.build import build_report, write_sweep_reports
from pytest_proteus.report.counts import metric
from pytest_proteus.report.terminal import arm_table


def result(name, score, *, error=False, passed=False, detail=""):
    return {"name": name, "score": score, "passed": passed, "detail": detail, "error": error}


def sweep_of(folders, **options):
    return build_report(folders.session, **options)["sweeps"][0]


def run_of(folders, run_id):
    return next(run for run in sweep_of(folders)["runs"] if run["run_id"] == run_id)


def test_a_finished_session_passes_without_a_reason(finished):
    report = build_report(finished.session, exitstatus=0, finished_at=200.0)
    assert (report["outcome"], report["outcome_reasons"]) == ("pass", [])
    assert report["session"]["finished_at"] == 200.0
    assert report["session"]["exitstatus"] == 0


def test_runs_keep_the_order_of_the_manifest(finished):
    assert [run["run_id"] for run in sweep_of(finished)["runs"]] == ["run-a", "run-b", "run-c", "run-d"]


def test_a_run_has_one_score_an_episode(finished):
    assert run_of(finished, "run-b")["evaluators"]["calls"]["scores"] == [9.0, 2.0]


def test_the_score_of_an_evaluator_that_failed_is_null_and_says_why(finished):
    finished.records(
        "run-a", [result("calls", 0.0, error=True, detail="evaluator error: boom")], [result("calls", 5.0)]
    )
    calls = run_of(finished, "run-a")["evaluators"]["calls"]
    assert calls["scores"] == [None, 5.0]
    assert calls["passed"] == [None, False]
    assert calls["errors"] == ["evaluator error: boom", None]


def test_an_evaluator_without_a_result_is_null_and_not_zero(finished):
    finished.records("run-a", [result("calls", 1.0)], [result("calls", 1.0)])
    step = run_of(finished, "run-a")["evaluators"]["step"]
    assert step["scores"] == [None, None]
    assert step["errors"] == ["no result", "no result"]


def test_a_score_that_is_no_number_is_null(finished):
    finished.records("run-a", [result("calls", "many")], [result("calls", True)])
    assert run_of(finished, "run-a")["evaluators"]["calls"]["scores"] == [None, None]


def test_evaluators_that_only_the_records_know_are_reported_too(finished):
    finished.records("run-a", [result("hooked", 3.0)])
    assert run_of(finished, "run-a")["evaluators"]["hooked"]["scores"] == [3.0]


def test_the_last_detail_is_that_of_the_last_episode(finished):
    finished.records("run-a", [result("calls", 1.0, detail="one")], [result("calls", 2.0, detail="two")])
    assert run_of(finished, "run-a")["evaluators"]["calls"]["last_detail"] == "two"


def test_rejected_candidates_and_violations_are_counted(finished):
    finished.records("run-a", [], [], accepted=False, violations=[{"path": "x", "kind": "fifo", "detail": ""}])
    run = run_of(finished, "run-a")
    assert (run["episodes_complete"], run["accepted"], run["violations"]) == (2, 0, 2)


def test_working_seconds_are_those_of_the_episodes(finished):
    assert run_of(finished, "run-a")["working_seconds"] == 1.0


def test_the_tests_that_wanted_a_run_are_named(finished):
    finished.want({"t.py::b": ["run-a", "run-b"], "t.py::a": ["run-a"]})
    assert run_of(finished, "run-a")["nodeids"] == ["t.py::a", "t.py::b"]
    assert run_of(finished, "run-c")["nodeids"] == []


def test_a_skipped_run_names_its_reason_and_counts_as_skipped(finished):
    finished.cell("run-a", "skipped", reason="pi is not installed")
    sweep = sweep_of(finished)
    assert sweep["runs"][0]["state"] == "skipped:pi is not installed"
    assert sweep["ledger"]["skipped"] == 1


def test_a_cell_that_a_killed_session_left_running_has_not_run(finished):
    finished.cell("run-a", "running")
    assert run_of(finished, "run-a")["state"] == "not_run"


@pytest.mark.parametrize("state", ["complete", "timeout", "abort", "skipped", "errored", "lost", "not_run"])
def test_planned_is_the_sum_of_the_states_in_every_arm(finished, state):
    finished.cell("run-c", state)
    ledger = sweep_of(finished)["ledger"]
    states = ("complete", "timeout", "abort", "skipped", "errored", "lost", "not_run")
    for counts in (ledger, *ledger["by_arm"].values(), *ledger["by_stratum"].values()):
        assert counts["planned"] == sum(counts[name] for name in states)
    assert ledger["by_arm"]["neutral"]["planned"] == 2
    assert ledger["by_stratum"]["minimal"]["planned"] == 4


def test_a_cell_settled_by_a_session_that_reported_is_reused(finished):
    finished.cell("run-a", settled_by="before")
    (finished.out / "sessions.jsonl").write_text('{"session": "before"}\n')
    sweep = sweep_of(finished)
    assert [run["reused"] for run in sweep["runs"]] == [True, False, False, False]
    assert sweep["ledger"]["reused"] == 1


def test_a_cell_settled_by_a_session_that_was_killed_is_not_reused(finished):
    finished.cell("run-a", settled_by="killed")
    (finished.out / "sessions.jsonl").write_text('{"session": "before"}\n')
    assert sweep_of(finished)["ledger"]["reused"] == 0


def test_a_cell_that_was_begun_twice_is_retried(finished):
    finished.cell("run-a", attempts=2)
    assert sweep_of(finished)["ledger"]["retried"] == 1


def test_an_arm_has_mean_and_spread_of_the_last_scores(finished):
    calls = sweep_of(finished)["arms"]["neutral"]["metrics"]["calls"]
    assert calls == {"mean": 2.0, "n": 2, "n_missing": 0, "std": pytest.approx(math.sqrt(2)), "min": 1.0, "max": 3.0}


def test_a_cell_that_was_not_measured_is_missing_from_the_mean(finished):
    finished.cell("run-a", "errored")
    calls = sweep_of(finished)["arms"]["neutral"]["metrics"]["calls"]
    assert (calls["mean"], calls["n"], calls["n_missing"], calls["std"]) == (3.0, 1, 1, None)


def test_a_cell_that_ran_out_of_time_counts_with_what_it_has(finished):
    finished.cell("run-a", "timeout")
    assert sweep_of(finished)["arms"]["neutral"]["metrics"]["calls"]["n"] == 2


def test_a_last_score_that_is_missing_is_not_replaced_by_an_earlier_one(finished):
    finished.records("run-a", [result("calls", 7.0)], [result("calls", 0.0, error=True)])
    assert sweep_of(finished)["arms"]["neutral"]["metrics"]["calls"]["n_missing"] == 1


def test_a_run_that_did_not_get_to_the_last_planned_episode_is_missing_from_the_mean(finished):
    finished.cell("run-a", "timeout")
    finished.records("run-a", [result("calls", 7.0)])
    sweep = sweep_of(finished)
    calls = sweep["arms"]["neutral"]["metrics"]["calls"]
    assert (calls["mean"], calls["n"], calls["n_missing"]) == (3.0, 1, 1)
    header, (row, _) = arm_table(sweep, [])
    assert dict(zip(header, row, strict=True))["cells"] == "1/2"


def test_nothing_known_gives_null_and_not_zero():
    assert metric([None, None]) == {"mean": None, "n": 0, "n_missing": 2, "std": None, "min": None, "max": None}


def test_strata_are_not_pooled(folders):
    runs = [
        {
            "id": run_id,
            "harness": harness,
            "arm": "neutral",
            "seed": 0,
            "model": None,
            "task": None,
            "axes": {"os": "x"},
        }
        for run_id, harness in (("run-a", "minimal"), ("run-b", "pi"))
    ]
    folders.declare("demo", folders.out, runs=runs)
    folders.complete()
    sweep = sweep_of(folders)
    assert list(sweep["arms"]) == ["neutral [minimal/os=x]", "neutral [pi/os=x]"]
    assert list(sweep["ledger"]["by_stratum"]) == ["minimal/os=x", "pi/os=x"]


def test_gates_are_sorted_by_test_and_name(finished):
    finished.gate("gw1", nodeid="b", name="z")
    finished.gate("gw0", nodeid="b", name="a")
    finished.gate("gw0", nodeid="a", name="z")
    gates = build_report(finished.session)["gates"]
    assert [(gate["nodeid"], gate["name"]) for gate in gates] == [("a", "z"), ("b", "a"), ("b", "z")]


def test_a_test_that_was_run_again_leaves_its_later_verdict(finished):
    finished.gate("gw2", verdict="fail", attempt="a")
    finished.gate("gw10", verdict="pass", attempt="b")
    assert [gate["verdict"] for gate in build_report(finished.session)["gates"]] == ["pass"]


def test_a_gate_that_was_decided_twice_alike_is_reported_once(finished):
    finished.gate("gw0")
    finished.gate("gw1")
    assert len(build_report(finished.session)["gates"]) == 1


def test_a_test_may_decide_two_gates_of_one_name(finished):
    finished.gate(verdict="fail", attempt="a")
    finished.gate(verdict="pass", attempt="a")
    assert [gate["verdict"] for gate in build_report(finished.session)["gates"]] == ["fail", "pass"]


def test_a_field_that_a_gate_does_not_know_is_null(finished):
    finished.gate()
    gate = build_report(finished.session)["gates"][0]
    assert gate["p_adjusted"] is None
    assert gate["threshold"] is None


def test_a_statistic_computed_twice_is_reported_once_and_sorted_by_name(finished):
    folder = finished.session / "statistics"
    folder.mkdir()
    for worker in ("gw0", "gw1"):
        lines = [{"sweep": "demo", "name": name, "stratum": None, "value": 1.0} for name in ("travel", "reliability")]
        (folder / f"{worker}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [entry["name"] for entry in sweep_of(finished)["statistics"]] == ["reliability", "travel"]


def test_two_reports_of_the_same_folders_are_equal(finished):
    finished.gate()
    assert json.dumps(build_report(finished.session)) == json.dumps(build_report(finished.session))


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_cell_file_that_is_not_json_is_errored_and_said(finished):
    cell_path(finished.out, "run-b").write_text("{")
    report = build_report(finished.session)
    sweep = report["sweeps"][0]
    assert (sweep["ledger"]["complete"], sweep["ledger"]["errored"]) == (3, 1)
    assert any("run-b" in reason for reason in report["outcome_reasons"])


def test_records_that_are_not_json_take_nothing_else_along(finished):
    (private_record_dir(finished.out / "runs" / "run-b") / EPISODES).write_text("nonsense\n")
    report = build_report(finished.session)
    runs = report["sweeps"][0]["runs"]
    assert runs[0]["evaluators"]["calls"]["scores"] == [9.0, 1.0]
    assert runs[1]["evaluators"]["calls"]["scores"] == []
    assert report["outcome"] == "incomplete"
    assert any("run-b" in reason for reason in report["outcome_reasons"])


def test_results_of_a_wrong_shape_take_nothing_else_along(finished):
    finished.records("run-b", [], results=7)
    report = build_report(finished.session)
    assert report["sweeps"][0]["runs"][1]["evaluators"]["calls"]["scores"] == []
    assert report["outcome"] == "incomplete"


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"runs": 7}', ""])
def test_a_broken_manifest_costs_only_its_own_sweep(finished, text):
    other = finished.base / "other"
    finished.declare("other", other)
    (other / "manifest.json").write_text(text)
    report = build_report(finished.session)
    demo = next(sweep for sweep in report["sweeps"] if sweep["name"] == "demo")
    assert demo["ledger"]["complete"] == 4
    assert report["outcome"] == "incomplete"
    assert any("other" in reason for reason in report["outcome_reasons"])


def test_a_line_that_a_killed_worker_cut_off_is_said(finished):
    finished.gate()
    with (finished.session / "gates" / "main.jsonl").open("a") as file:
        file.write('{"nodeid": "t.py::x", "na')
    report = build_report(finished.session)
    assert len(report["gates"]) == 1
    assert report["outcome"] == "incomplete"


def test_a_session_folder_without_anything_is_still_a_report(tmp_path):
    report = build_report(tmp_path, exitstatus=3)
    assert (report["sweeps"], report["gates"], report["outcome"]) == ([], [], "fail")


def test_user_values_that_json_cannot_hold_are_made_plain(finished):
    finished.cell("run-a", counters={"rate": float("nan"), "calls": 3})
    report = build_report(finished.session)
    json.dumps(report, allow_nan=False)
    assert report["sweeps"][0]["runs"][0]["counters"] == {"rate": None, "calls": 3}


# --- a report of its own for each sweep -------------------------------------------------------------------------------


def two_sweeps(finished):
    other = finished.base / "other"
    finished.declare("other", other, runs=[])
    finished.gate(sweep="other", verdict="fail")
    return other


def test_each_sweep_gets_its_own_entry_and_gates(finished):
    other = two_sweeps(finished)
    write_sweep_reports(build_report(finished.session))
    demo = json.loads((finished.out / "report.json").read_text())
    assert [sweep["name"] for sweep in demo["sweeps"]] == ["demo"]
    assert demo["gates"] == []
    assert len(json.loads((other / "report.json").read_text())["gates"]) == 1


def test_the_outcome_of_a_sweep_is_its_own(finished):
    other = two_sweeps(finished)
    write_sweep_reports(build_report(finished.session))
    assert json.loads((finished.out / "report.json").read_text())["outcome"] == "pass"
    assert json.loads((other / "report.json").read_text())["outcome"] == "fail"


def test_what_could_not_be_read_of_a_sweep_stays_with_it(finished):
    other = two_sweeps(finished)
    cell_path(finished.out, "run-b").write_text("{")
    write_sweep_reports(build_report(finished.session))
    assert "run-b" in json.loads((finished.out / "report.json").read_text())["outcome_reasons"][-1]
    assert not any("run-b" in reason for reason in json.loads((other / "report.json").read_text())["outcome_reasons"])


def test_a_folder_that_cannot_be_written_does_not_lose_the_others(finished):
    blocked = finished.base / "blocked"
    blocked.write_text("a file where a folder should be")
    report = build_report(finished.session)
    report["sweeps"].insert(0, {**report["sweeps"][0], "name": "blocked", "out": str(blocked)})
    write_sweep_reports(report)
    assert (finished.out / "report.json").exists()
    assert report["outcome"] == "incomplete"
    assert "sweep blocked: report.json cannot be written" in report["outcome_reasons"][-1]
