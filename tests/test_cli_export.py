"""A run's history as a plain repository."""

from __future__ import annotations

import json
import subprocess

import pytest

from pytest_proteus.cli import main


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def run_root(tmp_path):
    """A run of two episodes; the second one left an attribute that would run a filter."""
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    for episode in (0, 1):
        (work / "notes.md").write_text(f"{episode}\n")
        (work / ".gitattributes").write_text("*.md filter=evil\n")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", f"episode {episode}: x")
    root = tmp_path / "run-1"
    root.mkdir()
    git(work, "clone", "-q", "--bare", str(work), str(root / ".snapshot.git"))
    return root


def test_an_export_has_the_history_and_the_last_state(run_root, tmp_path, capsys):
    dest = tmp_path / "dest"
    assert main(["export", str(run_root), str(dest)]) == 0
    assert git(dest, "log", "--format=%s").splitlines() == ["episode 1: x", "episode 0: x"]
    assert (dest / "notes.md").read_text() == "1\n"
    assert git(dest, "status", "--porcelain") == ""
    assert git(dest, "rev-parse", "HEAD") in capsys.readouterr().out


def test_an_export_as_json(run_root, tmp_path, capsys):
    assert main(["export", "--json", str(run_root), str(tmp_path / "dest")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"dest": str(tmp_path / "dest"), "commit": git(tmp_path / "dest", "rev-parse", "HEAD")}


def test_an_export_stands_alone(run_root, tmp_path):
    dest = tmp_path / "dest"
    main(["export", str(run_root), str(dest)])
    assert git(dest, "remote") == ""
    assert all(path.stat().st_nlink == 1 for path in (dest / ".git").rglob("*") if path.is_file())


def test_filters_of_the_user_do_not_run_on_the_agents_files(run_root, tmp_path, monkeypatch):
    configuration = tmp_path / "gitconfig"
    configuration.write_text(f'[filter "evil"]\n\tsmudge = "touch {tmp_path}/ran; cat"\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    assert main(["export", str(run_root), str(tmp_path / "dest")]) == 0
    assert not (tmp_path / "ran").exists()


def test_an_export_from_within_a_git_hook_leaves_the_hooks_repository_alone(run_root, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    before = sorted(path.name for path in (other / ".git").rglob("*"))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert main(["export", str(run_root), str(tmp_path / "dest")]) == 0
    assert sorted(path.name for path in (other / ".git").rglob("*")) == before
    assert (tmp_path / "dest" / "notes.md").exists()


def test_a_folder_that_holds_something_is_not_overwritten(run_root, tmp_path, capsys):
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "mine").write_text("mine")
    assert main(["export", str(run_root), str(tmp_path / "dest")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "dest").iterdir()] == ["mine"]


def test_a_history_that_is_damaged_is_one_line(run_root, tmp_path, capsys):
    for path in (run_root / ".snapshot.git").rglob("*.pack"):
        path.unlink()
    for path in (run_root / ".snapshot.git" / "objects").glob("??/*"):
        path.unlink()
    assert main(["export", str(run_root), str(tmp_path / "dest")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
