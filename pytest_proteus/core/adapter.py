"""The contract between an episode and a harness: surfaces, actions, and the adapter protocol.

A harness adapter knows one agent. It seeds a harness tree, runs one episode in it, and translates the
agent's own log into ``ActionEvent``s. Nothing here runs anything.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_proteus.core.budget import TurnBudget, allowance, announcement, budget_of
from pytest_proteus.core.continuity import handoff_path

if TYPE_CHECKING:
    from pytest_proteus.core.disposition import Disposition

#: How the members of a surface are counted: every file, every top-level folder with all its members, or
#: every top-level definition of the surface's Python files.
UNIT_KINDS = ("file", "directory", "top_level_def")

#: Where an agent's memory between phases and episodes comes from, its harness aside: from the agent itself, from the
#: framework's note (``core.continuity``), or from nowhere.
CONTINUITY_MODES = ("native", "framework", "none")

#: The phases of a self-editing episode, in order.
PHASES = ("observe", "propose", "act", "reflect")


@dataclass(frozen=True)
class Surface:
    """One declared part of a harness that the agent may grow: its notes, its tools, its instructions.

    Args:
        name: canonical name, used in records, arms (``review:<name>``) and evaluators (``units:<name>``).
        subdir: place of the surface relative to the harness root: a folder, or a single file such as
            ``AGENTS.md``. Always relative, never above the root.
        unit: one of ``file``, ``directory``, ``top_level_def``: what one unit of the surface is.
        write_tools: names of the agent's tools that write to this surface.
        is_code: whether the surface holds code that the agent runs.
        free_named: whether the agent chooses the names of its members.

    Raises:
        ValueError: an empty name, an unknown unit, or a subdir that is absolute or leads out of the root.
    """

    name: str
    subdir: str
    unit: str = "file"
    write_tools: frozenset[str] = frozenset()
    is_code: bool = False
    free_named: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a Surface needs a name")
        if self.unit not in UNIT_KINDS:
            raise ValueError(f"Surface {self.name!r}: unit={self.unit!r} is not one of {', '.join(UNIT_KINDS)}")
        path = PurePosixPath(self.subdir)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"Surface {self.name!r}: subdir={self.subdir!r} must be relative to the harness root")


@dataclass(frozen=True)
class ActionEvent:
    """One thing the agent did: a tool call, or text where ``tool`` is None.

    Args:
        turn: one-based number of the model turn within the episode.
        phase: phase of the episode it happened in.
        tool: the agent's name of the tool; None for a turn of text only.
        surface: name of the declared surface that the call touched by path; None when none.
        params: the call's arguments, bounded in size by the adapter.
        text: what the agent said or a summary of the result, bounded in size by the adapter.
        timestamp: seconds since the epoch when the agent's log tells it, else None.
    """

    turn: int
    phase: str
    tool: str | None = None
    surface: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    timestamp: float | None = None


@dataclass(frozen=True)
class EpisodeSpec:
    """What an adapter is told about the episode it has to run, and all that it is told.

    Args:
        root: the live root of the run; the harness is ``root / "harness"``. Neutral path: it spells no condition.
        episode: one-based number.
        model: logical model name.
        phase_prompts: phase → prompt, in the order in which the phases run.
        max_turns, min_turns_per_phase, phase_turns, hard_max_turns, checkpoint_turns, announce_budget: see
            ``TurnBudget``.
        seed: the run's random seed.
        extra_env: environment variables for the agent's processes.
        continuity_mode: ``native``, ``framework`` or ``none``.
        active_root: a frozen copy of the accepted state to run from, for adapters with staged activation.
        phase_timeout: wall-clock limit of one phase, in seconds.
        handoff: under framework continuity, the note that the last complete episode left; empty for none.
        meter: a ``metering.spans.Meter`` through which calls of a model go; None where nothing is metered.
    """

    root: Path
    episode: int
    model: str
    phase_prompts: Mapping[str, str]
    max_turns: int = 100
    min_turns_per_phase: int = 0
    phase_turns: Mapping[str, int] = field(default_factory=dict)
    hard_max_turns: int = 0
    checkpoint_turns: int = 0
    announce_budget: bool = False
    seed: int = 0
    extra_env: Mapping[str, str] = field(default_factory=dict)
    continuity_mode: str = "native"
    active_root: Path | None = None
    phase_timeout: float = 1800.0
    handoff: str = ""
    meter: Any = None

    @property
    def handoff_path(self) -> Path:
        """Under framework continuity, the file of the note: see ``core.continuity.Handoff``."""
        return handoff_path(self.root)

    @property
    def harness_root(self) -> Path:
        """The tree the agent may edit."""
        return Path(self.root) / "harness"

    @functools.cached_property
    def budget(self) -> TurnBudget:
        """The turns of this episode."""
        return budget_of(self)

    def turns_of(self, phase: str, used: int) -> int:
        """Turns that a phase may use after the earlier ones used ``used``; with 0 it does not take place."""
        return allowance(self.budget, list(self.phase_prompts), phase, used)

    def prompt_of(self, phase: str, used: int) -> str:
        """The prompt of a phase that begins after ``used`` turns, with what is left of them where that is announced."""
        prompt = self.phase_prompts[phase]
        if not self.announce_budget:
            return prompt
        return f"{announcement(self.budget, self.turns_of(phase, used), used)}\n\n{prompt}"


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode ended, as the adapter saw it.

    Args:
        episode: one-based number.
        ok: False when the episode did not complete and must not count.
        turns: model turns used.
        error: one sentence; empty when ok.
        counters: the adapter's own counts. Numbers sum over a run, also inside nested mappings; other values are
            recorded but not summed.
        error_class: ``apparatus`` (the machinery failed: retryable, never graded), ``timeout`` (a phase ran out of
            time), ``abort`` (cut short from outside), ``budget`` (what may be spent was) or ``configuration`` (retrying
            cannot help); read when not ok.
        handoffs: under framework continuity, ``Handoff.phases``.
    """

    episode: int
    ok: bool
    turns: int = 0
    error: str = ""
    counters: Mapping[str, Any] = field(default_factory=dict)
    error_class: str = "apparatus"
    handoffs: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class HarnessAdapter(Protocol):
    """One agent, as the episode transaction sees it.

    Optional attributes, with the value that their absence means: ``continuity_mode`` ("native"),
    ``staged_activation`` (False), ``disposition_in_files`` (False), ``deterministic`` (False: the same seed gives
    the same bytes), ``seeded`` (False: a seed means the same start in every arm), ``runs_code`` (True; False where no
    process is started and nothing is run that the subject wrote), ``sandbox`` (where the agent's processes live;
    None is replaced by the session's), ``validate_candidate(harness_root) -> str`` (an empty string for a viable
    candidate, else one sentence that says what is wrong; no model is called), ``preflight() -> str`` (why the harness
    cannot run on this machine: its cells are skipped with that sentence), ``silent(model) -> str`` (why the model does
    not answer, asked for a word once a session: the cells with it are skipped with that sentence), and
    ``unconfigured(model) -> str`` (what the user has not configured: a usage error before anything runs).
    """

    name: str

    def surfaces(self) -> Sequence[Surface]:
        """The declared surfaces; the same at each call."""
        ...

    def required_edit_tools(self) -> frozenset[str]:
        """Names of the tools without which the agent could not edit itself."""
        ...

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write the initial harness below the existing folder ``harness_root``."""
        ...

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Put the disposition where this agent reads it, so that NEUTRAL takes it away again without a trace."""
        ...

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Run every phase of one episode; blocks until no process of the agent is alive."""
        ...

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """The normalized actions of an episode that ran below the live root ``root``."""
        ...

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """A digest of the installed disposition; it changes exactly when the disposition in the tree does."""
        ...
