"""A process that takes snapshots is killed at any instant: the repository opens again and nothing that counted is lost.

Run as a script, this file is the process that gets killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_proteus.core.snapshot import SnapshotStore

EPISODES = 7


def edit(work: Path, episode: int) -> None:
    """What the subject does in an episode; the same each time it is run from the same state."""
    (work / "notes").mkdir(exist_ok=True)
    (work / f"notes/{episode % 5}.md").write_text(f"note of {episode}\n" * episode)
    (work / "log").write_text(str(episode))
    (work / f"hollow{episode % 2}").mkdir(exist_ok=True)
    if episode % 4 == 3:
        (work / "notes/0.md").unlink(missing_ok=True)


def goes_on(root: Path) -> None:
    """The loop of an episode with a record of its own; goes on where the last process was killed."""
    work = root / "harness"
    work.mkdir(exist_ok=True)
    store = SnapshotStore.create_or_open(work, root / ".snapshot.git")
    fd = os.open(root / "records", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    lines = os.pread(fd, 1 << 20, 0).split(b"\n")[:-1]
    done = store.checkpoints()
    if len(lines) > len(done) and store.has_commit(lines[len(done)].decode()):
        store.publish_by_id(lines[len(done)].decode())
        done = store.checkpoints()
    os.ftruncate(fd, sum([len(line) + 1 for line in lines[: len(done)]]))
    assert [commit.encode() for _, commit in done] == lines[: len(done)]
    store.rollback(store.scan())
    for episode in range(len(done), EPISODES):
        edit(work, episode)
        scan, accepted = store.scan(), episode % 3 != 2
        pending = store.prepare(scan, episode, label="x", accepted=accepted)
        os.write(fd, pending.commit.encode() + b"\n")
        store.publish(pending, flush=[fd])
        os.write(1, b".")
        if not accepted:
            store.rollback(scan)
    store.close()
    os.close(fd)


def check(root: Path, acknowledged: int) -> None:
    """What must hold after any kill."""
    store = SnapshotStore.create_or_open(root / "harness", root / ".snapshot.git")
    records = (root / "records").read_bytes().split(b"\n")[:-1] if (root / "records").exists() else []
    checkpoints = store.checkpoints()
    assert acknowledged <= len(checkpoints) <= len(records)
    assert [commit.encode() for _, commit in checkpoints] == records[: len(checkpoints)]
    assert all(store.has_commit(commit) for _, commit in checkpoints)
    store.close()
    command = ["git", "--git-dir", str(root / ".snapshot.git"), "fsck", "--strict", "--full", "--no-dangling"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done
    assert done.stderr in ("", "notice: HEAD points to an unborn branch (main)\nnotice: No default references\n")


def finished(root: Path) -> list[tuple[int, str]]:
    """Episodes of a run that went on to its end."""
    store = SnapshotStore.create_or_open(root / "harness", root / ".snapshot.git")
    checkpoints = store.checkpoints()
    store.close()
    names = sorted(path.name for path in (root / ".snapshot.git").iterdir())
    assert names == ["HEAD", "config", "episode-index", "info", "objects", "refs"]
    return checkpoints


def uninterrupted(root: Path) -> list[tuple[int, str]]:
    root.mkdir()
    subprocess.run([sys.executable, __file__, "run", str(root)], check=True, stdout=subprocess.DEVNULL)
    return finished(root)


def test_killed_at_random_instants_a_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "reference")
    root = tmp_path / "run"
    root.mkdir()
    chance, kills, acknowledged = random.Random(7), 0, 0
    while True:
        longest = 0.02 if kills >= 3 else 0.004  # a fast machine is through before it was killed often enough
        command = [sys.executable, __file__, "run", str(root), str(chance.uniform(0.0002, longest))]
        done = subprocess.run(command, capture_output=True, check=False)
        acknowledged += len(done.stdout)
        check(root, acknowledged)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGALRM, done.stderr
        kills += 1
    assert kills >= 3
    assert finished(root) == expected


def test_killed_before_each_call_that_writes_a_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "reference")
    done = subprocess.run(
        [sys.executable, __file__, "each", str(tmp_path), expected[-1][1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 50


def each_call(scratch: Path, last: str) -> None:
    """Kill a process before its first call that writes, its second, and so on, each time going on to the end."""
    kills = 0
    while True:
        root = scratch / f"at{kills}"
        root.mkdir()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writer, 1)
            die_before(kills)
            goes_on(root)
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        acknowledged = len(os.read(reader, 1000))
        os.close(reader)
        check(root, acknowledged)
        if status == 0:
            break
        goes_on(root)
        assert finished(root)[-1][1] == last
        kills += 1
    print("\n", kills)


def die_before(number: int) -> None:
    """Let this process die before its ``number``-th call that changes something on disk, half a write done."""
    left = [number]

    def wrap(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            if left[0] == 0:
                if name == "write" and args[0] != 1:
                    data = bytes(args[1])  # type: ignore[arg-type]
                    call(args[0], data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **kwargs)

        return counted

    for name in ("write", "pwrite", "rename", "fsync", "unlink", "mkdir", "rmdir", "ftruncate"):
        setattr(os, name, wrap(name, getattr(os, name)))


if __name__ == "__main__":
    if sys.argv[1] == "each":
        each_call(Path(sys.argv[2]), sys.argv[3])
    else:
        if len(sys.argv) > 3:
            signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))  # nobody handles it: the kernel kills
        goes_on(Path(sys.argv[2]))
        os._exit(0)
