"""Units of surfaces: what is one, what it is called, and that the incremental tables are the tables."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.snapshot import SnapshotStore
from pytest_proteus.core.units import UnitTables, delta, units

FILES = Surface("notes", "notes")
FOLDERS = Surface("skills", "skills", "directory")
CODE = Surface("tools", "tools", "top_level_def")


def write(tree: Path, path: str, content: str | bytes) -> None:
    target = tree / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)


def names(tree: Path, surface: Surface) -> list[str]:
    return sorted(units(tree, [surface])[surface.name])


def revised(tree: Path, surface: Surface, path: str, content: str | bytes) -> list[str]:
    """Units whose digest an edit changes."""
    before = units(tree, [surface])[surface.name]
    write(tree, path, content)
    after = units(tree, [surface])[surface.name]
    assert before.keys() == after.keys()
    return sorted(name for name in before if before[name] != after[name])


def test_a_file_unit_is_named_by_its_path_in_the_surface(tmp_path: Path) -> None:
    write(tmp_path, "notes/a.md", "x")
    write(tmp_path, "notes/sub/a.md", "x")
    write(tmp_path, "notes/.hidden", "x")
    write(tmp_path, "notes2/other.md", "x")
    assert names(tmp_path, FILES) == [".hidden", "a.md", "sub/a.md"]


def test_byte_code_is_no_unit(tmp_path: Path) -> None:
    write(tmp_path, "notes/__pycache__/a.txt", "x")
    write(tmp_path, "notes/b.pyc", "x")
    assert names(tmp_path, FILES) == []


def test_a_surface_that_does_not_exist_has_no_units(tmp_path: Path) -> None:
    assert units(tmp_path, [FILES, FOLDERS, CODE]) == {"notes": {}, "skills": {}, "tools": {}}
    assert units(tmp_path / "nowhere", [FILES]) == {"notes": {}}


@pytest.mark.parametrize("unit", ["file", "directory"])
def test_a_surface_may_be_a_single_file(tmp_path: Path, unit: str) -> None:
    write(tmp_path, "docs/AGENTS.md", "x")
    assert names(tmp_path, Surface("rules", "docs/AGENTS.md", unit)) == ["AGENTS.md"]


def test_the_whole_harness_may_be_a_surface(tmp_path: Path) -> None:
    write(tmp_path, "a/b.md", "x")
    assert names(tmp_path, Surface("all", ".")) == ["a/b.md"]


def test_a_directory_unit_changes_with_any_member_and_its_name(tmp_path: Path) -> None:
    write(tmp_path, "skills/one/SKILL.md", "x")
    write(tmp_path, "skills/one/deep/t.py", "x")
    write(tmp_path, "skills/two/SKILL.md", "x")
    write(tmp_path, "skills/loose.md", "x")
    (tmp_path / "skills/empty").mkdir()
    assert names(tmp_path, FOLDERS) == ["loose.md", "one", "two"]
    assert revised(tmp_path, FOLDERS, "skills/one/deep/t.py", "y") == ["one"]
    assert revised(tmp_path, FOLDERS, "skills/one/new.md", "") == ["one"]
    before = units(tmp_path, [FOLDERS])
    (tmp_path / "skills/two/SKILL.md").rename(tmp_path / "skills/two/skill.md")
    assert units(tmp_path, [FOLDERS]) != before


def test_definitions_are_units_and_everything_else_of_a_module_is_one_more(tmp_path: Path) -> None:
    write(
        tmp_path, "tools/t.py", "import os\n\ndef f():\n    pass\n\nasync def g(): pass\nclass C:\n    def m(self): 1\n"
    )
    write(tmp_path, "tools/sub/u.py", "def u(): pass\n\n")
    write(tmp_path, "tools/empty.py", "\n")
    write(tmp_path, "tools/readme.md", "x")
    assert names(tmp_path, CODE) == [
        "readme.md::<module>",
        "sub/u.py::u",
        "t.py::<module>",
        "t.py::C",
        "t.py::f",
        "t.py::g",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("def f():\n    return 1\n", "def f():\n    return 2\n", ["t.py::f"]),
        ("X = 1\ndef f(): pass\n", "X = 2\ndef f(): pass\n", ["t.py::<module>"]),
        ("@a\ndef f(): pass\n", "@b\ndef f(): pass\n", ["t.py::<module>"]),
        ("def f(): 1\ndef f(): 2\n", "def f(): 3\ndef f(): 2\n", ["t.py::f"]),
        ("X = 1\ndef f(): pass\n", "def f(): pass\nX = 1\n", []),
        ("def f():\r    return 1\rX = 1\r", "def f():\r    return 2\rX = 1\r", ["t.py::f"]),
        ("def f():\n    return '\x0c'\nX = 1\n", "def f():\n    return '\x0c'\nX = 2\n", ["t.py::<module>"]),
        ("\ufeffdef f(): 1\n", "\ufeffdef f(): 2\n", ["t.py::f"]),
        ("def (\n", "def (\n\n", ["t.py"]),
    ],
)
def test_an_edit_revises_the_definition_that_it_is_in(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    write(tmp_path, "tools/t.py", old)
    assert revised(tmp_path, CODE, "tools/t.py", new) == expected


@pytest.mark.parametrize(
    "content",
    ["def (", "a\0b", "(" * 1000, "[" * 500 + "]" * 500, "-" * 200_000 + "1", "x" + ".a" * 300_000, "def f(:\n" * 100],
    ids=["syntax", "nul", "open", "nested", "signs", "chain", "many"],
)
def test_code_that_does_not_parse_is_one_unit_that_says_so(tmp_path: Path, content: str) -> None:
    write(tmp_path, "tools/bad.py", content)
    table = units(tmp_path, [CODE])["tools"]
    assert list(table) == ["bad.py"]
    assert table["bad.py"].startswith("unparsable:")


def test_parsing_never_warns_in_the_users_name(tmp_path: Path) -> None:
    write(tmp_path, "tools/t.py", "def f(): return '\\d' is 1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(tmp_path, CODE) == ["t.py::f"]


@pytest.mark.parametrize(("old", "new"), [(b"a\r\n", b"a\n"), (b"\xff", b"\xfe")])
def test_edits_of_bytes_are_revisions(tmp_path: Path, old: bytes, new: bytes) -> None:
    write(tmp_path, "notes/a", old)
    assert revised(tmp_path, FILES, "notes/a", new) == ["a"]


def test_links_count_as_themselves_and_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, "notes/a.md", "x")
    (tmp_path / "notes/link").symlink_to("a.md")
    (tmp_path / "notes/out").symlink_to("/dev/zero")
    (tmp_path / "notes/loop").symlink_to(".")
    table = units(tmp_path, [FILES])["notes"]
    assert sorted(table) == ["a.md", "link", "loop", "out"]
    assert table["link"].startswith("link:")
    before = dict(table)
    write(tmp_path, "notes/a.md", "y")
    after = units(tmp_path, [FILES])["notes"]
    assert [name for name in after if after[name] != before[name]] == ["a.md"]


def test_names_that_are_no_printable_text_are_escaped_and_stay_different(tmp_path: Path) -> None:
    for name in (b"bad\xff", b"new\nline", b"back\\slash", b"bad\\xff"):
        write(tmp_path / "notes", os.fsdecode(name), "x")
    assert names(tmp_path, FILES) == ["back\\\\slash", "bad\\\\xff", "bad\\xff", "new\\nline"]


def test_a_delta_counts_added_dropped_revised_and_unchanged() -> None:
    change = delta({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1", "e": "1"}, "notes")
    assert (change.surface, change.added, change.dropped, change.revised, change.unchanged) == ("notes", 2, 1, 1, 1)
    assert (change.union, change.distance, change.churn) == (5, 0.8, 0.5)
    nothing = delta({}, {}, "notes")
    assert (nothing.union, nothing.distance, nothing.churn) == (0, 0.0, None)


CONTENTS = st.sampled_from(["", "x", "def f(): pass\n", "def f(): 1\ndef g(): 2\nX = 1\n", "def (", "class C: pass\n"])
PATHS = st.sampled_from(
    [
        "notes/a.md",
        "notes/b/c.md",
        "skills/one/a",
        "skills/one/b",
        "skills/two",
        "tools/t.py",
        "tools/u/v.py",
        "tools/w",
    ]
)
EDITS = st.lists(st.lists(st.tuples(PATHS, st.none() | CONTENTS), max_size=4), min_size=1, max_size=6)


def edit(tree: Path, path: str, content: str | None) -> None:
    if content is not None:
        write(tree, path, content)
    elif (tree / path).exists():
        (tree / path).unlink()


@settings(max_examples=60, deadline=None)
@given(steps=EDITS, accepted=st.lists(st.booleans(), min_size=6, max_size=6))
def test_incremental_tables_are_the_tables_read_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[str, str | None]]], accepted: list[bool]
) -> None:
    root = tmp_path_factory.mktemp("run")
    work = root / "harness"
    work.mkdir()
    store = SnapshotStore.create_or_open(work, root / ".snapshot.git")
    surfaces = [FILES, FOLDERS, CODE]
    tables = UnitTables(surfaces, store.read_blob)
    store.publish(store.prepare(store.scan(), 0, label="x"))
    for episode, (edits, accept) in enumerate(zip(steps, accepted, strict=False), 1):
        for path, content in edits:
            edit(work, path, content)
        scan = store.scan()
        now = tables.update(scan)
        assert now == units(work, surfaces) == tables.from_entries(scan.entries, scan.read)
        store.publish(store.prepare(scan, episode, label="x", accepted=accept))
        if not accept:
            store.rollback(scan)
            assert tables.update(store.scan()) == units(work, surfaces)
    store.close()
