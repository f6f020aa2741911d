"""A run whose harness does not evolve: every episode is the first one."""

from __future__ import annotations

from pathlib import Path

from tiny_harness import TinyHarness, everything, fifo, files, go, scored

from pytest_proteus.core import GoalConfig, Visibility
from pytest_proteus.core.records import read_records

SCORES = {1: 1.0, 2: 5.0, 3: 2.0}


def goal() -> GoalConfig:
    return GoalConfig.of("do it", (scored(SCORES, visibility=Visibility.OBSERVE),))


def test_no_candidate_is_kept_and_every_score_is(tmp_path: Path) -> None:
    result = go(tmp_path / "run", goal=goal(), episodes=3, evolves=False)
    records = read_records(tmp_path / "run")
    assert (result.state, [record["accepted"] for record in records]) == ("complete", [False] * 3)
    assert [record["results"][0]["score"] for record in records] == [1.0, 5.0, 2.0]
    assert files(tmp_path / "run") == {"habit": "", "notes/seed.md": "seed 0"}


def test_every_episode_is_told_the_same(tmp_path: Path) -> None:
    harness = TinyHarness({2: fifo})
    go(tmp_path / "run", harness, goal=goal(), episodes=3, evolves=False)
    prompts = [dict(harness.specs[number].phase_prompts) for number in (1, 2, 3)]
    assert prompts[0] == prompts[1] == prompts[2]


def test_it_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    go(tmp_path / "whole" / "run", goal=goal(), episodes=3, evolves=False)
    go(tmp_path / "parts" / "run", goal=goal(), episodes=1, evolves=False)
    go(tmp_path / "parts" / "run", goal=goal(), episodes=3, evolves=False, resume=True)
    assert everything(tmp_path / "parts" / "run")["history"] == everything(tmp_path / "whole" / "run")["history"]
    assert everything(tmp_path / "parts" / "run")["log"] == everything(tmp_path / "whole" / "run")["log"]


class Task:
    """A task that says whether its folder is as it was seeded."""

    id = "task"
    prompt = "do the task"

    def setup(self, folder: Path) -> None:
        (folder / "exercise.txt").write_text("begin here")


def test_every_episode_has_its_task_anew(tmp_path: Path) -> None:
    seen = []

    def work(spec):
        exercise = spec.root / "task" / "exercise.txt"
        seen.append(exercise.read_text())
        exercise.write_text("done")

    go(tmp_path / "run", TinyHarness(dict.fromkeys((1, 2), work)), task=Task(), episodes=2, evolves=False)
    assert seen == ["begin here", "begin here"]
