"""``proteus run``: the suite that it writes."""

from __future__ import annotations

import ast

import pytest

from pytest_proteus.cli import _parser, suite_text, sweep_name

SEED_LINE = [
    "run", "--harness", "minimal", "--goal", "Make your durable knowledge easier to navigate.",
    "--evaluator", "units:notes@observe", "--evaluator", "step", "--evaluator", "tool-calls",
    "--arm", "neutral", "--seeds", "2", "--episodes", "10", "--out", "runs/navigation",
]  # fmt: skip


def suite_of(*words):
    return suite_text(_parser().parse_args(["run", "--out", "out", *words]), "out")


def sweep_of(*words):
    """The keywords of the sweep marker, as source."""
    calls = [node for node in ast.walk(ast.parse(suite_of(*words))) if isinstance(node, ast.Call)]
    call = next(call for call in calls if ast.unparse(call.func) == "pytest.mark.sweep")
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_the_suite_of_a_command_line_is_one_module_that_reads_like_one():
    assert suite_text(_parser().parse_args(SEED_LINE), "navigation") == (
        '"""A sweep as a suite. Save it as test_navigation.py and run it with: '
        'pytest -p proteus test_navigation.py -n auto"""\n'
        "\n"
        "import pytest\n"
        "\n"
        "pytestmark = [\n"
        "    pytest.mark.sweep(\n"
        '        name="navigation",\n'
        "        episodes=10,\n"
        '        goal="Make your durable knowledge easier to navigate.",\n'
        '        harness=["minimal"],\n'
        '        arm=["neutral"],\n'
        "        seed=range(2),\n"
        "    ),\n"
        '    pytest.mark.evaluator("units:notes@observe"),\n'
        '    pytest.mark.evaluator("step"),\n'
        '    pytest.mark.evaluator("tool-calls"),\n'
        "]\n"
        "\n"
        "\n"
        "def test_run_completes(run):\n"
        "    assert run.episodes_complete == run.episodes\n"
    )


def test_what_is_not_given_is_left_to_the_plugin():
    assert sweep_of() == {"name": "'out'", "harness": "['minimal']"}


def test_a_goal_of_none_is_no_goal():
    assert "goal" not in sweep_of("--goal", "none")


def test_arms_are_kept_in_their_order():
    assert sweep_of("--arm", "review:notes", "--arm", "neutral")["arm"] == "['review:notes', 'neutral']"


def test_turns_become_a_budget():
    words = ["--max-turns", "10", "--phase-turns", "observe=4,act=6", "--hard-max-turns", "12", "--announce-budget"]
    expected = "TurnBudget(max_turns=10, phase_turns={'observe': 4, 'act': 6}, hard_max_turns=12, announce=True)"
    assert sweep_of(*words)["budget"] == expected
    assert "from pytest_proteus import TurnBudget" in suite_of(*words)


@pytest.mark.parametrize("text", ['"""', "\\", "a\nb", "ü → 'x'", "\udc80", "{x}"])
def test_any_text_survives_as_a_literal(text):
    assert ast.literal_eval(sweep_of("--goal", text)["goal"]) == text
    suite_of("--goal", text).encode("utf-8")


@pytest.mark.parametrize(
    ("out", "name"), [("runs/navigation", "navigation"), ("runs/navigation/", "navigation"), (".hidden", "hidden")]
)
def test_the_sweep_is_called_like_its_folder(out, name, tmp_path):
    assert sweep_name(tmp_path / out) == name
