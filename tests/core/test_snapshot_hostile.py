"""Trees that a hostile subject leaves: each thing a snapshot cannot keep is a named violation, and can be undone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_proteus.core import snapshot
from pytest_proteus.core.snapshot import Limits, SnapshotStore
from pytest_proteus.core.snapshot import scan as scanning

NOBODY = 65534


@pytest.fixture
def work(tmp_path: Path) -> Path:
    tree = tmp_path / "run" / "harness"
    tree.mkdir(parents=True)
    (tree / "notes").mkdir()
    (tree / "notes/a.md").write_text("one\n")
    (tree / "b.md").write_text("two\n")
    return tree


@pytest.fixture
def store(work: Path) -> Iterator[SnapshotStore]:
    store = open_store(work)
    store.publish(store.prepare(store.scan(), 0, label="x"))
    yield store
    store.close()


def open_store(work: Path, **options: object) -> SnapshotStore:
    return SnapshotStore.create_or_open(work, work.parent / ".snapshot.git", **options)  # type: ignore[arg-type]


def fsck(work: Path) -> None:
    command = ["git", "--git-dir", str(work.parent / ".snapshot.git"), "fsck", "--strict", "--full", "--no-dangling"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def bind_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def deep(work: Path, levels: int) -> None:
    fd = os.open(work, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def file(path: str, mode: int | None = None, content: str = "x") -> Callable[[Path], None]:
    def make(work: Path) -> None:
        target = Path(os.fsencode(work).decode() + "/" + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        if mode is not None:
            target.chmod(mode)

    return make


def link(path: str, target: str) -> Callable[[Path], None]:
    return lambda work: (work / path).symlink_to(target)


def folder(path: str, mode: int) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        (work / path).mkdir()
        (work / path / "inside").write_text("x")
        (work / path).chmod(mode)

    return make


def both(work: Path) -> None:
    file("README.md")(work)
    file("readme.MD")(work)


def sparse(work: Path) -> None:
    with (work / "huge").open("wb") as out:
        out.truncate(1 << 40)


HOSTILE: dict[str, tuple[Callable[[Path], None], set[tuple[str, str]]]] = {
    "nested repository": (file("sub/.git/config"), {("sub/.git", "nested-git")}),
    "nested repository in capitals": (file("sub/.GiT/config"), {("sub/.GiT", "nested-git")}),
    "git file": (file(".git"), {(".git", "nested-git")}),
    "short name of .git": (file("GIT~1"), {("GIT~1", "nested-git")}),
    "dots after .git": (file(".git. ."), {(".git. .", "nested-git")}),
    "stream of .git": (file(".git::$INDEX_ALLOCATION"), {(".git::$INDEX_ALLOCATION", "nested-git")}),
    "backslash .git": (file("a\\.git"), {("a\\\\.git", "nested-git")}),
    "ignorable code point": (file(".g\u200cit"), {(".g\\u200cit", "nested-git")}),
    "submodules": (file(".gitmodules"), {(".gitmodules", "nested-git")}),
    "attributes by link": (link(".gitattributes", "b.md"), {(".gitattributes", "nested-git")}),
    "endless attribute": (file(".gitattributes", content="x" * 5000), {(".gitattributes", "nested-git")}),
    "fifo": (lambda work: os.mkfifo(work / "CLAUDE.md"), {("CLAUDE.md", "fifo")}),
    "fifo in place of a file": (
        lambda work: ((work / "b.md").unlink(), os.mkfifo(work / "b.md")),  # type: ignore[dict-item, return-value]
        {("b.md", "fifo")},
    ),
    "socket": (lambda work: bind_socket(work / "s"), {("s", "socket")}),
    "absolute link": (link("passwd", "/etc/passwd"), {("passwd", "link")}),
    "endless link": (link("zero", "/dev/zero"), {("zero", "link")}),
    "link out of the tree": (link("notes/up", "../../outside"), {("notes/up", "link")}),
    "link that climbs late": (link("late", "notes/../../x"), {("late", "link")}),
    "folder that is a link now": (
        lambda work: (os.rename(work / "notes", work.parent / "moved"), (work / "notes").symlink_to("../moved")),  # type: ignore[dict-item, return-value]
        {("notes", "link")},
    ),
    "hard link": (lambda work: os.link(work / "b.md", work / "c.md"), {("b.md", "hard-link"), ("c.md", "hard-link")}),
    "name that is not UTF-8": (file(os.fsdecode(b"bad\xff")), {("bad\\xff", "name-not-utf8")}),
    "names that fold into one": (both, {("readme.MD", "case-collision")}),
    "setuid": (file("su", 0o4755), {("su", "special-mode")}),
    "setgid": (file("sg", 0o2755), {("sg", "special-mode")}),
    "sparse": (sparse, {("huge", "too-large")}),
    "file of mode 000": (file("closed", 0), {("closed", "unreadable")}),
    "folder of mode 000": (folder("closed", 0), {("closed", "unreadable")}),
    "folder that cannot be entered": (folder("closed", 0o600), {("closed", "unreadable")}),
    "folder that cannot be listed": (folder("closed", 0o300), {("closed", "unreadable")}),
    "too deep": (lambda work: deep(work, 70), {("/".join(["d"] * 65), "too-deep")}),
    "3,000 deep": (lambda work: deep(work, 3000), {("/".join(["d"] * 65), "too-deep")}),
}
DEVICE = {
    "device": (lambda work: os.mknod(work / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3)), {("null", "device")})
}
PARAMS = [pytest.param(*case, id=name) for name, case in {**HOSTILE, **(DEVICE if os.geteuid() == 0 else {})}.items()]


@pytest.mark.parametrize(("make", "expected"), PARAMS)
def test_what_cannot_be_kept_is_a_named_violation_each_time_and_can_be_undone(
    work: Path, store: SnapshotStore, make: Callable[[Path], None], expected: set[tuple[str, str]]
) -> None:
    seed = store.scan().tree
    make(work)
    for _ in range(2):
        scan = store.scan()
        assert {(violation.path, violation.kind) for violation in scan.violations} == expected
        assert all(violation.detail for violation in scan.violations)
    pending = store.prepare(scan, 1, label="x", accepted=False)
    store.publish(pending)
    store.keep_failed(scan, 2, label="x")
    store.rollback(scan)
    after = store.scan()
    assert (after.tree, after.violations) == (seed, ())
    assert sorted(path.name for path in work.rglob("*")) == ["a.md", "b.md", "notes"]
    fsck(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize(
    "name", ["file of mode 000", "folder of mode 000", "folder that cannot be entered", "too deep"]
)
def test_root_and_a_user_come_to_the_same_verdict_and_the_user_can_undo_it_too(tmp_path: Path, name: str) -> None:
    code = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_snapshot_hostile as this
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
work = Path(sys.argv[2], "harness")
work.mkdir()
(work / "b.md").write_text("two")
store = this.open_store(work)
store.publish(store.prepare(store.scan(), 0, label="x"))
make, expected = this.HOSTILE[{name!r}]
make(work)
scan = store.scan()
print(scan.tree, sorted(scan.violations))
store.rollback(scan)
assert os.listdir(work) == ["b.md"]
store.close()
"""
    said = []
    for user in (0, NOBODY):
        with tempfile.TemporaryDirectory() as root:
            os.chown(root, user, user)
            command = [sys.executable, "-c", code, str(user), root]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


@pytest.mark.parametrize("target", ["b.md", "notes", "notes/a.md", ".", "nowhere", "../harness/../x"])
def test_a_link_inside_the_tree_is_kept_as_a_link(work: Path, target: str) -> None:
    (work / "link").symlink_to(target)
    scan = open_store(work).scan()
    assert [violation.kind for violation in scan.violations] == (["link"] if ".." in target else [])
    if not scan.violations:
        assert scan.read(scan.entries[b"link"].oid) == target.encode()
        assert scan.entries[b"link"].mode == 0o120000


def test_a_link_may_climb_as_far_as_the_root(work: Path) -> None:
    (work / "notes/up").symlink_to("../b.md")
    (work / "notes/root").symlink_to("..")
    assert open_store(work).scan().violations == ()


def test_too_many_files_are_one_violation_and_nothing_is_kept(work: Path) -> None:
    store = open_store(work, limits=Limits(entries=20))
    assert store.scan().violations == ()
    for number in range(30):
        (work / f"notes/{number}").write_text("x")
    scan = store.scan()
    assert [violation.kind for violation in scan.violations] == ["too-many-files"]
    assert len(scan.entries) == 0
    for number in range(30):
        (work / f"notes/{number}").unlink()
    assert store.scan().violations == ()


def test_too_many_bytes_are_one_violation(work: Path) -> None:
    store = open_store(work, limits=Limits(tree_bytes=1000))
    for number in range(4):
        (work / f"notes/{number}").write_text("x" * 300)
    assert [violation.kind for violation in store.scan().violations] == ["too-many-bytes"]
    assert [violation.kind for violation in store.scan().violations] == ["too-many-bytes"]


def test_too_many_bytes_that_came_one_by_one_are_one_violation(work: Path) -> None:
    store = open_store(work, limits=Limits(tree_bytes=1000))
    kinds = []
    for number in range(4):
        (work / f"notes/{number}").write_text("x" * 300)
        kinds = [violation.kind for violation in store.scan().violations]
    assert kinds == ["too-many-bytes"]


def test_violations_are_listed_up_to_a_number_and_the_rest_is_counted(work: Path, store: SnapshotStore) -> None:
    for number in range(130):
        os.mkfifo(work / f"{number:03}")
    violations = store.scan().violations
    assert len(violations) == 101
    assert (violations[0].path, violations[-1].kind, violations[-1].detail) == ("000", "more", "… and 30 more")
    store.rollback(store.scan())
    assert store.scan().violations == ()


def test_a_file_that_changes_while_it_is_read_is_a_violation(
    work: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "log").write_text("x")
    real = os.read

    def read(fd: int, size: int) -> bytes:
        with (work / "log").open("a") as log:
            log.write("more")
        return real(fd, size)

    monkeypatch.setattr(scanning.os, "read", read)
    assert [violation[:2] for violation in store.scan().violations] == [("log", "changed-while-read")]
    monkeypatch.undo()
    assert store.scan().violations == ()


def test_a_writer_that_never_stops_does_not_stop_a_scan(work: Path, store: SnapshotStore) -> None:
    stop = threading.Event()

    def scribble() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = work / f"notes/{number % 7}"
            try:
                if number % 3:
                    path.write_text("x" * (number % 5000))
                elif path.exists():
                    path.unlink()
                (work / "swap").rmdir() if number % 2 else (work / "swap").mkdir()
            except OSError:
                pass

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        kinds = {violation.kind for _ in range(200) for violation in store.scan().violations}
    finally:
        stop.set()
        thread.join()
    assert kinds <= {"changed-while-read", "unreadable"}
    scan = store.scan()
    assert scan.violations == ()
    assert scan.tree == open_store(work).scan().tree


def test_a_work_tree_that_is_gone_or_no_folder_is_a_violation(work: Path, store: SnapshotStore) -> None:
    os.rename(work, work.parent / "away")
    assert [violation.kind for violation in store.scan().violations] == ["missing"]
    work.symlink_to("away")
    assert [violation.kind for violation in store.scan().violations] == ["missing"]
    work.unlink()
    os.rename(work.parent / "away", work)
    assert store.scan().violations == ()


@pytest.mark.parametrize("replacement", ["link", "file", "nothing", "closed"])
def test_a_work_tree_that_was_replaced_is_put_back_and_what_a_link_led_to_is_left_alone(
    work: Path, store: SnapshotStore, tmp_path: Path, replacement: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    if replacement == "closed":
        work.chmod(0)
    else:
        os.rename(work, work.parent / "away")
    if replacement == "link":
        work.symlink_to(outside)
    elif replacement == "file":
        work.write_text("x")
    store.rollback(store.scan())
    assert (store.scan().tree, store.scan().violations) == (store.scan().base, ())
    assert (work / "notes/a.md").read_text() == "one\n"
    assert os.listdir(outside) == ["mine"]


@pytest.mark.skipif(
    not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev, reason="one file system only"
)
def test_tree_and_repository_may_lie_on_different_file_systems(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as live:
        work = Path(live) / "harness"
        (work / "notes").mkdir(parents=True)
        (work / "notes/a.md").write_text("one")
        store = SnapshotStore.create_or_open(work, tmp_path / ".snapshot.git")
        store.publish(store.prepare(store.scan(), 0, label="x"))
        (work / "notes/a.md").write_text("two")
        deep(work, 10)
        store.rollback(store.scan())
        store.close()
        assert (work / "notes/a.md").read_text() == "one"
        assert sorted(os.listdir(live)) == ["harness"]


def test_rollback_touches_only_what_differs(work: Path, store: SnapshotStore) -> None:
    before = (work / "b.md").stat()
    (work / "notes/a.md").write_text("changed")
    (work / "notes/new").mkdir()
    (work / "notes/new/x").write_text("x")
    store.rollback(store.scan())
    assert (work / "notes/a.md").read_text() == "one\n"
    assert os.listdir(work / "notes") == ["a.md"]
    after = (work / "b.md").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_rollback_brings_back_modes_links_and_empty_folders(work: Path) -> None:
    (work / "run").write_text("x")
    (work / "run").chmod(0o755)
    (work / "link").symlink_to("b.md")
    (work / "hollow/inner").mkdir(parents=True)
    store = open_store(work)
    store.publish(store.prepare(store.scan(), 0, label="x"))
    for again in (store, open_store(work)):
        (work / "run").chmod(0o644)
        (work / "link").unlink()
        (work / "link").mkdir()
        (work / "hollow/inner").rmdir()
        (work / "other").mkdir()
        again.rollback(again.scan())
        assert os.access(work / "run", os.X_OK)
        assert os.readlink(work / "link") == "b.md"
        assert (work / "hollow/inner").is_dir()
        assert not (work / "other").exists()
    fsck(work)


def test_revert_puts_back_what_an_evaluator_changed_and_names_it(work: Path, store: SnapshotStore) -> None:
    (work / "notes/a.md").write_text("candidate")
    (work / "fresh.md").write_text("not stored anywhere yet")
    before = store.scan()
    assert store.revert(before) == []
    (work / "notes/a.md").write_text("tampered")
    (work / "fresh.md").unlink()
    (work / "notes/__pycache__").mkdir()
    (work / "notes/__pycache__/x.pyc").write_text("x")
    (work / "hollow").mkdir()
    os.mkfifo(work / "pipe")
    assert store.revert(before) == ["fresh.md", "hollow", "notes/__pycache__/x.pyc", "notes/a.md", "pipe"]
    assert (work / "notes/a.md").read_text() == "candidate"
    assert (work / "fresh.md").read_text() == "not stored anywhere yet"
    assert sorted(os.listdir(work)) == ["b.md", "fresh.md", "notes"]
    assert store.revert(before) == []


def test_revert_leaves_the_subjects_own_violations_alone(work: Path, store: SnapshotStore) -> None:
    os.mkfifo(work / "pipe")
    before = store.scan()
    (work / "b.md").write_text("tampered")
    os.mkfifo(work / "second")
    assert store.revert(before) == ["b.md", "second"]
    assert sorted(os.listdir(work)) == ["b.md", "notes", "pipe"]


def test_what_a_failed_episode_left_is_kept_once(work: Path, store: SnapshotStore) -> None:
    (work / "b.md").write_text("failed")
    first = store.keep_failed(store.scan(), 1, label="x")
    assert store.keep_failed(store.scan(), 1, label="x") == first
    (work / "b.md").write_text("failed again")
    second = store.keep_failed(store.scan(), 1, label="x")
    assert first != second
    assert store.checkpoints() == [(0, store.head())]
    refs = work.parent / ".snapshot.git" / "refs" / "failed"
    assert sorted(path.name for path in refs.iterdir()) == ["1-1", "1-2"]
    fsck(work)


def test_a_configuration_planted_in_the_repository_is_not_obeyed(
    work: Path, store: SnapshotStore, tmp_path: Path
) -> None:
    for episode in range(1, 5):
        (work / "b.md").write_text("a line that stays\n" * 200 + str(episode))
        store.publish(store.prepare(store.scan(), episode, label="x"))
    store.close()
    git_dir = work.parent / ".snapshot.git"
    subprocess.run(["git", "--git-dir", str(git_dir), "repack", "-adfq"], check=True)
    proof = tmp_path / "executed"
    with (git_dir / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {proof}"\n\talternateRefsCommand = "touch {proof}"\n')
        config.write(f'[remote "x"]\n\turl = ext::touch {proof}\n\tpromisor = true\n')
    for _, commit in snapshot.checkpoints(work):
        snapshot.materialize(work, commit, tmp_path / commit)
    assert not proof.exists()
