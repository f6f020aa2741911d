"""Measures what docs/benchmarks.md claims of statistics, beside the peer package; exits 1 when a claim does not hold.

Each measurement is a fresh process that computes one statistic with one of the two packages, of the same data. The two
alternate, and the medians of the pairs are reported. Work in process is measured in CPU time, reading runs by the
clock. Not collected by pytest; `tox -e bench` runs it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_episode import peer_environment, row

ARMS, TOOLS, ACTIONS = 4, 12, 200
STREAMS, STREAM_SECONDS, STREAM_BYTES = 1_000, 5, 300 * 10**6
RUNS, EPISODES, WHOLE_SECONDS = 1_000, 30, 60

#: What is compared → how many times as long the peer must take.
TRAVEL = {(12, 100): 250, (24, 30): 80}
COMMAND = {(12, 100): 40}
SEPARATION = {20: 30, 60: 45, 200: 55}
RELIABILITY = {60: 80, 200: 600}
#: The peer's reliability is measured at a few draws of the null and extrapolated from this many runs on.
EXTRAPOLATED = 200


# -- the measured process ------------------------------------------------------------------------------------------


def streams(n: int) -> dict[str, list[list[str]]]:
    """n streams of ``ACTIONS`` actions in four arms of unlike mixtures of tools."""
    source, tools = random.Random(1), [f"tool_{i}" for i in range(TOOLS)]
    return {
        f"arm_{arm}": [
            source.choices(tools, [1 + (i + arm) % 5 for i in range(TOOLS)], k=ACTIONS) for _ in range(n // ARMS)
        ]
        for arm in range(ARMS)
    }


def cpu_seconds(work: Callable[[], Any], times: int = 1) -> float:
    """CPU seconds of the fastest of so many calls: another process's share of the caches makes the others slower."""
    found = []
    for _ in range(times):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found)


def module(package: str) -> Any:
    import importlib

    return importlib.import_module(f"{package}.measure.stream")


def separation(package: str, n: int) -> dict[str, float]:
    """10,000 relabelings of n runs, a first call left out that loads what is loaded once."""
    of, data = module(package).between_within, streams(n)
    of(streams(20), permutations=10)
    return {"seconds": cpu_seconds(lambda: of(data, permutations=10_000), 5 if n < 60 else 1)}


def reliability(package: str, n: int) -> dict[str, float]:
    """200 sets of n runs drawn from their pool."""
    of, data = module(package).reliability, [stream for own in streams(n).values() for stream in own]
    of(data[:4], draws=2)
    if package == "proteus" and n >= EXTRAPOLATED:
        one, three = (cpu_seconds(functools.partial(of, data, draws=draws)) for draws in (1, 3))
        return {"seconds": one + 199 * (three - one) / 2}
    return {"seconds": cpu_seconds(lambda: of(data, draws=200))}


def travel(package: str, folder: str) -> dict[str, float]:
    """The path length of every run of a sweep over all its checkpoints."""
    lines = [json.loads(line) for line in Path(folder, "seeds.jsonl").read_text().splitlines()]
    if package == "proteus":
        from proteus.adapters.minimal import MinimalHarness  # type: ignore[import-not-found]
        from proteus.cli import _travel  # type: ignore[import-not-found]

        def of(line: dict[str, Any]) -> Any:
            return _travel(Path(line["root"]), line["episodes_complete"], surfaces)
    else:
        from pytest_proteus.harnesses.minimal import MinimalHarness
        from pytest_proteus.measure.distance import path_length_of_run

        def of(line: dict[str, Any]) -> Any:
            return path_length_of_run(Path(line["root"], "harness"), surfaces)

    surfaces = MinimalHarness().surfaces()
    before = time.perf_counter()
    moved = [of(line) for line in lines]
    seconds = time.perf_counter() - before
    total = sum(step.added + step.dropped + step.revised for run in moved for step in run.values())
    return {"seconds": seconds, "moved": total}


def command(package: str, folder: str) -> dict[str, float]:
    """``proteus measure --travel`` as somebody types it, from the start of Python to its end."""
    asked = ["measure", "--out", folder] if package == "proteus" else ["measure", folder]
    program = str(Path(sys.executable).with_name("proteus"))
    before = time.perf_counter()
    subprocess.run([program, *asked, "--travel"], stdout=subprocess.DEVNULL, check=True)
    return {"seconds": time.perf_counter() - before}


def many(_: str, n: int) -> dict[str, float]:
    """Distances of all pairs of n streams, by frequency and by order, and the memory of the whole process."""
    from pytest_proteus.measure.stream import distances

    data = [stream for own in streams(n).values() for stream in own]
    seconds = cpu_seconds(lambda: [distances(data, level) for level in ("freq", "order")])
    return {"seconds": seconds, "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def whole(_: str, folder: str) -> dict[str, float]:
    """Every statistic of a sweep that has a fixture, from its artifacts."""
    from pytest_proteus.harnesses.minimal import MinimalHarness
    from pytest_proteus.measure import sweeps
    from pytest_proteus.sweep.run import Run
    from pytest_proteus.sweep.serial import read_seed_records

    before = time.perf_counter()
    runs = [
        Run(
            **{key: line[key] for key in ("harness", "arm", "seed", "run_id", "state", "error", "counters")},
            model=None,
            task=None,
            axes={},
            evaluators=(),
            episodes=EPISODES,
            episodes_complete=line["episodes_complete"],
            root=Path(line["root"]),
        )
        for line in read_seed_records(Path(folder))
    ]
    surfaces = MinimalHarness().surfaces()
    sweeps.structure(runs, surfaces)
    sweeps.travel(runs, surfaces)
    sweeps.arm_reliability(runs)
    sweeps.arm_separation(runs)
    return {"seconds": time.perf_counter() - before, "runs": len(runs)}


MEASURED: dict[str, Callable[[str, Any], dict[str, float]]] = {
    "separation": separation,
    "reliability": reliability,
    "travel": travel,
    "command": command,
    "many": many,
    "whole": whole,
}


# -- the comparison --------------------------------------------------------------------------------------------------


def in_process_of_its_own(python: str, package: str, what: str, argument: Any) -> dict[str, float]:
    command = [python, __file__, "--measure", what, "--package", package, "--argument", str(argument)]
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **one_thread})
    value: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return value


def compare(peer: str, name: str, what: str, argument: Any, factor: float, rounds: int) -> bool:
    pairs = []
    for number in range(rounds):
        order = [("ours", sys.executable, "pytest_proteus"), ("peer", peer, "proteus")]
        turn = {}
        for side, python, package in order if number % 2 == 0 else reversed(order):
            turn[side] = in_process_of_its_own(python, package, what, argument)
        if turn["ours"].get("moved") != turn["peer"].get("moved"):
            raise RuntimeError(f"{name}: the two packages disagree: {turn}")
        pairs.append({side: found["seconds"] for side, found in turn.items()})
    ours, theirs = (statistics.median(pair[side] for pair in pairs) for side in ("ours", "peer"))
    found = statistics.median(pair["peer"] / pair["ours"] for pair in pairs)
    text = f"{ours * 1000:.1f} ms, peer {theirs:.2f} s: {found:.0f}x"
    return row(name, text, f">= {factor:g}x", found >= factor)


def sweep_in(folder: Path, runs: int, episodes: int) -> Path:
    """A sweep of the minimal harness with four arms."""
    from pytest_proteus.core import NEUTRAL, GoalConfig, SweepConfig, record, review
    from pytest_proteus.harnesses.minimal import MinimalHarness
    from pytest_proteus.sweep.serial import run_sweep

    arms = (NEUTRAL, review("notes"), review("tools"), record("notes"))
    out = folder / f"sweep-{runs}x{episodes}"
    if out.exists():
        return out
    goal = GoalConfig.of(text="Keep it tidy.")
    run_sweep(SweepConfig("bench", MinimalHarness, arms, runs // len(arms), goal, out, episodes=episodes))
    return out


def comparisons(peer: str, folder: Path, only: str, rounds: int) -> Iterator[bool]:
    for what, label, claims in (
        ("travel", "travel of {} runs x {} episodes", TRAVEL),
        ("command", "travel of {} x {} as a command", COMMAND),
    ):
        for (runs, episodes), factor in claims.items():
            name = label.format(runs, episodes)
            if only in name:
                yield compare(peer, name, what, sweep_in(folder, runs, episodes), factor, min(rounds, 2))
    for what, label, table in (
        ("separation", "R of {} runs, 10,000 relabelings", SEPARATION),
        ("reliability", "reliability of {} runs, 200 draws", RELIABILITY),
    ):
        for n, factor in table.items():
            name = label.format(n)
            if only in name:
                slow = what == "reliability" or n == 200
                yield compare(peer, name, what, n, factor, 1 if slow else rounds)


def alone(folder: Path, only: str) -> Iterator[bool]:
    name = f"distances of {STREAMS:,} streams"
    if only in name:
        found = in_process_of_its_own(sys.executable, "pytest_proteus", "many", STREAMS)
        seconds, size = found["seconds"], found["bytes"]
        text = f"{seconds:.2f} s, {size / 1e6:.0f} MB"
        held = seconds < STREAM_SECONDS and size < STREAM_BYTES
        yield row(name, text, f"< {STREAM_SECONDS} s, < {STREAM_BYTES / 1e6:.0f} MB", held)
    name = f"{RUNS:,} runs x {EPISODES} episodes, all statistics"
    if only in name:
        out = sweep_in(folder, RUNS, EPISODES)
        seconds = in_process_of_its_own(sys.executable, "pytest_proteus", "whole", out)["seconds"]
        yield row(name, f"{seconds:.1f} s", f"< {WHOLE_SECONDS} s", seconds < WHOLE_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of processes for each quick comparison")
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--peer", default="", help="Python of an environment that has the peer; made when not given")
    for name in ("measure", "package", "argument"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        argument = int(options.argument) if options.argument.isdigit() else options.argument
        print(json.dumps(MEASURED[options.measure](options.package, argument)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        peer = options.peer or peer_environment(Path(scratch) / "peer")
        print(f"{'what':<40} {'found':>34}   {'claim':<22}")
        held = list(comparisons(peer, Path(scratch), options.only, options.rounds))
        held += alone(Path(scratch), options.only)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
