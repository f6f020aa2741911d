"""What is declared wrongly is one usage error, before anything runs, with and without workers."""

from __future__ import annotations

import json

import pytest

HEAD = "import pytest\nfrom pytest_proteus import *\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pytestmark = pytest.mark.sweep(episods=3)\ndef test_x(run): pass", "unknown keyword 'episods'; did you mean"),
        ("pytestmark = pytest.mark.sweep(3)\ndef test_x(run): pass", "takes keywords only"),
        ("pytestmark = pytest.mark.sweep(episodes=0)\ndef test_x(run): pass", "whole number of 1 or more"),
        ("pytestmark = pytest.mark.sweep(arm=[])\ndef test_x(run): pass", "leaves no cell"),
        ("pytestmark = pytest.mark.sweep(arm=['review:nots'])\ndef test_x(run): pass", "did you mean 'notes'?"),
        ("pytestmark = pytest.mark.sweep(arm=['reviewnotes'])\ndef test_x(run): pass", "neither an Arm"),
        ("pytestmark = pytest.mark.sweep(arm=['neutral', NEUTRAL])\ndef test_x(run): pass", "two cells are called"),
        ("pytestmark = pytest.mark.sweep(harness=['minimul'])\ndef test_x(run): pass", "did you mean 'minimal'?"),
        ("pytestmark = pytest.mark.sweep(exclude=lambda cell: True)\ndef test_x(run): pass", "no cell left"),
        ("pytestmark = pytest.mark.sweep(name='a/b')\ndef test_x(run): pass", "no slash"),
        ("@pytest.mark.sweep(episodes=3)\ndef test_x(run): pass", "belongs on a module or a class"),
        ("@pytest.mark.evaluator('units:note')\ndef test_x(run): pass", "units:notes"),
        ("@pytest.mark.evaluator('step', at_most='many')\ndef test_x(run): pass", "must be a finite number"),
        ("@pytest.mark.evaluator('step', when='every')\ndef test_x(run): pass", "without a threshold"),
        ("@pytest.mark.evaluator('step', at_moost=3)\ndef test_x(run): pass", "did you mean 'at_most'?"),
        ("@pytest.mark.evaluator('step', timeout=0)\ndef test_x(run): pass", "seconds above 0"),
        ("def f(t, c): pass\n@pytest.mark.evaluator(f)\ndef test_x(run): pass", "needs a name"),
        ("def f(t, c): pass\npytestmark = [pytest.mark.evaluator(f)]\ndef test_x(run): pass", "needs a name"),
        ("@pytest.mark.evaluator(len, kind='x')\ndef test_x(run): pass", "needs a name"),
        ("@pytest.mark.evaluator\ndef test_x(run): pass", "has no spec"),
        (
            "@pytest.mark.evaluator('step', name='x')\n@pytest.mark.evaluator('tool-calls', name='x')\n"
            "def test_x(run): pass",
            "declared already",
        ),
        ("@pytest.fixture\ndef arm(): return 'neutral'\ndef test_x(run): pass", "has no params"),
        (
            "@pytest.fixture(scope='session', params=[1])\ndef arm(request, tmp_path_factory): return 'neutral'\n"
            "def test_x(run): pass",
            "only request.param and other axes",
        ),
        (
            "@pytest.fixture(params=['a'])\ndef seed(request): return request.param\ndef test_x(run): pass",
            "whole number",
        ),
        ("pytestmark = pytest.mark.sweep(axes=['tone'])\ndef test_x(run): pass", "no fixture of that name"),
        (
            "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.evaluator('step'))])\n"
            "def test_x(run, n): pass",
            "would hold for one cell only",
        ),
    ],
)
def test_a_wrong_declaration_is_one_sentence_and_exit_four(suite, text, told):
    suite.write(HEAD + text)
    result = suite.run("-p", "no:cacheprovider")
    assert result.ret == 4
    errors = "\n".join(result.errlines)
    assert "ERROR: " in errors
    assert told in errors
    assert "Traceback" not in errors + result.stdout.str()
    assert not (suite.folder / ".proteus").exists()


def test_a_wrong_declaration_is_told_once_under_xdist(suite):
    suite.write(HEAD + "pytestmark = pytest.mark.sweep(episods=3)\ndef test_x(run): pass")
    result = suite.run("-n", "2")
    assert result.ret == 4
    assert result.stderr.str().count("did you mean 'episodes'?") == 1


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--proteus-arm=revue_notes", "did you mean 'review_notes'?"),
        ("--proteus-seeds=none", "whole number"),
        ("--proteus-endpoint=ftp", "write [WIRE=]URL"),
        ("--proteus-on-existing=maybe", "write one of resume"),
        ("--proteus-retry=dead", "write one or more of"),
        ("--proteus-sandbox=jail", "write one of auto, bwrap, none"),
        ("--proteus-max-missing=some", "a percentage"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_four(suite, option, told):
    suite.write()
    result = suite.run(option)
    assert result.ret == 4
    assert told in result.stderr.str()


def test_node_ids_name_the_axes_in_their_order_whatever_the_order_of_arguments(suite):
    suite.write(
        HEAD + "pytestmark = pytest.mark.sweep(arm=['neutral', 'review:notes'])\n"
        "def test_a(seed, run, arm, harness): pass\ndef test_b(run): pass\n"
    )
    result = suite.pytester.runpytest("--collect-only", "-q", "--proteus-seeds=2")
    assert "test_it.py::test_a[minimal-review_notes-s1]" in result.outlines
    assert "test_it.py::test_b[minimal-neutral-s0]" in result.outlines


def test_collecting_writes_nothing(suite):
    suite.write()
    suite.pytester.runpytest("--collect-only", "-q", "-p", "no:cacheprovider")
    assert not (suite.folder / ".proteus").exists()


def test_the_plan_lists_the_grid_and_runs_nothing(suite):
    suite.write()
    result = suite.run("--proteus-plan", "-n", "2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*6 cells × 3 episodes = 18 episodes*", "*review_notes*"])
    assert not (suite.folder / ".proteus").exists()


def test_the_plan_as_a_file_lists_every_cell(suite):
    suite.write()
    suite.run("--proteus-plan=plan.json")
    (plan,) = json.loads((suite.folder / "plan.json").read_text())
    assert [(cell["arm"], cell["seed"]) for cell in plan["cells"]] == [
        ("neutral", 0), ("review_notes", 0), ("review_notes", 1), ("neutral", 1), ("neutral", 2), ("review_notes", 2),
    ]  # fmt: skip


def test_a_class_with_a_marker_of_its_own_is_a_sweep_of_its_own(suite):
    suite.write(
        HEAD
        + """
pytestmark = [pytest.mark.sweep(episodes=2, seed=[0], goal="one"), pytest.mark.evaluator("step")]

def test_module(run, sweep):
    assert len(sweep) == 1 and run.episodes == 2

class TestOther:
    pytestmark = [pytest.mark.sweep(goal="two", arm=["neutral", "record:tools"]), pytest.mark.evaluator("tool-calls")]

    def test_class(self, run, sweep):
        assert len(sweep) == 2 and run.episodes == 2
        assert run.scores("step") and run.scores("tool-calls")
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=3)
    assert sorted(sweep["name"] for sweep in suite.proteus["sweeps"]) == ["test_it", "test_it.TestOther"]


def test_modules_that_name_one_sweep_share_its_cells(suite):
    text = HEAD + "pytestmark = pytest.mark.sweep(name='both', episodes=2)\ndef test_x(run): pass\n"
    suite.write(text, "test_one")
    suite.write(text, "test_two")
    result = suite.run("--proteus-seeds=2")
    result.assert_outcomes(passed=4)
    assert suite.sweep["name"] == "both"
    assert suite.sweep["ledger"]["planned"] == 2


def test_modules_that_name_one_sweep_differently_are_refused(suite):
    for number in (2, 3):
        text = HEAD + f"pytestmark = pytest.mark.sweep(name='both', episodes={number})\ndef test_x(run): pass\n"
        suite.write(text, f"test_{number}")
    result = suite.run()
    assert result.ret == 4
    assert "with another episodes" in result.stderr.str()


def test_further_axes_belong_to_a_cell(suite):
    suite.write(
        HEAD
        + """
pytestmark = pytest.mark.sweep(episodes=1, seed=[0], axes=["tone"], model=["small", "large"])

@pytest.fixture(scope="session", params=["kind", "curt"])
def tone(request):
    return request.param

def test_x(run, tone):
    assert run.axes == {"tone": tone} and run.model in ("small", "large")
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=4)
    assert {(run["model"], run["axes"]["tone"]) for run in suite.sweep["runs"]} == {
        ("small", "kind"), ("small", "curt"), ("large", "kind"), ("large", "curt"),
    }  # fmt: skip


def test_excluded_cells_are_not_planned_and_their_tests_deselected(suite):
    suite.write(
        HEAD + "pytestmark = pytest.mark.sweep(episodes=1, arm=['neutral', 'review:notes'],\n"
        "    exclude=lambda cell: cell.arm == 'neutral' and cell.seed == 1)\ndef test_x(run): pass\n"
    )
    result = suite.run("--proteus-seeds=2")
    result.assert_outcomes(passed=3, deselected=1)
    assert suite.sweep["ledger"]["planned"] == 3


def test_the_command_line_feeds_the_seeds_that_a_module_declares(suite):
    suite.write()
    suite.run("--proteus-seeds=1", "--proteus-episodes=1", "-k", "completes")
    assert suite.states() == {"neutral-s0": "complete", "review_notes-s0": "complete"}
    assert {run["episodes_planned"] for run in suite.sweep["runs"]} == {1}


def test_the_command_line_narrows_a_declared_axis(suite):
    suite.write(SUITE_WITHOUT_GATE)
    suite.run("--proteus-arm=review_notes")
    assert {run["arm"] for run in suite.sweep["runs"]} == {"review_notes"}


def test_the_command_line_sets_an_axis_that_nobody_declares(suite):
    suite.write(HEAD + "pytestmark = pytest.mark.sweep(episodes=1, seed=[0])\ndef test_x(run): pass\n")
    suite.run("--proteus-arm=record:tools", "--proteus-model=m1")
    (run,) = suite.sweep["runs"]
    assert (run["arm"], run["model"]) == ("record_tools", "m1")


def test_conftests_register_harnesses_and_evaluators(suite):
    suite.pytester.makeconftest(
        """
from pytest_proteus import EvalResult, EvaluatorSpec
from pytest_proteus.harnesses.minimal import MinimalHarness

class Other(MinimalHarness):
    name = "other"

def pytest_proteus_register_harnesses():
    return {"other": Other}

def pytest_proteus_register_evaluators(sweep):
    return ["step", EvaluatorSpec("two", lambda trace, ctx: EvalResult("two", 2.0))]
"""
    )
    suite.write(
        HEAD + "pytestmark = pytest.mark.sweep(episodes=1, seed=[0], harness=['other'])\n"
        "def test_x(run): assert run.last('two') == 2.0 and run.last('step') is not None\n"
    )
    suite.run().assert_outcomes(passed=1)


SUITE_WITHOUT_GATE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = pytest.mark.sweep(episodes=1, seed=[0])

@pytest.fixture(scope="session", params=[NEUTRAL, review("notes")], ids=str)
def arm(request):
    return request.param

def test_completes(run):
    pass
"""
