"""A user's function of the sweep is a fixture and a report entry, and no value stands where it cannot be trusted."""

from __future__ import annotations

import pytest

HEAD = """
import pytest
import pytest_proteus
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(episodes=2, arm=[NEUTRAL, review("notes")], seed=range(3)),
    pytest.mark.evaluator("units:notes"),
]
"""
SUITE = (
    HEAD
    + """
@pytest_proteus.statistic(direction="lower", scale="notes, 0 or more", min_seeds=3, min_arms=2)
def clutter(sweep):
    \"\"\"Notes that an arm's runs
    leave behind.

    More of this is for people who read the source.
    \"\"\"
    return {arm: sum(run.last("units:notes") for run in runs) for arm, runs in sweep.by_arm().items()}

def test_it_is_a_fixture(clutter, sweep, gate):
    assert set(clutter) == {"neutral", "review_notes"}
    gate("clutter", clutter["review_notes"], at_least=3)

class TestOther:
    def test_it_is_one_in_a_class_too(self, clutter):
        assert clutter["review_notes"] >= clutter["neutral"]
"""
)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_function_of_the_sweep_is_a_fixture_and_an_entry_of_the_report(suite, workers):
    suite.write(SUITE)
    result = suite.run("-n", workers)
    result.assert_outcomes(passed=2)
    (entry,) = suite.sweep["statistics"]
    assert set(entry["value"]) == {"neutral", "review_notes"}
    assert (entry["direction"], entry["scale"]) == ("lower", "notes, 0 or more")
    assert entry["interpretation"] == "Notes that an arm's runs leave behind."
    assert sorted((run["arm"], run["seed"]) for run in entry["observations"])[0] == ("neutral", 0)
    assert len(entry["observations"]) == 6
    result.stdout.fnmatch_lines(["clutter (notes, 0 or more; lower is better)", "*  value  n", "  neutral * 3"])


#: body → reason and beginning of the detail.
BAD = {
    "return 1 / 0": ("failed", "ZeroDivisionError: division by zero"),
    "raise SystemExit(3)": ("failed", "SystemExit: 3"),
    "pytest.skip('not today')": ("failed", "Skipped: not today"),
    "return float('nan')": ("not_json", "the value is nan; return None where there is no number"),
    "return {'a': [1, {2}]}": ("not_json", "the value['a'][1] is a set; return numbers, texts, lists and mappings"),
    "return None": ("no_values", "it returned None"),
    "return 10**400": ("not_json", "the value is too large"),
    "return [{'a': 10**400}]": ("not_json", "the value[0]['a'] is too large"),
    "return {1: 2}": ("not_json", "the value has the key 1; use texts for keys"),
    "import random; return random.random()": ("not_deterministic", "two calls over the same artifacts gave"),
    "(sweep.out / 'mine').write_text('x'); return 1": ("changed_artifacts", "it changed "),
    "next(sweep.runs[0].root.rglob('*.md')).write_text('x')": ("changed_artifacts", "it changed "),
    "import shutil; shutil.rmtree(sweep.runs[1].root / 'traces')": ("changed_artifacts", "it changed "),
    "1  # too few seeds": ("n_below_minimum", "it takes complete runs of 4 seeds an arm, and arm neutral has 3"),
    "1  # too few arms": ("n_below_minimum", "it takes 3 arms and there are 2"),
}
MINIMA = {"1  # too few seeds": ", min_seeds=4", "1  # too few arms": ", min_arms=3"}


def test_what_cannot_be_trusted_is_unavailable_and_costs_nothing_else(suite):
    text = HEAD
    for number, body in enumerate(BAD):
        text += (
            f"\n@pytest_proteus.statistic(direction='neutral', scale='points'{MINIMA.get(body, '')})\n"
            f"def bad_{number:02}(sweep):\n    {body}\n\n"
            f"def test_{number}(bad_{number:02}, gate):\n    gate('it', bad_{number:02}, at_least=0, blocking=False)\n"
        )
    suite.write(text + "\ndef test_other(run):\n    assert run.state == 'complete'\n")
    suite.run().assert_outcomes(passed=len(BAD) + 6)
    entries = suite.sweep["statistics"]
    assert [entry["value"] for entry in entries] == [None] * len(BAD)
    for entry, (body, (reason, detail)) in zip(entries, BAD.items(), strict=True):
        assert (body, entry["unavailable"]["reason"]) == (body, reason)
        assert entry["unavailable"]["detail"].startswith(detail)
    assert {gate["verdict"] for gate in suite.proteus["gates"]} == {"unavailable"}


def test_plain_data_is_left_as_it_is_and_a_missing_value_is_null(suite):
    suite.write(
        HEAD
        + """
@pytest_proteus.statistic(direction="neutral", scale="points")
def mine(sweep):
    return {"a": None, "b": (1, 2.5), "c": "x"}

def test_it(mine):
    assert mine["b"] == (1, 2.5)
"""
    )
    suite.run().assert_outcomes(passed=1)
    (entry,) = suite.sweep["statistics"]
    assert entry["value"] == {"a": None, "b": [1, 2.5], "c": "x"}
    assert list(entry["unavailable"]["parts"]) == ["a"]


def test_strata_are_given_one_at_a_time(suite):
    suite.write(
        """
import pytest, pytest_proteus
pytestmark = pytest.mark.sweep(episodes=1, seed=range(2), model=["small", "large"])

@pytest_proteus.statistic(direction="neutral", scale="runs")
def size(sweep):
    assert sweep.ledger["planned"] == len(sweep)
    return {"neutral": len(sweep)}

def test_it(size):
    assert size == {("minimal/small", "neutral"): 2, ("minimal/large", "neutral"): 2}
"""
    )
    suite.run().assert_outcomes(passed=1)
    assert {entry["stratum"] for entry in suite.sweep["statistics"]} == {"minimal/small", "minimal/large"}


def test_class_sweeps_and_module_sweeps_have_their_own_values(suite):
    suite.write(
        """
import pytest, pytest_proteus
pytestmark = pytest.mark.sweep(episodes=1, seed=range(2))

@pytest_proteus.statistic(direction="neutral", scale="runs")
def size(sweep):
    return len(sweep)

def test_of_the_module(size):
    assert size == 2

@pytest.mark.sweep(seed=range(3))
class TestInner:
    def test_of_the_class(self, size):
        assert size == 3
"""
    )
    suite.run().assert_outcomes(passed=2)
    values = [entry["value"] for sweep in suite.proteus["sweeps"] for entry in sweep["statistics"]]
    assert sorted(values) == [2, 3]


def test_conftests_and_plugins_register_statistics(suite):
    (suite.folder / "conftest.py").write_text(
        """
import pytest_proteus

@pytest_proteus.statistic(direction="neutral", scale="runs")
def size(sweep):
    return len(sweep)

def pytest_proteus_register_statistics():
    return [size]

"""
    )
    (suite.folder / "sub").mkdir()
    (suite.folder / "sub" / "conftest.py").write_text(
        """
import pytest_proteus

def make():
    @pytest_proteus.statistic(direction="neutral", scale="runs, doubled")
    def twice(sweep):
        return 2 * len(sweep)
    return twice

def pytest_proteus_register_statistics():
    return [make()]
"""
    )
    sweep = "import pytest\npytestmark = pytest.mark.sweep(episodes=1, seed=range(2))\n"
    suite.write(sweep + "def test_it(size):\n    assert size == 2\n")
    (suite.folder / "sub" / "test_sub.py").write_text(
        sweep + "def test_sub(size, twice):\n    assert (size, twice) == (2, 4)\n"
    )
    suite.run().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def pytest_proteus_register_statistics(): raise OSError('no')", "register_statistics failed: OSError: no"),
        ("def pytest_proteus_register_statistics(): return [5]", "register_statistics returned 5; return functions"),
    ],
)
def test_a_hook_that_gives_something_else_is_a_usage_error(suite, code, message):
    (suite.folder / "conftest.py").write_text(code)
    suite.write(HEAD + "def test_it(sweep):\n    pass\n")
    result = suite.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{message}*"])


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('direction="up", scale="x"', "direction='up' is not one of higher, lower, neutral"),
        ('direction="lower", scale=" "', "scale= must say in words what the number counts"),
        ('direction="lower", scale="x", min_seeds=0', "min_seeds=0 must be a whole number of 1 or more"),
        ('direction="lower", scale="x", min_arms=True', "min_arms=True must be a whole number of 1 or more"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(declared, message):
    import pytest_proteus

    with pytest.raises(ValueError) as caught:
        eval(f"pytest_proteus.statistic({declared})", {"pytest_proteus": pytest_proteus})
    assert message in str(caught.value)


def test_a_function_of_something_else_is_refused():
    from pytest_proteus import statistic

    decorate = statistic(direction="lower", scale="files")

    def mine(sweep, gate):
        return 1

    def separation(sweep):
        return 1

    with pytest.raises(ValueError, match=r"write def mine\(sweep\)"):
        decorate(mine)
    with pytest.raises(ValueError, match="a fixture has that name already"):
        decorate(separation)
    with pytest.raises(ValueError, match="is no function"):
        decorate(print)
