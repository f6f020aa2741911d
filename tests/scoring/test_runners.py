"""What runners report, as they write it and as somebody else might."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.scoring.runners import Counts, cargo, counts_of, go, junit, node, runner_of, unittest, with_report
from pytest_proteus.sweep.task import task_class


@pytest.mark.parametrize(
    ("argv", "runner"),
    [
        (["python", "-m", "pytest", "-q"], "pytest"),
        (["/usr/bin/python3.12", "-B", "-m", "unittest"], "unittest"),
        (["pytest"], "pytest"),
        (["python", "run_tests.py"], ""),
        (["python", "-m"], ""),
        (["node", "--test", "tests/"], "node"),
        (["node", "tests.js"], ""),
        (["go", "test", "./..."], "go"),
        (["go", "build"], ""),
        (["cargo", "test"], "cargo"),
        (["make", "test"], ""),
    ],
)
def test_the_runner_of_a_command_is_known_by_its_words(argv, runner):
    assert runner_of(argv) == runner


def test_runners_are_told_to_report():
    assert with_report(["pytest"], "pytest", "/r.xml") == ["pytest", "-p", "no:cacheprovider", "--junitxml=/r.xml"]
    assert with_report(["go", "test", "./..."], "go", "") == ["go", "test", "-json", "./..."]
    assert with_report(["node", "--test", "a"], "node", "") == ["node", "--test-reporter=tap", "--test", "a"]
    assert with_report(["make"], "", "") == ["make"]


def test_junit_reports_are_summed_over_their_suites():
    suite = '<testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/>'
    text = f"<testsuites>{suite.format(5, 1, 1, 1)}{suite.format(2, 0, 0, 0)}</testsuites>"
    assert junit(text) == Counts(4, 2, 1)
    assert junit('<testsuite tests="1" failures="0" errors="0"/>') == Counts(1, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<testsuites>",
        "<testsuites/>",
        '<other tests="1" failures="0" errors="0"/>',
        '<testsuite tests="many" failures="0" errors="0"/>',
        '<testsuite tests="-1" failures="0" errors="0"/>',
        '<!DOCTYPE x [<!ENTITY a "b">]><testsuite tests="1" failures="0" errors="0"/>',
    ],
)
def test_what_is_no_whole_junit_report_is_none(text):
    assert junit(text) is None


def test_the_last_lines_of_unittest():
    ran = "..s\n" + "-" * 70 + "\nRan 3 tests in 0.001s\n\n"
    assert unittest(ran + "OK (skipped=1)\n") == Counts(2, 0, 1)
    assert unittest(ran + "FAILED (failures=1, errors=1)\n") == Counts(1, 2, 0)
    assert unittest(ran.replace("3 tests", "1 test") + "OK\n") == Counts(1, 0, 0)
    assert unittest(ran + "OK\nand then it went on\n") is None
    assert unittest(ran) is None
    assert unittest("") is None


def test_the_summary_of_nodes_runner():
    tap = "TAP version 13\nok 1 - a\n# tests 4\n# suites 0\n# pass 2\n# fail 1\n# cancelled 0\n# skipped 1\n# todo 0\n"
    assert node(tap) == Counts(2, 1, 1)
    assert node("TAP version 13\nok 1 - a\n") is None
    assert node(tap + "ok 2 - /repo/tests/a.test.mjs\n") is None  # a file that ended before it told of a test


def test_the_events_of_go():
    def events(*rows):
        return "\n".join(json.dumps(dict(zip(("Action", "Package", "Test"), row, strict=False))) for row in rows)

    whole = events(("run", "p", "TestA"), ("pass", "p", "TestA"), ("fail", "p", "TestB"), ("fail", "p"))
    assert go(whole + "\nnot json") == Counts(1, 1, 0)
    assert go(events(("run", "p", "TestA"), ("pass", "p", "TestA"))) is None  # the package has no end
    assert go("[]\n3\n") is None


def test_the_results_of_cargo():
    one = "running 2 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n"
    assert cargo(one + one) == Counts(4, 0, 2)
    assert cargo(one + "running 1 test\n") is None  # a binary that began and did not end
    assert cargo("") is None


@given(st.text(), st.text(), st.text(), st.sampled_from(["pytest", "unittest", "node", "go", "cargo", ""]))
def test_no_output_is_too_strange_to_be_read(stdout, stderr, report, runner):
    found = counts_of(runner, stdout, stderr, report)
    assert found is None or (found.passed >= 0 and found.failed >= 0)


@pytest.mark.parametrize(
    ("goal", "wanted"),
    [
        ("Refactor the parser into two modules.", "refactor"),
        ("Fix add(): it subtracts.", "bugfix"),
        ("Add a flag --verbose.", "new-feature"),
        ("Migrate the tests to pytest.", "migration"),
        ("Investigate the memory growth and report it.", "debug"),
        ("Document every public function.", "docs"),
        ("Make the failing test pass.", "bugfix"),
        ("Keep notes.", None),
        ("", None),
    ],
)
def test_the_class_of_a_task_is_that_of_the_first_word_that_speaks_for_one(goal, wanted):
    assert task_class(goal) == wanted
