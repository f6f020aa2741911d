"""A harness adapter to begin from: what each part is for, and a stand-in where your agent belongs.

It keeps the contract as it is; try it at every step: proteus check --harness THIS_MODULE:TemplateHarness --episode
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_proteus import ActionEvent, Disposition, EpisodeResult, EpisodeSpec, Surface

#: Stands in for your agent: reads its prompt, adds a line to its notes, and logs what it did. Put your command here,
#: with the options that make it run by itself, take the prompt from standard input, and log in a form that is known.
COMMAND = [
    "/bin/sh",
    "-c",
    "cat > /dev/null; mkdir -p notes; echo '- seen' >> notes/log.md; "
    'echo \'{"tool": "write", "path": "notes/log.md", "text": "added a line"}\'',
]

#: Longest text that is kept of one event: logs can hold whole files.
LONGEST = 2_000


class TemplateHarness:
    """Drives one agent. Nothing is inherited: these attributes and methods are the whole contract."""

    #: What runs and reports call it.
    name = "template"

    #: Where the agent's processes live; the session puts its sandbox here.
    sandbox: Any = None

    #: Where the agent's memory comes from besides its files: "native" (your business), "framework" or "none".
    continuity_mode = "none"

    #: Whether an episode runs from a frozen copy (``spec.active_root``) while the agent edits ``spec.harness_root``.
    #: With True, add ``validate_candidate(harness_root) -> str``: why a tree cannot work, empty when it can.
    staged_activation = False

    #: Whether the same seed gives the same bytes, also of what the agent does. Few agents are.
    deterministic = False

    def surfaces(self) -> Sequence[Surface]:
        """The parts of the tree that the agent may grow. ``unit`` is what is counted: files, folders or definitions."""
        return [
            Surface("instructions", "AGENTS.md"),
            Surface("notes", "notes", write_tools=frozenset({"write"})),
        ]

    def required_edit_tools(self) -> frozenset[str]:
        """The agent's names of the tools without which it could not edit itself."""
        return frozenset({"write"})

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write what every run starts from, below ``harness_root`` and nowhere else."""
        (harness_root / "notes").mkdir()
        (harness_root / "AGENTS.md").write_text("# Instructions\n\nKeep what you learn in notes/.\n", encoding="utf-8")

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Put a disposition where the agent reads it; NEUTRAL has to take it away without a trace.

        Nothing has to be written where the prompts carry it, as here: they come with its text already.
        """

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """A digest of what ``install_disposition`` wrote: it changes exactly when that does."""
        return hashlib.sha256(b"").hexdigest()

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Run every phase, and return when no process of the agent is alive."""
        from pytest_proteus.sandbox import LocalSandbox

        place = self.sandbox or LocalSandbox()
        traces = spec.root / "traces" / f"ep{spec.episode:03d}"
        state = spec.root / "state"  # the agent's home: beside the tree, so that it is not measured
        for folder in (traces, state):
            folder.mkdir(parents=True, exist_ok=True)
        used = 0
        for phase in spec.phase_prompts:
            turns = spec.turns_of(phase, used)  # what the budget leaves this phase: tell your agent, if it has a limit
            if not turns:
                continue
            outcome = place.launch(
                COMMAND,
                env={"PATH": "/usr/bin:/bin", "HOME": str(state), "TMPDIR": str(state), **spec.extra_env},
                cwd=spec.harness_root,
                stdin=spec.prompt_of(phase, used),
                timeout=spec.phase_timeout,
                writable=[spec.harness_root, state],
                # readable=[...]: files of your agent that are not below /usr
                # endpoint=URL: the one address that it may reach, at place.address(URL)
            )
            # what it logged is kept by phase, with the run's artifacts
            (traces / f"{phase}.jsonl").write_text(outcome.stdout, encoding="utf-8")
            if outcome.interrupted:
                return EpisodeResult(spec.episode, False, used, f"phase {phase} was cut short", error_class="abort")
            if outcome.timed_out:
                return EpisodeResult(spec.episode, False, used, f"phase {phase} took too long", error_class="timeout")
            if outcome.returncode:
                # judge from the agent's own log where it tells more than its exit status
                error = f"phase {phase}: the agent ended with status {outcome.returncode}: {outcome.stderr[-400:]}"
                return EpisodeResult(spec.episode, False, used, error)
            used += 1  # the answers of the model, as the log tells them
        return EpisodeResult(spec.episode, True, used, counters={"calls": used})

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """The agent's log as events, in order; the log may be cut off, or not be there at all."""
        events: list[ActionEvent] = []
        for phase in ("observe", "propose", "act", "reflect"):
            path = root / "traces" / f"ep{episode:03d}" / f"{phase}.jsonl"
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            for line in text.splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # half a line, or something that is no record
                if not isinstance(record, dict):
                    continue
                touched = str(record.get("path", ""))
                events.append(
                    ActionEvent(
                        turn=len(events) + 1,
                        phase=phase,
                        tool=record.get("tool"),
                        surface=self._surface_of(touched),
                        params={"path": touched[:LONGEST]},
                        text=str(record.get("text", ""))[:LONGEST],
                    )
                )
        return events

    def _surface_of(self, path: str) -> str | None:
        """The surface that a path of the log lies on, by its text alone."""
        for surface in self.surfaces():
            if path == surface.subdir or path.startswith(f"{surface.subdir}/"):
                return surface.name
        return None
