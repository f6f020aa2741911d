"""A world outside of pytest's own folders, which the user of boxes could not pass: where runs of agents live."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pytest_proteus.sandbox import let_in, open_folders


@pytest.fixture
def world():
    """A live run beside all that it must not see; what lies outside of the run anyone might read and write."""
    folder = let_in(Path(tempfile.mkdtemp(prefix="world-", dir=open_folders()[0])))
    for name in ("run/harness", "run/state", "run/traces", "run/active", "records", "sibling/harness", "repo", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "run/active/AGENTS.md").write_text("# Active\n")
    (folder / "records/scores.json").write_text('{"score": 1}\n')
    (folder / "sibling/harness/AGENTS.md").write_text("# Another's\n")
    (folder / "home/key").write_text("secret\n")
    subprocess.run(["git", "init", "-q", folder / "repo"], check=True)
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode | 0o066 | (0o011 if path.is_dir() else 0))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def harness(world) -> Path:
    """The tree that the subject may write."""
    return world / "run" / "harness"
