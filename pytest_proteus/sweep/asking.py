"""Whether a variant's model answers: asked once a session and variant, and no more once too many runs in a row failed.

A variant is a harness with a model. What is known of it lies in the session's folder, for all its processes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pytest_proteus.core.ledger import CellRecord, read_json
from pytest_proteus.core.records import write_json_atomic
from pytest_proteus.sweep.grid import Cell

#: Runs of a variant in a row whose apparatus failed, retries included, after which its others are not begun.
MOST_FAILURES = 5


class Variants:
    """What a session knows of its variants.

    Args:
        folder: the session's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "variants"

    def silent(self, adapter: Any, cell: Cell) -> str:
        """Why no run of a cell's variant is to be begun, in one sentence; empty when one may be.

        Asks the adapter's ``silent(model)`` when no process of the session has yet.
        """
        ask = getattr(adapter, "silent", None)
        if ask is None:
            return ""
        with self._known(cell) as known:
            if "reason" not in known:
                known["reason"] = str(ask(cell.model or "") or "")
            return str(known["reason"])

    def ended(self, adapter: Any, cell: Cell, record: CellRecord) -> None:
        """Count a run's end: a failure of the apparatus, or one that breaks the row of them."""
        if not hasattr(adapter, "silent"):
            return
        failed = record.state == "errored" and bool(record.error) and (record.error or {}).get("class") == "apparatus"
        with self._known(cell) as known:
            known["failures"] = int(known.get("failures", 0)) + 1 if failed else 0
            if known["failures"] >= MOST_FAILURES:
                told = (record.error or {}).get("message") or "no reason was given"
                known["reason"] = f"{known['failures']} runs in a row failed, the last one with: {told}"

    def _known(self, cell: Cell) -> _Known:
        name = hashlib.sha256(json.dumps([cell.harness, cell.model]).encode()).hexdigest()[:16]
        return _Known(self._folder / f"{name}.json")


class _Known:
    """The file of a variant, under its lock; what is changed of its content is written."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock

        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path.with_suffix(".lock"), thread_local=False)

    def __enter__(self) -> dict[str, Any]:
        self._lock.acquire()
        self._content: dict[str, Any] = read_json(self._path) or {}
        self._before = dict(self._content)
        return self._content

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if self._content != self._before:
                write_json_atomic(self._path, self._content)
        finally:
            self._lock.release()
