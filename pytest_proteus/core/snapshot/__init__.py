"""Snapshots of a harness: one bare repository beside the work tree, one commit an episode.

The functions here take the work tree, ``<root>/harness``; its repository is ``<root>/.snapshot.git``. Those that read
need no work tree. ``SnapshotStore`` is the object that a running episode uses. No git command sees what the
subject wrote: trees are read, hashed and packed in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pytest_proteus.core.snapshot.names import shown
from pytest_proteus.core.snapshot.objects import Entry, SnapshotError
from pytest_proteus.core.snapshot.scan import Change, Limits, Scan, Violation
from pytest_proteus.core.snapshot.store import Pending, Reader, SnapshotStore

__all__ = [
    "Change",
    "Entry",
    "Limits",
    "Pending",
    "Reader",
    "Scan",
    "SnapshotError",
    "SnapshotStore",
    "Violation",
    "checkpoints",
    "commit",
    "commit_for_episode",
    "git_dir_of",
    "has_changes",
    "has_commit",
    "head",
    "init",
    "materialize",
    "preserve_failed_candidate",
    "preserve_interrupted_candidate",
    "reset_to_checkpoint",
    "restore",
    "shown",
]


def git_dir_of(work_tree: Path) -> Path:
    """Where the repository of a work tree lies."""
    return Path(work_tree).parent / ".snapshot.git"


@contextlib.contextmanager
def _reading(work_tree: Path) -> Iterator[Reader]:
    reader = Reader(git_dir_of(work_tree))
    try:
        yield reader
    finally:
        reader.close()


@contextlib.contextmanager
def _writing(work_tree: Path) -> Iterator[SnapshotStore]:
    git_dir = git_dir_of(work_tree)
    if not (git_dir / "HEAD").is_file():
        raise SnapshotError(f"there is no snapshot repository at {git_dir}")
    store = SnapshotStore.create_or_open(Path(work_tree), git_dir)
    try:
        yield store
    finally:
        store.close()


def init(work_tree: Path) -> bool:
    """Make the repository and commit the seeded state as episode 0; False when there was one already.

    Raises:
        SnapshotError: the tree holds something that a snapshot cannot keep.
    """
    if head(work_tree):
        return False
    store = SnapshotStore.create_or_open(Path(work_tree), git_dir_of(work_tree))
    try:
        store.commit(store.scan(), "episode 0: seeded harness")
    finally:
        store.close()
    return True


def commit(work_tree: Path, message: str) -> str:
    """Commit the work tree, changed or not; returns the commit.

    Raises:
        SnapshotError: the tree holds something that a snapshot cannot keep, or there is no repository.
    """
    with _writing(work_tree) as store:
        return store.commit(store.scan(), message)


def head(work_tree: Path) -> str:
    """The newest commit, or an empty string when there is none."""
    with _reading(work_tree) as reader:
        return reader.head()


def has_changes(work_tree: Path) -> bool:
    """Whether the work tree differs from the newest commit in anything, ignored files included."""
    with _writing(work_tree) as store:
        scan = store.scan()
        return bool(scan.violations) or scan.tree != scan.base


def has_commit(work_tree: Path, sha: str) -> bool:
    """Whether the repository holds a commit."""
    with _reading(work_tree) as reader:
        return reader.has_commit(sha)


def commit_for_episode(work_tree: Path, episode: int) -> str | None:
    """The commit of an episode (0: the seed), or None when there is none. Rejected candidates are never it."""
    with _reading(work_tree) as reader:
        return reader.commit_for_episode(episode)


def checkpoints(work_tree: Path) -> list[tuple[int, str]]:
    """(episode, commit) of every episode, ascending, episode 0 included."""
    with _reading(work_tree) as reader:
        return reader.checkpoints()


def materialize(work_tree: Path, sha: str, dest: Path) -> None:
    """Write a commit's files, as they were byte for byte, below ``dest``, which is made when missing.

    Raises:
        SnapshotError: there is no such commit.
    """
    with _reading(work_tree) as reader:
        reader.materialize(sha, Path(dest))


def restore(work_tree: Path, sha: str) -> None:
    """Make the work tree a commit's state; the branch stays where it is.

    Raises:
        SnapshotError: there is no such commit.
    """
    with _writing(work_tree) as store:
        store.restore(sha)


def reset_to_checkpoint(work_tree: Path, sha: str) -> None:
    """Make the work tree a commit's state and the branch name that commit.

    Raises:
        SnapshotError: there is no such commit.
    """
    with _writing(work_tree) as store:
        store.reset(sha)


def preserve_failed_candidate(work_tree: Path, restore_sha: str, episode: int, message: str) -> str:
    """Keep the work tree of a failed episode under ``refs/failed/``, then go back to a checkpoint.

    Returns the kept commit. What cannot be kept of the tree is left out.

    Raises:
        SnapshotError: there is no such checkpoint; nothing has changed then.
    """
    with _writing(work_tree) as store:
        store.node_of(restore_sha)
        kept = store.keep(store.scan(), episode, message)
        store.reset(restore_sha)
        return kept


def preserve_interrupted_candidate(work_tree: Path, restore_sha: str, episode: int, message: str) -> str:
    """Keep what an interrupted episode left, in the work tree or already committed, then go back to a checkpoint.

    Returns the kept commit, or an empty string when there was nothing to keep.
    """
    with _writing(work_tree) as store:
        store.node_of(restore_sha)
        scan, kept = store.scan(), ""
        if scan.violations or scan.tree != scan.base:
            kept = store.keep(scan, episode, message)
        elif store.head() != restore_sha:
            kept = store.name_failed(bytes.fromhex(store.head()), episode)
        store.reset(restore_sha)
        return kept
