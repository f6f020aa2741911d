"""Scores after the fact: from checkpoints and traces, with the rules of an episode, beside what was there before."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
from tiny_harness import TinyHarness, fifo, go

from pytest_proteus.core import EvalResult, EvaluatorSpec, GoalConfig
from pytest_proteus.core.errors import RecordError
from pytest_proteus.core.evaluators import file_contains, structural_step, surface_units, tool_calls
from pytest_proteus.core.records import (
    RESCORES,
    private_record_dir,
    read_records,
    read_rescores,
    read_trace,
    with_versions,
)
from pytest_proteus.core.rescore import rescore

NOTES, TOOLS = TinyHarness().surfaces()


def custom(name, run, version="v1", timeout=30.0):
    return EvaluatorSpec(name, run, timeout=timeout, version=version)


def headings(trace, ctx):
    pages = sorted(path.name for path in (Path(ctx.harness_root) / "notes").rglob("*"))
    return EvalResult("x", float(len(pages) + 10 * ctx.episode + 100 * len(trace)), detail=",".join(pages))


SPECS = [
    EvaluatorSpec("units:notes", surface_units(NOTES), spec="units:notes", version="v1"),
    EvaluatorSpec("step", structural_step([NOTES, TOOLS]), spec="step", version="v1"),
    EvaluatorSpec("tool-calls", tool_calls(), spec="tool-calls", version="v1"),
    EvaluatorSpec("contains:notes/e2.md", file_contains("notes/seed.md", "seed 0"), spec="contains:a:b", version="v1"),
    custom("headings", headings),
]


def anew(root, specs, **changes):
    return rescore(root, specs, [NOTES, TOOLS], read_records(root), partial(read_trace, root), **changes)


def results(root, specs):
    """Evaluator → its results by episode, as readers see them."""
    versions = {spec.name: spec.version for spec in specs}
    records = [with_versions(record, read_rescores(root), versions) for record in read_records(root)]
    found = {}
    for record in records:
        for result in record["results"]:
            found.setdefault(result["name"], []).append(result)
    return found


def scores(root, specs):
    return {
        name: [None if result["error"] else result["score"] for result in listed]
        for name, listed in results(root, specs).items()
    }


def bytes_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RESCORES}


@pytest.mark.parametrize("specs", [SPECS, SPECS[:3]], ids=["with a tree", "without"])
def test_results_are_those_of_a_run_that_had_the_evaluators_from_the_start(tmp_path, specs):
    go(tmp_path / "now" / "run", episodes=4, goal=GoalConfig.of("do it", specs))
    go(tmp_path / "later" / "run", episodes=4)
    done = anew(tmp_path / "later" / "run", specs)
    assert (done.computed, done.errors, done.stored, done.complete) == (4 * len(specs), 0, 0, True)
    assert results(tmp_path / "later" / "run", specs) == results(tmp_path / "now" / "run", specs)


def test_nothing_that_was_there_is_changed(tmp_path):
    go(tmp_path / "run", episodes=2, goal=GoalConfig.of("do it", SPECS[:1]))
    before = bytes_of(tmp_path)
    anew(tmp_path / "run", SPECS)
    assert bytes_of(tmp_path) == before


def test_what_is_stored_is_not_computed_again(tmp_path):
    go(tmp_path / "run", episodes=3, goal=GoalConfig.of("do it", SPECS[:1]))
    assert vars(anew(tmp_path / "run", SPECS[:2])) == {"computed": 3, "errors": 0, "stored": 3, "complete": True}
    assert vars(anew(tmp_path / "run", SPECS[:2])) == {"computed": 0, "errors": 0, "stored": 6, "complete": True}


def test_a_new_version_stands_beside_the_old_one(tmp_path):
    old, new = (custom("mine", lambda trace, ctx, n=n: EvalResult("", n * ctx.episode), f"v{n}") for n in (1, 2))
    go(tmp_path / "run", episodes=2, goal=GoalConfig.of("do it", [old]))
    assert scores(tmp_path / "run", [new]) == {}
    anew(tmp_path / "run", [new])
    assert scores(tmp_path / "run", [new]) == {"mine": [2.0, 4.0]}
    assert scores(tmp_path / "run", [old]) == {"mine": [1.0, 2.0]}
    assert anew(tmp_path / "run", [old]).computed == 0


def test_a_record_that_names_no_version_is_taken_as_it_is(tmp_path):
    unnamed = custom("mine", lambda trace, ctx: EvalResult("", 7.0), version="")
    go(tmp_path / "run", episodes=1, goal=GoalConfig.of("do it", [unnamed]))
    assert scores(tmp_path / "run", [custom("mine", headings)]) == {"mine": [7.0]}


def wreck(trace, ctx):
    (Path(ctx.harness_root) / "notes" / "seed.md").write_text("mine now")
    (Path(ctx.harness_root) / "more").mkdir()
    return EvalResult("", 1.0)


def hang(trace, ctx):
    time.sleep(600)


def leave(trace, ctx):
    os._exit(3)


@pytest.mark.parametrize(
    ("run", "timeout", "told"),
    [
        (wreck, 30.0, "it changed the harness, which was put back: more, notes/seed.md"),
        (wreck, None, "it changed the harness, which was put back: more, notes/seed.md"),
        (hang, 0.3, "it took longer than 0.3 s"),
        (leave, 30.0, "its process ended (exit status 3)"),
        (lambda trace, ctx: 1 / 0, 30.0, "ZeroDivisionError"),
        (lambda trace, ctx: EvalResult("", float("nan")), 30.0, "non-finite score"),
    ],
)
def test_a_broken_evaluator_costs_its_own_results_only(tmp_path, run, timeout, told):
    go(tmp_path / "run", episodes=2)
    specs = [custom("bad", run, timeout=timeout), SPECS[3], SPECS[4]]
    assert anew(tmp_path / "run", specs).errors == 2
    found = results(tmp_path / "run", specs)
    assert [told in result["detail"] for result in found["bad"]] == [True, True]
    go(tmp_path / "now" / "run", episodes=2, goal=GoalConfig.of("do it", specs[1:]))
    found.pop("bad")
    assert found == results(tmp_path / "now" / "run", specs[1:])


def test_an_episode_whose_tree_was_refused_has_no_results(tmp_path):
    go(tmp_path / "run", TinyHarness({2: fifo}), episodes=3)
    assert anew(tmp_path / "run", SPECS[:2]).computed == 4
    assert [line["episode"] for line in read_rescores(tmp_path / "run")] == [1, 3]


def test_what_was_stopped_goes_on_where_it_stood(tmp_path):
    go(tmp_path / "run", episodes=3)
    asked = iter([False, True])
    done = anew(tmp_path / "run", SPECS, should_stop=lambda: next(asked))
    assert (done.computed, done.complete) == (len(SPECS), False)
    assert vars(anew(tmp_path / "run", SPECS)) == {
        "computed": 2 * len(SPECS), "errors": 0, "stored": len(SPECS), "complete": True
    }  # fmt: skip
    whole = scores(tmp_path / "run", SPECS)
    assert all(len(listed) == 3 for listed in whole.values())


def test_a_candidate_that_was_rejected_is_what_an_evaluator_sees(tmp_path):
    falling = custom("falling", lambda trace, ctx: EvalResult("", -float(ctx.episode)))
    go(tmp_path / "run", episodes=3, goal=GoalConfig.of("do it", [falling], selection="accept_reject"))
    anew(tmp_path / "run", SPECS[:1])
    assert [record["accepted"] for record in read_records(tmp_path / "run")] == [True, False, False]
    assert scores(tmp_path / "run", SPECS[:1])["units:notes"] == [3.0, 4.0, 4.0]


def test_a_damaged_run_is_one_sentence(tmp_path):
    go(tmp_path / "run", episodes=1)
    (private_record_dir(tmp_path / "run") / "actions.jsonl").unlink()
    with pytest.raises(RecordError, match="no trace of episode 1 is stored"):
        anew(tmp_path / "run", SPECS)
    (private_record_dir(tmp_path / "run") / RESCORES).write_text('{"episode": "x"}\n')
    with pytest.raises(RecordError, match="holds a line that is no result"):
        anew(tmp_path / "run", SPECS)
