"""Where a session ran: repository, Python, packages, CI. Reads files and variables; starts no process.

Git is not asked: its configuration can make it execute what a repository says. The commit is read from the files
that git keeps it in; whether the work tree differs from it would take git itself and is null.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

#: Distributions whose version can change a result.
PACKAGES = (
    "pytest-proteus", "pytest", "pluggy", "pytest-xdist", "pytest-json-report", "GitPython", "numpy", "scipy",
    "filelock", "pydantic",
)  # fmt: skip

#: Service → the variable that tells of it, and its variables for run, commit and ref.
CI_SERVICES = {
    "github": ("GITHUB_ACTIONS", "GITHUB_RUN_ID", "GITHUB_SHA", "GITHUB_REF"),
    "gitlab": ("GITLAB_CI", "CI_JOB_ID", "CI_COMMIT_SHA", "CI_COMMIT_REF_NAME"),
    "buildkite": ("BUILDKITE", "BUILDKITE_BUILD_ID", "BUILDKITE_COMMIT", "BUILDKITE_BRANCH"),
    "circleci": ("CIRCLECI", "CIRCLE_BUILD_NUM", "CIRCLE_SHA1", "CIRCLE_BRANCH"),
    "azure": ("TF_BUILD", "BUILD_BUILDID", "BUILD_SOURCEVERSION", "BUILD_SOURCEBRANCH"),
    "travis": ("TRAVIS", "TRAVIS_BUILD_ID", "TRAVIS_COMMIT", "TRAVIS_BRANCH"),
    "jenkins": ("JENKINS_URL", "BUILD_ID", "GIT_COMMIT", "GIT_BRANCH"),
}

_COMMIT = re.compile(r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")
_LIMIT = 1 << 16


def environment(rootdir: Path | None) -> dict[str, Any]:
    """``git``, ``python``, ``packages`` and ``ci`` of this process, for a suite below ``rootdir``."""
    return {
        "git": None if rootdir is None else git_state(rootdir),
        "python": platform.python_version(),
        "packages": _versions(),
        "ci": ci_state(os.environ),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def ci_state(env: Mapping[str, str]) -> dict[str, str | None] | None:
    """Name of the CI service, its run, commit and ref; None outside of CI."""
    for name, (told_by, run, commit, ref) in CI_SERVICES.items():
        if env.get(told_by):
            return {"name": name, "run": env.get(run), "commit": env.get(commit), "ref": env.get(ref)}
    if env.get("CI", "").lower() in ("", "0", "false", "no"):
        return None
    return {"name": "unknown", "run": None, "commit": None, "ref": None}


def git_state(folder: Path) -> dict[str, str | bool | None] | None:
    """``commit``, ``branch`` (None when detached) and ``dirty`` of the repository around ``folder``, or None."""
    try:
        git_dir = _git_dir(folder.resolve())
        if git_dir is None:
            return None
        head = _line(git_dir / "HEAD")
        ref = head[len("ref:") :].strip() if head.startswith("ref:") else ""
        commit = _resolve(git_dir, ref) if ref else head
    except (OSError, ValueError):
        return None
    if not _COMMIT.match(commit):
        return None
    return {"commit": commit, "branch": ref.removeprefix("refs/heads/") or None, "dirty": None}


def _git_dir(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        entry = parent / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            target = _line(entry)
            return parent / target[len("gitdir:") :].strip() if target.startswith("gitdir:") else None
    return None


def _resolve(git_dir: Path, ref: str) -> str:
    """The commit of ``ref``, looked for as git does: in this work tree, then in the repository, then packed."""
    if not ref.startswith("refs/") or ".." in ref.split("/"):
        return ""
    shared = git_dir / "commondir"
    common = git_dir / _line(shared) if shared.is_file() else git_dir
    for base in (git_dir, common):
        if (base / ref).is_file():
            return _line(base / ref)
    packed = common / "packed-refs"
    if packed.is_file():
        with packed.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.rstrip("\n").endswith(f" {ref}"):
                    return line.split(" ", 1)[0]
    return ""


def _line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(_LIMIT).strip()
