"""How a report comes to its one word."""

from __future__ import annotations

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.report.build import build_report
from pytest_proteus.report.outcome import allowed_missing


def outcome_of(folders, **options):
    report = build_report(folders.session, **options)
    return report["outcome"], report["outcome_reasons"]


def test_a_lost_cell_fails_the_session(finished):
    finished.cell("run-b", "lost")
    outcome, reasons = outcome_of(finished, max_missing=4)
    assert outcome == "fail"
    assert reasons == ["sweep demo: 1 cell was lost with its process: run-b"]


def test_missing_cells_make_it_incomplete(finished):
    finished.cell("run-b", "errored")
    outcome, reasons = outcome_of(finished)
    assert outcome == "incomplete"
    assert reasons == ["sweep demo: 1 of 4 cells missing (1 errored); at most 0 may be"]


@pytest.mark.parametrize("max_missing", [1, "1", "25%"])
def test_as_many_missing_cells_as_allowed_are_no_reason(finished, max_missing):
    finished.cell("run-b", "errored")
    assert outcome_of(finished, max_missing=max_missing) == ("pass", [])


def test_a_cell_that_nobody_wanted_is_not_missing(finished):
    finished.cell("run-b", "not_run")
    finished.want({"t.py::a": ["run-a"]})
    assert outcome_of(finished) == ("pass", [])


def test_a_cell_that_somebody_wanted_and_that_has_not_run_is_missing(finished):
    finished.cell("run-b", "not_run")
    assert outcome_of(finished)[0] == "incomplete"


def test_a_sweep_of_which_everything_was_skipped_does_not_pass(finished):
    for run_id, *_ in finished.rows:
        finished.cell(run_id, "skipped", reason="no agent")
    assert outcome_of(finished)[0] == "incomplete"


def test_a_sweep_of_which_one_cell_was_skipped_may_pass(finished):
    finished.cell("run-a", "skipped", reason="no agent")
    assert outcome_of(finished)[0] == "pass"


@pytest.mark.parametrize(
    ("verdict", "outcome"), [("pass", "pass"), ("fail", "fail"), ("unavailable", "fail"), ("undecided", "undecided")]
)
def test_a_gate_decides_the_outcome(finished, verdict, outcome):
    finished.gate(verdict=verdict)
    assert outcome_of(finished)[0] == outcome


def test_a_gate_that_does_not_block_decides_nothing(finished):
    finished.gate(verdict="fail", blocking=False)
    assert outcome_of(finished)[0] == "pass"


def test_a_failed_gate_says_what_it_saw_and_what_was_wanted(finished):
    finished.gate(verdict="fail", value=41.0, threshold={"op": "at_most", "bound": 40})
    assert outcome_of(finished)[1] == ["gate calls in test_demo.py::test_gate failed: 41, wanted at most 40"]


def test_the_strongest_reason_gives_the_word_and_comes_first(finished):
    finished.gate(verdict="undecided", name="a")
    finished.gate(verdict="fail", name="z")
    finished.cell("run-b", "errored")
    outcome, reasons = outcome_of(finished)
    assert outcome == "fail"
    assert [reason.split()[0] for reason in reasons] == ["gate", "sweep", "gate"]


@pytest.mark.parametrize(
    ("exitstatus", "outcome"), [(0, "pass"), (1, "fail"), (2, "incomplete"), (3, "fail"), (5, "pass")]
)
def test_how_pytest_ended_is_part_of_the_outcome(finished, exitstatus, outcome):
    assert outcome_of(finished, exitstatus=exitstatus)[0] == outcome


def test_an_undecided_gate_that_failed_its_test_leaves_the_outcome_undecided(finished):
    finished.gate(verdict="undecided")
    assert outcome_of(finished, exitstatus=1)[0] == "undecided"


@pytest.mark.parametrize("text", ["some", "", "%", "1.5", "nan%", "1e999%"])
def test_a_bound_on_missing_cells_that_is_no_number_is_refused(text):
    with pytest.raises(ConfigurationError, match="max-missing"):
        allowed_missing(text, 4)
