"""How a session's folders come to be while other processes look."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_proteus.sweep import folder as folders
from pytest_proteus.sweep.folder import SessionFolder, allocate, conflicts, is_live, let_go

PLAN = {"name": "s", "condition": {"sweep": {}, "harnesses": {}, "arms": {}, "tasks": {}}, "runs": []}

ASK = """
import sys
from pathlib import Path
from pytest_proteus.sweep.folder import is_live
print(is_live(Path(sys.argv[1])))
"""


def elsewhere_is_live(path) -> str:
    return subprocess.run([sys.executable, "-c", ASK, path], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def session(tmp_path):
    made = SessionFolder(tmp_path / "base", "one")
    made.open()
    yield made
    let_go(tmp_path / "base" / "s")
    let_go(made.path)


def test_a_folder_is_held_before_what_is_in_it_is_discarded(session, tmp_path, monkeypatch):
    out = tmp_path / "base" / "s"
    (out / "cells").mkdir(parents=True)
    (out / "manifest.json").write_text('{"format_version": 3, "name": "s"}')
    discard, seen = folders._discard, []

    def looked_at(path):
        seen.append(elsewhere_is_live(path))
        discard(path)

    monkeypatch.setattr(folders, "_discard", looked_at)
    allocate(session, "s", lambda: dict(PLAN), policy="overwrite", numbered=False)
    assert seen == ["True"]


def planned(*harness):
    """The condition of a plan whose one harness label stands for so many."""
    found = harness[0] if len(harness) == 1 else {"each": list(harness)}
    return {"condition": {"sweep": {}, "harnesses": {"h": found}, "arms": {}, "tasks": {}}}


ONE, TWO, THREE = ({"knobs": {"n": number}} for number in (1, 2, 3))


def test_further_values_of_an_axis_that_shapes_a_harness_extend_a_sweep():
    assert conflicts(planned(ONE), planned(ONE, TWO)) == []
    assert conflicts(planned(ONE, TWO), planned(TWO, ONE, THREE)) == []
    assert conflicts(planned(ONE, TWO), planned(ONE)) == []


def test_other_values_are_another_condition():
    assert conflicts(planned(ONE), planned(TWO)) == ["harnesses.h.knobs.n"]
    assert conflicts(planned(ONE, TWO), planned(ONE, THREE)) == ["harnesses.h"]


def test_a_folder_that_could_not_be_filled_is_let_go(session, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(folders, "_fill", full)
    with pytest.raises(OSError, match="No space"):
        allocate(session, "s", lambda: dict(PLAN), policy="resume", numbered=False)
    assert not is_live(tmp_path / "base" / "s")
