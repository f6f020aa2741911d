"""A gate that a marker declares is known before anything runs and held after the body of its test."""

from __future__ import annotations

import pytest

HEAD = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(episodes=3, arm=[NEUTRAL, review("notes")], seed=range(4)),
    pytest.mark.evaluator("units:notes", direction="higher"),
]
"""

SUITE = (
    HEAD
    + """
@pytest.mark.gate("separation.p", below=1)
def test_arms(separation):
    assert separation.n == 8

@pytest.mark.gate("scores.units:notes", below=1000)
@pytest.mark.gate("structure.notes", below=1000)
def test_asks_for_nothing_itself():
    pass

class TestInAClass:
    @pytest.mark.gate("reliability.ratio", below=0.001)
    def test_fails(self):
        pass

@pytest.mark.gate("travel.notes", at_most=1000)
def test_whose_body_fails():
    assert False
"""
)


def gates(suite):
    return {(gate["name"], gate["threshold"]["op"]): gate for gate in suite.proteus["gates"]}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_it_is_an_entry_like_any_other_gate(suite, workers):
    suite.write(SUITE)
    suite.run("-n", workers).assert_outcomes(passed=2, failed=2)
    found = gates(suite)
    assert {name: gate["verdict"] for (name, _), gate in found.items()} == {
        "separation.p": "pass",
        "scores.units:notes[neutral]": "pass",
        "scores.units:notes[review_notes]": "pass",
        "structure.notes[neutral]": "pass",
        "structure.notes[review_notes]": "pass",
        "reliability.ratio[neutral]": "fail",
        "reliability.ratio[review_notes]": "fail",
        "travel.notes[neutral]": "pass",
        "travel.notes[review_notes]": "pass",
    }
    assert {gate["source"] for gate in found.values()} == {"marker"}
    score = found["scores.units:notes[neutral]", "below"]
    assert (score["metric"], score["arm"], score["n"], score["alpha"]) == ("units:notes", "neutral", 4, 0.05)
    assert found["separation.p", "below"]["arm"] is None


def test_after_a_body_that_failed_it_is_recorded_and_does_not_block(suite):
    suite.write(SUITE)
    suite.run("-k", "test_whose_body_fails").assert_outcomes(failed=1)
    assert [gate["blocking"] for gate in suite.proteus["gates"]] == [False, False]


def test_a_failed_one_is_told_after_the_body(suite):
    suite.write(SUITE)
    result = suite.run("-k", "TestInAClass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reliability.ratio[[]neutral[]] = *, wanted below 0.001: fail*"])


def test_strata_are_held_apart(suite):
    suite.write(
        """
import pytest
pytestmark = [pytest.mark.sweep(episodes=2, seed=range(2), model=["small", "large"]), pytest.mark.evaluator("step")]

@pytest.mark.gate("scores.step", at_least=0.1)
@pytest.mark.gate("reliability.n_runs", equals=2)
def test_it():
    pass
"""
    )
    suite.run()
    strata = {(gate["name"], gate["stratum"]) for gate in suite.proteus["gates"]}
    assert strata == {
        (f"{name}[minimal/{model}{arm}]", f"minimal/{model}")
        for name, arm in (("scores.step", "/neutral"), ("reliability.n_runs", "/neutral"))
        for model in ("small", "large")
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@pytest.mark.gate('seperation.p', at_most=1)\ndef test_x(sweep): pass", "did you mean 'separation'?"),
        ("@pytest.mark.gate('separation.q', at_most=1)\ndef test_x(): pass", "separation has no 'q'; "),
        ("@pytest.mark.gate('structure.nots', at_most=1)\ndef test_x(): pass", "did you mean 'notes'?"),
        ("@pytest.mark.gate('scores.unitsnotes', at_most=1)\ndef test_x(): pass", "did you mean 'units:notes'?"),
        ("@pytest.mark.gate('separation', at_most=1)\ndef test_x(): pass", "names no field"),
        ("@pytest.mark.gate('separation.p')\ndef test_x(): pass", "has no bound"),
        ("@pytest.mark.gate('separation.p', at_moost=1)\ndef test_x(): pass", "did you mean 'at_most'?"),
        ("@pytest.mark.gate('separation.p', at_most='1')\ndef test_x(): pass", "must be a finite number"),
        ("@pytest.mark.gate\ndef test_x(sweep): pass", "takes one text"),
        ("@pytest.mark.gate('step.p', at_most=1)\ndef test_x(): pass", "no statistic is called 'step'"),
        (
            "@pytest.mark.gate('separation.p', at_most=1)\nclass TestX:\n  def test_x(self, sweep): pass",
            "belongs on a test",
        ),
        (
            "pytestmark.append(pytest.mark.gate('separation.p', at_most=1))\ndef test_x(sweep): pass",
            "belongs on a test",
        ),
    ],
)
def test_a_wrong_one_is_one_sentence_before_anything_runs(suite, text, told):
    suite.write(HEAD + text)
    result = suite.run("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert not (suite.folder / ".proteus").exists()


@pytest.mark.parametrize(
    ("old", "new", "gate", "told"),
    [
        ("range(4)", "range(3)", "'separation.p', at_most=0.05", "with arms of 3 and 3 runs no p is below 0.1"),
        ("range(4)", "range(1)", "'separation.p', at_most=0.5", "takes two arms, and one of them with two seeds"),
        ('[NEUTRAL, review("notes")]', "[NEUTRAL]", "'separation.p', at_most=0.5", "takes two arms"),
        ("range(4)", "range(1)", "'reliability.ratio', below=1", "run two seeds or more"),
        ("range(4)", "range(1)", "'scores.units:notes', at_least=1", "one run has no interval"),
    ],
)
def test_one_that_can_never_pass_is_refused_before_anything_runs(suite, old, new, gate, told):
    assert old in HEAD
    suite.write(HEAD.replace(old, new) + f"@pytest.mark.gate({gate})\ndef test_x(): pass")
    result = suite.run("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "can never pass in minimal: " in result.stderr.str()
    assert told in result.stderr.str()
    assert not (suite.folder / ".proteus").exists()


BOUNDED = """
import pytest

pytestmark = [
    pytest.mark.sweep(episodes=1, seed=range(5)),
    pytest.mark.evaluator("contains:notes/index.md:note", name="kept"),
]

@pytest.mark.gate("scores.kept", {bound})
def test_kept():
    pass
"""


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("at_least=0.9", "can never pass in minimal: with 5 runs that all score 1, the clopper-pearson interval 0.54"),
        ("at_least=0.3", "can never fail in minimal: with 5 runs that all score 0, p is 0.16"),
        ("at_least=0", "can never fail: its values go from 0 to 1; take a bound between them"),
        ("at_most=-0.5", "can never pass: its values go from 0 to 1"),
        ("above=1", "can never pass"),
        ("equals=1", "an estimate never equals a number; give scores.kept at_least and at_most"),
    ],
)
def test_one_that_the_bounds_of_its_score_never_decide_is_refused(suite, bound, told):
    suite.write(BOUNDED.replace("{bound}", bound))
    result = suite.run("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()


def test_one_that_the_bounds_of_its_score_can_decide_runs(suite):
    suite.write(BOUNDED.replace("{bound}", "at_least=0.5"))
    suite.run()
    (gate,) = suite.proteus["gates"]
    assert gate["verdict"] in ("pass", "fail")


def test_a_wrong_one_is_told_under_xdist_too(suite):
    suite.write(HEAD + "@pytest.mark.gate('separation.q', at_most=1)\ndef test_x(): pass")
    result = suite.run("-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.str().count("separation has no 'q'") == 1


FAMILY = (
    HEAD.replace("seed=range(4)", "seed=range(4), name='demo'")
    + """
@pytest.mark.gate("scores.units:notes", at_least={bound})
def test_first():
    pass
"""
)
FURTHER = """
@pytest.mark.gate("structure.tools", at_most=1000{number})
def test_further_{number}():
    pass
"""


def test_a_fail_counts_when_it_is_left_among_all_declared_gates_selected_or_not(suite):
    suite.write(FAMILY.format(bound=5) + "".join(FURTHER.format(number=number) for number in range(30)))
    suite.run("-k", "test_first").assert_outcomes(failed=1)
    gate = gates(suite)["scores.units:notes[neutral]", "at_least"]
    assert gate["p"] < 0.05 < gate["p_adjusted"]
    assert gate["p_adjusted"] == pytest.approx(62 * gate["p"])
    assert (gate["verdict"], gate["family"]) == ("undecided", "gates of demo")
    assert "a fail by itself" in gate["reason"]


def test_a_fail_that_is_left_fails(suite):
    suite.write(FAMILY.format(bound=50))
    suite.run().assert_outcomes(failed=1)
    assert {gate["verdict"] for gate in suite.proteus["gates"]} == {"fail"}
    assert all(gate["p"] < gate["p_adjusted"] < 0.05 for gate in suite.proteus["gates"])


def test_a_statistic_of_the_user_is_gated_whole_or_by_field(suite):
    suite.write(
        HEAD
        + """
from pytest_proteus import statistic

@statistic(direction="higher", scale="runs")
def count(sweep):
    return len(sweep.runs)

@statistic(direction="higher", scale="runs")
def sizes(sweep):
    return {arm: {"runs": len(runs)} for arm, runs in sweep.by_arm().items()}

@pytest.mark.gate("count", equals=8)
@pytest.mark.gate("sizes.runs", at_least=4)
@pytest.mark.gate("sizes.nothing", at_least=4)
def test_it():
    pass
"""
    )
    suite.run().assert_outcomes(failed=1)
    assert {name: gate["verdict"] for (name, _), gate in gates(suite).items()} == {
        "count": "pass",
        "sizes.runs[neutral]": "pass",
        "sizes.runs[review_notes]": "pass",
        "sizes.nothing[neutral]": "unavailable",
        "sizes.nothing[review_notes]": "unavailable",
    }


def test_tests_of_single_cells_are_corrected_as_one_gate(suite):
    suite.write(
        HEAD.replace("seed=range(4)", "seed=range(4), name='demo'")
        + """
@pytest.mark.gate("scores.units:notes", at_least=50)
def test_runs(run):
    pass
"""
    )
    suite.run("-k", "s0")
    found = suite.proteus["gates"]
    assert {gate["nodeid"] for gate in found} == {
        "test_it.py::test_runs[minimal-neutral-s0]",
        "test_it.py::test_runs[minimal-review_notes-s0]",
    }
    assert all(gate["p_adjusted"] >= gate["p"] for gate in found)
