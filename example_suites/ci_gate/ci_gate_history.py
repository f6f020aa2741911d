"""A small repository with four versions of a harness, in place of the one that you work in."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

LOOK, NOTE, TOOL = "- look: what is here\n", "- note: what you learnt\n", "- tool: what you did twice\n"

VERSIONS = {
    "base": LOOK * 20 + NOTE,
    "harmless": LOOK * 19 + NOTE + TOOL,
    "tiny": LOOK * 22 + NOTE,
    "harmful": LOOK * 32 + NOTE,
}

FIXED = {
    "GIT_AUTHOR_NAME": "a developer",
    "GIT_AUTHOR_EMAIL": "developer@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a developer",
    "GIT_COMMITTER_EMAIL": "developer@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def repository() -> Path:
    """The repository, made by whichever process comes first; equal contents, equal place."""
    digest = hashlib.sha256(repr((sorted(VERSIONS.items()), os.getuid())).encode()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"ci-gate-history-{digest}"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            made = Path(scratch) / "made"
            make(made)
            try:
                made.rename(place)
            except OSError:  # another process was faster
                if not place.is_dir():
                    raise
    return place


def make(folder: Path) -> None:
    """One commit for each version, on a branch of its name, all from `base`."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=base")
    for name, playbook in VERSIONS.items():
        if name != "base":
            git(folder, "checkout", "--quiet", "-b", name, "base")
        (folder / "playbook.md").write_text(playbook, encoding="utf-8")
        git(folder, "add", "playbook.md")
        git(folder, "commit", "--quiet", "--message", f"{name} playbook")


def git(folder: Path, *arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", "-C", folder, *arguments], check=True, env={**environment, **FIXED})
