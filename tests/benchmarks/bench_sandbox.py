"""Measures what a phase costs in a box: from the call that launches ``/bin/true`` to the death of the last process.

The rungs alternate; medians are reported, and beside them minima, because other work on the machine lengthens every
start of a process. Exits 1 when the claim of docs/benchmarks.md does not hold. Not collected by pytest;
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

from pytest_proteus.sandbox import Sandbox, choose, let_in, open_folders

BOX_SECONDS = 0.150

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
        print(f"{name:<6} a phase: min {low * 1e3:5.1f} ms, median {middle * 1e3:5.1f} ms, p95 {high * 1e3:5.1f} ms")
    held = statistics.median(found["bwrap"]) < BOX_SECONDS
    print(f"{'ok  ' if held else 'FAIL'} a phase in a box costs less than {BOX_SECONDS * 1e3:.0f} ms at the median")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
