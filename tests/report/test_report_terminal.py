"""What a person reads of a report: in the terminal and as Markdown."""

from __future__ import annotations

import pytest

from pytest_proteus.report.build import build_report
from pytest_proteus.report.markdown import markdown
from pytest_proteus.report.tables import number, printable
from pytest_proteus.report.terminal import sum_counters, summary_lines


def lines_of(folders, width=80):
    return summary_lines(build_report(folders.session), width)


def row_of(folders, arm):
    return next(line.split() for line in lines_of(folders) if line.startswith(f"{arm} "))


def test_there_is_one_row_an_arm(finished):
    assert row_of(finished, "neutral") == ["neutral", "2/2", "4/4", "2", "(n=2)", "0.5", "(n=2)"]
    assert row_of(finished, "review")[:3] == ["review", "2/2", "4/4"]


def test_a_mean_says_how_many_cells_are_behind_it(finished):
    finished.cell("run-a", "errored")
    assert row_of(finished, "neutral")[:5] == ["neutral", "1/2", "4/4", "3", "(n=1)"]


def test_a_mean_of_nothing_is_no_zero(finished):
    finished.cell("run-a", "errored")
    finished.cell("run-c", "errored")
    assert row_of(finished, "neutral")[3:5] == ["-", "(n=0)"]


def test_the_cells_are_accounted_for_above_the_table(finished):
    finished.cell("run-a", "not_run")
    assert lines_of(finished)[0] == "demo: 4 cells: 3 complete, 1 not run"


def test_gates_of_an_arm_are_counted_in_its_row(finished):
    finished.gate(arm="neutral", name="a")
    finished.gate(arm="neutral", name="b", verdict="fail")
    assert row_of(finished, "neutral")[-1] == "1/2"
    assert row_of(finished, "review")[-1] == "-"


def test_gates_are_counted_below_the_table(finished):
    finished.gate(name="a")
    finished.gate(name="b", verdict="undecided")
    assert "gates: 1 passed, 1 undecided" in lines_of(finished)


def test_counters_are_summed_over_an_arm_by_dotted_name():
    assert sum_counters([{"a": 1, "b": {"c": 2}, "d": True}, {"a": 2, "b": {"c": 0.5}, "e": "x"}]) == {
        "a": 3,
        "b.c": 2.5,
    }


def test_columns_that_do_not_fit_follow_below_with_the_arm_again(finished):
    lines = lines_of(finished, 30)
    assert [line.split()[0] for line in lines if line.startswith(("arm", "neutral"))] == ["arm", "neutral"] * 2
    assert lines[4].split() == ["arm", "calls", "step"]


def test_counters_are_a_table_of_their_own(finished):
    finished.cell("run-a", counters={"writes": {"notes": 2}})
    finished.cell("run-c", counters={"writes": {"notes": 3}})
    lines = [line.split() for line in lines_of(finished)]
    assert ["counters", "writes.notes"] in lines
    assert ["neutral", "5"] in lines
    assert ["review", "-"] in lines


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_lines_are_no_wider_than_the_terminal(finished, width):
    finished.cell("run-b", "lost", counters={f"phase_{n}_turns": n for n in range(20)})
    finished.gate(verdict="fail", arm="review", reason="a sentence of many words " * 10)
    assert max(len(line) for line in lines_of(finished, width)) <= width


def test_control_characters_of_an_agent_do_not_reach_the_terminal(finished):
    finished.gate(verdict="fail", reason="\x1b[2J\x07done")
    assert not any("\x1b" in line or "\x07" in line for line in lines_of(finished))
    assert printable("a\x1bb\nc") == "a\\x1bb c"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (2.0, "2"), (0.123456, "0.1235"), (1234567.0, "1,234,567"), (12345, "12,345")]
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


def test_markdown_has_a_table_of_arms(finished):
    text = markdown(build_report(finished.session))
    assert "| neutral | 2/2 | 4/4 | 2 (n=2) | 0.5 (n=2) |" in text


def test_markdown_folds_the_gates_that_passed(finished):
    finished.gate(name="a")
    finished.gate(name="z", verdict="fail", reason="too many")
    text = markdown(build_report(finished.session))
    shown, _, folded = text.partition("<details>")
    assert "| fail | z | too many | test\\_demo.py::test\\_gate |" in shown
    assert "| pass | a |" in folded


def test_markdown_escapes_what_would_mean_something_to_it(finished):
    finished.gate(verdict="fail", reason="<img src=x> | `rm`\n# head")
    text = markdown(build_report(finished.session))
    assert "&lt;img src=x&gt; \\| \\`rm\\` \\# head" in text
