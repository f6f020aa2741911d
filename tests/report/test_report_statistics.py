"""Statistics as tables for people: direction, scale and n beside each number, a reason where there is none."""

from __future__ import annotations

import pytest

from pytest_proteus.report.statistics import statistic_lines

RUNS = [{"run_id": "run-a", "harness": "minimal", "arm": "neutral", "seed": 0, "model": None, "task": None, "axes": {}}]


def entry(value, **changes):
    told = {"name": "mine", "stratum": None, "direction": "higher", "scale": "points, 0 to 10", "unavailable": None}
    return {**told, "observations": None, "value": value, **changes}


def estimate(value, n, **changes):
    return {"value": value, "n": n, "n_missing": 0, "interval": {"low": value - 1, "high": value + 1}} | changes


def lines_of(value, **changes):
    return statistic_lines([entry(value, **changes)], RUNS, 100)


def test_a_title_says_scale_and_direction():
    assert lines_of(1.0)[0] == "mine (points, 0 to 10; higher is better)"
    assert lines_of(1.0, stratum="minimal/small")[0].startswith("mine [minimal/small] (")


def test_a_number_stands_with_the_runs_behind_it():
    table = [line.split() for line in lines_of(2.5, observations=[{"run_id": "run-a"}, {"run_id": "run-b"}])[1:]]
    assert table == [["value", "n"], ["2.5", "2"]]


def test_an_estimate_stands_with_its_interval_and_n():
    assert lines_of(estimate(3.0, 4))[2].strip() == "3 [2, 4] (n=4)"
    assert lines_of(estimate(3.0, 4, n_missing=2, interval=None))[2].strip() == "3 (n=4, 2 missing)"


def test_surfaces_are_columns_and_arms_are_rows():
    value = {
        "neutral": {"notes": estimate(1.0, 2), "tools": None},
        "review": {"notes": estimate(2.0, 2), "tools": None},
    }
    _, header, neutral, review = (line.split() for line in lines_of(value))
    assert header == ["notes", "tools"]
    assert (neutral[0], neutral[-1], review[0]) == ("neutral", "-", "review")


def test_a_result_of_fields_shows_its_numbers_and_n():
    _, header, row = (line.split() for line in lines_of({"ratio": 0.25, "kind": "text", "n_runs": 5, "R": None}))
    assert dict(zip(header, row, strict=True)) == {"ratio": "0.25", "n": "5"}


def test_what_is_unavailable_says_why():
    why = {"status": "unavailable", "reason": "failed", "detail": "ZeroDivisionError: division by zero", "n": 3}
    assert lines_of(None, unavailable=why)[1] == "  unavailable: ZeroDivisionError: division by zero"


def test_a_part_that_is_unavailable_says_why():
    why = {"status": "partly", "parts": {"review": {"reason": "fewer_than_two_runs", "detail": "one run says nothing"}}}
    said = lines_of({"neutral": {"ratio": 0.5, "n": 2}, "review": None}, unavailable=why)
    assert said[-1] == "  review is unavailable: one run says nothing"


@pytest.fixture
def audit():
    finding = {
        "kind": "escape",
        "place": "episode 1: a.py:1",
        "detail": "os.system: runs\x1b[2J",
        "quote": "os.system()",
    }
    told = {"escape": 3, "awareness": 0, "no_evidence_found": False, "omitted": 0, "unread": [], "episodes": [0, 1]}
    return entry({"run-a": {**told, "findings": [finding] * 3}}, name="audit")


def test_evidence_is_quoted_with_its_run_and_place(audit):
    lines = statistic_lines([audit], RUNS, 100)
    assert "  evidence in 1 of 1 runs, 1 episodes looked at" in lines
    assert lines.count("  minimal-neutral-s0: escape: episode 1: a.py:1: os.system: runs\\x1b[2J") == 3
    assert lines.count("    “os.system()”") == 3


def test_more_evidence_than_is_shown_is_counted(audit):
    lines = statistic_lines([audit], RUNS, 100, evidence=1)
    assert "  minimal-neutral-s0: 2 more pieces of evidence in the report" in lines
