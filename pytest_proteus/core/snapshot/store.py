"""The snapshots of one run: scan, write an episode's objects, publish, put back.

One store belongs to one run and one thread; whoever opens it for writing holds the run's lock. What makes an episode
count is decided by the caller: objects are written first (``prepare``), then the caller's record, then both are
flushed and the branch moves (``publish``). A kill in between leaves a repository that opens again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_proteus.core.snapshot import names, pack
from pytest_proteus.core.snapshot.flush import flush
from pytest_proteus.core.snapshot.objects import (
    EMPTY,
    EMPTY_BLOB,
    EMPTY_TREE,
    FOLDER,
    Commit,
    Entry,
    Node,
    SnapshotError,
    commit_data,
    differences,
    empty_folders,
    object_id,
    parse_tree,
    walk,
    with_empty_folders,
)
from pytest_proteus.core.snapshot.repo import FAILED, INDEX, Repository, episode_of, oid_of
from pytest_proteus.core.snapshot.restore import Bin, Writer, make_plain, materialize, own_root
from pytest_proteus.core.snapshot.scan import Limits, Scan, Scanner, reader

_EMPTY_FOLDER = "empty folder: "

#: A path, what was there, what is there.
Change = tuple[bytes, "Entry | None", "Entry | None"]

_Rows = frozenset[tuple[bytes, bytes, bytes]]
_NO_ROWS: _Rows = frozenset()
_NOTHING: tuple[Entry | None, bytes] = (None, EMPTY_TREE)


def _by_name(rows: _Rows) -> dict[bytes, tuple[Entry | None, bytes]]:
    """Name → the file or link of that name and the empty tree, or no file and the id of the tree."""
    found: dict[bytes, tuple[Entry | None, bytes]] = {}
    for written, name, oid in rows:
        mode = int(written, 8)
        found[name] = (None, oid) if mode == FOLDER else (Entry(mode, oid, int(oid != EMPTY_BLOB)), EMPTY_TREE)
    return found


#: From this number of packs on, closing a store makes one of them.
MANY_PACKS = 50


@dataclass(frozen=True)
class Pending:
    """An episode whose objects are written and which does not count yet.

    ``commit`` is the episode's, ``candidate_commit`` the candidate's (the same when it was accepted), ``tree`` the
    candidate's tree: ids in hexadecimal.
    """

    episode: int
    commit: str
    candidate_commit: str
    tree: str
    parent: str
    node: Node


class Reader:
    """Reads the snapshots of a run, finished or not; writes nothing.

    Args:
        git_dir: the bare repository.
    """

    def __init__(self, git_dir: Path) -> None:
        self.repo = Repository(Path(git_dir))
        self._nodes: dict[bytes, Node] = {}

    def head(self) -> str:
        """The newest commit, or an empty string when there is none."""
        head = self.repo.head()
        return head.hex() if head else ""

    def has_commit(self, sha: str) -> bool:
        """Whether the repository holds this commit."""
        oid = oid_of(sha)
        return oid is not None and self.repo.has_commit(oid)

    def commit_for_episode(self, episode: int) -> str | None:
        """The commit of an episode (0: the seed), or None. Rejected candidates are never it."""
        commit = self._episodes().get(episode)
        return commit.hex() if commit else None

    def checkpoints(self) -> list[tuple[int, str]]:
        """(episode, commit) of every episode, ascending, episode 0 included."""
        return [(episode, commit.hex()) for episode, commit in sorted(self._episodes().items())]

    def tree_entries(self, sha: str) -> dict[bytes, Entry]:
        """Path → entry of every file and link of a commit."""
        return dict(walk(self.node_of(sha)))

    def node_of(self, sha: str) -> Node:
        """The tree of a commit, with the empty folders that its message keeps.

        Raises:
            SnapshotError: there is no such commit.
        """
        commit = self._commit(sha)
        node = self.repo.node(commit.tree, self._nodes)
        hollow = [line[len(_EMPTY_FOLDER) :] for line in commit.body.splitlines() if line.startswith(_EMPTY_FOLDER)]
        return with_empty_folders(node, [json.loads(name).encode() for name in hollow])

    def changes(self) -> Iterator[list[Change]]:
        """What differs in each checkpoint from the one before it, in the first one from nothing at all.

        (path, old entry, new entry) of files and links. For speed entries have no sizes but 0 for empty files and 1 for
        others, and only those rows of trees are looked at that differ.
        """
        before, read = EMPTY_TREE, {b"": _NO_ROWS}
        for _, sha in self.checkpoints():
            after, found = self._commit(sha).tree, []
            todo = [(b"", before, after)]
            while todo:
                prefix, old, new = todo.pop()
                if old == new:
                    continue
                old_rows = read.pop(prefix, _NO_ROWS)
                new_rows = frozenset(parse_tree(self.repo.read(new)))
                if new != EMPTY_TREE:
                    read[prefix] = new_rows
                was, now = _by_name(old_rows - new_rows), _by_name(new_rows - old_rows)
                for name in (*now, *(was.keys() - now.keys())):
                    (old_file, old_tree), (new_file, new_tree) = was.get(name, _NOTHING), now.get(name, _NOTHING)
                    todo.append((prefix + name + b"/", old_tree, new_tree))
                    if old_file != new_file:
                        found.append((prefix + name, old_file, new_file))
            before = after
            yield found

    def read_blob(self, oid: bytes) -> bytes:
        """Content of a stored object."""
        return self.repo.read(oid)

    def materialize(self, sha: str, dest: Path) -> None:
        """Write a commit's files below ``dest``, which is made when missing; other files there stay.

        Raises:
            SnapshotError: there is no such commit, or a folder stands where a file belongs.
        """
        materialize(self.node_of(sha), os.fsencode(dest), self.repo.read)

    def close(self) -> None:
        """Close what is open. The reader opens itself again when it is used again."""
        self.repo.close()

    def _commit(self, sha: str) -> Commit:
        oid = oid_of(sha)
        if oid is None or not self.repo.has_commit(oid):
            raise SnapshotError(f"{self.repo.path} has no commit {sha or '(none)'}")
        return self.repo.commit(oid)

    def _episodes(self) -> dict[int, bytes]:
        return self.repo.history().episodes


class SnapshotStore(Reader):
    """Takes and restores the snapshots of one run."""

    def __init__(self, work_tree: Path, git_dir: Path, *, paranoid: bool = False, limits: Limits | None = None) -> None:
        super().__init__(git_dir)
        self._work = os.fsencode(work_tree)
        near = self._near()
        self._bin = Bin(near + b"/.trash")
        self._unflushed: list[int] = []
        self._index = -1
        if self.repo.exists():
            self.repo.repair()
            self._bin.empty()
            self._unflushed = self.repo.newest_packs(2)
        else:
            self.repo.create()
        self._head = self.repo.head()
        self._history = self._read_history()
        self._accepted: Node | None = None if self._head else EMPTY
        window = racy_window(near if os.path.isdir(near) else self.repo.dir)
        self._scanner = Scanner(self._work, self.repo.has, limits or Limits(), paranoid=paranoid, racy_ns=window)
        self._latest: Scan | None = None

    @classmethod
    def create_or_open(
        cls, work_tree: Path, git_dir: Path, *, paranoid: bool = False, limits: Limits | None = None
    ) -> SnapshotStore:
        """Open a run's repository, or make it; what a killed writer left behind is repaired.

        Args:
            work_tree: the tree the subject edits.
            git_dir: the bare repository, outside the work tree and on the same file system.
            paranoid: read every file at every scan, whatever its times say.
            limits: how large a tree may be.

        Raises:
            SnapshotError: the branch names a commit that is not there.
        """
        return cls(Path(work_tree), Path(git_dir), paranoid=paranoid, limits=limits)

    def _near(self) -> bytes:
        """A folder outside the work tree and on its file system: the repository, or else the work tree's parent."""
        parent = os.path.dirname(self._work)
        for folder in (self._work, parent):
            with contextlib.suppress(OSError):
                same = os.lstat(folder).st_dev == os.lstat(os.path.dirname(self.repo.dir)).st_dev
                return self.repo.dir if same else parent
        return parent

    def _read_history(self) -> dict[int, bytes]:
        history = self.repo.history()
        if history.valid < 0 or history.missing:
            self.repo.rewrite_index(history.episodes)
        return history.episodes

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> Node:
        """The tree of the branch: the last accepted state."""
        if self._accepted is None:
            self._accepted = self.node_of(self.head())
        return self._accepted

    def head(self) -> str:
        """The newest commit, or an empty string when there is none."""
        return self._head.hex() if self._head else ""

    def _episodes(self) -> dict[int, bytes]:
        return self._history

    def scan(self) -> Scan:
        """Look at the work tree. Only what changed since the last scan is read; nothing is raised for what is there."""
        node, violations = self._scanner.walk()
        read = reader(self._scanner.pending, self.repo.read)
        self._latest = Scan(node, self.accepted, violations, read, self._scanner.refused)
        return self._latest

    # -- an episode ----------------------------------------------------------------------------------------------

    def prepare(self, scan: Scan, episode: int, *, label: str, accepted: bool = True) -> Pending:
        """Write the objects of an episode, in one pack. Nothing refers to them yet.

        Args:
            scan: the candidate.
            episode: its number, 0 for the seed.
            label: what the commit says after ``episode N: ``.
            accepted: whether the candidate is the new state. If not, it becomes a commit ``candidate N: …`` (what
                can be kept of it), and the episode's commit on top of that has the previous state.

        Raises:
            SnapshotError: an accepted candidate with violations.
        """
        if accepted and scan.violations:
            first = scan.violations[0]
            raise SnapshotError(f"snapshot refused: {first.path or 'the tree'}: {first.detail} ({first.kind})")
        parents = [self._head] if self._head else []
        commits = []
        if not accepted:
            data = self._message(scan.node, f"candidate {episode}: {label}", episode, parents)
            commits.append(pack.packed(pack.COMMIT, object_id(b"commit", data), data))
            parents = [commits[0].oid]
        node = scan.node if accepted else self.accepted
        data = self._message(node, f"episode {episode}: {label}", episode, parents)
        commits.append(pack.packed(pack.COMMIT, object_id(b"commit", data), data))
        self._store(scan, commits)
        return Pending(episode, commits[-1].oid.hex(), commits[0].oid.hex(), scan.tree, self.head(), node)

    @staticmethod
    def _message(node: Node, message: str, episode: int, parents: list[bytes]) -> bytes:
        subject, *rest = message.strip().split("\n", 1)
        lines = [subject, *rest]
        if node.hollow:
            hollow = sorted(empty_folders(node))
            lines += [""] * (not rest) + [_EMPTY_FOLDER + json.dumps(os.fsdecode(path)) for path in hollow]
        return commit_data(node.oid, parents, episode, "\n".join(lines))

    def _store(self, scan: Scan, commits: Sequence[pack.Packed]) -> None:
        """Write a pack of the commits and of what of the scan's tree is not stored yet."""
        pending, has = self._scanner.pending, self.repo.has
        wanted = dict.fromkeys(commit.oid for commit in commits if not has(commit.oid))
        objects = [commit for commit in commits if commit.oid in wanted]
        oids = dict.fromkeys(new.oid for _, _, new in scan.changes if new is not None)
        oids.update(dict.fromkeys(_new_trees(scan.base_node, scan.node)))
        for oid in oids:
            item = pending.get(oid)
            if item is not None and not has(oid):
                objects.append(item)
        if not scan.node.count and not has(EMPTY_TREE):
            objects.append(pack.packed(pack.TREE, EMPTY_TREE, b""))
        if objects:
            self._unflushed += self.repo.add(objects)

    def publish(self, pending: Pending, *, flush: Sequence[int] = ()) -> None:
        """Make an episode count: flush its pack and the given descriptors once, then move the branch.

        The work tree then gets the modes that a restore would give it, so that a resumed run sees the same.

        Raises:
            SnapshotError: the branch has moved since ``prepare``.
        """
        if pending.parent != self.head():
            raise SnapshotError(f"episode {pending.episode} was prepared on another state than the present one")
        self._flush(flush)
        self._move(bytes.fromhex(pending.commit), pending.node)
        self._append(pending.episode, bytes.fromhex(pending.commit))
        self._make_plain()

    def publish_by_id(self, commit: str) -> None:
        """Move the branch to a commit whose objects are there: an episode whose record was the last thing written.

        Raises:
            SnapshotError: there is no such commit.
        """
        node = self.node_of(commit)
        self._flush(())
        self._move(bytes.fromhex(commit), node)
        self._history = self._read_history()

    def _flush(self, others: Sequence[int]) -> None:
        """Bring the new packs and the given descriptors to the disk.

        Indexes are not waited for: what is lost of one is made again from its pack.
        """
        packs, self._unflushed = self._unflushed, []
        try:
            flush((*packs[::2], *others))
        finally:
            for fd in packs:
                os.close(fd)

    def _move(self, commit: bytes, node: Node) -> None:
        self.repo.set_head(commit)
        self._head, self._accepted = commit, node
        self._scanner.pending = {}

    def _append(self, episode: int, commit: bytes) -> None:
        self._history[episode] = commit
        if self._index < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._index = os.open(self.repo.dir + b"/" + INDEX, flags, 0o644)
        os.write(self._index, self.repo.index_line(episode, commit))

    def commit(self, scan: Scan, message: str) -> str:
        """One commit of a tree with any message, flushed and on the branch.

        Raises:
            SnapshotError: the tree has violations.
        """
        if scan.violations:
            first = scan.violations[0]
            raise SnapshotError(f"snapshot refused: {first.path or 'the tree'}: {first.detail} ({first.kind})")
        episode = episode_of(message)
        number = max(self._history, default=0) if episode is None else episode
        data = self._message(scan.node, message, number, [self._head] if self._head else [])
        made = pack.packed(pack.COMMIT, object_id(b"commit", data), data)
        self._store(scan, [made])
        self._flush(())
        self._move(made.oid, scan.node)
        if episode is not None:
            self._append(episode, made.oid)
        return made.oid.hex()

    def keep_failed(self, scan: Scan, episode: int, *, label: str) -> str:
        """Keep the candidate of a failed episode outside the history, under ``refs/failed/<episode>-<k>``.

        Returns its commit, whose tree is what can be kept of it. The same failure is kept once.
        """
        return self.keep(scan, episode, f"failed {episode}: {label}")

    def keep(self, scan: Scan, episode: int, message: str) -> str:
        """``keep_failed`` with a message of the caller's."""
        data = self._message(scan.node, message, episode, [self._head] if self._head else [])
        made = pack.packed(pack.COMMIT, object_id(b"commit", data), data)
        self._store(scan, [made])
        self._flush(())
        return self.name_failed(made.oid, episode)

    def name_failed(self, commit: bytes, episode: int) -> str:
        """Put a stored commit under the failed candidates of an episode; returns its id."""
        before = self.repo.failed(episode)
        if commit not in [kept for _, kept in before]:
            number = int(before[-1][0].rpartition(b"-")[2]) + 1 if before else 1
            self.repo.set_ref(FAILED + b"%d-%d" % (episode, number), commit)
        return commit.hex()

    # -- putting back --------------------------------------------------------------------------------------------

    def rollback(self, scan: Scan) -> None:
        """Make the work tree the last accepted state again, touching only what differs.

        Raises:
            SnapshotError: something in the work tree cannot be removed.
        """
        self._make(self.accepted, scan, ())

    def restore(self, sha: str) -> None:
        """Make the work tree a commit's state; the branch stays where it is.

        Raises:
            SnapshotError: there is no such commit, or something in the work tree cannot be removed.
        """
        self._make(self.node_of(sha), self.scan(), ())

    def reset(self, sha: str) -> None:
        """Make the work tree a commit's state and move the branch there."""
        self.restore(sha)
        self._flush(())
        self._move(bytes.fromhex(sha), self.node_of(sha))
        self._history = self._read_history()
        self._close_index()

    def revert(self, before: Scan) -> list[str]:
        """Put back whatever changed since a scan; returns the changed paths, escaped and sorted."""
        now = self.scan()
        if now.node is before.node and now.refused == before.refused:
            return []
        changed = {path for path, _, _ in differences(before.node, now.node)} | (now.refused ^ before.refused)
        changed |= set(empty_folders(before.node)) ^ set(empty_folders(now.node))
        if changed:
            self._make(before.node, now, before.refused, before)
        return sorted(names.shown(path) for path in changed)

    def _make(self, target: Node, scan: Scan, keep: Iterable[bytes], before: Scan | None = None) -> None:
        """Make the work tree equal to a node, then look whether it is."""
        own_root(self._work)
        now = scan if scan is self._latest else self.scan()
        writer = Writer(self._work, self._bin, before.read if before else now.read)
        writer.sync(target, now.node, self._scanner.unsettled().__contains__, keep)
        self._make_plain()
        after = self.scan()
        if after.tree != target.oid.hex() or after.refused - frozenset(keep):
            raise SnapshotError(
                f"{os.fsdecode(self._work)} could not be put back: {after.violations[:1] or after.tree}"
            )

    def _make_plain(self) -> None:
        odd = self._scanner.odd_modes()
        if odd:
            make_plain(self._work, odd)
            self._scanner.forget_odd_modes()

    def close(self) -> None:
        """Flush and close what is open, the branch included."""
        self._flush(())
        self.repo.flush_head()
        self._close_index()
        with contextlib.suppress(OSError):
            self._bin.empty()
            self.repo.compact(MANY_PACKS)
        super().close()

    def _close_index(self) -> None:
        if self._index >= 0:
            os.close(self._index)
            self._index = -1


def _new_trees(old: Node, new: Node) -> Iterable[bytes]:
    """Ids of the folders of a tree that differ from those of another."""
    todo = [(old, new)]
    while todo:
        old, new = todo.pop()
        if old is not new and old.oid != new.oid:
            yield new.oid
            todo += [(old.dirs.get(name, EMPTY), node) for name, node in new.dirs.items()]


def racy_window(folder: bytes) -> int:
    """For how many nanoseconds two changes of a file in this folder may get the same time.

    0 where each change gets a time of its own once the last was looked at (Linux 6.13 and newer, usual file systems),
    else a multiple of the kernel's tick, or of the seconds that a file system counts in.
    """
    path = folder + b"/tmp_times"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        seen = []
        for _ in range(24):
            os.write(fd, b".")
            seen.append(os.fstat(fd).st_mtime_ns)
    finally:
        os.close(fd)
        os.unlink(path)
    if len(set(seen)) == len(seen):
        return 0
    return 20_000_000 if any(moment % 1_000_000_000 for moment in seen) else 4_000_000_000
