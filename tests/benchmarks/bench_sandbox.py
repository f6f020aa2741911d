"""Measures what a phase costs in a box: from the call that launches ``/bin/true`` to the death of the last process; and
what the driver of agents adds without a box, with an agent that does nothing but answer; and what a look at the folder
where pytest runs takes.

The rungs alternate; medians are reported, and beside them minima, because other work on the machine lengthens every
start of a process. Exits 1 when a claim of docs/benchmarks.md does not hold. Not collected by pytest;
`tox -e bench` runs it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pytest_proteus.core.adapter import PHASES, EpisodeSpec
from pytest_proteus.harnesses.agent import Agent, AgentHarness, first_files, usual_surfaces
from pytest_proteus.harnesses.install import FoundAgent
from pytest_proteus.harnesses.llm import read_session
from pytest_proteus.sandbox import Sandbox, choose, let_in, open_folders
from pytest_proteus.sandbox.guard import Guard

BOX_SECONDS, DRIVER_SECONDS, GUARD_SECONDS = 0.150, 0.100, 0.100

#: Files that the tripwire of the rung ``none`` looks at.
WATCHED = 5000

ANSWER = '{"type": "answer", "text": "Done.", "calls": [], "stop": "stop", "tokens": null}'


class Answers(AgentHarness):
    """An agent that does nothing but answer."""

    agent = Agent(
        name="answers",
        wires=("anthropic",),
        surfaces=usual_surfaces("AGENTS.md", "skills", "write"),
        tools={},
        seed=first_files("AGENTS.md", "skills"),
        argv=lambda _: ("-c", f"echo '{ANSWER}'"),
        environment=lambda _: {},
        files=lambda _: {},
        read=read_session,
    )

    def _program(self) -> FoundAgent:
        return FoundAgent(("/bin/sh",), "", "given")


#: Files in the tree that the phase is given, and phases that are not measured.
FILES, WARM = 100, 3


def one(sandbox: Sandbox, folder: Path) -> float:
    began = time.perf_counter()
    outcome = sandbox.launch(
        ["/bin/true"],
        env={"PATH": "/usr/bin:/bin"},
        cwd=folder / "harness",
        writable=[folder / "harness", folder / "state"],
        endpoint="http://127.0.0.1:1",
    )
    seconds = time.perf_counter() - began
    assert outcome.returncode == 0, outcome
    return seconds


def look(guard: Guard) -> float:
    began = time.perf_counter()
    changes = guard.changes()
    seconds = time.perf_counter() - began
    assert changes == []
    return seconds


def driver(folder: Path) -> float:
    """Seconds of a phase, as the fourth part of an episode of four."""
    adapter = Answers({"anthropic": "http://127.0.0.1:1"}, sandbox=choose("none"))
    spec = EpisodeSpec(folder, 1, "model", dict.fromkeys(PHASES, "Answer."))
    began = time.perf_counter()
    result = adapter.run_episode(spec)
    seconds = time.perf_counter() - began
    assert result.ok, result
    return seconds / len(PHASES)


def measure(phases: int) -> dict[str, list[float]]:
    folder = let_in(Path(tempfile.mkdtemp(prefix="bench-", dir=open_folders()[0])))
    try:
        (folder / "state").mkdir()
        (folder / "harness").mkdir()
        for number in range(FILES):
            (folder / "harness" / f"{number}.md").write_text("# Note\n")
        rungs = {name: choose(name) for name in ("none", "bwrap")}
        seconds: dict[str, list[float]] = {name: [] for name in rungs}
        for _ in range(WARM + phases):
            for name, sandbox in rungs.items():
                seconds[name].append(one(sandbox, folder))
        (folder / "watched").mkdir()
        for number in range(WATCHED):
            (folder / "watched" / str(number)).touch()
        guard = Guard([folder / "watched"])
        seconds["guard"] = [look(guard) for _ in range(WARM + phases)]
        seconds["driver"] = [driver(folder) for _ in range(WARM + phases // len(PHASES))]
        return {name: found[WARM:] for name, found in seconds.items()}
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phases", type=int, default=60, help="phases of each rung (default: 60)")
    phases = parser.parse_args().phases
    missing = choose("bwrap").preflight()
    if missing:
        print(f"not measured: {missing}")
        return 0
    found = measure(phases)
    for name, seconds in found.items():
        low, middle, high = min(seconds), statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
        print(f"{name:<6} min {low * 1e3:5.1f} ms, median {middle * 1e3:5.1f} ms, p95 {high * 1e3:5.1f} ms")
    claims = (
        ("a phase in a box costs", statistics.median(found["bwrap"]), BOX_SECONDS),
        ("the driver of agents adds to a phase without a box", statistics.median(found["driver"]), DRIVER_SECONDS),
        (f"a look at {WATCHED:,} files takes", statistics.median(found["guard"]), GUARD_SECONDS),
    )
    for what, seconds, most in claims:
        print(f"{'ok  ' if seconds < most else 'FAIL'} {what} less than {most * 1e3:.0f} ms at the median")
    return 0 if all(seconds < most for _, seconds, most in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
