"""The checks that tell whether a measurement can be trusted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_proteus.core import EvalResult, EvaluatorSpec
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.evaluators import parse_evaluator
from pytest_proteus.harnesses.registry import resolve
from pytest_proteus.sweep import conformance
from pytest_proteus.sweep.conformance import check_evaluator, check_statistic


def good(trace, ctx):
    notes = Path(ctx.harness_root) / "notes"
    return EvalResult(
        "x", float(sum(1 for _ in notes.rglob("*")) if notes.is_dir() else 0), data={"events": len(trace)}
    )


def brittle(trace, ctx):
    return EvalResult("x", float(len(list((Path(ctx.harness_root) / "notes").iterdir()))))


def reads_text(trace, ctx):
    return EvalResult("x", float(sum(len(path.read_text()) for path in Path(ctx.harness_root).rglob("*.md"))))


def trusts_params(trace, ctx):
    return EvalResult("x", float(sum(len(event.params["path"]) for event in trace if event.tool is not None)))


def writes(trace, ctx):
    (Path(ctx.harness_root) / "mark").write_text("x")
    return EvalResult("x", 1.0)


def chance(trace, ctx):
    return EvalResult("x", 1.0, detail=ctx.harness_root)


def odd_data(trace, ctx):
    return EvalResult("x", 1.0, data={"seen": {1, 2}})


def hangs(trace, ctx):
    time.sleep(600)


def nothing(trace, ctx):
    return None


ORDINARY, BARE, ODD = conformance._EPISODES


@pytest.mark.parametrize(
    ("evaluator", "failing", "told"),
    [
        (good, [], ""),
        (brittle, [BARE], "FileNotFoundError"),
        (reads_text, [ODD], "UnicodeDecodeError"),
        (trusts_params, [ODD], "KeyError"),
        (writes, ["it only reads the harness"], "mark"),
        (chance, ["it says the same twice"], "absolute paths"),
        (odd_data, ["its result is plain data"], "set"),
        (hangs, ["it is bounded"], "took longer than 0.3 s"),
        (nothing, [ORDINARY, BARE, ODD], "NoneType"),
    ],
)
def test_an_evaluator_fails_the_line_that_says_what_to_change(monkeypatch, evaluator, failing, told):
    if evaluator is hangs:
        monkeypatch.setattr(conformance, "EVALUATOR_SECONDS", 0.3)
    found = [one for one in check_evaluator(EvaluatorSpec("x", evaluator), resolve("minimal")) if not one.ok]
    assert [one.name for one in found] == failing
    assert told in "".join(one.advice for one in found)


@pytest.mark.parametrize("form", ["units:notes", "units:tools", "tool-calls", "step", "contains:notes/one.md:Text"])
def test_the_built_in_evaluators_hold(form):
    adapter = resolve("minimal")
    assert all(one.ok for one in check_evaluator(parse_evaluator(form, adapter.surfaces()), adapter))


@pytest.mark.parametrize("harness", ["pi", "claude"])
def test_an_agents_surfaces_are_made_up_without_the_agent(harness):
    adapter = resolve(harness)
    spec = parse_evaluator("units:skills", adapter.surfaces())
    assert all(one.ok for one in check_evaluator(spec, adapter))


MEASURES = """
from pytest_proteus import EvalResult, statistic

@statistic(direction="neutral", scale="runs", min_seeds=4, min_arms=2)
def counted(sweep):
    return {arm: len(runs) for arm, runs in sweep.by_arm().items()}

def brittle(sweep):
    return float(sum(run.records[1]["turns"] for run in sweep.runs))

def one(trace, ctx):
    return EvalResult("one", 1.0)
"""


@pytest.fixture
def measures(tmp_path, monkeypatch):
    (tmp_path / "own_measures.py").write_text(MEASURES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "failing"),
    [("counted", []), ("brittle", ["it survives runs that failed and runs that are not complete"])],
)
def test_a_statistic_fails_the_line_that_says_what_to_change(measures, name, failing):
    found = check_statistic(f"own_measures:{name}")
    assert [one.name for one in found if not one.ok] == failing
    assert len(found) == 8


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere_at_all:x", "cannot be imported"),
        ("own_measures:absent", "has no 'absent'"),
        ("own_measures", "write package.module:function"),
    ],
)
def test_a_statistic_that_cannot_be_found_is_one_sentence(measures, path, told):
    with pytest.raises(ConfigurationError, match=told):
        check_statistic(path)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--evaluator", "own_measures:one"], 0, "ok    it says the same twice"),
        (["--evaluator", "own_measures:absent"], 2, "has no 'absent'"),
        ([], 2, "name what to check"),
        (["--statistic", "own_measures:counted", "--harness", "minimal"], 2, "checked by itself"),
    ],
)
def test_the_command_exits_as_told(measures, words, code, told):
    program = "import sys; from pytest_proteus.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, "check", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
