"""Once-only execution: a cell is run by whichever process gets to it first, and every process sees how it ended.

A cell's file lock is held only while somebody runs it. The operating system frees it when that process dies, so a lock
that is free beside a file that says ``running`` means that its owner is gone: in this session the cell is lost, from an
earlier session it is continued.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_proteus.core.errors import RecordError, StorageError
from pytest_proteus.core.ledger import RUNNING, CellRecord, cell_path, read_cell
from pytest_proteus.core.records import add_counters, read_records, write_json_atomic
from pytest_proteus.sweep.asking import Variants
from pytest_proteus.sweep.execute import run_cell, score_cell
from pytest_proteus.sweep.folder import SessionFolder
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan
from pytest_proteus.sweep.probing import run_probe

#: Seconds between two looks at a cell that another process is running.
POLL = 0.05

#: Ends of a cell that another session continues without being asked: nothing failed, it was only cut short.
CONTINUED = ("abort", "not_run")


#: Class of an error of the disk rather than of the run.
STORAGE = "storage"


def _ended(out: Path, record: CellRecord, state: str, error_class: str, kind: str | None, message: str) -> CellRecord:
    """The end of a cell whose run did not tell one: its artifacts say how far it came."""
    with contextlib.suppress(OSError, RecordError):
        complete = read_records(out / "runs" / record.run_id)
        record.episodes_complete, record.counters = len(complete), {}
        for episode in complete:
            add_counters(record.counters, episode["counters"])
    record.state = state
    record.error = {"class": error_class, "type": kind, "message": message, "retryable": True}
    return record


def _lost(out: Path, record: CellRecord) -> CellRecord:
    told = "the process that ran this cell died; --proteus-retry=lost runs it again"
    return _ended(out, record, "lost", "lost", None, told)


def settle_lost(out: Path, session: str) -> None:
    """At the end of ``session``, write down as ``lost`` every cell that it began and that nobody is running any more.

    Its process died and no other test asked for the cell after that.
    """
    for path in sorted((out / "cells").glob("*.json")):
        with _try_lock(path.with_suffix(".lock")) as mine:
            record = read_cell(out, path.stem)
            if mine and record is not None and record.state == RUNNING and record.session == session:
                record.settled_by = session
                write_json_atomic(path, _lost(out, record).to_json())


class Stopped(Exception):
    """The session was asked to stop before this cell was begun."""


class CellStore:
    """The cells of one sweep, for one process of a session.

    Args:
        plan: the sweep.
        out: its folder.
        folder: the session.
        retry: states of ended cells that are run again, once a session.
        no_run: begin nothing.
        tick: called now and then while waiting, and between episodes.
        fewest: seeds after which further ones are begun only while ``enough`` says that they are needed; None: all are.
        enough: whether the cells of the first seeds, all of them at their end, decide every declared gate. It has to
            say the same in every process.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        folder: SessionFolder,
        *,
        retry: Sequence[str] = (),
        no_run: bool = False,
        tick: Callable[[], None] = lambda: None,
        fewest: int | None = None,
        enough: Callable[[Sequence[Cell]], bool] = lambda _: False,
    ) -> None:
        self.plan = plan
        self.out = out
        self.folder = folder
        self.retry = frozenset(retry)
        self.no_run = no_run
        self.tick = tick
        self.enough = enough
        self.spared: list[Cell] = []
        self._next_look = fewest
        self.begun_here: list[Cell] = []
        self._measurement = plan.measurement
        self._variants = Variants(folder.path)
        self._ended: dict[str, CellRecord] = {}

    # --- what callers ask for -----------------------------------------------------------------------------------------

    def demand(self, cells: Sequence[Cell]) -> list[CellRecord]:
        """How each of ``cells`` ended, in the order given; those that have not run yet are run, or waited for.

        Raises:
            Stopped: the session was asked to stop, and a cell has not been begun.
            OSError: the artifacts cannot be written.
        """
        wanted = set(cells)
        in_order = [cell for cell in self.plan.in_order() if cell in wanted]
        while not self.settle_free(in_order):
            self.tick()
            time.sleep(POLL)
        return [self._ended[self.plan.run_ids[cell]] for cell in cells]

    def settle_free(self, cells: Iterable[Cell]) -> bool:
        """Bring those of ``cells`` to their ends that nobody else is at, one by one; whether all are at theirs.

        Raises:
            Stopped, OSError: as ``demand``.
        """
        wanted = list(cells)
        return self._settle_before(wanted) and self._settle_each(wanted)

    def _settle_each(self, cells: Iterable[Cell]) -> bool:
        left = [cell for cell in cells if not (self._known(cell) or self._settle(cell))]
        return not left

    def _settle_before(self, wanted: Sequence[Cell]) -> bool:
        """Where further seeds may not be needed: settle those before the wanted ones, and look at them one by one.

        Once they decide every gate, the cells of further seeds are spared. Says whether there is nothing to wait for.
        """
        if self._next_look is None or self.spared:
            return True
        blocks: dict[int, list[Cell]] = {}
        for cell in self.plan.in_order():
            blocks.setdefault(cell.seed, []).append(cell)
        seeds, asked = list(blocks), {cell.seed for cell in wanted}
        last = max((number for number, seed in enumerate(seeds) if seed in asked), default=-1)
        for number in range(self._next_look, last + 1):
            before = [cell for seed in seeds[:number] for cell in blocks[seed]]
            if not self._settle_each(before):
                return False
            self._next_look = number + 1
            if self.enough(before):
                self.spared = [cell for seed in seeds[number:] for cell in blocks[seed]]
                said = f"every declared gate was decided after {number} of {len(seeds)} seeds"
                for cell in self.spared:
                    run_id = self.plan.run_ids[cell]
                    self._ended.setdefault(run_id, CellRecord(run_id, state="not_run", reason=said))
                break
        return True

    def standing(self, cell: Cell) -> CellRecord:
        """How a cell stands at this moment; nothing is begun."""
        record = read_cell(self.out, self.plan.run_ids[cell])
        return record or CellRecord(self.plan.run_ids[cell], state="not_run", episodes_planned=self.plan.episodes)

    def reusable(self, cell: Cell) -> bool:
        """Whether an earlier session brought the cell to an end that this one keeps."""
        record = read_cell(self.out, self.plan.run_ids[cell])
        return record is not None and record.settled_by != self.folder.session and self._keeps(record)

    # --- claiming -----------------------------------------------------------------------------------------------------

    def _known(self, cell: Cell) -> bool:
        return self.plan.run_ids[cell] in self._ended

    def _settle(self, cell: Cell) -> bool:
        """Bring a cell to its end if nobody else is at it; False when somebody is."""
        run_id = self.plan.run_ids[cell]
        record = read_cell(self.out, run_id)
        settled = record is not None and self._is_settled(record)
        if record is not None and settled and record.measured == self._measurement and self._is_probed(cell, record):
            self._ended[run_id] = record
            return True
        if self.no_run and not settled:
            self._ended[run_id] = CellRecord(run_id, state="not_run", episodes_planned=self.plan.episodes)
            return True
        with _try_lock(self.out / "cells" / f"{run_id}.lock") as mine:
            if not mine:
                return False
            record = read_cell(self.out, run_id)
            if record is None or not self._is_settled(record):
                if self.folder.stopped:
                    raise Stopped
                record = self._begin(cell, record)
            self._measure(cell, record)
            self._probe(cell, record)
            self._ended[run_id] = record
            return True

    def _measure(self, cell: Cell, record: CellRecord) -> None:
        """Score what a cell has no scores of: hidden evaluators came, or changed, after its episodes."""
        if record.measured != self._measurement:
            if not score_cell(self.plan, cell, self.out, should_stop=self._should_stop):
                raise Stopped
            record.measured = self._measurement
            self._save(record)

    def _is_probed(self, cell: Cell, record: CellRecord) -> bool:
        """Whether the cell's probe, where it has one, is at its end for this session."""
        if self.plan.probe_episode is None or record.state != "complete" or self.no_run:
            return True
        probe = record.probe or {}
        ended = probe.get("state") == "complete" or probe.get("session") == self.folder.session
        return ended and probe.get("run_id") == self.plan.probe_id(cell)

    def _probe(self, cell: Cell, record: CellRecord) -> None:
        if self._is_probed(cell, record):
            return
        if self.folder.stopped:
            raise Stopped
        found = run_probe(self.plan, cell, self.out, should_stop=self._should_stop)
        record.probe = {"run_id": self.plan.probe_id(cell), "session": self.folder.session, **found}
        self._save(record)

    def _is_settled(self, record: CellRecord) -> bool:
        if record.state == RUNNING:
            return False
        return record.settled_by == self.folder.session or self._keeps(record)

    def _keeps(self, record: CellRecord) -> bool:
        """Whether an end that an earlier session wrote stands."""
        if record.state in self.retry or record.state in CONTINUED or record.state == RUNNING:
            return False
        return record.state != "complete" or record.episodes_complete >= self.plan.episodes

    def _begin(self, cell: Cell, earlier: CellRecord | None) -> CellRecord:
        run_id = self.plan.run_ids[cell]
        record = earlier or CellRecord(run_id, started_at=time.time(), measured=self._measurement)
        if record.state == RUNNING and record.session == self.folder.session:
            return self._finish(_lost(self.out, record))
        if earlier is None or earlier.state in ("errored", "lost", "skipped"):
            record.attempts += 1
        record.state, record.error, record.reason, record.settled_by = RUNNING, None, "", ""
        record.session, record.episodes_planned = self.folder.session, self.plan.episodes
        self._save(record)
        self.begun_here.append(cell)
        try:
            record = run_cell(self.plan, cell, self.out, record, self._variants, should_stop=self._should_stop)
        except KeyboardInterrupt:
            self._finish(_ended(self.out, record, "abort", "abort", None, "interrupted"))
            raise
        except (StorageError, OSError) as error:
            record = _ended(self.out, record, "abort", STORAGE, None, str(error))
        except BaseException as error:  # SystemExit, and what test libraries raise, end a cell and not the session
            record = _ended(self.out, record, "errored", "apparatus", type(error).__name__, str(error))
        if record.error and record.error["class"] == STORAGE:
            record.state = "abort"  # once there is room the next session continues it
        return self._finish(record)

    def _finish(self, record: CellRecord) -> CellRecord:
        record.settled_by = self.folder.session
        self._save(record)
        return record

    def _save(self, record: CellRecord) -> None:
        write_json_atomic(cell_path(self.out, record.run_id), record.to_json())

    def _should_stop(self) -> bool:
        self.tick()
        return (self.folder.path / "interrupt").exists()


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
