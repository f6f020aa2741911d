"""Where a session ran, read without starting a process."""

from __future__ import annotations

import subprocess

from pytest_proteus.report.environment import ci_state, environment, git_state


def git(folder, *words):
    identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=trunk",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder):
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


def test_commit_and_branch_are_those_that_git_tells(tmp_path):
    commit = repository(tmp_path)
    assert git_state(tmp_path) == {"commit": commit, "branch": "trunk", "dirty": None}


def test_the_repository_is_found_from_a_folder_below(tmp_path):
    commit = repository(tmp_path)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert git_state(below)["commit"] == commit


def test_packed_references_are_read(tmp_path):
    commit = repository(tmp_path)
    git(tmp_path, "pack-refs", "--all")
    assert git_state(tmp_path)["commit"] == commit


def test_a_detached_head_has_no_branch(tmp_path):
    commit = repository(tmp_path)
    git(tmp_path, "checkout", "-q", "--detach")
    assert git_state(tmp_path) == {"commit": commit, "branch": None, "dirty": None}


def test_a_second_work_tree_is_read(tmp_path):
    commit = repository(tmp_path / "first")
    git(tmp_path / "first", "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    assert git_state(tmp_path / "second") == {"commit": commit, "branch": "other", "dirty": None}


def test_no_repository_is_null(tmp_path):
    assert git_state(tmp_path) is None


def test_a_head_that_points_out_of_the_repository_is_null(tmp_path):
    (tmp_path / "secret").write_text("0" * 40)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/../../secret\n")
    assert git_state(tmp_path) is None


def test_a_repository_without_a_commit_is_null(tmp_path):
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None


def test_a_ci_service_is_known_by_its_variables():
    env = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "7", "GITHUB_SHA": "abc"}
    assert ci_state(env) == {"name": "github", "run": "7", "commit": "abc", "ref": None}


def test_an_unknown_ci_service_is_still_ci():
    assert ci_state({"CI": "1"})["name"] == "unknown"


def test_outside_of_ci_there_is_none():
    assert ci_state({"CI": "false"}) is None


def test_versions_of_what_can_change_a_result_are_listed():
    assert "pytest" in environment(None)["packages"]
