"""An offline, in-process harness: a mock agent that writes notes and tools, deterministic from its seed.

It calls no model and starts no process. What it does in an episode follows from the run's seed, the number of the
episode and the prompts alone, so that a resumed run ends with the same bytes as an uninterrupted one. It can be told to
misbehave, so that suites can walk every path that a real agent would take them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, EpisodeSpec, Surface
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.core.trees import remove
from pytest_proteus.harnesses import hostile

#: One action: the tool's name, the surface that it writes to (None: it writes nothing), the name of what is written.
Action: TypeAlias = tuple[str, "str | None", str]

#: (phase, prompt, episode, rng) → the actions of that phase, in order.
Policy: TypeAlias = Callable[[str, str, int, random.Random], list[Action]]

#: An episode, or (seed, episode) for one cell's only.
When: TypeAlias = "int | tuple[int, int]"

SURFACES = (
    Surface("notes", "notes", write_tools=frozenset({"write_note"})),
    Surface("tools", "tools", write_tools=frozenset({"write_tool"}), is_code=True),
)

#: Where the digest of an installed disposition lies, relative to the harness root.
HABIT_FILE = ".habit"

_WRITE = {"notes": "write_note", "tools": "write_tool"}
_LEANING = re.compile(r"\byour (notes|tools)\b")
_FEEDBACK = re.compile(r"^- (.+?): -?\d+\.\d+", re.MULTILINE)


def mock_policy(phase: str, prompt: str, episode: int, rng: random.Random) -> list[Action]:
    """What the mock agent does: it leans towards the surface that the prompt names, and answers visible feedback.

    A prompt that speaks of ``your notes`` or ``your tools`` raises writing to that surface in ``act``; in ``reflect``
    one more is added, or, where the prompt asks to look through them, their index is revised. Results shown in
    ``observe`` are answered with one more unit of the surface that the first evaluator naming one names, else of
    ``notes``.
    """
    leaning = list(dict.fromkeys(_LEANING.findall(prompt)))
    if phase == "observe":
        return [("read_state", None, "looked at what is here"), *_answer(prompt, episode)]
    if phase == "act":
        surface = "notes" if rng.random() < 0.5 else "tools"
        actions = [_write(surface, f"{surface[:-1]}_e{episode}")]
        for name in leaning:
            actions += [_write(name, f"{name[:-1]}_e{episode}_{k}") for k in range(rng.randint(1, 2))]
        return actions
    if phase == "reflect":
        stem = "index" if "look through" in prompt else f"lesson_e{episode}"
        return [_write(name, stem) for name in leaning]
    return []


def _write(surface: str, stem: str) -> Action:
    return (_WRITE[surface], surface, stem)


def _answer(prompt: str, episode: int) -> list[Action]:
    shown = _FEEDBACK.findall(prompt)
    if not shown:
        return []
    named = [surface for name in shown for surface in _WRITE if surface in name]
    return [_write(named[0] if named else "notes", f"answer_e{episode}")]


class MinimalHarness:
    """The mock agent as a harness with the surfaces ``notes`` and ``tools``.

    Args:
        policy: what the agent does; ``mock_policy`` by default.
        files: how many files the initial harness has below ``notes/library``.
        delay: seconds that every episode takes on top of its work.
        fail_at: episodes that end with an error of the adapter, after a first write.
        crash_at: episodes in which the process ends at once (``os._exit``), after a first write.
        hang_at: episodes that do nothing until the phase's time is over.
        hostile_at: episode → what it plants below ``notes`` (a name in ``hostile.KINDS``) beside its work.
        once: an existing folder outside the run in which each misbehaviour leaves a mark and then happens no more (it
            is told apart by kind, disposition, seed and episode); without it a further attempt misbehaves again.

    In the four ``*_at``, an episode is its number, or ``(seed, number)`` for the runs of one seed.

    Raises:
        ConfigurationError: an unknown kind in ``hostile_at``.
    """

    name = "minimal"
    runs_code = False
    continuity_mode = "none"
    disposition_in_files = False
    deterministic = True
    seeded = True

    def __init__(
        self,
        policy: Policy = mock_policy,
        *,
        files: int = 0,
        delay: float = 0.0,
        fail_at: Collection[When] = (),
        crash_at: Collection[When] = (),
        hang_at: Collection[When] = (),
        hostile_at: Mapping[When, str] | None = None,
        once: str | Path | None = None,
    ) -> None:
        self.policy = policy
        self.files = files
        self.delay = delay
        self.fail_at = frozenset(fail_at)
        self.crash_at = frozenset(crash_at)
        self.hang_at = frozenset(hang_at)
        self.hostile_at = dict(hostile_at or {})
        self.once = once
        for kind in self.hostile_at.values():
            if kind not in hostile.KINDS:
                raise ConfigurationError(
                    f"MinimalHarness: hostile_at knows no {kind!r}; choose one of {', '.join(sorted(hostile.KINDS))}"
                )

    def surfaces(self) -> Sequence[Surface]:
        """``notes`` and ``tools``, one file a unit."""
        return SURFACES

    def required_edit_tools(self) -> frozenset[str]:
        """Both write tools."""
        return frozenset(_WRITE.values())

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write ``STATE.md`` and, where asked for, the library of ``files`` notes; its words depend on ``rng_seed``."""
        root = Path(harness_root)
        root.mkdir(parents=True, exist_ok=True)
        (root / "STATE.md").write_text("# State\n\nNothing has been written yet.\n", encoding="utf-8")
        rng = random.Random(f"library:{rng_seed}")
        for number in range(self.files):
            folder = root / "notes" / "library" / f"{number // 100:03d}"
            if number % 100 == 0:
                folder.mkdir(parents=True)
            text = f"# Entry {number}\n\nShelf mark {rng.getrandbits(64):016x}.\n"
            (folder / f"entry_{number:05d}.md").write_text(text, encoding="utf-8")

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Leave a digest of the disposition in the tree, or nothing for an empty one; the prompts carry its text."""
        path = Path(harness_root) / HABIT_FILE
        remove(path)
        if not disposition.is_empty:
            path.write_text(_disposition_digest(disposition) + "\n", encoding="utf-8")

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """SHA-256 of the installed digest; empty when there is none."""
        path = Path(harness_root) / HABIT_FILE
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return "not a regular file"
            return hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"unreadable: {error.strerror}"

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Run the phases in order, in this process.

        Returns:
            Counters: ``writes`` (surface → files written), ``turn_capped`` (whether a phase wanted more turns than it
            had) and ``phase_<phase>_turns``; a turn is an action.

        Raises:
            PhaseTimeout: in an episode of ``hang_at``, when the phase's time is over.
        """
        if self.delay:
            time.sleep(self.delay)
        events: list[ActionEvent] = []
        capped = False
        trouble = self._trouble(spec)
        error = ""
        try:
            if trouble != "hang":
                capped = self._run_phases(spec, events, 1 if trouble in ("fail", "crash") else spec.budget.hard_limit)
            if trouble == "fail":
                error = "the mock agent was told to fail"
            elif trouble == "crash":
                os._exit(70)
            elif trouble == "hang":
                self._hang(spec)
            elif trouble == "hostile":
                self._plant(spec)
        finally:
            self._write_trace(spec, events)
        return EpisodeResult(spec.episode, not error, len(events), error, _counters(spec, events, capped))

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """The actions of an episode, as this harness logged them; empty when there is no log."""
        try:
            lines = _trace_path(Path(root), episode).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [ActionEvent(**json.loads(line)) for line in lines]

    def _run_phases(self, spec: EpisodeSpec, events: list[ActionEvent], limit: int) -> bool:
        """Run the phases, at most ``limit`` actions in all; whether one wanted more turns than it had."""
        rng = random.Random(f"{spec.seed}:{spec.episode}")
        capped = False
        for phase in spec.phase_prompts:
            used = len(events)
            turns = min(spec.turns_of(phase, used), limit - used)
            wanted = self.policy(phase, spec.prompt_of(phase, used), spec.episode, rng)
            for tool, surface, text in wanted[:turns]:
                params = {"path": _perform(spec, surface, text)} if surface else {}
                events.append(ActionEvent(len(events) + 1, phase, tool, surface, params, text))
            capped = capped or len(wanted) > turns
        return capped

    def _trouble(self, spec: EpisodeSpec) -> str:
        """What this attempt is to do wrong: fail, crash, hang, hostile, or nothing."""
        keys = {spec.episode, (spec.seed, spec.episode)}
        wishes = (
            ("crash", self.crash_at),
            ("fail", self.fail_at),
            ("hang", self.hang_at),
            ("hostile", self.hostile_at),
        )
        for kind, episodes in wishes:
            if not keys.isdisjoint(episodes) and self._first_time(spec, kind):
                return kind
        return ""

    def _first_time(self, spec: EpisodeSpec, kind: str) -> bool:
        if self.once is None:
            return True
        # not by the run's path: it may differ from one session to the next
        habit = self.disposition_fingerprint(spec.harness_root)
        mark = hashlib.sha256(f"{habit}:{kind}:{spec.seed}:{spec.episode}".encode()).hexdigest()[:16]
        try:
            (Path(self.once) / mark).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @staticmethod
    def _hang(spec: EpisodeSpec) -> NoReturn:
        time.sleep(spec.phase_timeout)
        raise PhaseTimeout(f"episode {spec.episode}: the phase took longer than {spec.phase_timeout:g} s")

    def _plant(self, spec: EpisodeSpec) -> None:
        kind = self.hostile_at.get(spec.episode) or self.hostile_at[(spec.seed, spec.episode)]
        folder = spec.harness_root / "notes"
        folder.mkdir(exist_ok=True)
        hostile.plant(kind, folder)

    def _write_trace(self, spec: EpisodeSpec, events: Sequence[ActionEvent]) -> None:
        path = _trace_path(Path(spec.root), spec.episode)
        path.parent.mkdir(exist_ok=True)
        lines = [
            json.dumps(
                {
                    "turn": e.turn,
                    "phase": e.phase,
                    "tool": e.tool,
                    "surface": e.surface,
                    "text": e.text,
                    "params": e.params,
                }
            )
            for e in events
        ]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _trace_path(root: Path, episode: int) -> Path:
    return root / "traces" / f"ep{episode:03d}.jsonl"


def _perform(spec: EpisodeSpec, surface: str, stem: str) -> str:
    """Write one unit of a surface and give its path relative to the harness root."""
    if surface == "tools":
        relative, text = f"tools/{stem}.py", f"# episode {spec.episode}\ndef {stem}():\n    return {spec.episode}\n"
    else:
        relative, text = f"{surface}/{stem}.md", f"# {stem}\n\nWritten in episode {spec.episode}.\n"
    path = f"{spec.root}/harness/{relative}"
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - pathlib costs as much as the write itself
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    with file:
        file.write(text)
    return relative


def _counters(spec: EpisodeSpec, events: Sequence[ActionEvent], capped: bool) -> dict[str, object]:
    writes = {surface.name: sum(event.surface == surface.name for event in events) for surface in SURFACES}
    turns = {f"phase_{phase}_turns": sum(event.phase == phase for event in events) for phase in spec.phase_prompts}
    return {"writes": writes, "turn_capped": capped, **turns}


def _disposition_digest(disposition: Disposition) -> str:
    """A digest of what the disposition asks for, its label left out: the subject can read it."""
    asked = [disposition.prompt_suffix, dict(disposition.per_phase), dict(disposition.config), disposition.patch]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
