"""Built-in evaluators: what they count, what they refuse to touch; and the parser of evaluator specs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from pytest_proteus.core import ActionEvent, EvaluatorSpec, GoalConfig, GoalContext, Surface, Visibility
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.evaluators import (
    file_contains,
    is_built_in,
    parse_evaluator,
    structural_step,
    surface_units,
    tool_calls,
)

NOTES = Surface("notes", "durable/notes")
TOOLS = Surface("tools", "tools", unit="top_level_def")
SURFACES = (NOTES, TOOLS, Surface("rules", "AGENTS.md"))
TRACE = [ActionEvent(1, "act", "write"), ActionEvent(2, "act"), ActionEvent(3, "act", "bash")]


def context(root: Path = Path("/nowhere"), **units: dict[str, dict[str, str]]) -> GoalContext:
    return GoalContext(str(root), 1, units=units.get("now"), previous_units=units.get("before"))


def test_units_are_counted_from_the_tables_at_hand() -> None:
    result = surface_units(NOTES)([], context(now={"notes": {"a": "1", "b": "2"}}))
    assert (result.name, result.score, result.passed) == ("units:notes", 2.0, False)


@pytest.mark.parametrize(("target", "score", "passed"), [(1, 1.0, True), (2, 2.0, True), (3, 2.0, False)])
def test_a_target_caps_the_score_and_is_passed_when_reached(target: int, score: float, passed: bool) -> None:
    result = surface_units(NOTES, "n", target)([], context(now={"notes": {"a": "1", "b": "2"}}))
    assert (result.name, result.score, result.passed) == ("n", score, passed)


@pytest.mark.parametrize(
    ("ceiling", "score", "passed"), [(0, 2.0, False), (1, -1.0, False), (2, 0.0, True), (5, 3.0, True)]
)
def test_tool_calls_are_counted_down_from_a_ceiling(ceiling: int, score: float, passed: bool) -> None:
    result = tool_calls(ceiling=ceiling)(TRACE, context())
    assert (result.name, result.score, result.passed) == ("tool-calls", score, passed)


def test_a_name_that_is_neither_folder_nor_surface_has_no_count(tmp_path: Path) -> None:
    tables = {"notes": {"a": "1", "b": "2"}}
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "x").write_text("x")
    (tmp_path / "AGENTS.md").write_text("x")

    def count(name: str) -> float:
        return surface_units(name)([], context(tmp_path, now=tables)).score

    assert (count("notes"), count("tools"), count("AGENTS.md")) == (2.0, 1.0, 1.0)
    with pytest.raises(LookupError, match="'ntoes' is no folder or file of the harness and no surface"):
        count("ntoes")
    spec = EvaluatorSpec("n", surface_units("ntoes"))
    assert GoalConfig.of("x", [spec]).evaluate([], context(tmp_path, now=tables))[0].error
    assert surface_units("ntoes")([], context(tmp_path)).score == 0.0


def test_a_step_is_the_number_of_units_that_moved_over_all_surfaces() -> None:
    before = {"notes": {"a": "1", "b": "1"}, "tools": {"t": "1"}}
    now = {"notes": {"b": "2", "c": "1"}, "tools": {"t": "1"}}
    result = structural_step((NOTES, TOOLS))([], context(now=now, before=before))
    assert (result.name, result.score, result.passed) == ("structural-step", 3.0, False)
    assert "+1/-1/~1" in result.detail
    assert "tools" not in result.detail


def test_no_step_scores_nothing() -> None:
    table = {"notes": {"a": "1"}}
    assert structural_step((NOTES,))([], context(now=table, before=table)).score == 0.0


@pytest.mark.parametrize(("needle", "score"), [("needle", 1.0), ("pin", 0.0)])
def test_a_file_is_searched(tmp_path: Path, needle: str, score: float) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("hay needle hay")
    result = file_contains("notes/a.md", needle)([], context(tmp_path))
    assert (result.name, result.score, result.passed) == ("contains:notes/a.md", score, bool(score))


def harness_with_traps(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("needle")
    harness = tmp_path / "harness"
    (harness / "dir").mkdir(parents=True)
    (harness / "link").symlink_to(tmp_path / "outside" / "secret")
    (harness / "dirlink").symlink_to(tmp_path / "outside")
    (harness / "loop").symlink_to("loop")
    os.mkfifo(harness / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(harness)
        try:
            sock.bind("sock")
        finally:
            os.chdir(here)
    with (harness / "huge").open("wb") as stream:
        stream.truncate(1 << 40)
    return harness


@pytest.mark.parametrize(
    "path",
    [
        "link",
        "dirlink/secret",
        "loop",
        "fifo",
        "sock",
        "dir",
        "../outside/secret",
        "/etc/passwd",
        "",
        ".",
        "a\0b",
        "no",
        "huge",
    ],
)
def test_a_search_never_leaves_the_harness_nor_blocks(tmp_path: Path, path: str) -> None:
    result = file_contains(path, "needle", "n")([], context(harness_with_traps(tmp_path)))
    assert result.score == 0.0
    assert not result.passed
    assert result.detail


@pytest.mark.parametrize(
    ("text", "name", "spec", "visibility"),
    [
        ("units:notes", "units:notes", "units:notes", Visibility.HIDDEN),
        ("units:durable/notes@observe", "units:notes", "units:notes", Visibility.OBSERVE),
        ("units:AGENTS.md", "units:rules", "units:rules", Visibility.HIDDEN),
        ("tool-calls@hidden", "tool-calls", "tool-calls", Visibility.HIDDEN),
        ("tool-calls:40", "tool-calls", "tool-calls:40", Visibility.HIDDEN),
        ("step@observe", "step", "step", Visibility.OBSERVE),
        ("contains:notes/a.md:x:y", "contains:notes/a.md", "contains:notes/a.md:x:y", Visibility.HIDDEN),
        ("contains:a:me@example@observe", "contains:a", "contains:a:me@example", Visibility.OBSERVE),
        ("contains:a:me@example", "contains:a", "contains:a:me@example", Visibility.HIDDEN),
    ],
)
def test_specs_are_parsed(text: str, name: str, spec: str, visibility: Visibility) -> None:
    parsed = parse_evaluator(text, SURFACES)
    assert (parsed.name, parsed.spec, parsed.visibility) == (name, spec, visibility)
    assert is_built_in(parsed.run)


@pytest.mark.parametrize(
    ("text", "kind"), [("units:notes", "measurement"), ("step", "measurement"), ("contains:a:b", "custom")]
)
def test_a_built_in_form_says_its_kind(text: str, kind: str) -> None:
    assert parse_evaluator(text, SURFACES).kind == kind


def test_a_function_is_found_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_measures.py").write_text(
        "class Group:\n    @staticmethod\n    def headings(trace, ctx): return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    parsed = parse_evaluator("my_measures:Group.headings@observe", SURFACES)
    assert (parsed.name, parsed.kind, parsed.visibility) == ("my_measures:Group.headings", "custom", Visibility.OBSERVE)
    assert parsed.run is sys.modules["my_measures"].Group.headings
    assert not is_built_in(parsed.run)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("units:note", "units:notes"),
        ("units:", "notes, tools, rules"),
        ("unit:notes", "units:notes"),
        ("tool_calls", "tool-calls"),
        ("tool-calls:many", "tool-calls:40"),
        ("tool-calls:0", "tool-calls:40"),
        ("steps", "step"),
        ("step@obsrve", "step@observe"),
        ("contains:a", "contains:<relpath>:<needle>"),
        ("contains:/etc/passwd:root", "relative"),
        ("contains:../a:b", "relative"),
        ("no_such_module_here:fn", "cannot be imported"),
        ("os.path:joinn", "os.path:join"),
        ("os:sep", "not callable"),
        ("", "package.module:function"),
        ("what is this", "package.module:function"),
    ],
)
def test_a_wrong_spec_is_one_sentence_with_the_nearest_valid_spelling(text: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_evaluator(text, SURFACES)
    assert hint in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)
