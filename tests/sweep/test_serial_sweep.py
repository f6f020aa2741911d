"""A sweep without pytest: its layout, what it refuses, and going on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_proteus.core import NEUTRAL, EvalResult, EvaluatorSpec, GoalConfig, SweepConfig, review
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.sweep import (
    SweepStateError,
    completed_episodes_in,
    completed_seeds,
    opaque_id,
    read_seed_records,
    run_sweep,
)

Sweep = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    def start(**more: Any) -> list[dict[str, Any]]:
        options: dict[str, Any] = {
            "name": "demo",
            "adapter_factory": MinimalHarness,
            "arms": [NEUTRAL, review("notes")],
            "seeds": 2,
            "goal": GoalConfig.of("tidy up"),
            "root": tmp_path / "out",
            "episodes": 2,
        }
        return run_sweep(SweepConfig(**(options | more)))

    return start


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_every_arm_runs_with_every_seed(sweep: Sweep) -> None:
    records = sweep()
    assert [(record["arm"], record["seed"]) for record in records] == [
        ("neutral", 0),
        ("neutral", 1),
        ("review_notes", 0),
        ("review_notes", 1),
    ]
    assert {(record["episodes_complete"], record["error"], record["state"]) for record in records} == {
        (2, "", "complete")
    }


def test_the_artifacts_lie_where_they_are_promised(sweep: Sweep, tmp_path: Path) -> None:
    records = sweep(seeds=1, arms=[NEUTRAL])
    run_id = records[0]["run_id"]
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", "progress", "runs", "seeds.jsonl"]
    assert os.listdir(tmp_path / "out" / "progress") == [f"{run_id}.jsonl"]
    assert sorted(os.listdir(tmp_path / "out" / "runs")) == [".proteus-records", run_id]
    assert records[0]["root"] == str(tmp_path / "out" / "runs" / run_id)
    assert read_seed_records(tmp_path / "out") == records
    assert completed_episodes_in(tmp_path / "out" / "runs" / run_id) == 2


def test_the_manifest_has_the_plan_and_the_condition(sweep: Sweep, tmp_path: Path) -> None:
    measure = EvaluatorSpec("mine", lambda t, c: EvalResult("mine", 1.0), kind="measurement")
    sweep(goal=GoalConfig.of("tidy up", [measure]))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["name"], manifest["episodes"]) == (3, "demo", 2)
    assert (manifest["arms"], manifest["seeds"], manifest["plan"]) == (
        ["neutral", "review_notes"],
        [0, 1],
        {"cells": 4},
    )
    assert [surface["name"] for surface in manifest["surfaces"]["minimal"]] == ["notes", "tools"]
    assert manifest["evaluators"]["mine"]["kind"] == "measurement"
    assert {run["id"] for run in manifest["runs"]} == set(os.listdir(tmp_path / "out" / "runs")) - {".proteus-records"}
    assert manifest["condition"]["goal"]["text"] == "tidy up"


def test_ids_tell_nothing_and_differ() -> None:
    ids = {opaque_id(arm, seed) for arm in ("neutral", "review_notes", "a") for seed in range(3)}
    assert len(ids) == 9
    assert not any("neutral" in name or "notes" in name for name in ids)
    assert opaque_id("a", 1) == opaque_id("a", 1)


def test_an_existing_sweep_is_refused_and_not_touched(sweep: Sweep, tmp_path: Path) -> None:
    sweep()
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match="on_existing"):
        sweep()
    assert tree(tmp_path) == before


def test_a_complete_sweep_is_resumed_by_doing_nothing(sweep: Sweep, tmp_path: Path) -> None:
    sweep()
    before = tree(tmp_path)
    assert sweep(on_existing="resume") == []
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"episodes": 3}, "episodes"),
        ({"seeds": 3}, "seeds"),
        ({"arms": [NEUTRAL]}, "arms"),
        ({"goal": GoalConfig.of("other")}, "goal"),
        ({"model": "other"}, "model"),
        ({"max_turns": 3}, "max_turns"),
        ({"adapter_factory": lambda: MinimalHarness(files=3)}, "adapter"),
        ({"condition_metadata": {"image": 2}}, "metadata"),
    ],
)
def test_another_condition_is_refused_before_any_write_and_named(
    sweep: Sweep, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    sweep(seeds=1)
    before = tree(tmp_path)
    with pytest.raises(SweepStateError, match=rf"differs in {key}\b|differs in .*, {key}\b") as caught:
        sweep(on_existing="resume", **({"seeds": 1} | change))
    assert isinstance(caught.value, ValueError)
    assert tree(tmp_path) == before


def test_overwrite_begins_anew(sweep: Sweep, tmp_path: Path) -> None:
    sweep()
    assert len(sweep(on_existing="overwrite", goal=GoalConfig.of("other"), seeds=1)) == 2
    assert len(read_seed_records(tmp_path / "out")) == 2


def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()

    def factory() -> MinimalHarness:
        return MinimalHarness(fail_at=[(0, 2)], once=tmp_path / "marks")

    first = sweep(adapter_factory=factory)
    assert [(record["seed"], record["state"], record["episodes_complete"]) for record in first] == [
        (0, "errored", 1),
        (1, "complete", 2),
        (0, "errored", 1),
        (1, "complete", 2),
    ]
    assert completed_seeds(tmp_path / "out", 2) == {("neutral", 1), ("review_notes", 1)}
    again = sweep(adapter_factory=factory, on_existing="resume")
    assert [(record["seed"], record["state"], record["episodes_complete"]) for record in again] == [
        (0, "complete", 2),
        (0, "complete", 2),
    ]
    assert len(completed_seeds(tmp_path / "out", 2)) == 4
    assert len(read_seed_records(tmp_path / "out")) == 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"on_existing": "maybe"}, "refuse, resume or overwrite"),
        ({"arms": []}, "0 arms"),
        ({"seeds": 0}, "0 seeds"),
        ({"arms": [NEUTRAL, NEUTRAL]}, "'neutral'"),
    ],
)
def test_a_wrong_sweep_is_refused_before_any_write(
    sweep: Sweep, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sweep(**wrong)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_sweep_has_no_seeds(tmp_path: Path) -> None:
    assert completed_seeds(tmp_path, 1) == set()
    assert read_seed_records(tmp_path) == []
    assert completed_episodes_in(tmp_path / "runs" / "x") == 0
