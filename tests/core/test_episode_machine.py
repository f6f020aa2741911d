"""Any sequence of accepted, rejected, refused, failed, interrupted and killed episodes, against a model of a run."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_kill_episode import dying, in_a_process
from tiny_harness import STEPS, TinyHarness, files, go, scored, subjects, throw

from pytest_proteus.core import GoalConfig, RunResult
from pytest_proteus.core.records import pending_candidate_path, read_jsonl, read_records


class Runs(RuleBasedStateMachine):
    """The model: names of the files in the accepted state, what each episode was, and the mean to reach."""

    @initialize(live=st.booleans(), staged=st.booleans())
    def begin(self, live: bool, staged: bool) -> None:
        self.staged = staged
        self.handed_back: set[str] = set()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.root = self.folder / "run"
        self.live = self.folder / "live" if live else None
        self.files = {"habit", "notes/seed.md"}
        self.history: list[str] = ["episode 0"]
        self.accepted: list[bool] = []
        self.mean: float | None = None
        self.resume = False

    def episode(
        self, score: float = 0.0, step: str = "", harness: TinyHarness | None = None, refuse: str = ""
    ) -> RunResult:
        number = len(self.accepted) + 1
        harness = harness or self.harness({number: STEPS[step]} if step else {})
        harness.refuse = {number: refuse} if refuse else {}
        goal = GoalConfig.of("x", [scored({number: score})], selection="accept_reject")
        resume, self.resume = self.resume, True
        return go(self.root, harness, episodes=number, resume=resume, goal=goal, live_root=self.live)

    def harness(self, plan: Any = None) -> TinyHarness:
        return TinyHarness(plan, staged=self.staged)

    def done(self, accepted: bool, refused: bool = False) -> None:
        number = len(self.accepted) + 1
        candidate = self.handed_back | {f"notes/n{number}.md", "notes/latest.md"}
        self.handed_back = candidate if refused and self.staged else set()
        self.accepted.append(accepted)
        self.history += [f"episode {number}"] if accepted else [f"candidate {number}", f"episode {number}"]
        if accepted:
            self.files |= candidate

    def judged(self, score: float) -> None:
        accepted = self.mean is None or score >= self.mean
        self.mean = score if accepted else self.mean
        self.done(accepted)

    @rule(score=st.integers(0, 3))
    def measured(self, score: int) -> None:
        assert self.episode(score).state == "complete"
        self.judged(score)

    @rule(how=st.sampled_from(["fifo", "refuse"]))
    def not_viable(self, how: str) -> None:
        result = self.episode(3, "fifo" if how == "fifo" else "", refuse="no" if how == "refuse" else "")
        assert result.state == "complete"
        assert result.eval_history[-1]["failure_kind"] == "viability"
        self.done(False, refused=True)

    @rule(how=st.sampled_from(["nok", "raise", "timeout", "abort", "configuration"]))
    def failed(self, how: str) -> None:
        assert self.episode(3, how).state in ("errored", "timeout", "abort")

    @rule()
    def interrupted(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.episode(3, harness=self.harness({len(self.accepted) + 1: throw(KeyboardInterrupt())}))

    @rule(score=st.integers(0, 3), at=st.integers(1, 120))
    def killed(self, score: int, at: int) -> None:
        pid = in_a_process(dying(lambda: self.episode(score), at))
        os.waitpid(pid, 0)
        self.resume = True
        before = len(self.accepted)
        result = go(
            self.root, self.harness(), episodes=before, resume=True, goal=GoalConfig.of("x"), live_root=self.live
        )
        assert result.episodes_complete in (before, before + 1)
        if result.episodes_complete > before:
            self.judged(score)

    @precondition(lambda self: self.resume)
    @rule()
    def nothing_to_do(self) -> None:
        harness = self.harness()
        go(self.root, harness, episodes=len(self.accepted), resume=True, goal=GoalConfig.of("x"), live_root=self.live)
        assert harness.log == []

    @invariant()
    def stands_as_the_model_says(self) -> None:
        if not self.resume:
            return
        records = read_records(self.root)
        assert [record["accepted"] for record in records] == self.accepted
        assert subjects(self.root) == self.history
        assert set(files(self.root)) == self.files or not (self.root / "harness").exists()
        lines: list[dict[str, Any]] = read_jsonl(self.folder / "run.jsonl")
        assert [line["episode"] for line in lines] == [record["episode"] for record in records]
        history = json.loads((self.folder / ".proteus-records" / "run" / "eval_history.json").read_text())
        assert [entry["commit"] for entry in history] == [record["commit"] for record in records]
        assert self.live is None or not self.live.exists()
        assert pending_candidate_path(self.root).exists() == bool(self.handed_back)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
