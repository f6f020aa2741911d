"""Private records, plain data, JSON on disk: what survives, what counts, what is put right."""

from __future__ import annotations

import enum
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.core import records
from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError, RecordError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    where: Path


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([1, 2]), [1, 2]),
        (float("nan"), None),
        (np.float64("inf"), None),
        (10**400, None),
        ({3, 1, 2}, [1, 2, 3]),
        (Path("a/b"), "a/b"),
        (b"a\xff", "a\\xff"),
        ("a\udcff", "a\\udcff"),
        (Colour.RED, "red"),
        (Point(1.0, Path("p")), {"x": 1.0, "where": "p"}),
        ({1: "a", None: "b", ("x",): "c"}, {"1": "a", "null": "b", '["x"]': "c"}),
        (Unprintable(), "<Unprintable>"),
    ],
)
def test_values_become_plain(value: Any, expected: Any) -> None:
    assert records.plain(value) == expected


def test_a_value_that_holds_itself_ends() -> None:
    assert json.dumps(records.plain(cyclic()))


def test_plain_cuts_long_texts_on_request() -> None:
    assert records.plain({"a": "x" * 100}, limit=10)["a"].startswith("xxxxxxxxxx… (90")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers()),
    max_leaves=20,
)


@given(json_like)
def test_plain_data_survives_json_unchanged(value: Any) -> None:
    once = records.plain(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert records.plain(once) == once


def test_counters_sum_numbers_at_every_depth() -> None:
    total: dict[str, Any] = {}
    for _ in range(2):
        records.add_counters(total, {"a": 1, "b": True, "n": {"m": np.float64(2.5), "s": "t"}, "l": [1], "t": "x"})
    assert total == {"a": 2, "n": {"m": 5.0}}


def test_a_counter_that_changes_its_kind_keeps_the_first() -> None:
    total: dict[str, Any] = {}
    for counters in ({"a": 1, "b": {"c": 1}}, {"a": {"x": 1}, "b": 3}):
        records.add_counters(total, counters)
    assert total == {"a": 1, "b": {"c": 1}}


def test_a_counter_that_is_no_number_is_not_counted_as_zero() -> None:
    total: dict[str, Any] = {}
    records.add_counters(total, {"a": math.nan, "b": None})
    assert total == {}


def test_an_atomic_write_replaces_the_whole_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    records.write_json_atomic(path, {"a": 1})
    records.write_json_atomic(path, {"a": float("nan"), "b": Path("p")})
    assert json.loads(path.read_text()) == {"a": None, "b": "p"}
    assert os.listdir(path.parent) == ["x.json"]


def test_a_failing_atomic_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    records.write_json_atomic(path, 1)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write_json_atomic(path, 2)
    assert json.loads(path.read_text()) == 1
    assert os.listdir(tmp_path) == ["x.json"]


def test_appending_cuts_the_half_line_that_a_kill_left(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": ' + "9" * 70_000)
    records.append_jsonl(path, {"a": 2})
    assert records.read_jsonl(path) == [{"a": 1}, {"a": 2}]


def test_reading_passes_over_a_half_last_line_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert records.read_jsonl(path) == [{"a": 1}]
    assert path.read_text().endswith('{"a": 2')


@pytest.mark.parametrize("line", ["{broken", "[1]"])
def test_a_whole_line_that_is_no_object_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    with pytest.raises(RecordError, match=r"x\.jsonl:2"):
        records.read_jsonl(path)


def line(episode: int, commit: str) -> dict[str, Any]:
    return {"episode": episode, "commit": commit}


def test_records_of_published_commits_count(tmp_path: Path) -> None:
    lines = [line(1, "a"), line(2, "b")]
    assert records.settle(tmp_path, lines, {0: "s", 1: "a", 2: "b"}, lambda c: True) == (lines, "")


def test_a_last_record_whose_commit_is_stored_counts_and_is_yet_to_be_published(tmp_path: Path) -> None:
    lines = [line(1, "a"), line(2, "b")]
    assert records.settle(tmp_path, lines, {0: "s", 1: "a"}, lambda c: True) == (lines, "b")


def test_a_last_record_whose_commit_is_not_stored_does_not_count(tmp_path: Path) -> None:
    lines = [line(1, "a"), line(2, "b")]
    assert records.settle(tmp_path, lines, {0: "s", 1: "a"}, lambda c: False) == (lines[:1], "")


@pytest.mark.parametrize(
    ("lines", "checkpoints"),
    [
        ([], {0: "s", 1: "a"}),
        ([line(1, "x")], {0: "s", 1: "a"}),
        ([line(1, "a"), line(2, "b")], {0: "s"}),
        ([line(2, "b")], {0: "s"}),
    ],
)
def test_records_that_contradict_the_history_are_refused(
    tmp_path: Path, lines: list[dict[str, Any]], checkpoints: dict[int, str]
) -> None:
    with pytest.raises(RecordError, match="cannot resume"):
        records.settle(tmp_path, lines, checkpoints, lambda c: True)


def record(episode: int, **more: Any) -> dict[str, Any]:
    return {
        "episode": episode,
        "accepted": True,
        "results": [{"name": "a", "score": 0.0, "passed": False, "detail": "", "error": True}],
        "counters": {"x": 1},
        "turns": 2,
        "tool_calls": 1,
        "ok": True,
        "commit": f"c{episode}",
        "units": {"notes": 1},
        "error": "",
        "ts": 1.5,
        "seconds": 0.5,
        **more,
    }


def test_a_log_gives_back_what_was_appended(tmp_path: Path) -> None:
    log = records.EpisodeLog(tmp_path / "run")
    event = ActionEvent(1, "act", "write", "notes", {"path": Path("x"), "size": np.int64(3)}, "text", 5.0)
    log.append(record(1), [event])
    log.append(record(2), [])
    log.close()
    assert records.EpisodeLog(tmp_path / "run").lines == [record(1), record(2)]
    assert records.read_trace(tmp_path / "run", 1) == [
        ActionEvent(1, "act", "write", "notes", {"path": "x", "size": 3}, "text", 5.0)
    ]
    assert records.read_trace(tmp_path / "run", 2) == []


def test_a_trace_that_is_not_stored_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no trace of episode 3"):
        records.read_trace(tmp_path / "run", 3)


def test_records_lie_outside_of_the_run(tmp_path: Path) -> None:
    records.EpisodeLog(tmp_path / "run").close()
    assert sorted(os.listdir(tmp_path)) == [".proteus-records"]
    assert records.eval_history_path(tmp_path / "run") == tmp_path / ".proteus-records" / "run" / "eval_history.json"


def test_what_is_left_of_a_killed_attempt_is_dropped(tmp_path: Path) -> None:
    log = records.EpisodeLog(tmp_path / "run")
    for number in (1, 2):
        log.append(record(number), [])
    log.close()
    with (log.folder / records.ACTIONS).open("a") as stream:
        stream.write('{"episode": 3, "actions": []}\n{"episode": 4, "act')
    log = records.EpisodeLog(tmp_path / "run")
    log.keep(1)
    log.close()
    assert records.read_jsonl(log.folder / records.EPISODES) == [record(1)]
    assert [item["episode"] for item in records.read_jsonl(log.folder / records.ACTIONS)] == [1]


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    first = records.EpisodeLog(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="another process"):
        records.EpisodeLog(tmp_path / "run")
    first.close()
    records.EpisodeLog(tmp_path / "run").close()


def progress(path: Path, name: str = "n") -> records.ProgressLog:
    return records.ProgressLog(path, name=name, seed=0, episodes_target=3)


def test_a_progress_line_has_null_for_an_evaluator_that_failed(tmp_path: Path) -> None:
    log = progress(tmp_path / "p.jsonl")
    log.append(record(1))
    log.close()
    (written,) = records.read_jsonl(tmp_path / "p.jsonl")
    assert written == {
        "ts": 1.5,
        "name": "n",
        "seed": 0,
        "episode": 1,
        "episodes_target": 3,
        "ok": True,
        "turns": 2,
        "error": "",
        "tool_calls": 1,
        "units": {"notes": 1},
        "accepted": True,
        "scores": {"a": None},
        "counters": {"x": 1},
    }


def test_progress_lines_that_a_kill_swallowed_are_written_again(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    for name in ("other", "n"):
        log = progress(path, name)
        log.append(record(1))
        log.close()
    whole = path.read_text()
    path.write_text(whole + '{"ts": 1.5, "na')
    log = progress(path)
    log.catch_up([record(1), record(2)])
    log.close()
    assert path.read_text().startswith(whole)
    assert [(item["name"], item["episode"]) for item in records.read_jsonl(path)] == [
        ("other", 1),
        ("n", 1),
        ("n", 2),
    ]


def test_a_trace_is_found_in_a_file_that_has_grown_or_was_cut(tmp_path: Path) -> None:
    path = records.private_record_dir(tmp_path / "run") / "actions.jsonl"
    path.parent.mkdir(parents=True)
    lines = [json.dumps({"episode": n, "actions": [{"turn": 1, "phase": "act", "tool": f"t{n}"}]}) for n in (1, 2, 2)]
    path.write_text(f"{lines[0]}\n{lines[1]}")
    assert [event.tool for event in records.read_trace(tmp_path / "run", 1)] == ["t1"]
    with pytest.raises(RecordError, match="no trace of episode 2"):
        records.read_trace(tmp_path / "run", 2)
    path.write_text("\n".join([*lines, ""]).replace("t2", "t3", 1))
    assert [event.tool for event in records.read_trace(tmp_path / "run", 2)] == ["t2"]
    path.write_text("")
    with pytest.raises(RecordError, match="no trace of episode 1"):
        records.read_trace(tmp_path / "run", 1)
