"""Measurements by hand: a slot is a file that says which task the calls belong to that name none themselves.

There is one slot for everything and one for each agent. A slot is written at once or not at all, and holds the opaque
token under which a tap knows the task. Whoever opened it closes it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import task_hash
from pytest_proteus.core.records import write_json_atomic
from pytest_proteus.metering.store import NAME, Store
from pytest_proteus.metering.totals import RunUsage, usage_of

#: Folder of measurements by hand, below the one that one is in.
FOLDER = Path(".proteus", "metering")

#: How a measurement may end.
STATES = ("complete", "timeout", "abort")

_AGENT = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class Slot:
    """An open measurement.

    Args:
        task_id: its task.
        span: id of its span in the store.
        token: opaque name of its address, ``/t/<token>``.
        agent: whose calls it takes; empty for everybody's.
        model: the model that is meant; empty for whichever.
        opened_at: seconds since the epoch.
        task_hash: hash of its goal; empty without one.
        owner: ``operator``, or ``reconciler`` for one that follows a session.
    """

    task_id: str
    span: str
    token: str
    agent: str = ""
    model: str = ""
    opened_at: float = 0.0
    task_hash: str = ""
    owner: str = "operator"


def path_of(folder: Path, agent: str = "") -> Path:
    """Where the slot of an agent lies, or the one for everybody.

    Raises:
        ConfigurationError: no name of an agent.
    """
    if agent and not _AGENT.fullmatch(agent):
        raise ConfigurationError(f"{agent!r} is no name of an agent; write it in small letters, such as claude")
    return Path(folder) / f"active-measurement{'.' if agent else ''}{agent}.json"


def read(path: Path) -> Slot | None:
    """The slot in a file; None where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return Slot(**{key: value[key] for key in Slot.__dataclass_fields__ if key in value})
    return None


def open_slots(folder: Path) -> Iterator[Slot]:
    """Every open slot, the one for everybody first."""
    for path in sorted(
        Path(folder).glob("active-measurement*.json"), key=lambda path: (path.name.count("."), path.name)
    ):
        slot = read(path)
        if slot is not None:
            yield slot


def start(
    folder: Path, task_id: str, *, agent: str = "", model: str = "", goal: str = "", owner: str = "operator"
) -> Slot:
    """Open a measurement. A span of the same task that was left open is closed as ``abort``.

    Raises:
        ConfigurationError: the slot is taken.
    """
    path = path_of(folder, agent)
    taken = read(path)
    if taken is not None:
        raise ConfigurationError(
            f"{taken.task_id} is being measured already: end it with `proteus measurement stop"
            + (f" --agent {agent}`" if agent else "`")
        )
    folder.mkdir(parents=True, exist_ok=True)
    hashed = task_hash(goal) if goal else ""
    with contextlib.closing(Store(Path(folder) / NAME)) as store:
        store.abort_left_open(task_id)
        span = store.open_span(task_id, run_id=task_id, agent=agent, model=model, task_hash=hashed)
    slot = Slot(task_id, span, secrets.token_urlsafe(18), agent, model, time.time(), hashed, owner)
    write_json_atomic(path, asdict(slot))
    return slot


def stop(folder: Path, agent: str = "", state: str = "complete") -> tuple[Slot, RunUsage]:
    """Close a measurement; gives what it was, and what its task has used.

    Raises:
        ConfigurationError: none is open.
    """
    path = path_of(folder, agent)
    slot = read(path)
    if slot is None:
        raise ConfigurationError(f"nothing is being measured{f' for {agent}' if agent else ''} in {folder}")
    path.unlink()  # first: nothing more is let in
    with contextlib.closing(Store(Path(folder) / NAME)) as store:
        store.close_span(slot.span, state)
    return slot, usage_of(folder, [slot.task_id])[slot.task_id]
