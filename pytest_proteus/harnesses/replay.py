"""Recorded sessions of real agents as episodes: existing logs are measured, and nothing is run or spent.

The trace is all that there is: nothing is written into the harness tree, which stays empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, EpisodeSpec, Surface
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.trees import read_regular, remove
from pytest_proteus.harnesses.agent import Agent
from pytest_proteus.harnesses.registry import BUILTIN, load
from pytest_proteus.harnesses.session import Session, from_iso, from_milliseconds, mapping, records, string
from pytest_proteus.harnesses.traces import surface_finder

#: How a value of the harness axis begins that names a folder of recordings.
PREFIX = "replay:"

#: Phase of all that a recording without phases of its own has.
PHASE = "act"

_LIMIT = 1 << 28

#: Records at the beginning of a log that are looked at to tell whose it is.
_FIRST = 50

#: A record's type → the agent that writes such records first, whatever follows.
_FIRST_TYPES = {"session": "pi", "session_meta": "codex", "init": "gemini", "step_start": "opencode"}


@dataclass(frozen=True)
class _Recording:
    """One recorded session."""

    path: Path
    text: str
    began: float | None
    folder: str

    def phases(self) -> list[tuple[str, int]]:
        """Those that were noted when the framework recorded it itself; else one for all."""
        data = read_regular(self.path.with_name("phases.json"), 1 << 20)
        try:
            return [(str(phase), int(line)) for phase, line in json.loads(data or b"")]
        except (ValueError, TypeError):
            return [(PHASE, 0)]


class ReplayHarness:
    """The recordings in a folder, one file a session and one session an episode, in the order in which they began.

    Args:
        folder: where the logs lie, at any depth, as ``.jsonl`` files: session files of pi, codex and Claude Code, and
            what any of the agents printed as JSON records. All are of one agent. Folders that are named after seeds,
            ``0`` or ``s0``, hold the sessions of that seed; otherwise all seeds replay the same.

    Raises:
        ConfigurationError: no such folder, no log in it, one that is of no known agent, or logs of several agents.
    """

    continuity_mode = "none"
    disposition_in_files = False
    deterministic = True
    runs_code = False
    seeded = True

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self.name = f"replay-{self._folder.name}"
        if not self._folder.is_dir():
            raise ConfigurationError(f"harness {PREFIX}{folder}: there is no folder {self._folder}")
        paths = sorted(path for path in self._folder.rglob("*.jsonl") if path.is_file() and not path.is_symlink())
        kinds = {path: _agent_of(path) for path in paths}
        if not paths:
            raise ConfigurationError(f"harness {PREFIX}{folder}: no .jsonl file lies below {self._folder}")
        for path, kind in kinds.items():
            if not kind:
                raise ConfigurationError(f"harness {PREFIX}{folder}: {path} is no log of a known agent; move it away")
        if len(set(kinds.values())) > 1:
            raise ConfigurationError(
                f"harness {PREFIX}{folder}: the logs are of {' and '.join(sorted(set(kinds.values())))}; put each "
                f"agent's into a folder of its own"
            )
        self.recorded = kinds[paths[0]]
        self._in_order: dict[int, list[Path]] = {}
        #: Part of the condition: other recordings are another sweep.
        self.sessions_sha256 = hashlib.sha256(b"".join(_digest(path) for path in paths)).hexdigest()

    @property
    def _agent(self) -> Agent:
        return _agent(self.recorded)

    def surfaces(self) -> Sequence[Surface]:
        """Those of the agent whose sessions they are."""
        return self._agent.surfaces

    def required_edit_tools(self) -> frozenset[str]:
        """The agent's tools that write files."""
        return self._agent.edit_tools

    def normalized(self, events: Sequence[ActionEvent]) -> list[str]:
        """See ``AgentHarness.normalized``."""
        return self._agent.normalized(events)

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Nothing: what the recorded agent had is not known."""

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Nothing: what has been said has been said."""

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """Always the same."""
        return hashlib.sha256(b"").hexdigest()

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Take the session of that number.

        Returns:
            Counters as those of ``AgentHarness.run_episode``.
        """
        paths = self._paths(spec.seed)
        if spec.episode > len(paths):
            told = f"{len(paths)} recorded sessions lie in {self._folder}, and there is none for episode "
            return EpisodeResult(spec.episode, False, 0, f"{told}{spec.episode}", {}, "configuration")
        recording = _read(paths[spec.episode - 1])
        folder = spec.root / "traces" / f"ep{spec.episode:03d}"
        remove(folder)
        folder.mkdir(parents=True)
        (folder / "log.jsonl").write_text(recording.text, encoding="utf-8")
        (folder / "phases.json").write_text(json.dumps(recording.phases()), encoding="utf-8")
        session = self._session(recording)
        counters: dict[str, Any] = {f"phase_{phase}_turns": turns for phase, turns in session.turns.items()}
        counters |= {"tool_calls": session.tool_calls, "model_errors": session.model_errors}
        if session.tokens:
            counters["agent_log_tokens"] = dict(session.tokens)
        return EpisodeResult(spec.episode, True, session.turn, "", counters)

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """The events of an episode's session; empty when there is none."""
        path = Path(root) / "traces" / f"ep{episode:03d}" / "log.jsonl"
        return self._session(_read(path)).events if path.is_file() else []

    def _paths(self, seed: int) -> list[Path]:
        """The sessions of a seed, by the time at which they began, or by name where not all tell it. All of them are
        read for that, so it is done once."""
        if seed not in self._in_order:
            folders = (self._folder / name for name in (str(seed), f"s{seed}"))
            folder = next((own for own in folders if own.is_dir()), self._folder)
            paths = [path for path in sorted(folder.rglob("*.jsonl")) if not path.is_symlink()]
            began = {path: _read(path).began for path in paths}
            if None not in began.values():
                paths.sort(key=lambda path: began[path] or 0.0)
            self._in_order[seed] = paths
        return self._in_order[seed]

    def _session(self, recording: _Recording) -> Session:
        find = surface_finder(Path(recording.folder), self._agent.surfaces)
        return self._agent.read(recording.text, recording.phases(), find)


def _agent(name: str) -> Agent:
    factory = BUILTIN[name]
    kind: Any = load(factory) if isinstance(factory, str) else factory
    agent: Agent = kind.agent
    return agent


def _text(path: Path) -> str:
    return (read_regular(path, _LIMIT) or b"").decode("utf-8", "replace")


def _digest(path: Path) -> bytes:
    return hashlib.sha256(read_regular(path, _LIMIT) or b"").digest()


def _first_records(text: str) -> Iterator[Mapping[str, Any]]:
    for number, (_, record) in enumerate(records(text, (), Session())):
        if number == _FIRST:
            return
        yield record


def _agent_of(path: Path) -> str:
    """Whose log it is; empty when it is nobody's."""
    for record in _first_records((read_regular(path, 1 << 22) or b"").decode("utf-8", "replace")):
        kind = str(record.get("type"))
        if kind in _FIRST_TYPES:
            return _FIRST_TYPES[kind]
        if "claude_code_version" in record or ("sessionId" in record and "version" in record):
            return "claude"
        if "qwen_code_version" in record:
            return "qwen"
        if kind.startswith(("assistant.", "session.")) and isinstance(record.get("data"), dict):
            return "copilot"
    return ""


def _read(path: Path) -> _Recording:
    text = _text(path)
    began, folder = None, ""
    for record in _first_records(text):
        told = record.get("timestamp")
        began = began or (from_iso(told) if isinstance(told, str) else from_milliseconds(told))
        folder = folder or string(record.get("cwd") or mapping(record.get("payload")).get("cwd"))
    return _Recording(path, text, began, folder or "/nowhere")
