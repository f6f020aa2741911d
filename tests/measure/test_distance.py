"""Distances between harnesses and along the checkpoints of a run."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from measure_oracles import cases

from pytest_proteus.core import snapshot
from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.snapshot import Reader, SnapshotError, SnapshotStore
from pytest_proteus.core.snapshot.objects import parse_tree
from pytest_proteus.core.units import UnitTables
from pytest_proteus.measure import distance

SURFACES = [Surface("notes", "notes"), Surface("tools", "tools", "top_level_def")]


def write(tree: Path, path: str, text: str) -> None:
    target = tree / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_compare_counts_by_surface(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, "notes/1.md", "x")
    write(a, "notes/2.md", "x")
    write(b, "notes/1.md", "y")
    write(b, "tools/t.py", "def f(): pass\ndef g(): pass\n")
    found = distance.compare(a, b, SURFACES)
    assert found["notes"] == distance.SurfaceDelta("notes", added=0, dropped=1, revised=1, unchanged=0)
    assert found["tools"] == distance.SurfaceDelta("tools", added=2, dropped=0, revised=0, unchanged=0)


def test_a_path_is_as_long_as_its_steps_together(tmp_path: Path) -> None:
    states = [tmp_path / str(number) for number in range(3)]
    for state, text in zip(states, ["x", "y", "x"], strict=True):
        write(state, "notes/1.md", text)
        write(state, "notes/2.md", "same")
    found = distance.path_length(states, SURFACES)["notes"]
    assert (found.added, found.dropped, found.revised, found.unchanged) == (0, 0, 2, 2)


def test_fewer_than_two_states_have_not_moved(tmp_path: Path) -> None:
    write(tmp_path / "a", "notes/1.md", "x")
    for states in ([], [tmp_path / "a"]):
        assert distance.path_length(states, SURFACES)["notes"].union == 0


def make_run(work: Path) -> None:
    work.mkdir(parents=True)
    store = SnapshotStore.create_or_open(work, work.parent / ".snapshot.git")
    for episode in range(8):
        write(work, f"notes/{episode % 3}.md", str(episode))
        write(work, "tools/t.py", f"def f(): return {episode // 2}\nX = {episode // 4}\n")
        if episode == 5:
            (work / "notes/0.md").unlink()
        scan, accepted = store.scan(), episode % 3 != 1
        store.publish(store.prepare(scan, episode, label="x", accepted=accepted))
        if not accepted:
            store.rollback(scan)
    store.close()


def test_the_path_of_a_run_is_that_of_its_materialized_checkpoints(tmp_path: Path) -> None:
    work = tmp_path / "run" / "harness"
    make_run(work)
    states = []
    for episode, commit in snapshot.checkpoints(work):
        states.append(tmp_path / "states" / str(episode))
        snapshot.materialize(work, commit, states[-1])
    assert len(states) == 8
    assert distance.path_length_of_run(work, SURFACES) == distance.path_length(states, SURFACES)


def test_a_run_without_a_repository_has_not_moved(tmp_path: Path) -> None:
    assert distance.path_length_of_run(tmp_path / "run" / "harness", SURFACES)["notes"].union == 0


def test_importing_distances_imports_neither_git_nor_pytest() -> None:
    code = (
        "import sys; import pytest_proteus.measure.distance; assert not {'git', 'pytest', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("inputs", "expected"), cases("surface_delta"))
def test_deltas_agree_with_those_made_by_hand(inputs, expected):
    found = distance.delta(inputs["a"], inputs["b"], "notes")
    for name in ("added", "dropped", "revised", "unchanged", "distance", "churn"):
        assert getattr(found, name) == (None if expected[name] is None else pytest.approx(expected[name], abs=1e-12))


def test_the_path_by_changes_is_the_path_by_trees(tmp_path: Path) -> None:
    surfaces = [*SURFACES, Surface("folders", ".", "directory"), Surface("one", "notes/a")]
    states: list[dict[str, str]] = [
        {"notes/a": "1", "tools/t.py": "def f(): pass\n"},
        {"notes/a": "1", "notes/b/c": "", "notes/b/d/e": "1", "tools/t.py": "def f(): pass\n"},
        {"notes/a/x": "1", "notes/b/c": "1", "notes/b/d/e": "1", "tools/t.txt": ""},
        {"notes/a/x": "1", "notes/b": "a file where a folder was", "tools/t.txt": "1"},
        {},
        {"notes/a": "2", "other/t": "1"},
    ]
    work, git_dir = tmp_path / "harness", tmp_path / ".snapshot.git"
    work.mkdir()
    with contextlib.closing(SnapshotStore.create_or_open(work, git_dir)) as store:
        for episode, state in enumerate(states):
            shutil.rmtree(work)
            work.mkdir()
            for path, text in state.items():
                write(work, path, text)
            store.publish(store.prepare(store.scan(), episode, label="x"))
    reader = Reader(git_dir)
    by_tree, by_changes = UnitTables(surfaces, reader.read_blob), UnitTables(surfaces, reader.read_blob)
    found = list(reader.changes())
    for (_, commit), changes in zip(reader.checkpoints(), found, strict=True):
        assert by_changes.move_by(changes) == by_tree.move_to(reader.node_of(commit))
    assert [len(changes) for changes in found] == [2, 2, 5, 4, 3, 2]


def test_a_damaged_tree_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="damaged"):
        parse_tree(b"100644 a\0" + b"x" * 20 + b"100644 b\0short")
