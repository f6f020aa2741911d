"""Measures what docs/benchmarks.md claims, beside the peer package from the registry; exits 1 when a claim fails.

Each measurement is a fresh process that runs one run of E episodes with one of the two packages, in process, with the
package's own minimal harness and the same policy, and times whole episodes: from the start of one to the start of the
next, snapshot, record and durability included. The two alternate, and the medians of the pairs are reported. Not
collected by pytest; `tox -e bench` runs it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

PEER = "proteus-evolve==0.3.0"

LATE_OVER_EARLY = 1.2
STARTUP_SECONDS = 0.030


#: A tool of two kilobytes and a dozen definitions.
MODULE = '"""Tool {number}."""\n\nimport json\n\n' + "\n\n".join(
    f"def step_{name}(value, other=None):\n    if value is None:\n        return other\n"
    f"    text = json.dumps(value)\n    return text + str(other) if other else text\n"
    for name in "abcdefghijkl"
)


class Scenario(NamedTuple):
    """One comparison: the peer must take at least ``factor`` times as long an episode as this package."""

    name: str
    files: int
    measured: bool
    episodes: int
    factor: float = 0
    steady: bool = False


SCENARIOS = (
    Scenario("minimal harness", 0, False, 60, 6),
    Scenario("100 files", 100, False, 60, 8),
    Scenario("1,000 files", 1_000, False, 30, 20),
    Scenario("10,000 files", 10_000, False, 8, 20),
    Scenario("1,000 files, units and step", 1_000, True, 12, 80),
)


# -- the measured process ------------------------------------------------------------------------------------------


def policy(phase: str, prompt: str, episode: int, rng: Any) -> list[tuple[str, str | None, str]]:
    """One new note an episode and one revised, one tool every third: the same for both packages."""
    if phase == "observe":
        return [("read_state", None, "looked")]
    if phase == "act":
        tool = [("write_tool", "tools", f"tool_{episode}")] if episode % 3 == 0 else []
        return [("write_note", "notes", f"note_{episode}"), *tool]
    if phase == "reflect":
        return [("write_note", "notes", "index")]
    return []


def steady_policy(phase: str, prompt: str, episode: int, rng: Any) -> list[tuple[str, str | None, str]]:
    """Two of twenty notes written anew in each episode: the tree keeps its size, only the history grows."""
    return [("write_note", "notes", f"note_{episode % 20}")] if phase in ("act", "reflect") else []


class ProcessCount:
    """Counts the processes that this one starts, however it does so."""

    def __init__(self) -> None:
        self.started = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec"):
            self.started += 1


def measure(package: str, files: int, measured: bool, episodes: int, steady: bool = False) -> dict[str, Any]:
    """Seconds of each of ``episodes`` episodes, and how many processes they started."""
    core = importlib.import_module(f"{package}.core")
    episode = importlib.import_module(f"{package}.core.episode")
    room = "adapters" if package == "proteus" else "harnesses"
    minimal = importlib.import_module(f"{package}.{room}.minimal")
    starts: list[float] = []
    started: list[int] = []
    count = ProcessCount()

    class Timed(minimal.MinimalHarness):  # type: ignore[misc, name-defined]
        def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
            super().seed(harness_root, rng_seed)
            for number in range(files):
                surface = "tools" if number % 10 < 3 else "notes"
                folder = Path(harness_root) / surface / "library" / f"{number // 100:03d}"
                folder.mkdir(parents=True, exist_ok=True)
                if surface == "tools":
                    (folder / f"tool_{number:05d}.py").write_text(MODULE.format(number=number))
                else:
                    (folder / f"entry_{number:05d}.md").write_text(f"# Entry {number}\n\nA line of text.\n" * 4)

        def surfaces(self) -> Any:
            notes, tools = super().surfaces()
            return [notes, dataclasses.replace(tools, unit="top_level_def")] if files else [notes, tools]

        def run_episode(self, spec: Any) -> Any:
            starts.append(time.perf_counter())
            started.append(count.started)
            return super().run_episode(spec)

    adapter = Timed(policy=steady_policy if steady else policy)
    goal = core.GoalConfig.of(text="Keep it tidy.", evaluators=_evaluators(package, core, adapter) if measured else ())
    with tempfile.TemporaryDirectory() as folder:
        config = core.RunConfig(
            name="bench",
            adapter=adapter,
            disposition=core.NEUTRAL,
            goal=goal,
            root=Path(folder) / "run",
            model="mock",
            episodes=episodes + 1,
            progress_path=Path(folder) / "progress.jsonl",
        )
        result = episode.run(config)
    if result.episodes_complete != episodes + 1:
        raise RuntimeError(f"{package}: {result.episodes_complete} of {episodes + 1} episodes: {result.error}")
    return {
        "seconds": [later - earlier for earlier, later in itertools.pairwise(starts)],
        "processes": started[-1] - started[0],
    }


def _evaluators(package: str, core: Any, adapter: Any) -> tuple[Any, ...]:
    built_in = importlib.import_module(f"{package}.core.evaluators")
    surfaces = adapter.surfaces()
    found = {f"units:{surface.name}": built_in.surface_units(surface) for surface in surfaces}
    found["step"] = built_in.structural_step(surfaces)
    return tuple(core.EvaluatorSpec(name=name, run=run, kind="measurement") for name, run in found.items())


# -- the comparison --------------------------------------------------------------------------------------------------


def in_process_of_its_own(python: str, package: str, scenario: Scenario) -> dict[str, Any]:
    """``measure`` in a fresh process of the environment ``python``."""
    command = [python, __file__, "--measure", package, "--files", str(scenario.files)]
    command += ["--episodes", str(scenario.episodes), *(["--measured"] if scenario.measured else [])]
    command += ["--steady"] if scenario.steady else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def peer_environment(folder: Path) -> str:
    """The Python of an environment that has the peer and nothing else."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return python


def row(name: str, found: str, claim: str, holds: bool) -> bool:
    print(f"{name:<40} {found:>34}   {claim:<22} {'holds' if holds else 'DOES NOT HOLD'}", flush=True)
    return holds


def compare(peer: str, scenario: Scenario, rounds: int) -> bool:
    pairs = []
    for number in range(rounds):
        turn = {}
        order = [("ours", sys.executable, "pytest_proteus"), ("peer", peer, "proteus")]
        for side, python, package in order if number % 2 == 0 else reversed(order):
            turn[side] = statistics.fmean(in_process_of_its_own(python, package, scenario)["seconds"])
        pairs.append(turn)
    ours, theirs = (statistics.median(pair[side] for pair in pairs) * 1000 for side in ("ours", "peer"))
    factor = statistics.median(pair["peer"] / pair["ours"] for pair in pairs)
    found = f"{ours:.2f} ms, peer {theirs:.1f} ms: {factor:.1f}x"
    return row(scenario.name, found, f">= {scenario.factor:g}x", factor >= scenario.factor)


def late_and_early() -> bool:
    found = in_process_of_its_own(sys.executable, "pytest_proteus", Scenario("", 100, False, 1_000, steady=True))
    early, late = (statistics.median(found["seconds"][part]) for part in (slice(0, 50), slice(950, 1_000)))
    text = f"{early * 1000:.2f} ms, late {late * 1000:.2f} ms: {late / early:.2f}x"
    flat = row("episodes 951-1000 beside 1-50", text, f"<= {LATE_OVER_EARLY}x", late / early <= LATE_OVER_EARLY)
    processes = found["processes"]
    return row("processes started by 1,000 episodes", str(processes), "0", processes == 0) and flat


def startup(rounds: int) -> bool:
    """What a session without a sweep pays for the installed plugin: the fastest of each kind, run in turn."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_one.py").write_text("def test_one():\n    pass\n")
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        times: dict[str, list[float]] = {"with": [], "without": []}

        def session(*options: str) -> float:
            before = time.perf_counter()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
            subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - before

        session()
        session("-p", "no:proteus")
        for _ in range(rounds):
            times["with"].append(session())
            times["without"].append(session("-p", "no:proteus"))
    difference = min(times["with"]) - min(times["without"])
    text = f"{difference * 1000:+.0f} ms on {min(times['without']) * 1000:.0f} ms"
    return row("a pytest session without a sweep", text, "< 30 ms", difference < STARTUP_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of processes for each comparison")
    parser.add_argument("--only", default="", help="run the comparisons whose name contains this")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--files", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--measured", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steady", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        found = measure(options.measure, options.files, options.measured, options.episodes, options.steady)
        print(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        peer = peer_environment(Path(folder) / "peer")
        print(f"{'what':<40} {'found':>34}   {'claim':<22}")
        held = [compare(peer, one, options.rounds) for one in SCENARIOS if options.only in one.name]
    if not options.only:
        held += [late_and_early(), startup(5 * options.rounds)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
