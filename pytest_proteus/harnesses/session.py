"""What the readers of the agents' logs share: the form of what they find, and the records of a log by phase.

Every reader is a function of a log's text alone: nothing is run, looked up or followed. Unknown records are ignored
and counted; a line that is no JSON, such as the torn last one of a killed agent, too.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.traces import bounded, bounded_text

#: (phase, number of the line of the log it began with), ascending.
Phases: TypeAlias = Sequence[tuple[str, int]]

#: Path → name of the surface that it is on.
SurfaceOf: TypeAlias = Callable[[str], "str | None"]


@dataclass
class Session:
    """What a log says.

    Args:
        events: tool calls and texts, in order.
        turns: phase → answers of the model that it finished.
        tool_calls: number of calls.
        tokens: sums of what the agent noted of its tokens: ``input`` and ``output``, those from and to a cache apart as
            ``cache_read`` and ``cache_write``; a kind that it never noted is absent.
        model_errors: answers that ended in an error, those that a retry made good included, as far as the log has them.
        unknown_records, unreadable_lines: what could not be made use of.
        last_phase: phase of the last answer; empty when there is none.
        stop_reason: how the last answer ended: ``stop`` or ``length`` (well), ``limit`` (the agent's own limit of turns
            was reached), ``error`` (of the model or its endpoint), ``aborted`` (by a signal), ``denied`` (the agent was
            not allowed to do what it is here for), anything else for an end in the middle of its work.
        error_message: what the endpoint, or the refusal, said.
        status: HTTP status of an error; 0 when the log does not tell it.
        ident: the agent's own id of the session; empty when the log does not tell it.
    """

    events: list[ActionEvent] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    model_errors: int = 0
    unknown_records: int = 0
    unreadable_lines: int = 0
    last_phase: str = ""
    stop_reason: str = ""
    error_message: str = ""
    status: int = 0
    ident: str = ""

    @property
    def turn(self) -> int:
        """Answers of the model so far, over all phases."""
        return sum(self.turns.values())

    def finish_turn(self, phase: str) -> int:
        """Count an answer of the model; gives its number."""
        self.turns[phase] = self.turns.get(phase, 0) + 1
        return self.turn

    def end(self, phase: str, reason: str, message: str = "", status: int = 0) -> None:
        """Note how the last answer ended."""
        self.last_phase, self.stop_reason, self.error_message, self.status = phase, reason, message, status
        self.model_errors += reason == "error"

    def say(self, turn: int, phase: str, text: str, time: float | None) -> None:
        """Add what the model said, if it said anything."""
        if text:
            self.events.append(ActionEvent(turn, phase, text=bounded_text(text), timestamp=time))

    def add_tokens(self, usage: Any, names: Mapping[str, str]) -> None:
        """Add an object of counts; ``names``: the agent's name of a count → ours. What is no number is no count."""
        if isinstance(usage, dict):
            for theirs, ours in names.items():
                value = usage.get(theirs)
                if isinstance(value, int) and not isinstance(value, bool):
                    self.tokens[ours] = self.tokens.get(ours, 0) + value


@dataclass
class Call:
    """A tool call of a log, with what became of it.

    Args:
        turn, phase, tool, params, time: as in ``ActionEvent``, not yet bounded.
        path: the file that it touches; empty for none.
        output: what came of it.
        failed: whether it failed.
    """

    turn: int
    phase: str
    tool: str
    params: Mapping[str, Any]
    path: str
    time: float | None
    output: str = ""
    failed: bool = False

    def event(self, surface_of: SurfaceOf) -> ActionEvent:
        """The call as an event, bounded."""
        surface = surface_of(self.path) if self.path else None
        text = f"error: {self.output}" if self.failed else self.output
        params = bounded(dict(self.params))
        return ActionEvent(self.turn, self.phase, self.tool, surface, params, bounded_text(text), self.time)


@dataclass
class Transcript:
    """A session of a log that tells what came of a call later than the call itself."""

    session: Session = field(default_factory=Session)
    entries: list[ActionEvent | Call] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)

    def say(self, turn: int, phase: str, text: str, time: float | None) -> None:
        """Add what the model said, if it said anything."""
        if text:
            self.entries.append(ActionEvent(turn, phase, text=bounded_text(text), timestamp=time))

    def call(self, ident: str, call: Call) -> None:
        """Add a call of that id."""
        self.session.tool_calls += 1
        self.calls[ident] = call
        self.entries.append(call)

    def result(self, ident: str, output: str, failed: bool) -> None:
        """What came of a call; nothing where the log has no such call."""
        if ident in self.calls:
            self.calls[ident].output, self.calls[ident].failed = output, failed

    def close(self, surface_of: SurfaceOf) -> Session:
        """The session with its events."""
        events = (entry.event(surface_of) if isinstance(entry, Call) else entry for entry in self.entries)
        self.session.events = list(events)
        return self.session


def records(text: str, phases: Phases, session: Session) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a log, one a line, each with its phase; other lines are counted in ``session``."""
    starts = list(phases)
    phase = ""
    for number, line in enumerate(text.split("\n")):
        while starts and number >= starts[0][1]:
            phase = starts.pop(0)[0]
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield phase, record
        else:
            session.unreadable_lines += 1


def check_version(agent: str, version: Any, known: str) -> None:
    """Refuse a log of a version whose format is not known.

    Args:
        version: what the log says; None when it says nothing, which is refused as well.
        known: how the known versions begin, such as ``"1.18."``.

    Raises:
        ConfigurationError: another version.
    """
    if not str(version).startswith(known):
        raise ConfigurationError(
            f"{agent} {version or 'of no known version'} wrote this log, and only that of {known}x can be read; "
            f"install the version that is known with: proteus agents install {agent}"
        )


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; empty for what is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def string(value: Any) -> str:
    """The value if it is text, else an empty one."""
    return value if isinstance(value, str) else ""


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts of which those with a ``text`` count."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in objects(content) if isinstance(part.get("text"), str))


def from_milliseconds(value: Any) -> float | None:
    """Seconds since the epoch, from milliseconds; None for what is no number."""
    return value / 1000 if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def from_iso(value: Any) -> float | None:
    """Seconds since the epoch, from a time such as ``2026-11-30T12:50:59.407Z``; None for what is none."""
    try:
        return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
