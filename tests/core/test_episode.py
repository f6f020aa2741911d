"""The episode transaction: its order, its records, selection, refusals, failures, and going on."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tiny_harness import STEPS, TinyHarness, config, everything, fail, fifo, files, git, go, scored, subjects, throw

from pytest_proteus.core import (
    Disposition,
    EpisodeResult,
    EpisodeSpec,
    EvalResult,
    EvaluatorSpec,
    GoalConfig,
    Surface,
    Visibility,
    review,
    run,
    snapshot,
)
from pytest_proteus.core import records as records_module
from pytest_proteus.core.episode import (
    completed_episodes,
    eval_history_path,
    pending_candidate_path,
    private_record_dir,
)
from pytest_proteus.core.errors import ApparatusError, ConfigurationError, RecordError, StorageError
from pytest_proteus.core.evaluators import structural_step, surface_units
from pytest_proteus.core.records import completed_episodes_in, read_records, read_trace
from pytest_proteus.core.snapshot.restore import Bin

SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 5.0, 5: 6.0, 6: 5.5}


def selecting(*specs: EvaluatorSpec) -> GoalConfig:
    return GoalConfig.of("do it", specs, selection="accept_reject")


# --------------------------------------------------------------------------------------------- a run in order


def test_a_run_is_seeded_once_and_has_one_commit_an_episode(tmp_path: Path) -> None:
    harness = TinyHarness()
    result = go(tmp_path / "run", harness, episodes=3)
    assert (result.state, result.error, result.episodes_complete) == ("complete", "", 3)
    assert subjects(tmp_path / "run") == ["episode 0", "episode 1", "episode 2", "episode 3"]
    assert harness.log == [
        "seed", "install", ("run", 1), ("trace", 1), ("run", 2), ("trace", 2), ("run", 3), ("trace", 3)
    ]  # fmt: skip


def test_episode_0_has_the_seed_and_the_disposition(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=1, seed=7, disposition=Disposition("x", prompt_suffix="suffix"))
    snapshot.materialize(
        tmp_path / "run" / "harness", str(git(tmp_path / "run", "rev-parse", "HEAD~1")), tmp_path / "0"
    )
    assert (tmp_path / "0" / "notes" / "seed.md").read_text() == "seed 7"
    assert (tmp_path / "0" / "habit").read_text() == "suffix"
    assert sorted(os.listdir(tmp_path / "0" / "notes")) == ["seed.md"]


def test_the_artifacts_lie_where_they_are_promised(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=1)
    assert sorted(os.listdir(tmp_path)) == [".proteus-records", "run", "run.jsonl"]
    assert sorted(os.listdir(tmp_path / "run")) == [".snapshot.git", "harness", "traces"]
    assert sorted(os.listdir(private_record_dir(tmp_path / "run"))) == [
        "actions.jsonl", "disposition_fingerprint.json", "episodes.jsonl", "eval_history.json", "lock"
    ]  # fmt: skip


def test_a_record_tells_what_an_episode_was(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=1, goal=GoalConfig.of("do it", [scored({1: 2.0})]))
    (record,) = read_records(tmp_path / "run")
    head = git(tmp_path / "run", "rev-parse", "HEAD")
    fingerprint = json.loads((private_record_dir(tmp_path / "run") / "disposition_fingerprint.json").read_text())
    assert record.pop("ts") > 1e9
    assert record.pop("seconds") > 0
    assert record == {
        "episode": 1,
        "accepted": True,
        "results": [{"name": "score", "score": 2.0, "passed": False, "detail": "", "error": False}],
        "versions": {},
        "counters": {"calls": 1, "flag": True, "by": {"kind": 0.5, "text": "t"}, "list": [1]},
        "turns": 3,
        "tool_calls": 2,
        "ok": True,
        "commit": head,
        "candidate_commit": head,
        "candidate_fingerprint": fingerprint["fingerprint"],
        "disposition_fingerprint": fingerprint["fingerprint"],
        "disposition_drift": False,
        "violations": [],
        "units": {"notes": 3, "tools": 0},
        "failure_kind": "",
        "error": "",
    }


def test_the_history_file_is_the_records_without_clocks(tmp_path: Path) -> None:
    result = go(tmp_path / "run", episodes=2)
    history = json.loads(eval_history_path(tmp_path / "run").read_text())
    assert history == result.eval_history
    assert [record["episode"] for record in history] == [1, 2]
    assert not {"ts", "seconds"} & set(history[0])


def test_each_episode_has_a_progress_line(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2, goal=GoalConfig.of("x", [scored({1: 2.0, 2: 3.0})]), seed=4)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["scores"], line["seed"]) for line in lines] == [
        (1, {"score": 2.0}, 4),
        (2, {"score": 3.0}, 4),
    ]
    assert (lines[0]["name"], lines[0]["episodes_target"], lines[0]["units"]) == (
        "tiny run",
        2,
        {"notes": 3, "tools": 0},
    )


def test_a_trace_can_be_read_back_without_the_harness(tmp_path: Path) -> None:
    harness = TinyHarness()
    go(tmp_path / "run", harness, episodes=2)
    assert read_trace(tmp_path / "run", 2) == harness.read_trace(tmp_path, 2)


def test_numbers_of_counters_sum_over_a_run(tmp_path: Path) -> None:
    result = go(tmp_path / "run", episodes=3)
    assert result.counters == {"calls": 6, "by": {"kind": 1.5}}


def test_no_episodes_is_a_seeded_run(tmp_path: Path) -> None:
    result = go(tmp_path / "run", episodes=0)
    assert (result.state, result.episodes_complete, result.eval_history) == ("complete", 0, [])
    assert subjects(tmp_path / "run") == ["episode 0"]
    assert json.loads(eval_history_path(tmp_path / "run").read_text()) == []


def test_the_harness_is_told_what_was_configured_and_nothing_else(tmp_path: Path) -> None:
    harness = TinyHarness()
    go(
        tmp_path / "run",
        harness,
        episodes=1,
        seed=9,
        max_turns=7,
        phase_timeout=5.0,
        extra_env={"A": "b"},
        phases=("task",),
    )
    spec = harness.specs[1]
    assert (spec.root, spec.episode, spec.model, spec.seed) == (tmp_path / "run", 1, "m", 9)
    assert (spec.max_turns, spec.phase_timeout, spec.extra_env, list(spec.phase_prompts)) == (
        7,
        5.0,
        {"A": "b"},
        ["task"],
    )
    assert spec.active_root is None


def test_observed_results_reach_the_next_observe_prompt_and_hidden_ones_no_prompt(tmp_path: Path) -> None:
    harness = TinyHarness()
    shown = scored({1: 1.25, 2: 2.5}, "shown-one", Visibility.OBSERVE)
    hidden = scored({1: 41.75, 2: 42.75}, "hidden-one")
    go(tmp_path / "run", harness, episodes=2, goal=GoalConfig.of("do it", [shown, hidden]))
    first, second = (harness.specs[number].phase_prompts for number in (1, 2))
    assert "shown-one" not in " ".join(first.values())
    assert [phase for phase, prompt in second.items() if "shown-one" in prompt] == ["observe"]
    assert "1.250" in second["observe"]
    assert not any("hidden-one" in prompt or "41.75" in prompt for prompt in second.values())


def test_nothing_a_subject_can_reach_spells_the_arm_the_hidden_evaluator_or_the_framework() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, harness = Path(folder) / "run-1", TinyHarness({2: fifo})
        goal = GoalConfig.of("do it", [scored(SCORES, "hidden-one")], selection="accept_reject")
        go(
            root,
            harness,
            episodes=4,
            goal=goal,
            disposition=review("notes", "armlabel"),
            live_root=Path(folder) / "live",
        )
        text = git(root, "log", "--all", "--format=%an %ae %cn %ce %B") + str(harness.specs)
        for path in root.rglob("*"):
            text += str(path) + (path.read_text(errors="replace") if path.is_file() else "")
    for word in ("proteus", "pytest", "armlabel", "hidden-one"):
        assert word not in text.lower().replace(str(TinyHarness.__module__), "")


# -------------------------------------------------------------------------------------------------- selection


def test_a_candidate_is_kept_when_the_mean_does_not_fall_below_that_of_the_accepted_state(tmp_path: Path) -> None:
    result = go(
        tmp_path / "run", episodes=6, goal=selecting(scored(SCORES), scored(dict.fromkeys(SCORES, 1.0), "other"))
    )
    assert [record["accepted"] for record in result.eval_history] == [True, False, False, True, True, False]


def test_a_rejected_candidate_stays_in_history_and_the_accepted_state_comes_back(tmp_path: Path) -> None:
    result = go(tmp_path / "run", episodes=3, goal=selecting(scored(SCORES)))
    assert subjects(tmp_path / "run") == [
        "episode 0",
        "episode 1",
        "candidate 2",
        "episode 2",
        "candidate 3",
        "episode 3",
    ]
    tree = "rev-parse", "{}^{{tree}}"
    trees = [
        git(tmp_path / "run", tree[0], tree[1].format(record[key]))
        for record in result.eval_history
        for key in ("commit", "candidate_commit")
    ]
    assert trees[0] == trees[1] == trees[2] == trees[4]
    assert len({trees[0], trees[3], trees[5]}) == 3
    assert set(files(tmp_path / "run")) == {"habit", "notes/seed.md", "notes/n1.md", "notes/latest.md"}
    assert [record["units"]["notes"] for record in result.eval_history] == [3, 3, 3]


def test_an_evaluator_that_failed_counts_as_zero_in_selection_and_as_missing_elsewhere(tmp_path: Path) -> None:
    flaky = EvaluatorSpec("flaky", lambda t, c: EvalResult("flaky", 1 / (2 - c.episode)))
    result = go(tmp_path / "run", episodes=2, goal=selecting(flaky))
    assert [record["accepted"] for record in result.eval_history] == [True, False]
    assert [record["results"][0]["error"] for record in result.eval_history] == [False, True]
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert lines[1]["scores"] == {"flaky": None}


def test_without_selection_everything_is_kept(tmp_path: Path) -> None:
    result = go(tmp_path / "run", episodes=3, goal=GoalConfig.of("x", [scored(SCORES)]))
    assert [record["accepted"] for record in result.eval_history] == [True, True, True]


def test_the_agent_is_told_that_its_changes_were_not_kept(tmp_path: Path) -> None:
    harness = TinyHarness()
    go(tmp_path / "run", harness, episodes=3, goal=selecting(scored(SCORES)))
    assert "not kept" not in harness.specs[2].phase_prompts["observe"]
    assert "not kept" in harness.specs[3].phase_prompts["observe"]


# -------------------------------------------------------------------------------------------------- refusals


def test_a_tree_with_violations_is_a_finding_and_the_run_goes_on(tmp_path: Path) -> None:
    asked = []
    spy = EvaluatorSpec("spy", lambda t, c: asked.append(c.episode) or EvalResult("spy", 1.0))  # type: ignore[func-returns-value]
    harness = TinyHarness({2: fifo})
    result = go(tmp_path / "run", harness, episodes=3, goal=GoalConfig.of("x", [spy]))
    record = result.eval_history[1]
    assert (result.state, result.episodes_complete, asked) == ("complete", 3, [1, 3])
    assert (record["ok"], record["accepted"], record["results"]) == (False, False, [])
    assert record["failure_kind"] == "viability"
    assert [violation["path"] for violation in record["violations"]] == ["notes/pipe"]
    assert "notes/pipe" in record["error"]
    assert "notes/n2.md" not in files(tmp_path / "run")
    assert "n2.md" in git(tmp_path / "run", "ls-tree", "-r", "--name-only", record["candidate_commit"])
    assert "notes/pipe" in harness.specs[3].phase_prompts["observe"]


def test_a_candidate_that_the_harness_refuses_is_rolled_back(tmp_path: Path) -> None:
    harness = TinyHarness()
    harness.refuse = {2: "it does not start"}
    result = go(tmp_path / "run", harness, episodes=3)
    assert [record["accepted"] for record in result.eval_history] == [True, False, True]
    assert (result.eval_history[1]["failure_kind"], result.eval_history[1]["error"]) == (
        "viability",
        "it does not start",
    )
    assert subjects(tmp_path / "run")[-3:] == ["candidate 2", "episode 2", "episode 3"]
    assert "it does not start" in harness.specs[3].phase_prompts["observe"]
    assert not pending_candidate_path(tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["raises", "returns no text"])
def test_a_validation_that_gives_no_answer_is_a_failure_of_the_apparatus_and_can_be_tried_again(
    tmp_path: Path, how: str
) -> None:
    def validate(harness_root: Path) -> Any:
        (harness_root / "notes" / "mess").write_text("left by the check")
        if not (harness_root / "notes" / "n2.md").exists():
            return ""
        if how == "raises":
            raise RuntimeError("no room")
        return 7

    harness = TinyHarness()
    harness.validate_candidate = validate  # type: ignore[method-assign]
    result = go(tmp_path / "run", harness, episodes=3)
    assert (result.state, result.error_class, result.episodes_complete) == ("errored", "apparatus", 1)
    assert result.error == "validate_candidate of 'tiny' " + (
        "failed: RuntimeError: no room" if how == "raises" else "returned int, not a sentence"
    )
    (kept,) = git(tmp_path / "run", "for-each-ref", "--format=%(refname)", "refs/failed").splitlines()
    names = git(tmp_path / "run", "ls-tree", "-r", "--name-only", kept)
    assert "notes/n2.md" in names
    assert "mess" not in names
    assert go(tmp_path / "run", episodes=3, resume=True).state == "complete"


def test_a_disposition_that_changes_is_noticed_from_then_on(tmp_path: Path) -> None:
    result = go(tmp_path / "run", TinyHarness({2: STEPS["drift"]}), episodes=3, disposition=review("notes"))
    assert [record["disposition_drift"] for record in result.eval_history] == [False, True, True]
    fingerprints = [record["disposition_fingerprint"] for record in result.eval_history]
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]


def test_a_drift_that_was_rejected_is_no_drift_of_the_run(tmp_path: Path) -> None:
    goal = selecting(scored({1: 1.0, 2: 0.0, 3: 2.0}))
    result = go(tmp_path / "run", TinyHarness({2: STEPS["drift"]}), episodes=3, goal=goal)
    assert [record["disposition_drift"] for record in result.eval_history] == [False, False, False]
    second = result.eval_history[1]
    assert second["candidate_fingerprint"] != second["disposition_fingerprint"]


def test_a_subject_that_removes_its_whole_harness_is_a_finding(tmp_path: Path) -> None:
    def gone(spec: Any) -> None:
        spec.harness_root.rename(spec.root / "elsewhere")
        (spec.root / "harness").symlink_to(tmp_path / "precious")

    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    result = go(tmp_path / "run", TinyHarness({2: gone}), episodes=3)
    assert [record["ok"] for record in result.eval_history] == [True, False, True]
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    assert "notes/n3.md" in files(tmp_path / "run")


# -------------------------------------------------------------------------------------------------- failures

ENDINGS = {
    "raise": ("errored", "apparatus", "RuntimeError: boom"),
    "nok": ("errored", "apparatus", "it went wrong in 2"),
    "apparatus": ("errored", "apparatus", "the endpoint is gone"),
    "timeout": ("timeout", "timeout", "act took longer than 5 s"),
    "abort": ("abort", "abort", "it went wrong in 2"),
    "configuration": ("errored", "configuration", "no such model"),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_failed_episode_stops_the_run_keeps_its_candidate_and_can_be_tried_again(tmp_path: Path, how: str) -> None:
    go(tmp_path / "whole", episodes=3)
    result = go(tmp_path / "run", TinyHarness({2: STEPS[how]}), episodes=3)
    assert (result.state, result.error_class, result.error) == ENDINGS[how]
    assert result.episodes_complete == completed_episodes_in(tmp_path / "run") == 1
    assert "notes/n2.md" not in files(tmp_path / "run")
    (kept,) = git(tmp_path / "run", "for-each-ref", "--format=%(refname)", "refs/failed").splitlines()
    assert "notes/n2.md" in git(tmp_path / "run", "ls-tree", "-r", "--name-only", kept)
    again = go(tmp_path / "run", episodes=3, resume=True)
    assert (again.state, again.error, again.episodes_complete) == ("complete", "", 3)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_trace_that_cannot_be_read_is_a_failure_of_the_apparatus(tmp_path: Path) -> None:
    harness = TinyHarness()
    harness.bad_traces = {2}
    result = go(tmp_path / "run", harness, episodes=3)
    assert (result.state, result.error_class, result.episodes_complete) == ("errored", "apparatus", 1)
    assert "trace of episode 2" in result.error
    assert "no trace" in result.error


@pytest.mark.parametrize("step", [lambda spec: "done", lambda spec: 1])
def test_a_harness_that_returns_something_else_failed(tmp_path: Path, step: Any) -> None:
    result = go(tmp_path / "run", TinyHarness({1: step}), episodes=1)
    assert result.state == "errored"
    assert "not an EpisodeResult" in result.error


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through_and_leaves_a_run_that_goes_on(
    tmp_path: Path, interrupt: type[BaseException]
) -> None:
    go(tmp_path / "whole", episodes=3)
    with pytest.raises(interrupt):
        go(tmp_path / "run", TinyHarness({2: throw(interrupt())}), episodes=3)
    assert [record["episode"] for record in json.loads(eval_history_path(tmp_path / "run").read_text())] == [1]
    assert go(tmp_path / "run", episodes=3, resume=True).episodes_complete == 3
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_that_is_told_to_stop_aborts_between_episodes(tmp_path: Path) -> None:
    harness = TinyHarness()
    result = go(tmp_path / "run", harness, episodes=5, should_stop=lambda: len(harness.specs) == 2)
    assert (result.state, result.error_class, result.episodes_complete) == ("abort", "abort", 2)
    assert go(tmp_path / "run", episodes=3, resume=True).state == "complete"


def test_a_full_disk_is_one_sentence_and_loses_no_complete_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, written = records_module.write_all, []

    def fills_up(fd: int, data: bytes, size: int) -> None:
        written.append(data)
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        whole(fd, data, size)

    monkeypatch.setattr(records_module, "write_all", fills_up)
    result = go(tmp_path / "run", episodes=3)
    monkeypatch.undo()
    assert (result.state, result.error_class) == ("errored", "storage")
    assert "No space left on device" in result.error
    assert "\n" not in result.error
    complete = result.episodes_complete
    assert complete == completed_episodes_in(tmp_path / "run") >= 1
    assert go(tmp_path / "run", episodes=3, resume=True).episodes_complete == 3
    assert subjects(tmp_path / "run") == ["episode 0", "episode 1", "episode 2", "episode 3"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_harness_that_finds_its_disk_full_is_an_error_of_storage(tmp_path: Path, number: int) -> None:
    full = OSError(number, os.strerror(number), "somewhere")
    wrapped = RuntimeError("the episode was not written down")
    wrapped.__cause__ = full
    for name, error in (("bare", full), ("wrapped", wrapped)):
        root, live = tmp_path / name, tmp_path / f"live-{name}"
        result = go(root, TinyHarness({2: throw(error)}), episodes=3, live_root=live)
        assert (result.state, result.error_class, result.episodes_complete) == ("errored", "storage", 1)
        assert os.strerror(number) in result.error
        assert str(live) in result.error
        assert go(root, episodes=3, resume=True, live_root=live).state == "complete"


@pytest.mark.parametrize("moment", ["seed", "install_disposition"])
def test_a_disk_that_is_full_before_the_first_episode_is_an_error_of_storage(tmp_path: Path, moment: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    harness = TinyHarness()
    setattr(harness, moment, full)
    with pytest.raises(StorageError, match="No space left on device"):
        go(tmp_path / "run", harness, episodes=1)
    assert go(tmp_path / "run", episodes=1, resume=True).state == "complete"


@pytest.mark.parametrize("moment", ["_put_back", "_settle_artifacts"])
def test_a_work_tree_that_a_full_disk_keeps_from_being_removed_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def no_room(bin: object, *_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    def step(spec: EpisodeSpec) -> EpisodeResult:
        (spec.harness_root / "notes" / "more").mkdir()
        (spec.harness_root / "notes" / "more" / "a").write_text("a")
        monkeypatch.setattr(Bin, "fresh", no_room)
        return EpisodeResult(spec.episode, moment == "_settle_artifacts", 1, "", {}, "abort")

    live = tmp_path / "live"
    result = go(tmp_path / "run", TinyHarness({2: step}), episodes=2, live_root=live)
    monkeypatch.undo()
    assert (result.error_class, result.episodes_complete) == ("storage", 2 if moment == "_settle_artifacts" else 1)
    assert "No space left on device" in result.error
    assert go(tmp_path / "run", episodes=2, resume=True, live_root=live).state == "complete"


# -------------------------------------------------------------------------------------------------- going on


def test_a_folder_with_a_run_is_refused_and_not_touched(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2)
    before = everything(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=str(tmp_path / "run")):
        go(tmp_path / "run", episodes=2)
    assert everything(tmp_path / "run") == before


@pytest.mark.parametrize("how", [{"resume": True}, {"start": 2}, {"start": 2, "resume": True}])
def test_a_run_goes_on_to_the_same_end(tmp_path: Path, how: dict[str, Any]) -> None:
    goal = selecting(scored(SCORES, "score", Visibility.OBSERVE))
    go(tmp_path / "a" / "run", episodes=5, goal=goal)
    go(tmp_path / "b" / "run", episodes=2, goal=goal)
    result = go(tmp_path / "b" / "run", episodes=5, goal=goal, **how)
    assert result.counters == {"calls": 15, "by": {"kind": 2.5}}
    ours, theirs = everything(tmp_path / "b" / "run"), everything(tmp_path / "a" / "run")
    for line in (*ours["lines"]["run.jsonl"], *theirs["lines"]["run.jsonl"]):
        del line["episodes_target"]
    assert ours == theirs


def test_going_on_from_another_place_than_the_run_stands_at_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2)
    with pytest.raises(ConfigurationError, match="2 episodes are complete"):
        go(tmp_path / "run", episodes=5, start=3, resume=True)


def test_going_on_with_nothing_is_a_new_run_but_not_from_the_middle(tmp_path: Path) -> None:
    assert go(tmp_path / "run", episodes=1, resume=True).episodes_complete == 1
    with pytest.raises(ConfigurationError, match="cannot resume"):
        go(tmp_path / "other", episodes=3, start=2)


def test_a_complete_run_goes_on_by_doing_nothing(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2)
    before = everything(tmp_path / "run")
    harness = TinyHarness()
    assert go(tmp_path / "run", harness, episodes=2, resume=True).state == "complete"
    assert harness.log == []
    assert everything(tmp_path / "run") == before


def test_completed_episodes_are_counted_without_writing(tmp_path: Path) -> None:
    cfg = config(tmp_path / "run", episodes=2)
    assert completed_episodes(cfg) == 0
    assert not (tmp_path / "run").exists()
    run(cfg)
    assert completed_episodes(cfg) == 2


def test_records_without_their_history_are_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2)
    (private_record_dir(tmp_path / "run") / "episodes.jsonl").write_text("")
    history = eval_history_path(tmp_path / "run").read_bytes()
    with pytest.raises(RecordError, match="desynchronised"):
        go(tmp_path / "run", episodes=3, resume=True)
    assert eval_history_path(tmp_path / "run").read_bytes() == history


def test_a_record_whose_commit_was_not_published_yet_counts_after_going_on(tmp_path: Path) -> None:
    go(tmp_path / "a" / "run", episodes=3)
    go(tmp_path / "b" / "run", episodes=3)
    git(tmp_path / "b" / "run", "update-ref", "HEAD", "HEAD~1")
    harness = TinyHarness()
    assert completed_episodes_in(tmp_path / "b" / "run") == 3
    go(tmp_path / "b" / "run", harness, episodes=3, resume=True)
    assert harness.log == []
    assert everything(tmp_path / "b" / "run") == everything(tmp_path / "a" / "run")


def test_a_record_whose_objects_are_lost_is_made_again(tmp_path: Path) -> None:
    go(tmp_path / "a" / "run", episodes=3)
    go(tmp_path / "b" / "run", episodes=2)
    path = private_record_dir(tmp_path / "b" / "run") / "episodes.jsonl"
    lost = json.loads(path.read_text().splitlines()[1]) | {"episode": 3, "commit": "0" * 40}
    with path.open("a") as stream:
        stream.write(json.dumps(lost) + "\n")
    harness = TinyHarness()
    go(tmp_path / "b" / "run", harness, episodes=3, resume=True)
    assert ("run", 3) in harness.log
    assert files(tmp_path / "b" / "run") == files(tmp_path / "a" / "run")


def test_what_a_killed_process_left_of_the_seed_is_replaced(tmp_path: Path) -> None:
    go(tmp_path / "whole", episodes=1)

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    harness = TinyHarness()
    harness.install_disposition = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        go(tmp_path / "run", harness, episodes=1)
    assert (tmp_path / "run" / "harness" / "notes" / "seed.md").exists()
    assert go(tmp_path / "run", episodes=1, resume=True).state == "complete"
    assert files(tmp_path / "run") == files(tmp_path / "whole")


# -------------------------------------------------------------------------------------------- evaluators' tree


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_what_an_evaluator_writes_is_put_back_and_costs_its_result(tmp_path: Path, timeout: float | None) -> None:
    def scribble(trace: Any, ctx: Any) -> EvalResult:
        (Path(ctx.harness_root) / "notes" / "scribble").write_text("x")
        (Path(ctx.harness_root) / "notes" / "seed.md").unlink()
        return EvalResult("scribble", 1.0)

    specs = [EvaluatorSpec("scribble", scribble, timeout=timeout), scored({1: 1.0, 2: 1.0})]
    go(tmp_path / "clean", episodes=2)
    result = go(tmp_path / "run", episodes=2, goal=GoalConfig.of("do it", specs))
    for record in result.eval_history:
        bad, good = record["results"]
        assert (bad["error"], bad["score"], good["error"], good["score"]) == (True, 0.0, False, 1.0)
        assert "notes/scribble" in bad["detail"]
        assert "notes/seed.md" in bad["detail"]
    assert files(tmp_path / "run") == files(tmp_path / "clean")


def test_built_ins_measure_the_candidate_against_the_accepted_state(tmp_path: Path) -> None:
    surfaces = TinyHarness().surfaces()
    specs = [
        EvaluatorSpec("units", surface_units(surfaces[0])),
        EvaluatorSpec("step", structural_step(surfaces)),
        scored(SCORES, "score"),
    ]
    result = go(tmp_path / "run", episodes=4, goal=GoalConfig.of("do it", specs, selection="accept_reject"))
    scores = [[item["score"] for item in record["results"][:2]] for record in result.eval_history]
    assert scores[0] == [3.0, 2.0]
    assert [record["accepted"] for record in result.eval_history] == [True, False, True, True]
    assert scores[1:] == [[4.0, 2.0], [4.0, 2.0], [5.0, 2.0]]


# ----------------------------------------------------------------------------------------------- live trees


def test_live_trees_lie_elsewhere_and_end_with_the_artifacts(tmp_path: Path) -> None:
    go(tmp_path / "plain" / "run", episodes=3)
    live, seen = tmp_path / "live" / "x", []
    harness = TinyHarness({2: lambda spec: seen.append(sorted(os.listdir(tmp_path / "run")))})  # type: ignore[dict-item, func-returns-value]
    result = go(tmp_path / "run", harness, episodes=3, live_root=live)
    assert harness.specs[1].root == live
    assert "harness" not in seen[0]
    assert result.root == str(tmp_path / "run")
    assert not live.exists()
    assert sorted(os.listdir(live.parent)) == []
    assert files(tmp_path / "run") == files(tmp_path / "plain" / "run")
    assert sorted(os.listdir(tmp_path / "run" / "traces")) == ["log1.txt", "log2.txt", "log3.txt"]


def test_the_harness_s_own_logs_are_kept_and_nothing_they_point_at(tmp_path: Path) -> None:
    def log(spec: Any) -> None:
        traces = spec.root / "traces"
        with (traces / "all.log").open("a") as stream:
            stream.write(f"{spec.episode}\n")
        (traces / "deep" / str(spec.episode)).mkdir(parents=True)
        (traces / "deep" / str(spec.episode) / "log").write_text("x")
        (traces / f"link{spec.episode}").symlink_to("/etc/passwd")
        os.mkfifo(traces / f"pipe{spec.episode}")

    go(tmp_path / "run", TinyHarness({1: log, 2: log}), episodes=2, live_root=tmp_path / "live")
    kept = tmp_path / "run" / "traces"
    assert (kept / "all.log").read_text() == "1\n2\n"
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()) == [
        "all.log", "deep/1/log", "deep/2/log", "log1.txt", "log2.txt"
    ]  # fmt: skip
    assert not any("link" in name or "pipe" in name for name in os.listdir(kept))


def test_a_live_tree_of_a_killed_process_is_rebuilt_whatever_is_in_it(tmp_path: Path) -> None:
    goal = selecting(scored(SCORES))
    go(tmp_path / "a" / "run", episodes=4, goal=goal)
    go(tmp_path / "b" / "run", episodes=2, goal=goal, live_root=tmp_path / "live")
    deep = tmp_path / "live" / "harness"
    deep.mkdir(parents=True)
    os.mkfifo(deep / "pipe")
    fd = os.open(deep, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=fd)
        fd, below = os.open("d", os.O_RDONLY, dir_fd=fd), fd
        os.close(below)
    os.close(fd)
    (deep / "d").chmod(0)
    go(tmp_path / "b" / "run", episodes=4, goal=goal, live_root=tmp_path / "live", resume=True)
    assert not (tmp_path / "live").exists()
    assert files(tmp_path / "b" / "run") == files(tmp_path / "a" / "run")


def test_an_interrupted_run_leaves_no_live_tree_and_its_accepted_state(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", TinyHarness({2: throw(KeyboardInterrupt())}), episodes=3, live_root=tmp_path / "live")
    assert not (tmp_path / "live").exists()
    assert "notes/n1.md" in files(tmp_path / "run")
    assert "notes/n2.md" not in files(tmp_path / "run")


# ------------------------------------------------------------------------------------------- staged activation


def staged(refuse: dict[int, str]) -> TinyHarness:
    harness = TinyHarness(staged=True)
    harness.refuse = refuse
    return harness


def test_a_staged_harness_runs_from_a_read_only_copy_of_the_accepted_state(tmp_path: Path) -> None:
    seen = {}

    def look(spec: Any) -> None:
        active = spec.active_root
        names = sorted(os.listdir(active / "notes"))
        seen[spec.episode] = (names, oct((active / "notes" / "seed.md").stat().st_mode & 0o777))

    harness = staged({})
    harness.plan = {1: look, 2: look}
    go(tmp_path / "run", harness, episodes=2)
    assert seen == {1: (["seed.md"], "0o444"), 2: (["latest.md", "n1.md", "seed.md"], "0o444")}
    assert sorted(os.listdir(tmp_path / "run")) == [".snapshot.git", "harness", "traces"]


def test_what_is_changed_in_the_tree_that_an_agent_runs_from_is_told_and_goes_no_further(tmp_path: Path) -> None:
    def meddle(spec: Any) -> None:
        notes = spec.active_root / "notes"
        for path in (notes, notes / "seed.md"):
            path.chmod(0o755)
        (notes / "seed.md").write_text("mine")
        (notes / "new.md").write_text("mine")

    harness = staged({})
    harness.plan = {1: meddle}
    result = go(tmp_path / "run", harness, episodes=2)
    told = [sorted(one["path"] for one in record["violations"]) for record in result.eval_history]
    assert told == [["active/notes", "active/notes/new.md", "active/notes/seed.md"], []]
    assert [record["accepted"] for record in result.eval_history] == [True, True]
    assert files(tmp_path / "run")["notes/seed.md"] == "seed 0"


def test_a_refused_candidate_is_handed_back_until_it_is_repaired(tmp_path: Path) -> None:
    seen = {}
    pending = pending_candidate_path(tmp_path / "run")

    def look(spec: Any) -> None:
        names = sorted(os.listdir(spec.harness_root / "notes"))
        seen[spec.episode] = (names, sorted(os.listdir(spec.active_root / "notes")), pending.exists())

    harness = staged({2: "it does not start"})
    harness.plan = {3: look, 4: look}
    result = go(tmp_path / "run", harness, episodes=4)
    assert seen[3] == (["latest.md", "n1.md", "n2.md", "n3.md", "seed.md"], ["latest.md", "n1.md", "seed.md"], True)
    assert seen[4][2] is False
    assert [record["accepted"] for record in result.eval_history] == [True, False, True, True]
    assert "it does not start" in harness.specs[3].phase_prompts["observe"]
    assert "notes/n2.md" in files(tmp_path / "run")


def test_a_refused_candidate_is_handed_back_after_a_pause_too(tmp_path: Path) -> None:
    go(tmp_path / "a" / "run", staged({2: "no"}), episodes=4)
    go(tmp_path / "b" / "run", staged({2: "no"}), episodes=2)
    assert json.loads(pending_candidate_path(tmp_path / "b" / "run").read_text())["resume_episode"] == 3
    assert "notes/n2.md" not in files(tmp_path / "b" / "run")
    go(tmp_path / "b" / "run", staged({2: "no"}), episodes=4, resume=True)
    assert files(tmp_path / "b" / "run") == files(tmp_path / "a" / "run")


def test_a_class_of_error_that_nobody_knows_is_one_of_the_apparatus(tmp_path: Path) -> None:
    result = go(tmp_path / "run", TinyHarness({1: fail("strange")}), episodes=1)
    assert (result.state, result.error_class) == ("errored", "apparatus")


# -------------------------------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize("episodes", [-1, 2.0, "3", None, True])
def test_a_number_of_episodes_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, episodes: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"episodes=.* whole number"):
        go(tmp_path / "run", episodes=episodes)
    assert list(tmp_path.iterdir()) == []


def test_two_surfaces_of_one_name_are_refused(tmp_path: Path) -> None:
    harness = TinyHarness()
    harness.surfaces = lambda: (Surface("notes", "notes"), Surface("notes", "tools"))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="two surfaces called 'notes'"):
        go(tmp_path / "run", harness, episodes=1)


@pytest.mark.parametrize("method", ["surfaces", "seed", "install_disposition", "disposition_fingerprint"])
def test_a_harness_that_cannot_be_set_up_is_a_failure_of_the_apparatus_that_names_it(
    tmp_path: Path, method: str
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("no")

    harness = TinyHarness()
    setattr(harness, method, broken)
    with pytest.raises(ApparatusError, match=r"harness 'tiny' cannot be .*: ZeroDivisionError: no"):
        go(tmp_path / "run", harness, episodes=1)
    assert go(tmp_path / "run", episodes=1, resume=True).state == "complete"


@pytest.mark.parametrize(("turns", "recorded"), [(4, 4), ("many", None), (2.5, None), (True, None), (None, None)])
def test_turns_that_are_no_whole_number_are_recorded_as_missing(tmp_path: Path, turns: Any, recorded: Any) -> None:
    harness = TinyHarness({1: lambda spec: EpisodeResult(1, True, turns)})
    (record,) = go(tmp_path / "run", harness, episodes=1).eval_history
    assert record["turns"] == recorded


def test_a_record_that_repeats_an_earlier_commit_is_not_believed(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=2)
    path = private_record_dir(tmp_path / "run") / "episodes.jsonl"
    line = json.loads(path.read_text().splitlines()[-1])
    with path.open("a") as file:
        file.write(json.dumps({**line, "episode": 3}) + "\n")
    for read in (
        lambda: completed_episodes_in(tmp_path / "run"),
        lambda: go(tmp_path / "run", episodes=4, resume=True),
    ):
        with pytest.raises(RecordError, match="an earlier episode's"):
            read()


@pytest.mark.parametrize("content", [b"garbage", b"ref: refs/heads/a\0b", b"ref: refs/heads/../../x", None])
@pytest.mark.parametrize("resume", [False, True])
def test_a_damaged_head_is_one_sentence(tmp_path: Path, content: bytes | None, resume: bool) -> None:
    go(tmp_path / "run", episodes=1)
    path = tmp_path / "run" / ".snapshot.git" / "HEAD"
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(RecordError, match="HEAD is damaged"):
        go(tmp_path / "run", episodes=2, resume=resume)


def test_a_head_that_a_power_cut_left_empty_is_made_whole(tmp_path: Path) -> None:
    go(tmp_path / "run", episodes=1)
    (tmp_path / "run" / ".snapshot.git" / "HEAD").write_bytes(b"")
    assert go(tmp_path / "run", episodes=2, resume=True).episodes_complete == 2
    assert subjects(tmp_path / "run") == ["episode 0", "episode 1", "episode 2"]


# ------------------------------------------------------------------------------------------------------ modes


def test_a_run_that_went_on_sees_the_modes_of_one_that_was_never_interrupted(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    def look(spec: Any) -> None:
        tree = spec.harness_root
        seen[spec.root.parent.name] = [f"{p.name} {p.stat().st_mode & 0o7777:o}" for p in sorted(tree.rglob("*"))]

    def private(spec: Any) -> None:
        (spec.harness_root / "notes" / "n1.md").chmod(0o600)
        (spec.harness_root / "notes" / "latest.md").chmod(0o500)
        (spec.harness_root / "notes").chmod(0o700)

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        harness = TinyHarness({1: private, 2: look})
        root, live = tmp_path / name / "run", tmp_path / name / "live"
        if name == "b":
            go(root, harness, episodes=1, live_root=live)
        go(root, harness, episodes=2, live_root=live, resume=True)
    assert seen["a"] == seen["b"]
    assert "n1.md 644" in seen["a"]
