"""Kill whole sessions at random instants and run the same command again: nothing may be refused, repeated or lost.

As a command, ``python tests/plugin/kill_sessions.py --kills 200 [--workers 2] [--seed 7]`` does it as often as asked.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE = '''
import os, pathlib
import pytest
from pytest_proteus import NEUTRAL, EvalResult, review
from pytest_proteus.harnesses.minimal import MinimalHarness

STARTS = pathlib.Path(__file__).with_name("starts.txt")


class Counting(MinimalHarness):
    """Notes every episode that it begins."""

    name = "counting"

    def run_episode(self, spec):
        reviewing = "look through your" in str(spec.phase_prompts)
        with STARTS.open("a") as file:
            file.write(f"{'review_notes' if reviewing else 'neutral'} {spec.seed} {spec.episode}\\n")
        return super().run_episode(spec)


def tools(trace, ctx):
    found = list((pathlib.Path(ctx.harness_root) / "tools").glob("*.py"))
    return EvalResult("tools", float(len(found)))


pytestmark = [
    pytest.mark.sweep(
        episodes=6, harness=["test_kill:Counting"], arm=[NEUTRAL, review("notes")], seed=range(2),
        selection="accept_reject",
    ),
    pytest.mark.evaluator("units:notes@observe"),
    pytest.mark.evaluator("step"),
    pytest.mark.evaluator(tools, name="tools"),
]


@pytest.mark.evaluator("tool-calls", at_most=40)
def test_completes(run):
    assert run.episodes_complete == run.episodes


def test_whole(sweep, gate):
    gate("cells", len(sweep.runs), equals=4)
'''

EPISODES = 24
CLOCKS = ("ts", "seconds", "started_at", "finished_at", "created_at", "working_seconds", "waiting_seconds")


def start(folder: Path, workers: int) -> subprocess.Popen:
    """The session, in a process group of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--json-report"]
    return subprocess.Popen(
        [*command, "--json-report-file=report.json", "-n", str(workers), "-q"],
        cwd=folder,
        stdout=(folder / "output.txt").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def without_clocks(value: object) -> object:
    """Plain data without the fields that tell the time."""
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCKS}
    if isinstance(value, list):
        return [without_clocks(item) for item in value]
    return value


def lines(path: Path) -> list[object]:
    """The objects of a JSON-lines file, clocks aside."""
    return [without_clocks(json.loads(line)) for line in path.read_text().splitlines()]


def git(repository: Path, *arguments: str) -> str:
    """What git says of a run's repository."""
    command = ["git", f"--git-dir={repository}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def state(folder: Path) -> dict[str, object]:
    """Everything that must be equal between two equal sweeps."""
    report = copy.deepcopy(json.loads((folder / "report.json").read_text())["proteus"])
    for key in ("session", "environment"):
        report.pop(key)
    (out,) = [Path(sweep.pop("out")) for sweep in report["sweeps"]]
    runs = sorted((out / "runs").glob("run-*"))
    assert [path.name for path in out.parent.iterdir()] == ["0001"]
    return {
        "report": without_clocks(report),
        "seeds": sorted(
            json.dumps({**line, "root": ""}, sort_keys=True)
            for line in lines(out / "seeds.jsonl")  # type: ignore[dict-item]
        ),
        "progress": {path.name: lines(path) for path in sorted((out / "progress").glob("*.jsonl"))},
        "history": {
            path.parent.name: without_clocks(json.loads(path.read_text()))
            for path in sorted((out / "runs" / ".proteus-records").glob("*/eval_history.json"))
        },
        "commits": {run.name: git(run / ".snapshot.git", "log", "--format=%H %T %s", "HEAD") for run in runs},
        "trees": {
            run.name: {
                str(path.relative_to(run)): path.read_bytes()
                for path in sorted((run / "harness").rglob("*"))
                if path.is_file()
            }
            for run in runs
        },
    }


def complete(folder: Path) -> set[tuple[str, str, str]]:
    """(arm, seed, episode) of every episode that counts now, read as any reader would."""
    from pytest_proteus.core.records import read_records

    found = set()
    for manifest in folder.glob(".proteus/*/0001/manifest.json"):
        for run in json.loads(manifest.read_text())["runs"]:
            root = manifest.parent / "runs" / run["id"]
            if root.exists():
                found |= {(run["arm"], str(run["seed"]), str(record["episode"])) for record in read_records(root)}
    return found


def starts(folder: Path) -> list[tuple[str, ...]]:
    """(arm, seed, episode) of every episode that was begun."""
    path = folder / "starts.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_manifest(folder: Path, process: subprocess.Popen) -> None:
    """Wait until the sweep has its folder."""
    while process.poll() is None and not list(folder.glob(".proteus/*/0001/manifest.json")):
        time.sleep(0.001)


def reference(folder: Path, workers: int) -> tuple[dict[str, object], float]:
    """The state after an uninterrupted session, and the seconds from its folder to its end."""
    (folder / "test_kill.py").write_text(SUITE)
    process = start(folder, workers)
    wait_for_manifest(folder, process)
    began = time.monotonic()
    assert process.wait() == 0, (folder / "output.txt").read_text()
    return state(folder), time.monotonic() - began


def wait_for_starts(folder: Path, process: subprocess.Popen, count: int) -> None:
    """Wait until ``count`` episodes have been begun."""
    while process.poll() is None and len(starts(folder)) < count:
        time.sleep(0.0005)


def kill_once(folder: Path, workers: int, after: int, delay: float, wanted: dict[str, object]) -> int:
    """Kill one session, run it again, and hold the end against ``wanted``.

    Args:
        folder: an empty folder.
        workers: as for ``-n``.
        after: episodes that must have been begun; then ``delay`` seconds are waited.
        delay: seconds.
        wanted: the state after an uninterrupted session.

    Returns:
        How many episodes were complete when it was killed.
    """
    (folder / "test_kill.py").write_text(SUITE)
    process = start(folder, workers)
    wait_for_manifest(folder, process)
    wait_for_starts(folder, process, after)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept, begun = complete(folder), len(starts(folder))
    if list(folder.glob(".proteus/*/0001/sessions.jsonl")):
        return len(kept)  # it had written its report and was on its way out: nothing was interrupted
    again = start(folder, workers)
    assert again.wait() == 0, (folder / "output.txt").read_text()
    repeated = kept & set(starts(folder)[begun:])
    assert not repeated, f"complete episodes were run again: {sorted(repeated)}"
    found = state(folder)
    for part, value in wanted.items():
        assert found[part] == value, f"{part} differs after a kill {delay:.4f} s after episode {after}"
    for run in folder.glob(".proteus/*/0001/runs/run-*/.snapshot.git"):
        git(run, "fsck", "--strict", "--no-progress")
    return len(kept)


def storm(kills: int, workers: int, seed: int, *, say: bool = False) -> list[int]:
    """Kill ``kills`` sessions, each in a folder of its own; how many episodes each had complete."""
    chance = random.Random(seed)
    counts = []
    with tempfile.TemporaryDirectory(prefix="kill-") as place:
        first = Path(place, "reference")
        first.mkdir()
        wanted, seconds = reference(first, workers)
        for number in range(kills):
            folder = Path(place, str(number))
            folder.mkdir()
            # most kills fall into the work itself, each fourth anywhere between the folder and the end
            after, longest = (0, seconds) if number % 4 == 3 else (chance.randint(1, EPISODES), 0.01)
            counts.append(kill_once(folder, workers, after, chance.uniform(0, longest), wanted))
            if say:
                print(f"kill {number + 1}/{kills}: {counts[-1]} episodes complete, all equal in the end", flush=True)
            shutil.rmtree(folder)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reached = storm(options.kills, options.workers, options.seed, say=True)
    print(
        f"{len(reached)} passed, 0 failed; {sum(0 < count < EPISODES for count in reached)} kills fell between episodes"
    )
