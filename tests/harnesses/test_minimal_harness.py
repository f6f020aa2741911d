from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.core import GoalConfig, RunConfig, run
from pytest_proteus.core.adapter import PHASES, EpisodeSpec, HarnessAdapter
from pytest_proteus.core.disposition import NEUTRAL, Disposition, record, review
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.core.trees import remove
from pytest_proteus.harnesses import hostile
from pytest_proteus.harnesses.minimal import MinimalHarness, mock_policy


def prompts(suffix: str = "", feedback: str = "") -> dict[str, str]:
    base = {phase: f"Do what {phase} asks.\n{suffix}" for phase in PHASES}
    base["observe"] += feedback
    return base


def spec(root: Path, episode: int = 1, *, seed: int = 0, suffix: str = "", feedback: str = "", **more) -> EpisodeSpec:
    return EpisodeSpec(root, episode, "mock", prompts(suffix, feedback), seed=seed, **more)


def started(root: Path, harness: MinimalHarness, seed: int = 0) -> Path:
    (root / "harness").mkdir(parents=True)
    harness.seed(root / "harness", seed)
    return root


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def grow(root: Path, episodes: range, harness: MinimalHarness | None = None, **more) -> dict[str, str]:
    for episode in episodes:
        (harness or MinimalHarness()).run_episode(spec(root, episode, **more))
    return tree(root)


def test_minimal_is_a_harness_adapter():
    assert isinstance(MinimalHarness(), HarnessAdapter)


def test_every_write_tool_of_a_surface_is_a_required_edit_tool():
    harness = MinimalHarness()
    assert {tool for surface in harness.surfaces() for tool in surface.write_tools} == harness.required_edit_tools()


def test_equal_seeds_give_equal_bytes(tmp_path):
    first, second = (started(tmp_path / name, MinimalHarness()) for name in "ab")
    assert grow(first, range(1, 6), seed=3) == grow(second, range(1, 6), seed=3)


def test_different_seeds_give_different_trees(tmp_path):
    first, second = (started(tmp_path / name, MinimalHarness()) for name in "ab")
    assert grow(first, range(1, 6), seed=3) != grow(second, range(1, 6), seed=4)


def test_an_episode_does_not_depend_on_those_that_the_same_object_ran_before(tmp_path):
    first, second = (started(tmp_path / name, MinimalHarness()) for name in "ab")
    grow(first, range(1, 6), MinimalHarness())
    grow(second, range(1, 4), MinimalHarness())
    assert tree(first) == grow(second, range(4, 6), MinimalHarness())


@pytest.mark.parametrize("surface", ["notes", "tools"])
@pytest.mark.parametrize("arm", [review, record])
def test_a_disposition_raises_writing_to_its_surface(tmp_path, surface, arm):
    counts = []
    for name, suffix in (("plain", ""), ("leaning", arm(surface).prompt_suffix)):
        root = started(tmp_path / name, MinimalHarness())
        results = [MinimalHarness().run_episode(spec(root, e, suffix=suffix)) for e in range(1, 9)]
        counts.append(sum(result.counters["writes"][surface] for result in results))
    assert counts[1] >= counts[0] + 16


def test_reviewing_revises_and_recording_adds(tmp_path):
    names = []
    for arm in (review, record):
        root = started(tmp_path / arm.__name__, MinimalHarness())
        grow(root, range(1, 3), suffix=arm("notes").prompt_suffix)
        names.append(set(os.listdir(root / "harness" / "notes")))
    assert names[0] - names[1] == {"index.md"}
    assert names[1] - names[0] == {"lesson_e1.md", "lesson_e2.md"}


def test_visible_feedback_is_answered_on_the_surface_that_it_names(tmp_path):
    root = started(tmp_path, MinimalHarness())
    MinimalHarness().run_episode(spec(root, feedback="Results of your previous episode:\n- units:tools: 2.000\n"))
    assert (root / "harness" / "tools" / "answer_e1.py").is_file()


def test_without_feedback_nothing_is_answered():
    assert [action[0] for action in mock_policy("observe", "Look around.", 2, random.Random(0))] == ["read_state"]


def test_a_policy_of_the_users_own_decides_every_action(tmp_path):
    root = started(tmp_path, MinimalHarness())
    harness = MinimalHarness(policy=lambda phase, prompt, episode, rng: [("write_note", "notes", f"{phase}_{episode}")])
    result = harness.run_episode(spec(root))
    assert result.turns == 4
    assert sorted(os.listdir(root / "harness" / "notes")) == sorted(f"{phase}_1.md" for phase in PHASES)


def test_the_trace_is_what_was_done(tmp_path):
    root = started(tmp_path, MinimalHarness())
    result = MinimalHarness().run_episode(spec(root, suffix=review("notes").prompt_suffix))
    trace = MinimalHarness().read_trace(root, 1)
    assert [event.turn for event in trace] == list(range(1, result.turns + 1))
    assert all((root / "harness" / event.params["path"]).is_file() for event in trace if event.surface)


def test_the_trace_of_an_episode_that_never_ran_is_empty(tmp_path):
    assert MinimalHarness().read_trace(tmp_path, 1) == []


def test_turns_end_at_the_limit_and_say_so(tmp_path):
    root = started(tmp_path, MinimalHarness())
    result = MinimalHarness().run_episode(spec(root, suffix=review("notes").prompt_suffix, max_turns=2))
    assert result.turns == 2
    assert result.counters["turn_capped"] is True


PLAN = {"observe": 1, "propose": 1, "act": 2, "reflect": 1}


def test_only_act_takes_more_than_its_plan_and_every_phase_has_its_own(tmp_path):
    wanted = {"observe": 3, "propose": 0, "act": 9, "reflect": 9}
    harness = MinimalHarness(lambda phase, *_: [("look", None, phase)] * wanted[phase])
    root = started(tmp_path, harness)
    result = harness.run_episode(spec(root, max_turns=5, phase_turns=PLAN, hard_max_turns=8))
    turns = {phase: result.counters[f"phase_{phase}_turns"] for phase in PHASES}
    assert turns == {"observe": 1, "propose": 0, "act": 6, "reflect": 1}
    assert (result.turns, result.counters["turn_capped"]) == (8, True)


def test_a_run_that_goes_on_after_a_pause_has_the_turns_of_one_without(tmp_path):
    def kept(name: str, *stops: int) -> list[dict]:
        for episodes in stops:
            config = RunConfig(
                name="budget",
                adapter=MinimalHarness(),
                disposition=review("notes"),
                goal=GoalConfig.of("g"),
                root=tmp_path / name / "run",
                model="m",
                episodes=episodes,
                max_turns=5,
                phase_turns=PLAN,
                hard_max_turns=6,
                announce_budget=True,
            )
            result = run(config, resume=True)
        return [(entry["turns"], entry["counters"], entry["commit"]) for entry in result.eval_history]

    assert kept("whole", 4) == kept("paused", 1, 2, 4)


def test_taking_a_disposition_away_leaves_no_trace(tmp_path):
    root = started(tmp_path, MinimalHarness())
    before = tree(root)
    harness = MinimalHarness()
    prints = [harness.disposition_fingerprint(root / "harness")]
    for disposition in (review("notes"), record("notes"), NEUTRAL):
        harness.install_disposition(root / "harness", disposition)
        prints.append(harness.disposition_fingerprint(root / "harness"))
    assert tree(root) == before
    assert prints[0] == prints[3]
    assert len(set(prints)) == 3


def test_an_installed_disposition_does_not_spell_its_label(tmp_path):
    harness = MinimalHarness()
    harness.install_disposition(tmp_path, Disposition("canary", "Write to your notes.", config={"A": "b"}))
    assert not any(b"canary" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_a_fingerprint_survives_whatever_lies_in_its_place(tmp_path, plant):
    plant(tmp_path / ".habit")
    assert MinimalHarness().disposition_fingerprint(tmp_path) == "not a regular file"
    MinimalHarness().install_disposition(tmp_path, NEUTRAL)
    assert MinimalHarness().disposition_fingerprint(tmp_path) == ""


def test_the_library_has_the_files_asked_for_and_depends_on_the_seed(tmp_path):
    trees = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trees.append(tree(started(tmp_path / name, MinimalHarness(files=250), seed)))
    assert len(trees[0]) == 251
    assert trees[0] == trees[1] != trees[2]


def test_a_told_failure_is_retryable_and_leaves_a_candidate(tmp_path):
    root = started(tmp_path, MinimalHarness())
    result = MinimalHarness(fail_at={2}).run_episode(spec(root, 2))
    assert (result.ok, result.error_class) == (False, "apparatus")
    assert len(MinimalHarness().read_trace(root, 2)) == 1


def test_a_failure_may_be_for_the_runs_of_one_seed(tmp_path):
    root = started(tmp_path, MinimalHarness())
    harness = MinimalHarness(fail_at={(1, 2)})
    assert [harness.run_episode(spec(root, 2, seed=seed)).ok for seed in range(3)] == [True, False, True]


def test_a_failure_told_to_happen_once_does_not_happen_again(tmp_path):
    root = started(tmp_path / "run", MinimalHarness())
    (tmp_path / "marks").mkdir()
    oks = [MinimalHarness(fail_at={2}, once=tmp_path / "marks").run_episode(spec(root, 2)).ok for _ in range(2)]
    assert oks == [False, True]


def test_a_hanging_phase_ends_at_its_time_limit(tmp_path):
    root = started(tmp_path, MinimalHarness())
    with pytest.raises(PhaseTimeout, match=r"longer than 0\.01 s"):
        MinimalHarness(hang_at={1}).run_episode(spec(root, phase_timeout=0.01))


def test_a_crash_ends_the_process_at_once(tmp_path):
    root = started(tmp_path, MinimalHarness())
    code = (
        "import sys; from pathlib import Path; from pytest_proteus.core.adapter import EpisodeSpec\n"
        "from pytest_proteus.harnesses.minimal import MinimalHarness\n"
        "MinimalHarness(crash_at=[1]).run_episode(EpisodeSpec(Path(sys.argv[1]), 1, 'm', {'act': 'x'}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, root]).returncode == 70


@pytest.mark.parametrize("kind", sorted(hostile.KINDS))
def test_every_hostile_kind_leaves_something_beside_the_work(tmp_path, kind):
    root = started(tmp_path, MinimalHarness())
    result = MinimalHarness(hostile_at={1: kind}).run_episode(spec(root))
    assert result.ok
    assert os.listdir(root / "harness" / "notes")
    hostile.plant(kind, root / "harness" / "notes")
    remove(root / "harness")
    assert not (root / "harness").exists()


def test_an_unknown_hostile_kind_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match="'pipe'; choose one of bytes, deep, fifo"):
        MinimalHarness(hostile_at={1: "pipe"})
