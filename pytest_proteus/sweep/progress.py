"""Live progress of a sweep: one line every few seconds, from the files that the runs write anyway."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_proteus.core.errors import RecordError
from pytest_proteus.core.ledger import RUNNING, read_cell
from pytest_proteus.metering.totals import so_far

#: Seconds before the first line and between two lines.
INTERVAL = 5.0


@dataclass(frozen=True)
class Watched:
    """A sweep whose progress is shown: its name, folder, run ids, episodes a run, and the hash of what is measured."""

    name: str
    out: Path
    run_ids: Sequence[str]
    episodes: int
    measurement: str = ""


def line(watched: Watched, now: float, began: float) -> str:
    """One line that says how far a sweep is."""
    done = running = 0
    for run_id in watched.run_ids:
        try:
            record = read_cell(watched.out, run_id)
        except RecordError:
            continue
        if record is not None and record.state == RUNNING:
            running += 1
        elif record is not None:
            done += 1
    episodes = sum(_lines(watched.out / "progress" / f"{run_id}.jsonl") for run_id in watched.run_ids)
    total = len(watched.run_ids) * watched.episodes
    used = so_far(watched.out)
    told = f"{used[1]:,} tokens in {used[0]:,} calls, " if used else ""
    return (
        f"proteus: {watched.name}: {done}/{len(watched.run_ids)} cells done, {running} running, "
        f"{min(episodes, total)}/{total} episodes, {told}{now - began:.0f} s"
    )


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


class Progress:
    """Writes progress lines, from a thread of its own or from calls of ``tick``.

    Args:
        write: takes one line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self.watched: list[Watched] = []
        self._write = write
        self._began = time.monotonic()
        self._last = self._began
        self._shown: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def tick(self) -> None:
        """Write a line for each sweep that has moved, if the last time is long enough ago."""
        now = time.monotonic()
        if now - self._last < INTERVAL:
            return
        self._last = now
        for watched in self.watched:
            text = line(watched, now, self._began)
            moved = text.rpartition(",")[0]
            if self._shown.get(watched.name) != moved:
                self._shown[watched.name] = moved
                self._write(text)

    def start(self) -> None:
        """Tick from a thread until ``stop``."""

        def loop() -> None:
            while not self._stop.wait(0.5):
                self.tick()

        if self._thread is None:
            self._thread = threading.Thread(target=loop, name="proteus-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
            self._thread = None
