"""A harness for the tests of the episode transaction: it writes one note an episode and does what its plan says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core import (
    NEUTRAL,
    ActionEvent,
    Disposition,
    EpisodeResult,
    EpisodeSpec,
    EvalResult,
    EvaluatorSpec,
    GoalConfig,
    RunConfig,
    RunResult,
    Surface,
    Visibility,
    run,
)
from pytest_proteus.core.continuity import Handoff
from pytest_proteus.core.errors import ApparatusError, ConfigurationError, PhaseTimeout

Step = Callable[[EpisodeSpec], "EpisodeResult | None"]


def fail(error_class: str = "apparatus") -> Step:
    return lambda spec: EpisodeResult(spec.episode, False, 1, f"it went wrong in {spec.episode}", {}, error_class)


def throw(error: BaseException) -> Step:
    def step(spec: EpisodeSpec) -> EpisodeResult | None:
        raise error

    return step


def fifo(spec: EpisodeSpec) -> None:
    os.mkfifo(spec.harness_root / "notes" / "pipe")


def drift(spec: EpisodeSpec) -> None:
    (spec.harness_root / "habit").write_text("my own")


#: What can be asked of an episode by name (for processes of their own).
STEPS: dict[str, Step] = {
    "nok": fail(),
    "timeout": throw(PhaseTimeout("act took longer than 5 s")),
    "apparatus": throw(ApparatusError("the endpoint is gone")),
    "configuration": throw(ConfigurationError("no such model")),
    "raise": throw(RuntimeError("boom")),
    "abort": fail("abort"),
    "fifo": fifo,
    "drift": drift,
}


class TinyHarness:
    """Args: plan: episode → step, done after the note was written; ``log`` has every call."""

    name = "tiny"

    def __init__(
        self, plan: Mapping[int, Step] | None = None, *, staged: bool = False, continuity: str = "native"
    ) -> None:
        self.plan = dict(plan or {})
        self.continuity_mode = continuity
        self.staged_activation = staged
        self.log: list[Any] = []
        self.notes: list[tuple[int, str, str]] = []
        self.specs: dict[int, EpisodeSpec] = {}
        self.bad_traces: set[int] = set()
        self.refuse: dict[int, str] = {}

    def surfaces(self) -> Sequence[Surface]:
        return (Surface("notes", "notes"), Surface("tools", "tools", unit="top_level_def", is_code=True))

    def required_edit_tools(self) -> frozenset[str]:
        return frozenset({"write"})

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        self.log.append("seed")
        (harness_root / "notes").mkdir()
        (harness_root / "notes" / "seed.md").write_text(f"seed {rng_seed}")

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        self.log.append("install")
        (harness_root / "habit").write_text(disposition.prompt_suffix)

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        self.log.append(("run", spec.episode))
        self.specs[spec.episode] = spec
        digest = hashlib.sha256(json.dumps([spec.seed, spec.episode, dict(spec.phase_prompts)]).encode()).hexdigest()
        (spec.harness_root / "notes" / f"n{spec.episode}.md").write_text(digest)
        (spec.harness_root / "notes" / "latest.md").write_text(str(spec.episode))
        traces = spec.root / "traces"
        (traces / f"log{spec.episode}.txt").write_text(digest)
        outcome = self.plan[spec.episode](spec) if spec.episode in self.plan else None
        counters = {"calls": spec.episode, "flag": True, "by": {"kind": 0.5, "text": "t"}, "list": [1]}
        if self.continuity_mode != "framework":
            return outcome or EpisodeResult(spec.episode, True, 3, "", counters)
        note = Handoff(spec)
        for phase in spec.phase_prompts:
            self.notes.append((spec.episode, phase, note.path.read_text()))
            note.path.write_text(f"note of {spec.episode} {phase}")
            note.finish(phase, [])
        return outcome or EpisodeResult(spec.episode, True, 3, "", counters, handoffs=note.phases)

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        self.log.append(("trace", episode))
        if episode in self.bad_traces:
            raise ValueError("no trace")
        return [
            ActionEvent(1, "act", "write", "notes", {"path": f"n{episode}.md"}),
            ActionEvent(2, "act", text="done"),
            ActionEvent(3, "reflect", "bash"),
        ]

    def validate_candidate(self, harness_root: Path) -> str:
        latest = int((harness_root / "notes" / "latest.md").read_text())
        return self.refuse.get(latest, "")

    def disposition_fingerprint(self, harness_root: Path) -> str:
        return hashlib.sha256((harness_root / "habit").read_bytes()).hexdigest()


def scored(
    scores: Mapping[int, float], name: str = "score", visibility: Visibility = Visibility.HIDDEN
) -> EvaluatorSpec:
    return EvaluatorSpec(name, lambda t, c: EvalResult(name, scores[c.episode]), visibility=visibility)


def config(root: Path, harness: TinyHarness | None = None, **more: Any) -> RunConfig:
    more.setdefault("goal", GoalConfig.of("do it"))
    more.setdefault("disposition", NEUTRAL)
    more.setdefault("progress_path", root.parent / f"{root.name}.jsonl")
    return RunConfig(name="tiny run", adapter=harness or TinyHarness(), root=root, model="m", **more)


def go(
    root: Path, harness: TinyHarness | None = None, *, start: int = 0, resume: bool = False, **more: Any
) -> RunResult:
    return run(config(root, harness, **more), start, resume=resume)


def git(root: Path, *arguments: str) -> str:
    command = ["git", "--git-dir", str(root / ".snapshot.git"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def subjects(root: Path) -> list[str]:
    """What the commits are of, oldest first: ``episode 0``, ``candidate 1``, …"""
    return [line.partition(":")[0] for line in git(root, "log", "--reverse", "--format=%s").splitlines()]


def files(root: Path) -> dict[str, str]:
    """Path → content of the harness in a run's folder."""
    top = root / "harness"
    return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


def everything(root: Path) -> dict[str, Any]:
    """What a run leaves, clocks aside: equal between equal runs."""
    private = root.parent / ".proteus-records" / root.name
    lines: dict[str, list[dict[str, Any]]] = {}
    logs = [private / "episodes.jsonl", private / "actions.jsonl", root.parent / f"{root.name}.jsonl"]
    for path in (*logs, *private.glob("handoffs.jsonl")):
        lines[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[path.name]:
            line.pop("ts", None)
            line.pop("seconds", None)
    return {
        "lines": lines,
        "history": (private / "eval_history.json").read_bytes(),
        "private": sorted(path.name for path in private.iterdir()),
        "log": git(root, "log", "--format=%H %T %s"),
        "files": files(root),
    }
