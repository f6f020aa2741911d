"""Framework continuity: the one bounded note that goes from phase to phase and from episode to episode.

It lies beside the harness, never in it, so that it is no part of what is measured. What becomes of it is in the
private records, with the episode that counts: a run that was killed goes on with the note of its last complete episode.
The adapter runs the phases, each with a fresh context of the model; nothing is launched or judged here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.trees import read_regular, remove

if TYPE_CHECKING:
    from pytest_proteus.core.adapter import ActionEvent, EpisodeSpec

#: Longest note, in characters; of a longer one the end is kept.
HANDOFF_LIMIT = 12_000

#: Bytes of the agent's file that are looked at, and calls that stand for a phase whose agent wrote nothing.
_FILE_LIMIT, _CALLS = 1 << 20, 30

_NOBODY = "# Note\n\nNobody has left one yet.\n"

#: What looks like a secret → what is left of it. Each is found in time that grows with the text and no faster: an
#: agent writes it.
_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), "[removed]"),
    # words are none, such as skip_slow_tests, or functionality after basic
    (re.compile(r"\b((?i:bearer|basic))\s+(?=[\w.~+/=-]{1,40}[0-9A-Z=])[\w.~+/=-]{12,}"), r"\1 [removed]"),
    (
        re.compile(
            r"\b(?:(?:sk|pk|rk|xox[abp]|glpat)[-_]|(?:gh[pousr]|github_pat|hf)_|AKIA|ASIA|AIza)"
            r"(?=[\w-]{0,40}[0-9A-Z])[\w-]{12,}"
        ),
        "[removed]",
    ),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}"), "[removed]"),
    (
        re.compile(r"(?i)((?:api[_-]?key|token|secret|password|passwd)\s*[:=]\s*)[\"']?[^\s,;\"']{6,}"),
        r"\1[removed]",
    ),
    (re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"), "[removed]"),
)  # fmt: skip


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without what looks like a key, a token or a password, and without ``secrets``."""
    for secret in secrets:
        if len(secret) >= 6:
            text = text.replace(secret, "[removed]")
    for pattern, left in _SECRETS:
        text = pattern.sub(left, text)
    return text


def bounded_note(text: str) -> str:
    """The end of a note that is too long, with a line that says so."""
    text = text.strip()
    if len(text) > HANDOFF_LIMIT:
        text = f"[the beginning of this note is left out]\n\n{text[-HANDOFF_LIMIT + 50 :]}"
    return text + "\n" if text else ""


def activity(events: Sequence[ActionEvent], previous: str, *, interrupted: bool = False) -> str:
    """The note of a phase whose agent left none: what it did, and half of the note that it had found."""
    calls = [event for event in events if event.tool]
    lines = [_line(event) for event in calls[-_CALLS:]] or ["- nothing"]
    if len(calls) > _CALLS:
        lines.insert(0, f"- {len(calls) - _CALLS} calls before these")
    how = "was cut short" if interrupted else "left no note"
    before = previous.strip()[-HANDOFF_LIMIT // 2 :] or "nothing"
    return (
        f"# Note\n\nThe part before this one {how}; these are its calls.\n\n"
        + "\n".join(lines)
        + f"\n\n## The note before that\n\n{before}\n"
    )


def _line(event: ActionEvent) -> str:
    named = ("path", "file_path", "filePath", "absolute_path", "pattern", "query", "command", "cmd", "input")
    what = next((str(event.params[name]) for name in named if event.params.get(name)), "")
    place = f" [{event.surface}]" if event.surface else ""
    return f"- {event.tool}{place} {' '.join(what.split())[:300]}".rstrip()


def last_note(phases: Mapping[str, Any]) -> str:
    """The note that the last of an episode's phases left; empty when none did."""
    notes = [one.get("text") for one in phases.values() if isinstance(one, Mapping)]
    return next((text for text in reversed(notes) if isinstance(text, str) and text), "")


class Handoff:
    """The note of an episode: an adapter opens it before its first phase, and calls ``finish`` after each.

    Args:
        spec: the episode; the note goes to ``spec.handoff_path``, whose folder has to be writable for the agent.
        secrets: texts that no note may hold, such as the keys in the agent's environment.

    Attributes:
        phases: phase → ``source`` (``agent``, or ``calls`` for one that left none) and ``text``: what belongs in
            ``EpisodeResult.handoffs``.
    """

    def __init__(self, spec: EpisodeSpec, secrets: Iterable[str] = ()) -> None:
        self.path = spec.handoff_path
        self.phases: dict[str, dict[str, str]] = {}
        self._secrets = tuple(secrets)
        self._given = self._clean(spec.handoff) or _NOBODY
        self._previous = self._clean(spec.handoff)
        self._write()

    def finish(self, phase: str, events: Sequence[ActionEvent], *, interrupted: bool = False) -> str:
        """Take the note that a phase left, no process of which is alive, and put it there for the next one.

        Args:
            phase: its name.
            events: its actions, which take the place of a note that it did not write.
            interrupted: whether the phase was cut short.

        Returns:
            The note: bounded, and without what looks like a secret.
        """
        text = self._clean((self._read() or b"").decode("utf-8", "replace"))
        source = "agent" if text and text != self._given else "calls"
        if source == "calls":
            text = self._clean(activity(events, self._previous, interrupted=interrupted))
        self.phases[phase] = {"source": source, "text": text}
        self._given = self._previous = text
        self._write()
        return text

    def _clean(self, text: str) -> str:
        return bounded_note(redacted(text, self._secrets))

    def _read(self) -> bytes | None:
        folder = self.path.parent
        return None if folder.is_symlink() else read_regular(self.path, _FILE_LIMIT)

    def _write(self) -> None:
        remove(self.path.parent)  # whatever its modes and its content are
        self.path.parent.mkdir(parents=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(self._given)


def handoff_path(root: Path) -> Path:
    """Where the note of the run with the live root ``root`` lies."""
    return Path(root) / "handoff" / "note.md"
