"""Numbers of a route, each counted by hand from a trace of a few lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import GoalContext, call_evaluator
from pytest_proteus.scoring.routes import ROUTES
from pytest_proteus.sweep.declare import EvaluatorMark, resolve_evaluator


def call(tool, _at=None, **params):
    return ActionEvent(1, "task", tool, None, params, timestamp=_at)


def count(name, *events):
    return ROUTES[name](list(events))


def test_without_a_trace_there_is_no_number():
    assert {name: of([]) for name, of in ROUTES.items()} == dict.fromkeys(ROUTES)


def test_steps_are_calls_and_words_are_none():
    assert count("total_step_count", call("a"), ActionEvent(1, "task", None, text="thinking"), call("a")) == 2
    assert count("total_step_count", ActionEvent(1, "task", None, text="done")) == 0


@pytest.mark.parametrize(
    ("calls", "loops"),
    [
        ("aa", 0),
        ("aaa", 1),
        ("aaaaaaa", 1),
        ("aaabaaa", 2),
        ("ababab", 1),
        ("abab", 0),
        ("abcabcabc", 1),
        ("abcdabcdabcd", 0),  # a block of four is none
        ("xababababy", 1),
        ("aaabbb", 2),
        ("abaabaaba", 1),  # aba three times
    ],
)
def test_a_loop_is_a_short_block_made_three_times_in_a_row(calls, loops):
    assert count("loop_count", *map(call, calls)) == loops


def test_calls_with_other_arguments_are_no_loop():
    assert count("loop_count", *(call("bash", command=f"ls {n}") for n in range(5))) == 0
    assert count("loop_count", *(call("bash", command="ls") for _ in range(5))) == 1


def test_an_edit_that_is_taken_back_counts_once():
    there, back = {"old_string": "a", "new_string": "b"}, {"old_string": "b", "new_string": "a"}
    assert count("edit_revert_count", call("edit", path="x", **there), call("edit", path="x", **back)) == 1
    assert count("edit_revert_count", call("edit", path="x", **there), call("edit", path="y", **back)) == 0
    # there, back, there: the second goes back, the third is an edit of its own
    rows = [there, back, there]
    assert count("edit_revert_count", *(call("edit", file_path="x", **row) for row in rows)) == 1
    assert count("edit_revert_count", *(call("edit", file_path="x", **row) for row in [*rows, back])) == 2


def test_a_file_written_as_it_was_before_is_taken_back():
    def write(*texts):
        return count("edit_revert_count", *(call("write", path="x", content=text) for text in texts))

    assert write("1", "2", "1") == 1
    assert write("1", "1") == 0
    assert write("1", "2", "3") == 0
    assert write("1", "2", "1", "2") == 2


def test_a_read_is_redundant_while_nothing_could_have_changed_the_file():
    read, other = call("read", path="x"), call("read", path="y")
    assert count("redundant_read_count", read, other, read) == 1
    assert count("redundant_read_count", read, read, read) == 2
    assert count("redundant_read_count", read, call("edit", path="x", old="a", new="b"), read) == 0
    assert count("redundant_read_count", read, call("edit", path="y", old="a", new="b"), read) == 1
    assert count("redundant_read_count", read, call("bash", command="make"), read) == 0
    assert count("redundant_read_count", read, call("read", path="x", offset=100)) == 0


def test_a_tool_is_abandoned_after_five_calls_of_others():
    assert count("abandoned_tool_count", call("web"), *[call("bash")] * 5) == 1
    assert count("abandoned_tool_count", call("web"), *[call("bash")] * 4) == 0
    assert count("abandoned_tool_count", call("web"), call("web"), *[call("bash")] * 5) == 0
    assert count("abandoned_tool_count", call("a"), call("b"), *[call("bash")] * 5) == 2


def test_time_per_step_leaves_idle_gaps_out():
    # gaps 10, 20, 301 (idle), 300: (10 + 20 + 300) / 3 = 110
    times = [0.0, 10.0, 30.0, 331.0, 631.0]
    assert count("wallclock_per_step", *(call("a", _at=time) for time in times)) == 110.0
    assert count("wallclock_per_step", call("a", _at=1.0)) is None
    assert count("wallclock_per_step", call("a", _at=0.0), call("a", _at=1000.0)) is None
    assert count("wallclock_per_step", call("a"), call("a")) is None


@given(
    st.lists(
        st.builds(
            ActionEvent,
            turn=st.integers(0, 9),
            phase=st.just("task"),
            tool=st.sampled_from([None, "read", "edit", "bash", "write"]),
            params=st.dictionaries(
                st.sampled_from(["path", "old", "new", "content"]), st.sampled_from(["a", "b", 1, None])
            ),
            timestamp=st.one_of(st.none(), st.floats(0, 1e4)),
        )
    )
)
def test_no_trace_is_too_strange(trace):
    for name, of in ROUTES.items():
        value = of(trace)
        assert value is None or (value >= 0 and value <= max(len(trace), 300)), name


@pytest.mark.parametrize("name", ROUTES)
def test_each_is_an_evaluator_and_missing_without_a_trace(name):
    spec = resolve_evaluator(EvaluatorMark(f"route:{name}", {}, (), "here"), [])
    assert (spec.name, spec.kind) == (f"route:{name}", "route")
    found = call_evaluator(spec, [], GoalContext("", 1))
    assert (found.error, found.detail) == (True, "evaluator error: LookupError: there is no trace")


def test_an_evaluator_counts_what_the_function_counts():
    spec = resolve_evaluator(EvaluatorMark("route:loop_count@observe", {}, (), "here"), [])
    assert call_evaluator(spec, [call("a")] * 3, GoalContext("", 1)).score == 1.0
    with pytest.raises(ConfigurationError, match="one of loop_count, edit_revert_count"):
        resolve_evaluator(EvaluatorMark("route:luck", {}, (), "here"), [])
