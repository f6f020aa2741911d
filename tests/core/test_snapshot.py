"""Taking snapshots, finding them again and writing them out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_proteus.core import snapshot
from pytest_proteus.core.snapshot import SnapshotError, SnapshotStore


@pytest.fixture
def work(tmp_path: Path) -> Path:
    tree = tmp_path / "run" / "harness"
    tree.mkdir(parents=True)
    write(tree, "notes/a.md", "one\n")
    write(tree, "tools/t.py", "def f():\n    return 1\n")
    return tree


def write(tree: Path, path: str, text: str) -> None:
    target = tree / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def store_of(work: Path) -> SnapshotStore:
    return SnapshotStore.create_or_open(work, work.parent / ".snapshot.git")


def git(work: Path, *args: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "--git-dir", str(work.parent / ".snapshot.git"), *args]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def fsck(work: Path) -> str:
    return git(work, "fsck", "--strict", "--full", "--no-dangling")


def tree_by_git(work: Path, scratch: Path) -> str:
    """The tree id that ``git add -A -f`` comes to in a repository of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {"GIT_DIR": str(scratch / "other.git"), "GIT_WORK_TREE": str(work)}
    for command in (["init", "-q"], ["add", "-A", "-f"]):
        subprocess.run(["git", *command], env=env, check=True, cwd=work)
    return subprocess.run(["git", "write-tree"], env=env, check=True, capture_output=True, text=True).stdout.strip()


def run_episode(store: SnapshotStore, episode: int, *, accepted: bool = True) -> str:
    pending = store.prepare(store.scan(), episode, label="x", accepted=accepted)
    store.publish(pending)
    return pending.commit


def test_a_scan_has_the_tree_id_that_git_add_gives(work: Path, tmp_path: Path) -> None:
    write(work, "notes-2/x", "sorts between notes and notes/")
    write(work, "notes.md", "and this one before")
    write(work, "empty", "")
    write(work, "line\nbreak", "newline in the name")
    write(work, "ünï", "not ascii")
    write(work, ".gitignore", "*\n")
    write(work, "deep/er/and/deeper", "x" * 100_000)
    (work / "tools/t.py").chmod(0o755)
    (work / "link").symlink_to("notes/a.md")
    (work / "hollow").mkdir()
    store = store_of(work)
    scan = store.scan()
    assert scan.violations == ()
    assert scan.tree == tree_by_git(work, tmp_path)


def test_a_published_episode_is_found_by_its_number_and_git_finds_nothing_wrong(work: Path) -> None:
    store = store_of(work)
    seed = run_episode(store, 0)
    write(work, "notes/b.md", "two")
    first = run_episode(store, 1)
    store.close()
    assert snapshot.head(work) == first
    assert snapshot.checkpoints(work) == [(0, seed), (1, first)]
    assert snapshot.commit_for_episode(work, 1) == first
    assert snapshot.commit_for_episode(work, 2) is None
    assert fsck(work) == ""
    assert git(work, "log", "--format=%s %an %ae %ct").splitlines() == [
        "episode 1: x harness harness@localhost 946684860",
        "episode 0: x harness harness@localhost 946684800",
    ]


def test_nothing_counts_before_it_is_published(work: Path) -> None:
    store = store_of(work)
    seed = run_episode(store, 0)
    write(work, "notes/b.md", "two")
    pending = store.prepare(store.scan(), 1, label="x")
    assert store.head() == seed
    assert snapshot.checkpoints(work) == [(0, seed)]
    assert snapshot.has_commit(work, pending.commit)


def test_a_rejected_candidate_is_kept_below_an_episode_with_the_previous_state(work: Path) -> None:
    store = store_of(work)
    seed = run_episode(store, 0)
    write(work, "notes/b.md", "two")
    scan = store.scan()
    pending = store.prepare(scan, 1, label="x", accepted=False)
    store.publish(pending)
    assert store.tree_entries(pending.commit) == store.tree_entries(seed)
    assert b"notes/b.md" in store.tree_entries(pending.candidate_commit)
    assert git(work, "log", "--format=%s").splitlines() == ["episode 1: x", "candidate 1: x", "episode 0: x"]
    assert store.commit_for_episode(1) == pending.commit
    store.close()
    assert fsck(work) == ""


def test_an_episode_that_changes_nothing_is_a_commit_of_its_own(work: Path) -> None:
    store = store_of(work)
    assert run_episode(store, 0) != run_episode(store, 1)


def test_equal_histories_have_equal_ids(work: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "harness"
    other.parent.mkdir()
    snapshot_ids = []
    for tree in (work, other):
        if tree is other:
            tree.mkdir()
            write(tree, "notes/a.md", "one\n")
            write(tree, "tools/t.py", "def f():\n    return 1\n")
        store = store_of(tree)
        snapshot_ids.append([run_episode(store, 0), run_episode(store, 1)])
        store.close()
    assert snapshot_ids[0] == snapshot_ids[1]


def test_an_empty_tree_can_be_committed(tmp_path: Path) -> None:
    work = tmp_path / "run" / "harness"
    work.mkdir(parents=True)
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    assert fsck(work) == ""
    assert SnapshotStore.create_or_open(work, work.parent / ".snapshot.git").tree_entries(commit) == {}


def test_changes_are_against_the_last_accepted_state(work: Path) -> None:
    store = store_of(work)
    run_episode(store, 0)
    write(work, "notes/a.md", "changed")
    write(work, "notes/new/b.md", "new")
    (work / "tools/t.py").unlink()
    changes = store.scan().changes
    assert [change.path for change in changes] == [b"notes/a.md", b"notes/new/b.md", b"tools/t.py"]
    assert [(change.old is None, change.new is None) for change in changes] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert [change.path for change in store.scan().changes] == [change.path for change in changes]
    run_episode(store, 1)
    assert store.scan().changes == ()


def test_a_reopened_store_knows_the_accepted_state(work: Path) -> None:
    store = store_of(work)
    run_episode(store, 0)
    store.close()
    write(work, "notes/a.md", "changed")
    store = store_of(work)
    assert [change.path for change in store.scan().changes] == [b"notes/a.md"]


def test_entries_and_contents_are_read_back_before_and_after_publishing(work: Path) -> None:
    store = store_of(work)
    scan = store.scan()
    entry = scan.entries[b"notes/a.md"]
    assert (entry.mode, entry.size, len(scan.entries)) == (0o100644, 4, 2)
    assert scan.read(entry.oid) == b"one\n"
    commit = run_episode(store, 0)
    assert store.read_blob(entry.oid) == scan.read(entry.oid) == b"one\n"
    assert store.tree_entries(commit) == dict(scan.entries)


def test_an_edit_of_the_same_size_with_its_times_put_back_is_seen(work: Path) -> None:
    store = store_of(work)
    path = work / "notes/a.md"
    for text in ("two\n", "six\n", "ten\n") * 10:
        before = store.scan().tree
        seen = path.stat()
        path.write_text(text)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert store.scan().tree != before


@pytest.mark.parametrize("size", [0, 1, 15, 16, 1023, 1024, 2047, 2048, 65535, 65536, 300_000])
def test_contents_of_any_size_are_kept(work: Path, size: int) -> None:
    (work / "blob").write_bytes(os.urandom(size))
    (work / "text").write_bytes(b"x" * size)
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    assert fsck(work) == ""
    entries = store.tree_entries(commit)
    assert store.read_blob(entries[b"blob"].oid) == (work / "blob").read_bytes()
    assert store.read_blob(entries[b"text"].oid) == b"x" * size
    assert entries[b"blob"].size == size


def test_a_folder_of_very_many_files_is_kept(work: Path) -> None:
    for number in range(2_500):
        (work / f"notes/{number}").write_text("x")
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    assert fsck(work) == ""
    assert len(store.tree_entries(commit)) == 2_502


def test_attributes_and_filters_do_not_touch_a_byte(work: Path, tmp_path: Path) -> None:
    write(work, ".gitattributes", "* text=auto eol=crlf ident filter=evil export-ignore export-subst\n")
    (work / "crlf.txt").write_bytes(b"a\r\nb $Id$ $Format:%H$\r\n\xff")
    store = store_of(work)
    commit = run_episode(store, 0)
    dest = tmp_path / "dest"
    snapshot.materialize(work, commit, dest)
    assert (dest / "crlf.txt").read_bytes() == b"a\r\nb $Id$ $Format:%H$\r\n\xff"
    assert (dest / ".gitattributes").exists()


def test_materialize_writes_modes_and_links_and_keeps_other_files(work: Path, tmp_path: Path) -> None:
    (work / "tools/t.py").chmod(0o755)
    (work / "link").symlink_to("notes/a.md")
    (work / "hollow" / "inner").mkdir(parents=True)
    store = store_of(work)
    commit = run_episode(store, 0)
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "own.txt").write_text("mine")
    for _ in range(2):
        store.materialize(commit, dest)
    assert os.access(dest / "tools/t.py", os.X_OK)
    assert os.readlink(dest / "link") == "notes/a.md"
    assert (dest / "own.txt").read_text() == "mine"
    assert (dest / "hollow" / "inner").is_dir()


def test_reading_works_when_the_work_tree_is_gone(work: Path, tmp_path: Path) -> None:
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    (work / "notes/a.md").unlink()
    work.rename(tmp_path / "gone")
    snapshot.materialize(work, commit, tmp_path / "dest")
    assert (tmp_path / "dest/notes/a.md").read_text() == "one\n"
    assert snapshot.head(work) == commit


def test_a_missing_repository_has_no_head_and_no_episodes(tmp_path: Path) -> None:
    work = tmp_path / "nowhere" / "harness"
    assert snapshot.head(work) == ""
    assert snapshot.checkpoints(work) == []
    assert snapshot.commit_for_episode(work, 0) is None
    assert not snapshot.has_commit(work, "0" * 40)
    with pytest.raises(SnapshotError, match="no commit"):
        snapshot.materialize(work, "0" * 40, tmp_path / "dest")
    with pytest.raises(SnapshotError, match="no snapshot repository"):
        snapshot.commit(work, "episode 1: x")


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign", "short"])
def test_the_episode_index_is_made_again_when_it_does_not_fit(work: Path, damage: str) -> None:
    store = store_of(work)
    commits = [run_episode(store, episode, accepted=episode % 2 == 0) for episode in range(5)]
    store.close()
    index = work.parent / ".snapshot.git" / "episode-index"
    text = index.read_text()
    if damage == "missing":
        index.unlink()
    else:
        index.write_text({"torn": text[:-7], "foreign": "0 " + "1" * 40 + "\n", "short": text[:43]}[damage])
    assert snapshot.checkpoints(work) == list(enumerate(commits))
    store_of(work).close()
    assert index.read_text() == text


def test_the_functions_commit_restore_and_reset(work: Path) -> None:
    assert snapshot.init(work)
    assert not snapshot.init(work)
    seed = snapshot.head(work)
    assert not snapshot.has_changes(work)
    write(work, "notes/a.md", "two")
    write(work, "ignored/x", "new")
    assert snapshot.has_changes(work)
    candidate = snapshot.commit(work, "candidate 1: x")
    snapshot.restore(work, seed)
    assert (work / "notes/a.md").read_text() == "one\n"
    assert not (work / "ignored").exists()
    assert snapshot.head(work) == candidate
    first = snapshot.commit(work, "episode 1: x")
    assert snapshot.checkpoints(work) == [(0, seed), (1, first)]
    snapshot.reset_to_checkpoint(work, seed)
    assert snapshot.head(work) == seed
    assert snapshot.checkpoints(work) == [(0, seed)]
    assert snapshot.has_commit(work, candidate)
    again = snapshot.commit(work, "episode 1: y")
    assert snapshot.checkpoints(work) == [(0, seed), (1, again)]
    assert fsck(work) == ""


def test_failed_candidates_are_kept_apart_and_numbered(work: Path) -> None:
    snapshot.init(work)
    seed = snapshot.head(work)
    kept = []
    for text in ("boom", "bang"):
        write(work, "notes/a.md", text)
        kept.append(snapshot.preserve_failed_candidate(work, seed, 3, text))
    assert snapshot.preserve_interrupted_candidate(work, seed, 3, "nothing to keep") == ""
    assert (work / "notes/a.md").read_text() == "one\n"
    assert snapshot.head(work) == seed
    refs = git(work, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    assert refs == [f"refs/failed/3-1 {kept[0]}", f"refs/failed/3-2 {kept[1]}", f"refs/heads/main {seed}"]
    late = snapshot.commit(work, "episode 3: died before it was recorded")
    assert snapshot.preserve_interrupted_candidate(work, seed, 3, "x") == late
    assert snapshot.checkpoints(work) == [(0, seed)]
    assert fsck(work) == ""


def test_an_interrupted_publish_is_completed_by_the_commit(work: Path) -> None:
    store = store_of(work)
    run_episode(store, 0)
    write(work, "notes/a.md", "two")
    pending = store.prepare(store.scan(), 1, label="x")
    store.close()
    store = store_of(work)
    store.publish_by_id(pending.commit)
    assert store.head() == pending.commit
    assert store.commit_for_episode(1) == pending.commit
    assert store.scan().changes == ()
    with pytest.raises(SnapshotError, match="no commit"):
        store.publish_by_id("1" * 40)


def test_an_accepted_candidate_must_be_free_of_violations(work: Path) -> None:
    (work / "sub" / ".git").mkdir(parents=True)
    store = store_of(work)
    with pytest.raises(SnapshotError, match="nested git metadata"):
        store.prepare(store.scan(), 0, label="x")


def test_a_state_that_has_moved_on_is_not_published(work: Path) -> None:
    store = store_of(work)
    pending = store.prepare(store.scan(), 0, label="x")
    store.publish(pending)
    with pytest.raises(SnapshotError, match="another state"):
        store.publish(pending)


def test_a_repository_that_git_repacked_is_still_read(work: Path, tmp_path: Path) -> None:
    store = store_of(work)
    for episode in range(6):
        write(work, "notes/a.md", "a line that stays\n" * 200 + str(episode))
        run_episode(store, episode)
    store.close()
    git(work, "repack", "-adfq")
    git(work, "pack-refs", "--all")
    for episode, commit in snapshot.checkpoints(work):
        snapshot.materialize(work, commit, tmp_path / str(episode))
        assert (tmp_path / str(episode) / "notes/a.md").read_text().endswith(f"\n{episode}")
    store = store_of(work)
    write(work, "notes/a.md", "goes on")
    run_episode(store, 6)
    store.close()
    assert fsck(work) == ""


@pytest.mark.parametrize("damage", ["missing", "torn", "empty"])
def test_an_index_that_a_power_cut_took_is_made_again_from_its_pack(work: Path, tmp_path: Path, damage: str) -> None:
    store = store_of(work)
    commits = [run_episode(store, episode) for episode in range(2)]
    store.close()
    for index in (work.parent / ".snapshot.git/objects/pack").glob("*.idx"):
        data = index.read_bytes()
        index.unlink()
        if damage != "missing":
            index.write_bytes(data[:100] if damage == "torn" else b"")
    snapshot.materialize(work, commits[0], tmp_path / "dest")
    assert (tmp_path / "dest/notes/a.md").read_text() == "one\n"
    store_of(work).close()
    assert fsck(work) == ""
    assert snapshot.checkpoints(work) == list(enumerate(commits))


def test_many_packs_become_one_when_the_store_is_closed(work: Path) -> None:
    store = store_of(work)
    run_episode(store, 0)
    reader = snapshot.Reader(work.parent / ".snapshot.git")
    assert reader.has_commit(reader.head())
    commits = []
    for episode in range(1, 60):
        write(work, f"notes/{episode}.md", str(episode))
        commits.append(run_episode(store, episode))
    trees = [store.tree_entries(commit) for commit in commits]
    store.close()
    packs = work.parent / ".snapshot.git/objects/pack"
    assert sorted(path.suffix for path in packs.iterdir()) == [".idx", ".pack"]
    assert fsck(work) == ""
    store = store_of(work)
    assert [store.tree_entries(commit) for commit in commits] == trees
    assert store.read_blob(trees[-1][b"notes/59.md"].oid) == b"59"
    assert [reader.tree_entries(commit) for commit in commits] == trees
    run_episode(store, 60)
    store.close()
    assert fsck(work) == ""


def test_without_times_of_their_own_young_files_are_read_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_proteus.core.snapshot.store.racy_window", lambda folder: 10**15)
    store = store_of(work)
    store.scan()
    reads = []
    monkeypatch.setattr(store._scanner, "_read", lambda *args: reads.append(args[1]) or _entry())
    store.scan()
    assert sorted(reads) == [b"a.md", b"t.py"]


def _entry() -> snapshot.Entry:
    return snapshot.Entry(0o100644, b"x" * 20, 1)


def test_a_paranoid_store_reads_every_file_every_time(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore.create_or_open(work, work.parent / ".snapshot.git", paranoid=True)
    store.scan()
    reads = []
    monkeypatch.setattr(store._scanner, "_read", lambda *args: reads.append(args[1]) or _entry())
    store.scan()
    assert sorted(reads) == [b"a.md", b"t.py"]


def test_what_a_killed_writer_left_is_removed(work: Path) -> None:
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    git_dir = work.parent / ".snapshot.git"
    packs = git_dir / "objects/pack"
    whole = next(packs.glob("*.pack"))
    (packs / "pack-1111111111111111111111111111111111111111.pack").write_bytes(whole.read_bytes()[:-30])
    (packs / "pack-2222222222222222222222222222222222222222.idx").write_bytes(b"\377tOc")
    (packs / "tmp_idx_1").write_text("x")
    (git_dir / "HEAD.lock").write_text("x")
    (git_dir / "refs/heads/main.lock").write_text("x")
    store = store_of(work)
    assert store.head() == commit
    store.close()
    assert sorted(path.suffix for path in packs.iterdir()) == [".idx", ".pack"]
    assert list(git_dir.rglob("*.lock")) == []


def test_a_branch_that_names_a_lost_commit_is_an_error_that_names_it(work: Path) -> None:
    store = store_of(work)
    commit = run_episode(store, 0)
    store.close()
    for path in (work.parent / ".snapshot.git/objects/pack").iterdir():
        path.unlink()
    (work.parent / ".snapshot.git/episode-index").unlink()
    with pytest.raises(SnapshotError, match=f"does not hold the object {commit}"):
        store_of(work)


def test_importing_the_package_does_not_import_git() -> None:
    code = "import sys; import pytest_proteus.core.snapshot; assert 'git' not in sys.modules"
    subprocess.run([os.sys.executable, "-c", code], check=True)


def test_without_git_a_repacked_repository_says_what_to_install(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(work)
    for episode in range(4):
        write(work, "notes/a.md", "a line that stays\n" * 200 + str(episode))
        run_episode(store, episode)
    store.close()
    git(work, "repack", "-adfq")
    monkeypatch.setenv("PATH", "/nowhere")
    store = store_of(work)
    with pytest.raises(SnapshotError, match="install git"):
        read_everything(store)


def read_everything(store: SnapshotStore) -> None:
    for _, commit in store.checkpoints():
        for entry in store.tree_entries(commit).values():
            store.read_blob(entry.oid)


def modes(tree: Path) -> dict[str, str]:
    """Path → permission bits of everything below a tree."""
    return {str(path.relative_to(tree)): f"{path.lstat().st_mode & 0o7777:04o}" for path in sorted(tree.rglob("*"))}


def odd(tree: Path) -> None:
    """Modes that no snapshot keeps, on files and folders, new and old."""
    write(tree, "new/private", "p")
    write(tree, "new/script", "s")
    (tree / "new" / "private").chmod(0o600)
    (tree / "new" / "script").chmod(0o700)
    (tree / "notes" / "a.md").chmod(0o666)
    (tree / "new").chmod(0o2770)


PLAIN = {"new": "0755", "new/private": "0644", "new/script": "0755", "notes/a.md": "0644"}


@pytest.mark.parametrize("accepted", [True, False])
def test_after_an_episode_the_work_tree_has_the_modes_that_a_restore_gives(work: Path, accepted: bool) -> None:
    store = store_of(work)
    write(work, "notes/a.md", "a")
    run_episode(store, 0)
    odd(work)
    scan = store.scan()
    assert modes(work)["new/private"] == "0600"
    store.publish(store.prepare(scan, 1, label="x", accepted=accepted))
    if not accepted:
        store.rollback(scan)
    found = modes(work)
    assert {path: found[path] for path in PLAIN if path in found} == (PLAIN if accepted else {"notes/a.md": "0644"})
    after = store.scan()
    assert (after.changes, after.violations) == ((), ())
    store.restore(store.head())
    assert modes(work) == found


def test_an_edit_right_after_the_modes_were_made_plain_is_seen(work: Path) -> None:
    store = store_of(work)
    odd_file = work / "notes" / "x"
    write(work, "notes/x", "one")
    odd_file.chmod(0o600)
    run_episode(store, 0)
    assert odd_file.stat().st_mode & 0o777 == 0o644
    times = odd_file.stat()
    odd_file.write_text("two")
    os.utime(odd_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [change.path for change in store.scan().changes] == [b"notes/x"]


def test_making_modes_plain_follows_nothing_out_of_the_work_tree(work: Path) -> None:
    store = store_of(work)
    write(work, "sub/file", "x")
    (work / "sub" / "file").chmod(0o600)
    outside = work.parent / "outside"
    write(outside, "file", "precious")
    (outside / "file").chmod(0o600)
    pending = store.prepare(store.scan(), 0, label="x")
    (work / "sub").rename(work / "old")
    (work / "sub").symlink_to(outside)
    store.publish(pending)
    assert modes(outside) == {"file": "0600"}
