"""A session never says more than its artifacts hold: ends of cells, of tests, and of comparisons that name nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from pytest_proteus.core.records import EPISODES, private_record_dir

SMALL = """
import pytest
pytestmark = [pytest.mark.sweep(name="t", episodes=2, seed=range(2)), pytest.mark.evaluator("units:notes")]
def test_run(run): pass
"""


def test_a_cell_that_nobody_extended_is_not_complete_with_more_episodes_planned(suite):
    suite.write(SMALL)
    suite.run().assert_outcomes(passed=2)
    result = suite.run("--proteus-episodes=50", "--proteus-no-run", "--proteus-save=b")
    assert result.ret == 1
    assert (suite.sweep["ledger"]["complete"], suite.sweep["ledger"]["not_run"]) == (0, 2)
    assert suite.proteus["outcome"] == "incomplete"
    assert not list(suite.folder.rglob("b.json"))
    suite.run("--proteus-episodes=3", "-k", "s1").assert_outcomes(passed=1, deselected=1)
    assert suite.states() == {"neutral-s0": "not_run", "neutral-s1": "complete"}
    suite.run("--proteus-episodes=2").assert_outcomes(passed=2)
    assert suite.sweep["ledger"]["reused"] == 2


def test_an_edited_module_that_the_adapter_imports_is_another_condition(suite):
    suite.write("N = 1\n", "helper")
    suite.write(
        """
import helper
from pytest_proteus.harnesses.minimal import MinimalHarness

class Helped(MinimalHarness):
    name = "helped"
    def run_episode(self, spec):
        (spec.root / "harness" / "notes" / "more.md").write_text("x" * helper.N)
        return super().run_episode(spec)
""",
        "adapter",
    )
    suite.write(SMALL.replace("episodes=2", 'episodes=2, harness=["adapter:Helped"]'))
    suite.run()
    suite.run()
    assert suite.sweep["ledger"]["reused"] == 2
    suite.write("N = 5\n", "helper")
    suite.run()
    assert suite.sweep["ledger"]["reused"] == 0


def test_files_of_which_nothing_would_be_taken_are_one_sentence(suite):
    (suite.folder / "cand").mkdir()
    (suite.folder / "cand" / "AGENTS.md").write_text("rules")
    suite.write(
        SMALL.replace("seed=range(2)", 'seed=[0], arm=["neutral", Arm("cand", files=Files("cand"))]').replace(
            "import pytest", "import pytest\nfrom pytest_proteus import Arm, Files"
        )
    )
    result = suite.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*Files: cand has no file in notes, tools*name the places*paths=*"])


@pytest.mark.parametrize(("policy", "workers"), [("pass", "0"), ("fail", "0"), ("fail", "2")])
def test_a_test_that_fails_by_itself_is_a_fail_whatever_gates_are_undecided(suite, policy, workers):
    suite.write(
        SMALL
        + """
def test_broken(sweep): assert 0, "a real failure"
def test_gate(scores, gate): gate("g", scores("units:notes"), at_least=1.5)
"""
    )
    suite.run(f"--proteus-undecided={policy}", "-n", workers)
    assert {gate["verdict"] for gate in suite.proteus["gates"]} == {"undecided"}
    assert suite.proteus["outcome"] == "fail"
    assert "tests failed" in suite.proteus["outcome_reasons"]


def test_a_gate_that_is_undecided_alone_leaves_the_outcome_undecided(suite):
    suite.write(SMALL + "\ndef test_gate(scores, gate): gate('g', scores('units:notes'), at_least=1.5)\n")
    assert suite.run().ret == 1
    assert suite.proteus["outcome"] == "undecided"


@pytest.mark.parametrize("command", ["measure", "reliability", "audit"])
def test_readers_of_a_folder_whose_artifacts_are_gone_say_so(suite, command):
    def read() -> tuple[int, str]:
        words = [sys.executable, "-c", "from pytest_proteus.cli import main; raise SystemExit(main())", command, out]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    suite.write(SMALL)
    suite.run()
    (out,) = (suite.folder / ".proteus" / "t").iterdir()
    run = next((out / "runs").glob("run-*"))
    assert read() == (0, "")
    shutil.move(private_record_dir(run) / EPISODES, suite.folder)
    code, said = read()
    assert (code, "2 episodes are complete, and 0 of them have a record" in said) == (1, True)
    shutil.move(suite.folder / EPISODES, private_record_dir(run))
    shutil.rmtree(run / ".snapshot.git")
    code, said = read()
    assert (code, ".snapshot.git" in said) == (1, True)


@pytest.mark.parametrize("option", ["--proteus-compare=", "--proteus-save="])
def test_an_option_that_names_no_baseline_is_one_sentence(suite, option):
    suite.write(SMALL)
    result = suite.run(option)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{option} names no baseline*"])
