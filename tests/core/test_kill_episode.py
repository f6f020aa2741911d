"""A run that is killed, at every step and at any instant, goes on to the same bytes, clocks aside."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_harness import STEPS, TinyHarness, everything, go, scored

from pytest_proteus.core import EvalResult, EvaluatorSpec, GoalConfig, Visibility
from pytest_proteus.core.records import completed_episodes_in, read_jsonl, read_records

EPISODES = 4
SCORES = {1: 2.0, 2: 3.0, 3: 1.0, 4: 3.0}

#: Calls that change what is on disk; a process is made to die right before one of them.
WRITES = ("write", "open", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate", "fsync", "symlink", "chmod")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of small runs should not wait for a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def in_a_process(body: Callable[[], Any]) -> int:
    """Fork, run ``body`` and end at once, as if killed, whatever it does; gives the process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            body()
        finally:
            os._exit(0)
    return pid


def dying(body: Callable[[], Any], at: int) -> Callable[[], None]:
    """``body``, in which the process ends right before its ``at``-th write; it ends with 7 when it got there."""
    count = 0

    def patched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                os._exit(7)
            return real(*arguments, **options)

        return call

    def run() -> None:
        for name in WRITES:
            setattr(os, name, patched(name))
        body()

    return run


def scenario(name: str) -> dict[str, Any]:
    """What a run does, and where it stands when it is killed."""
    goal = GoalConfig.of("do it", [scored(SCORES, "score", Visibility.OBSERVE)], selection="accept_reject")
    return {
        "seeding": {"goal": goal, "stands": None},
        "accepted": {"goal": goal, "stands": 1},
        "rejected": {"goal": goal, "stands": 2},
        "violation": {"goal": goal, "stands": 1, "plan": {2: "fifo"}},
        "staged refusal": {"goal": goal, "stands": 1, "staged": True, "refuse": {2: "no"}, "stride": 2},
        "staged repair": {"goal": goal, "stands": 2, "staged": True, "refuse": {2: "no"}, "stride": 3, "live": True},
        "a note": {"goal": goal, "stands": 1, "continuity": "framework", "live": True, "stride": 3},
        "live": {"goal": goal, "stands": 2, "live": True},
        "the end": {"goal": goal, "stands": EPISODES - 1, "live": True, "stride": 2},
    }[name]


def start(root: Path, case: dict[str, Any], episodes: int, *, resume: bool = True) -> None:
    harness = TinyHarness(
        {number: STEPS[step] for number, step in case.get("plan", {}).items()},
        staged=case.get("staged", False),
        continuity=case.get("continuity", "native"),
    )
    harness.refuse = case.get("refuse", {})
    live = root.parent / "live" if case.get("live") else None
    go(root, harness, episodes=episodes, resume=resume, goal=case["goal"], live_root=live)


def told(root: Path) -> dict[str, Any]:
    """Everything, without how many episodes a run was to have when its lines were written."""
    found = everything(root)
    for line in found["lines"][f"{root.name}.jsonl"]:
        del line["episodes_target"]
    return found


@pytest.mark.parametrize(
    "name", ["seeding", "accepted", "rejected", "violation", "staged refusal", "staged repair", "live", "the end"]
)
def test_a_kill_before_any_write_changes_nothing_in_the_end(memory: Path, name: str) -> None:
    case = scenario(name)
    start(memory / "whole" / "run", case, EPISODES)
    whole = told(memory / "whole" / "run")
    for at in range(1, 1000, case.get("stride", 1)):
        root = memory / str(at) / "run"
        reached = killed_at(root, case, at)
        stood = completed_episodes_in(root)
        start(root, case, EPISODES)
        assert told(root) == whole, f"killed before write {at}"
        assert stood >= (case["stands"] or 0)
        assert not (root.parent / "live").exists()
        shutil.rmtree(root.parent)
        if not reached:
            break
    assert at > 10


def killed_at(root: Path, case: dict[str, Any], at: int) -> bool:
    """Kill the run's next episode before its ``at``-th write; False when it has no more than that."""
    if case["stands"]:
        start(root, case, case["stands"])
    pid = in_a_process(dying(lambda: start(root, case, (case["stands"] or 0) + 1), at))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize("live", [False, True])
def test_thirty_sigkills_at_random_instants_change_nothing_in_the_end(tmp_path: Path, live: bool) -> None:
    episodes, rng = 60, random.Random(5)
    scores = {number: float(rng.randrange(4)) for number in range(1, episodes + 1)}
    measured = EvaluatorSpec("child", lambda t, c: EvalResult("child", float(len(t))), timeout=60.0)
    goal = GoalConfig.of("x", [scored(scores, "s", Visibility.OBSERVE), measured], selection="accept_reject")
    case = {"goal": goal, "live": live, "plan": {7: "fifo", 21: "drift"}}
    start(tmp_path / "whole" / "run", case, episodes)
    root = tmp_path / "killed" / "run"
    root.parent.mkdir()
    counts = [0]
    for _ in range(30):
        pid = in_a_process(lambda: start(root, case, episodes))
        ended = os.pidfd_open(pid)
        select.select([ended], [], [], rng.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ended)
        counts.append(completed_episodes_in(root))
    assert counts == sorted(counts)
    start(root, case, episodes)
    assert everything(root) == everything(tmp_path / "whole" / "run")
    assert [record["episode"] for record in read_records(root)] == list(range(1, episodes + 1))
    assert [line["episode"] for line in read_jsonl(tmp_path / "killed" / "run.jsonl")] == list(range(1, episodes + 1))
