"""The tripwire of the rung none: what an agent does to the folder where pytest runs is seen and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.sandbox.guard import MOST_NAMED, Guard, repository

GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    for name in ("clean.py", "dirty.py", "assumed.py", "src/inner.py"):
        (folder / name).write_text("one\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder.parent, "init", "-q", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "update-index", "--assume-unchanged", "assumed.py")
    (folder / "dirty.py").write_text("two\n")
    (folder / "untracked.txt").write_text("one\n")
    (folder / "seen.log").write_text("one\n")
    return folder


def write_and_put_back(path: Path) -> None:
    before = path.stat()
    text = path.read_text()
    path.write_text("other\n")
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


#: What is done → the path that must be named. Most of it ``git status`` says nothing of.
DEEDS = {
    "a file that was dirty already": (lambda r: (r / "dirty.py").write_text("3\n"), "dirty.py"),
    "a file that git does not track": (lambda r: (r / "untracked.txt").write_text("two\n"), "untracked.txt"),
    "a file that git ignores": (lambda r: (r / "seen.log").write_text("two\n"), "seen.log"),
    "a file that git takes for unchanged": (lambda r: (r / "assumed.py").write_text("two\n"), "assumed.py"),
    "rights": (lambda r: (r / "clean.py").chmod(0o600), "clean.py"),
    "a file that is put back, with its time": (lambda r: write_and_put_back(r / "clean.py"), "clean.py"),
    "another file in its place": (lambda r: (r / "untracked.txt").replace(r / "clean.py"), "clean.py"),
    "a hard link from elsewhere": (lambda r: os.link(r / "clean.py", r.parent / "link"), "clean.py"),
    "a file that comes and goes": (lambda r: ((r / "src/x").touch(), (r / "src/x").unlink()), "src"),
    "an empty folder": (lambda r: (r / "src" / "empty").mkdir(), "src/empty"),
    "a link": (lambda r: (r / "src" / "link").symlink_to("/etc/passwd"), "src/link"),
    "a hook of git": (lambda r: (r / ".git/hooks/pre-commit").write_text("x"), ".git/hooks/pre-commit"),
    "git's settings": (lambda r: git(r, "config", "core.pager", "x"), ".git/config"),
    "a branch": (lambda r: git(r, "branch", "other"), ".git/refs/heads/other"),
    "a file that is gone": (lambda r: (r / "src/inner.py").unlink(), "src/inner.py"),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_it_sees(repo, deed):
    guard = Guard(repository(repo))
    assert guard.changes() == []
    do, path = DEEDS[deed]
    do(repo)
    assert str(repo / path) in guard.changes()


def test_what_the_session_itself_writes_is_left_out(repo):
    guard = Guard([repo], besides=[repo / "out", repo / "src" / "own"])
    for folder in (repo / "out", repo / "src" / "own"):
        folder.mkdir()
        (folder / "file").touch()
    assert guard.changes() == []
    (repo / "src" / "new").touch()
    assert guard.changes() == [str(repo / "src" / "new")]


def test_folders_that_are_too_large_are_not_watched_and_that_is_told(repo):
    assert Guard([repo], most=3).changes() is None


def test_a_long_list_ends_in_a_number(repo):
    guard = Guard([repo / "src"])
    for number in range(MOST_NAMED + 5):
        (repo / "src" / f"{number:03}").touch()
    assert guard.changes()[-1] == "and 6 more"
    assert len(guard.changes()) == MOST_NAMED + 1


def test_odd_things_do_not_hold_it_up(repo):
    os.mkfifo(repo / "pipe")
    (repo / "loop").symlink_to("loop")
    (repo / "shut").mkdir(mode=0)
    guard = Guard([repo])
    (Path(os.fsdecode(os.fsencode(repo) + b"/\xff"))).touch()
    assert str(repo) + "/\\xff" in guard.changes()


def test_a_folder_within_a_repository_is_watched_with_the_repositorys_git_folder(repo):
    assert repository(repo / "src") == [repo / "src", repo / ".git"]
    assert repository(repo.parent) == [repo.parent]


def test_a_further_working_tree_is_watched_with_what_it_shares(repo):
    git(repo, "worktree", "add", "-q", str(repo.parent / "tree"))
    guard = Guard(repository(repo.parent / "tree"))
    (repo / ".git" / "hooks" / "pre-commit").write_text("x")
    (repo / ".git" / "worktrees" / "tree" / "HEAD").write_text("x")
    found = guard.changes()
    assert str(repo / ".git" / "hooks" / "pre-commit") in found
    assert str(repo / ".git" / "worktrees" / "tree" / "HEAD") in found


SUITE = """
import pytest
from pytest_proteus.core.adapter import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness
class Escapes(MinimalHarness):
    name = "escapes"
    runs_code = True
    def __init__(self):
        super().__init__()
        self.sandbox = None
    def run_episode(self, spec):
        code = "echo x > STATE.md; if [ %SEED% = 1 ]; then echo x > %ROOT%/planted.py; fi".replace(
            "%SEED%", str(spec.seed))
        outcome = self.sandbox.launch(["/bin/sh", "-c", code], env={"PATH": "/usr/bin:/bin"}, cwd=spec.harness_root)
        return EpisodeResult(spec.episode, outcome.returncode == 0, 1, outcome.stderr)
    def read_trace(self, root, episode):
        return []
pytestmark = pytest.mark.sweep(name="guarded", episodes=1, harness=[Escapes()], arm=["neutral"], seed=[0, 1])
def test_run(run):
    assert run.state == "complete"
"""


def test_the_report_and_the_terminal_name_the_run_and_what_changed(repo):
    (repo / "test_it.py").write_text(SUITE.replace("%ROOT%", str(repo)))
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "--proteus-sandbox=none", "test_it.py"]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (path,) = repo.glob(".proteus/guarded/*/report.json")
    sweep = json.loads(path.read_text())["sweeps"][0]
    named = {run["seed"]: run["run_id"] for run in sweep["runs"]}
    changed = sweep["sandbox"]["enforcement"]["changed_outside"]
    assert list(changed) == [named[1]]
    assert str(repo / "planted.py") in changed[named[1]]
    told = " ".join(done.stdout.split())
    assert "warning: outside of run escapes/neutral/1 these changed while it ran" in told
    assert told.count("warning: outside of run") == 1
