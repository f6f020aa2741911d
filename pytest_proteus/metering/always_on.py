"""Measurements that open and close by themselves: one for the live session of each agent that somebody works with.

Every few seconds the agents' own stores are looked at. The newest session of an agent that was written to lately has
the agent's slot, with the session's id for the task; when it is another one the slot follows, and when nothing was
written for a while it is cleared. Slots that an operator opened, and the one for everybody, are never touched. What an
agent's store holds is only looked at for names and times, and for opencode's ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering import slots

#: Whose slots these are.
OWNER = "reconciler"

#: Name of the settings in the folder of the slots.
NAME = "always-on.json"

_IDENT = re.compile(r"[\w.-]{1,120}")


@dataclass(frozen=True)
class Live:
    """A session of an agent: its id, and when it was last written to, in seconds since the epoch."""

    ident: str
    written: float


@dataclass(frozen=True)
class Settings:
    """What ``always-on.json`` says.

    Args:
        enabled: whether slots are bound at all; those of the reconciler are cleared where not.
        poll: seconds between two looks.
        freshness_ms: milliseconds after its last word that a session counts as live.
        agents: the agents that are looked for.
    """

    enabled: bool = True
    poll: float = 5.0
    freshness_ms: float = 120_000
    agents: tuple[str, ...] = ("claude", "opencode", "copilot", "codex", "pi")


def settings(folder: Path) -> Settings:
    """The settings that hold now.

    Raises:
        ConfigurationError: they are not in the form.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return Settings()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in fields(Settings)}
        given: dict[str, Any] = {key: tuple(item) if key == "agents" else item for key, item in value.items()}
        made = Settings(**{key: item for key, item in given.items() if key in known})
        right = isinstance(made.enabled, bool) and float(made.poll) > 0 and float(made.freshness_ms) > 0
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    unknown = [agent for agent in made.agents if agent not in FINDERS]
    if not right or unknown:
        told = f"no sessions of {unknown[0]!r} can be found" if unknown else "a setting has a wrong value"
        raise ConfigurationError(
            f'{path}: {told}; write {{"enabled": true, "poll": 5, "freshness_ms": 120000, "agents": ["claude"]}}'
        )
    return made


def tick(folder: Path, now: float | None = None, environment: Mapping[str, str] | None = None) -> list[str]:
    """Look once; gives a sentence for everything that changed.

    Args:
        folder: where the slots lie.
        now: seconds since the epoch.
        environment: where the agents' folders are looked up.

    Raises:
        ConfigurationError: the settings are not in the form.
    """
    now = time.time() if now is None else now
    environment = os.environ if environment is None else environment
    wanted = settings(folder)
    changed = []
    for agent, find in FINDERS.items():
        slot = slots.read(slots.path_of(folder, agent))
        if slot is not None and slot.owner != OWNER:
            continue  # somebody's own
        live = find(environment) if wanted.enabled and agent in wanted.agents else None
        if live is not None and now - live.written > wanted.freshness_ms / 1000:
            live = None
        if slot is not None and (live is None or live.ident != slot.task_id):
            slots.stop(folder, agent)
            changed.append(f"{agent}: {slot.task_id} is over")
            slot = None
        if live is not None and slot is None:
            slots.start(folder, live.ident, agent=agent, owner=OWNER)
            changed.append(f"{agent}: {live.ident} is being measured")
    return changed


def reset(folder: Path) -> list[str]:
    """Clear every slot of the reconciler; live sessions are bound anew at the next look. Gives the tasks."""
    mine = [slot for slot in slots.open_slots(folder) if slot.owner == OWNER]
    for slot in mine:
        slots.stop(folder, slot.agent, "abort")
    return [slot.task_id for slot in mine]


def is_on(folder: Path) -> bool:
    """Whether sessions are being bound here: then a call of an agent without a slot is nobody's, not everybody's."""
    if not (Path(folder) / NAME).exists():
        return any(slot.owner == OWNER for slot in slots.open_slots(folder))
    with contextlib.suppress(ConfigurationError):
        return settings(folder).enabled
    return False


# --------------------------------------------------------------------------------------------- the agents' own stores


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _newest(root: Path, pattern: str, ident: Callable[[Path], str]) -> Live | None:
    """The session whose file was written to last; a name that is none of a session is passed over."""
    best: Live | None = None
    for path in root.glob(pattern):
        with contextlib.suppress(OSError):
            written = path.lstat().st_mtime
            name = ident(path)
            if (best is None or written > best.written) and path.is_file() and _IDENT.fullmatch(name):
                best = Live(name, written)
    return best


def _claude(environment: Mapping[str, str]) -> Live | None:
    root = Path(environment.get("CLAUDE_CONFIG_DIR") or _home(environment) / ".claude")
    return _newest(root / "projects", "*/*.jsonl", lambda path: path.stem)


def _codex(environment: Mapping[str, str]) -> Live | None:
    root = Path(environment.get("CODEX_HOME") or _home(environment) / ".codex")
    return _newest(root / "sessions", "*/*/*/rollout-*.jsonl", lambda path: path.stem[-36:])


def _copilot(environment: Mapping[str, str]) -> Live | None:
    root = Path(environment.get("COPILOT_HOME") or _home(environment) / ".copilot")
    return _newest(root / "session-state", "*/events.jsonl", lambda path: path.parent.name)


def _pi(environment: Mapping[str, str]) -> Live | None:
    root = Path(environment.get("PI_CODING_AGENT_DIR") or _home(environment) / ".pi" / "agent")
    return _newest(root / "sessions", "*/*.jsonl", lambda path: path.stem.rpartition("_")[2])


def _opencode(environment: Mapping[str, str]) -> Live | None:
    data = Path(environment.get("XDG_DATA_HOME") or _home(environment) / ".local" / "share")
    path = data / "opencode" / "opencode.db"
    if not path.is_file():
        return None
    newest = "SELECT id, time_updated FROM session WHERE parent_id IS NULL ORDER BY time_updated DESC LIMIT 1"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as connection,
    ):
        row: Sequence[Any] | None = connection.execute(newest).fetchone()
        if row and isinstance(row[0], str) and _IDENT.fullmatch(row[0]) and isinstance(row[1], int):
            return Live(row[0], row[1] / 1000)
    return None


#: Agent → what finds its newest session.
FINDERS: Mapping[str, Callable[[Mapping[str, str]], Live | None]] = {
    "claude": _claude,
    "opencode": _opencode,
    "copilot": _copilot,
    "codex": _codex,
    "pi": _pi,
}
