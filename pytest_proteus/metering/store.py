"""The usage store: SQLite with one row a request and one a span, written by many processes at once.

A row is there before its request is passed on, and has the reply's counts before the reply's last byte is handed over,
so that a kill at any instant loses no answer that somebody has seen. Keys, prompts and answers are never written.
Reading is ``totals``'s business.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import RecordError, StorageError
from pytest_proteus.metering.usage import KINDS, Usage

#: Name of the store in a sweep's folder.
NAME = "usage.db"

#: Seconds to wait for other writers, and changes that are committed together.
BUSY_SECONDS, BATCH = 30.0, 256

#: Changes after which the thread of the store looks whether the log of writes is to be folded into the file.
_CHECKPOINT = 500

#: Rows of requests that one store keeps. Beyond, those of the oldest ended spans are folded into their sums.
MOST_ROWS = 2_000_000

#: Seconds between calls that go out one by one after an upstream had to be left alone.
PACE_SECONDS = 0.05

#: What each version adds to the one before; the store's own version is their number.
_VERSIONS = (
    """
    CREATE TABLE spans (
        id TEXT PRIMARY KEY,
        task_id TEXT NOT NULL,
        run_id TEXT,
        episode INTEGER,
        agent TEXT,
        model TEXT,
        bound INTEGER NOT NULL,      -- 0: its calls cannot come by here
        execution_mode TEXT,         -- serial, or parallel where another run went on meanwhile
        opened REAL NOT NULL,        -- seconds since the epoch
        closed REAL,
        state TEXT NOT NULL,         -- open, complete, timeout, abort or errored
        log TEXT,                    -- JSON: kind -> tokens by the agent's own log
        task_hash TEXT,              -- of its goal
        note TEXT
    );
    CREATE INDEX spans_of_run ON spans (run_id);
    CREATE TABLE token_usage (
        id TEXT PRIMARY KEY,
        span TEXT,
        task_id TEXT,
        source TEXT NOT NULL,        -- wire or log
        provider TEXT NOT NULL,      -- protocol
        request_id TEXT NOT NULL,    -- the provider's, or our own where it gives none
        message_id TEXT,
        model TEXT,
        process TEXT,
        began REAL NOT NULL,
        first_byte REAL,
        ended REAL,
        status INTEGER,
        state TEXT NOT NULL,         -- open, complete, cut, failed or refused
        input INTEGER, output INTEGER, cache_read INTEGER, cache_write INTEGER, reasoning INTEGER,
        tools TEXT,                  -- JSON: names of the tools that the model called
        sizes TEXT,                  -- JSON: bytes of the parts of the request
        note TEXT,
        UNIQUE (provider, request_id)
    );
    CREATE INDEX usage_of_span ON token_usage (span);
    CREATE INDEX usage_of_task ON token_usage (task_id, began);
    CREATE INDEX usage_in_time ON token_usage (began);
    CREATE TABLE folded (
        span TEXT, model TEXT,
        requests INTEGER NOT NULL, answered INTEGER NOT NULL, untold INTEGER NOT NULL, cut INTEGER NOT NULL,
        input INTEGER, output INTEGER, cache_read INTEGER, cache_write INTEGER, reasoning INTEGER
    );
    CREATE INDEX folded_of_span ON folded (span);
    """,
    """
    CREATE TABLE pace (
        upstream TEXT PRIMARY KEY,
        until REAL NOT NULL          -- seconds since the epoch at which the next call may go out
    );
    """,
)
VERSION = len(_VERSIONS)

_COLUMNS = ", ".join(KINDS)


class Store:
    """A store, open for writing; one connection in a thread of its own, so that nobody waits for the disk but there.

    Args:
        path: the file; made if it is not there.

    Raises:
        StorageError: it cannot be written.
        RecordError: it is no such store, or of a later version.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._orders: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], Future[Any]] | None]
        self._orders = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._direct: sqlite3.Connection | None = None  # of the thread that calls ``now``
        self._changes = 0  # that were made by it
        self._thread = threading.Thread(target=self._work, name="usage-store", daemon=True)
        self._thread.start()
        self._opened.result()

    def close(self) -> None:
        """Write what has been asked for, and let the file go."""
        if self._direct is not None:
            self._direct.close()
        self._orders.put(None)
        self._thread.join()

    def now(self, change: Callable[[sqlite3.Connection], Any]) -> Future[Any]:
        """As ``submit``, but made at once by the caller itself where no other writer is in the way: no thread has to
        wake up for it. To be called from one thread alone."""
        done: Future[Any] = Future()
        try:
            if self._direct is None:
                self._direct = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
                self._direct.execute("PRAGMA synchronous = NORMAL")
                self._direct.execute("PRAGMA wal_autocheckpoint = 0")  # that waits for the disk
            with _transaction(self._direct):
                result = change(self._direct)
        except sqlite3.Error:
            return self.submit(change)
        done.set_result(None if isinstance(result, sqlite3.Cursor) else result)
        self._changes += 1
        if self._changes % _CHECKPOINT == 0:
            self._orders.put((_checkpoint, Future()))
        return done

    def submit(self, change: Callable[[sqlite3.Connection], Any]) -> Future[Any]:
        """Have a change made and committed; it must be harmless when it is made twice. May be called from anywhere.

        Returns:
            What the change gives, once it is committed; raises ``StorageError`` where it could not be.
        """
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # from here on nobody can cancel it, only stop to wait for it
        self._orders.put((change, done))
        return done

    # ------------------------------------------------------------------------------------------------------- spans

    def open_span(
        self,
        task_id: str,
        *,
        run_id: str = "",
        episode: int = 0,
        agent: str = "",
        model: str = "",
        bound: bool = True,
        note: str = "",
        task_hash: str = "",
    ) -> str:
        """Open a span: the calls of a task from here on. Gives its id."""
        ident = uuid.uuid4().hex
        row = (ident, task_id, run_id or None, episode or None, agent, model, int(bound), time.time(), note or None)
        goal = task_hash or None

        def change(connection: sqlite3.Connection) -> None:
            others = "UPDATE spans SET execution_mode = 'parallel' WHERE state = 'open' AND task_id != ?"
            mode = "parallel" if connection.execute(others, (task_id,)).rowcount else "serial"
            connection.execute(
                "INSERT OR IGNORE INTO spans (id, task_id, run_id, episode, agent, model, bound, opened, note, state,"
                " execution_mode, task_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?)",
                (*row, mode, goal),
            )

        self.submit(change).result()
        return ident

    def close_span(self, ident: str, state: str, log: Mapping[str, int] | None = None) -> None:
        """Close a span.

        Args:
            ident: its id.
            state: how its agent ended.
            log: kind → tokens by the agent's own log; None where it tells none.
        """
        told = None if log is None else json.dumps({kind: log[kind] for kind in KINDS if kind in log})
        now = time.time()
        self.submit(
            lambda connection: connection.execute(
                "UPDATE spans SET closed = ?, state = ?, log = ? WHERE id = ? AND state = 'open'",
                (now, state, told, ident),
            )
        ).result()

    def abort_left_open(self, run_id: str) -> None:
        """Close the spans of a run that a killed process left open."""
        now = time.time()

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE spans SET state = 'abort', closed = ? WHERE run_id = ? AND state = 'open'", (now, run_id)
            )

        self.submit(change).result()

    # ---------------------------------------------------------------------------------------------------- requests

    def begin(self, row: Mapping[str, Any], *, at_once: bool = False) -> Future[Any]:
        """Note a request that is about to be passed on: ``id``, ``span``, ``task_id``, ``provider``, ``model``,
        ``began``, ``upstream``, and ``process`` where it is known; ``at_once`` as of ``now``.

        Returns:
            When it may go out, in seconds since the epoch: not before that where its upstream had to be left alone.
        """
        given = {"process": None, "pace": PACE_SECONDS, **row}

        def change(connection: sqlite3.Connection) -> float:
            connection.execute(
                "INSERT OR IGNORE INTO token_usage (id, span, task_id, source, provider, request_id, model, process,"
                " began, state)"
                " VALUES (:id, :span, :task_id, 'wire', :provider, :id, :model, :process, :began, 'open')",
                given,
            )
            found = connection.execute("SELECT until FROM pace WHERE upstream = :upstream", given).fetchone()
            if found is None or found[0] <= given["began"]:
                return 0.0
            connection.execute("UPDATE pace SET until = until + :pace WHERE upstream = :upstream", given)
            return float(found[0])

        return (self.now if at_once else self.submit)(change)

    def leave_alone(self, upstream: str, until: float) -> Future[Any]:
        """Have no call go out to an upstream before ``until``, in seconds since the epoch, whoever makes it."""
        return self.submit(
            lambda connection: connection.execute(
                "INSERT INTO pace (upstream, until) VALUES (?, ?) ON CONFLICT (upstream) DO UPDATE SET"
                " until = max(until, excluded.until)",
                (upstream, until),
            )
        )

    def settle(self, ident: str, usage: Usage, told: Mapping[str, Any], *, at_once: bool = False) -> Future[Any]:
        """Note what became of a request; may be told again, the last time counts.

        Args:
            ident: id of the row.
            usage: what the reply said.
            told: ``request_id`` (the provider's; empty for none), ``status``, ``state``, ``first_byte``, ``ended`` and
                ``note``.
            at_once: as of ``now``; the row must have begun by then.
        """
        values = {
            **usage.counts(),
            **told,
            "id": ident,
            "model": usage.model or None,
            "message_id": usage.message_id or None,
            "tools": json.dumps(usage.tools) if usage.tools else None,
            "note": told.get("note") or None,
        }

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE token_usage SET input = :input, output = :output, cache_read = :cache_read,"
                " cache_write = :cache_write, reasoning = :reasoning, model = coalesce(:model, model),"
                " message_id = :message_id, status = :status, state = :state, first_byte = :first_byte,"
                " ended = :ended, tools = :tools, note = :note WHERE id = :id",
                values,
            )
            if told.get("request_id"):
                # a server that gives every reply one id has still been asked so many times: such rows keep their own
                connection.execute("UPDATE OR IGNORE token_usage SET request_id = :request_id WHERE id = :id", values)

        return (self.now if at_once else self.submit)(change)

    def note_sizes(self, ident: str, sizes: Mapping[str, int]) -> Future[Any]:
        """Note what a request was made of: part → bytes."""
        text = json.dumps(sizes)
        return self.submit(
            lambda connection: connection.execute("UPDATE token_usage SET sizes = ? WHERE id = ?", (text, ident))
        )

    def add_logged(self, rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Take over what an agent's log tells of replies: counts of those that are on record without them, by the id of
        the request or of the message, and those that are not on record at all. What is known stays as it is.

        Returns:
            How many were filled in, and how many added.
        """
        same = "provider = :provider AND (request_id = :request_id OR message_id = :message_id)"
        filling = ", ".join(f"{kind} = coalesce({kind}, :{kind})" for kind in KINDS)
        marks = ", ".join(f":{kind}" for kind in KINDS)

        def change(connection: sqlite3.Connection) -> tuple[int, int]:
            filled = added = 0
            for row in rows:
                gap = f"UPDATE token_usage SET {filling}, note = 'counts from the log' WHERE {same}"
                done = connection.execute(f"{gap} AND (input IS NULL OR output IS NULL)", row).rowcount
                filled += done
                if done or connection.execute(f"SELECT 1 FROM token_usage WHERE {same}", row).fetchone():
                    continue
                added += connection.execute(
                    "INSERT OR IGNORE INTO token_usage (id, span, task_id, source, provider, request_id, message_id,"
                    f" model, began, ended, status, state, {_COLUMNS}) VALUES (:id, :span, :task_id, 'log', :provider,"
                    f" :request_id, :message_id, :model, :began, :began, 200, 'complete', {marks})",
                    row,
                ).rowcount
            return filled, added

        found: tuple[int, int] = self.submit(change).result()
        return found

    # --------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        rows = 0
        with contextlib.closing(connection):
            for orders in self._batches():
                self._carry_out(connection, orders)
                rows += len(orders)
                if rows > MOST_ROWS // 100:
                    rows = 0
                    with contextlib.suppress(sqlite3.Error):
                        fold(connection, MOST_ROWS)
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _batches(self) -> Iterator[list[tuple[Callable[[sqlite3.Connection], Any], Future[Any]]]]:
        while True:
            order = self._orders.get()
            batch = []
            while order is not None:
                batch.append(order)
                if len(batch) >= BATCH or self._orders.empty():
                    break
                order = self._orders.get()
            if batch:
                yield batch
            if order is None:
                return

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                # a commit outlives the process without waiting for the disk; a power cut may take the last ones
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA journal_mode = WAL")
                _migrate(connection, self.path)
            except BaseException:
                connection.close()
                raise
        except sqlite3.DatabaseError as error:
            raise _cannot(self.path, error) from error
        return connection

    def _carry_out(
        self, connection: sqlite3.Connection, orders: Sequence[tuple[Callable[[sqlite3.Connection], Any], Future[Any]]]
    ) -> None:
        """Make the changes and commit them; where that fails, one by one, so that one costs no other."""
        if any(change is _checkpoint for change, _ in orders):
            _checkpoint(connection)
            orders = [order for order in orders if order[0] is not _checkpoint]
        try:
            with _transaction(connection):
                results = [change(connection) for change, _ in orders]
        except Exception as error:
            if len(orders) == 1:
                orders[0][1].set_exception(_cannot(self.path, error) if isinstance(error, sqlite3.Error) else error)
            else:
                for order in orders:
                    self._carry_out(connection, [order])
            return
        for (_, done), result in zip(orders, results, strict=True):
            done.set_result(None if isinstance(result, sqlite3.Cursor) else result)


def _checkpoint(connection: sqlite3.Connection) -> None:
    """An order that is carried out outside of a transaction: fold the log of writes into the file."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _cannot(path: Path, error: Exception) -> StorageError | RecordError:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return RecordError(f"{path} is damaged, or no usage store ({error}); move it away, or restore it from a backup")
    return StorageError(f"the usage store {path} cannot be written: {error}")


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a store.

    Raises:
        RecordError: a later one than this package knows.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise RecordError(
            f"{path} was written by a later pytest-proteus (its version is {version}, this one knows {VERSION}): "
            f"use that one"
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a store to the present version; of several processes at it, one does it."""
    if check_version(connection, path) == VERSION:
        return
    with _transaction(connection):
        for number in range(check_version(connection, path), VERSION):
            for statement in _VERSIONS[number].split(";\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def fold(connection: sqlite3.Connection, most: int) -> int:
    """Keep no more than ``most`` rows of requests: those of the oldest ended spans become sums. Gives how many went."""
    rows = connection.execute("SELECT count(*) FROM token_usage").fetchone()[0]
    gone = 0
    with _transaction(connection):
        ended = connection.execute("SELECT id FROM spans WHERE state != 'open' ORDER BY opened").fetchall()
        for (span,) in ended:
            if rows - gone <= most:
                break
            sums = ", ".join(f"sum({kind})" for kind in KINDS)
            connection.execute(
                f"INSERT INTO folded (span, model, requests, answered, untold, cut, {_COLUMNS}) "
                f"SELECT span, model, count(*), sum(status < 300 AND state = 'complete'), "
                f"sum(status < 300 AND state = 'complete' AND (input IS NULL OR output IS NULL)), "
                f"sum(state IN ('cut', 'open')), {sums} FROM token_usage WHERE span = ? GROUP BY span, model",
                (span,),
            )
            gone += connection.execute("DELETE FROM token_usage WHERE span = ?", (span,)).rowcount
    return gone
