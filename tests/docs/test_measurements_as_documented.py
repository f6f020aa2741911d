"""Measurements written as users of the peer package write them run here with nothing but the import root changed.

Each helper below is such a user's code: it uses the names, keywords, positions and fields that are documented there.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_proteus.core import (
    NEUTRAL,
    ActionEvent,
    EvalResult,
    EvaluatorSpec,
    GoalConfig,
    GoalContext,
    RunConfig,
    SweepConfig,
    Visibility,
    snapshot,
)
from pytest_proteus.core.episode import run
from pytest_proteus.core.evaluators import structural_step, surface_units, tool_calls
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.measure import distance
from pytest_proteus.sweep import run_sweep

# -- a per-episode measurement --------------------------------------------------------------------------------------


def title_lines(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
    found = 0
    folder = Path(ctx.harness_root) / "notes"
    for page in folder.rglob("*.md") if folder.is_dir() else ():
        found += sum(line.startswith("#") for line in page.read_text(encoding="utf-8", errors="replace").splitlines())
    return EvalResult(name="titles", score=float(found), passed=found >= 3, detail=f"{found} titles")


measurement = EvaluatorSpec(name="title-lines", run=title_lines, kind="measurement", visibility=Visibility.HIDDEN)

goal = GoalConfig.of(text="Make what you know easy to find.", evaluators=(measurement,))


def test_a_measurement_can_be_called_by_hand(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "first.md").write_text("# A\n\n## B\n", encoding="utf-8")
    result = title_lines([], GoalContext(str(tmp_path), 1))
    assert (result.name, result.score, result.passed, result.detail) == ("titles", 2.0, False, "2 titles")


@pytest.fixture
def finished(tmp_path):
    """A finished run of three episodes, measured by ``goal``."""
    adapter = MinimalHarness()
    config = RunConfig(
        name="one", adapter=adapter, disposition=NEUTRAL, goal=goal, root=tmp_path / "one", model="mock", episodes=3
    )
    return run(config)


def test_the_name_of_the_specification_is_the_identity_of_a_result(finished):
    names = [result["name"] for record in finished.eval_history for result in record["results"]]
    assert names == ["title-lines"] * 3


def test_the_evaluator_history_lies_outside_of_the_run(finished):
    root = Path(finished.root)
    history = root.parent / ".proteus-records" / root.name / "eval_history.json"
    assert len(json.loads(history.read_text(encoding="utf-8"))) == 3


def test_the_built_in_evaluators_are_functions_of_the_same_names(tmp_path):
    adapter = MinimalHarness()
    chosen = (
        EvaluatorSpec(name="units:notes", run=surface_units(adapter.surfaces()[0])),
        EvaluatorSpec(name="tool-calls", run=tool_calls()),
        EvaluatorSpec(name="step", run=structural_step(adapter.surfaces())),
    )
    done = run(
        RunConfig(
            name="built-in",
            adapter=adapter,
            disposition=NEUTRAL,
            goal=GoalConfig.of(text="", evaluators=chosen),
            root=tmp_path / "run",
            model="mock",
            episodes=2,
        )
    )
    assert [result["name"] for result in done.eval_history[-1]["results"]] == ["units:notes", "tool-calls", "step"]


# -- a measurement of a finished run --------------------------------------------------------------------------------


def churn_between_ends(run_root: Path, adapter) -> dict[str, dict]:
    work = Path(run_root) / "harness"
    first, last = snapshot.commit_for_episode(work, 0), snapshot.head(work)
    if first is None or not last:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        snapshot.materialize(work, first, before)
        snapshot.materialize(work, last, after)
        deltas = distance.compare(before, after, adapter.surfaces())
    fields = ("added", "dropped", "revised", "distance", "churn")
    return {name: {field: getattr(delta, field) for field in fields} for name, delta in deltas.items()}


def test_checkpoints_of_a_finished_run_can_be_compared(finished):
    found = churn_between_ends(Path(finished.root), MinimalHarness())
    assert set(found) == {"notes", "tools"}
    assert sum(surface["added"] for surface in found.values()) >= 3
    json.dumps(found)


def test_a_folder_that_is_no_run_has_no_checkpoints(tmp_path):
    assert churn_between_ends(tmp_path / "nothing", MinimalHarness()) == {}


def test_the_lines_of_a_sweep_name_the_roots_of_its_runs(tmp_path):
    sweep = SweepConfig(
        name="demo",
        adapter_factory=MinimalHarness,
        arms=[NEUTRAL],
        seeds=2,
        goal=goal,
        root=tmp_path / "demo",
        model="mock",
        episodes=2,
    )
    run_sweep(sweep)
    lines = (tmp_path / "demo" / "seeds.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line]
    assert sorted((record["arm"], record["seed"]) for record in records) == [("neutral", 0), ("neutral", 1)]
    assert all(churn_between_ends(Path(record["root"]), MinimalHarness()) for record in records)
