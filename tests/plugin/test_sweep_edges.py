"""Odd suites: inheritance, pytest.param, unittest classes, skip marks, hooks that fail, workers that die twice."""

from __future__ import annotations

import pytest

HEAD = "import os, pytest\nfrom pytest_proteus import *\nfrom pytest_proteus.harnesses.minimal import MinimalHarness\n"


def test_a_sweep_is_inherited_by_a_class(suite):
    suite.write(
        HEAD
        + """
@pytest.mark.sweep(episodes=1, goal="base", seed=[0])
@pytest.mark.evaluator("step")
class TestBase:
    def test_it(self, run):
        assert run.episodes == 1 and run.seed == 0 and run.scores("step")

class TestSub(TestBase):
    pass
"""
    )
    suite.run().assert_outcomes(passed=2)
    assert {sweep["condition"]["sweep"]["goal"] for sweep in suite.proteus["sweeps"]} == {"base"}


def test_params_may_carry_ids(suite):
    suite.write(
        HEAD
        + """
pytestmark = pytest.mark.sweep(episodes=1, arm=[pytest.param("neutral", id="plain"), "review:notes"])

@pytest.fixture(scope="session", params=[pytest.param(3, id="three"), 4])
def seed(request):
    return request.param

def test_it(run): pass
"""
    )
    result = suite.run("-v")
    result.assert_outcomes(passed=4)
    assert "test_it[minimal-plain-three]" in result.stdout.str()
    assert {(run["arm"], run["seed"]) for run in suite.sweep["runs"]} == {
        ("neutral", 3), ("neutral", 4), ("review_notes", 3), ("review_notes", 4),
    }  # fmt: skip


def test_an_axis_that_the_only_test_parametrizes_is_the_grid(suite):
    suite.write(HEAD + "@pytest.mark.parametrize('seed', [7])\ndef test_it(run): assert run.seed == 7\n")
    assert suite.run("--proteus-episodes=1").ret == 0
    assert suite.states() == {"neutral-s7": "complete"}


def test_a_skipped_module_wants_no_cell(suite):
    suite.write(
        HEAD + "pytestmark = [pytest.mark.sweep(episodes=1, seed=[0, 1]), pytest.mark.skip(reason='today')]\n"
        "def test_it(run): pass\n"
    )
    for workers in ("0", "2"):
        result = suite.run("-n", workers)
        result.assert_outcomes(skipped=2)
        assert result.ret == 0
        assert suite.sweep["ledger"]["not_run"] == 2


def test_a_unittest_class_cannot_take_part_and_is_told_so(suite):
    suite.write(
        HEAD + "import unittest\n\nclass T(unittest.TestCase):\n    @pytest.mark.usefixtures('run')\n"
        "    def test_it(self): pass\n"
    )
    result = suite.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*maybe unittest.TestCase subclass*"])


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("def pytest_proteus_register_evaluators(): raise OSError('no')", "register_evaluators failed: OSError: no"),
        ("def pytest_proteus_register_harnesses(): return 5", "returned a int; return a mapping"),
    ],
)
def test_a_hook_that_fails_is_one_sentence(suite, hook, told):
    suite.pytester.makeconftest(hook)
    suite.write(HEAD + "def test_it(run): pass\n")
    result = suite.run()
    assert result.ret == 4
    assert told in result.stderr.str()


def test_a_report_hook_that_fails_or_adds_nan_harms_nothing(suite):
    suite.pytester.makeconftest(
        "def pytest_proteus_modify_report(report):\n"
        "    report['environment']['x'] = float('nan')\n    raise OSError('no')"
    )
    suite.write(HEAD + "def test_it(run): pass\n")
    assert suite.run("--proteus-episodes=1", "--proteus-seeds=1").ret == 0
    assert any("modify_report failed" in reason for reason in suite.proteus["outcome_reasons"])
    assert suite.proteus["environment"]["x"] is None


@pytest.mark.parametrize("error", ["SystemExit(3)", "pytest.skip.Exception('x')", "pytest.fail.Exception('x')"])
def test_what_an_adapter_raises_ends_its_cell_only(suite, error):
    suite.write(
        HEAD
        + f"""
class Raising(MinimalHarness):
    name = "raising"
    def run_episode(self, spec):
        if spec.seed == 1:
            raise {error}
        return super().run_episode(spec)

pytestmark = pytest.mark.sweep(episodes=1, seed=range(3), harness=["test_it:Raising"])
def test_it(run): pass
"""
    )
    suite.run().assert_outcomes(passed=2, errors=1)
    assert suite.states() == {"neutral-s0": "complete", "neutral-s1": "errored", "neutral-s2": "complete"}


def test_two_workers_that_die_lose_two_cells_and_nothing_else(suite):
    suite.write(
        HEAD
        + """
class Dying(MinimalHarness):
    name = "dying"
    def run_episode(self, spec):
        if spec.seed in (0, 1):
            os._exit(7)
        return super().run_episode(spec)

pytestmark = pytest.mark.sweep(episodes=2, seed=range(6), harness=["test_it:Dying"])
def test_it(run): pass
"""
    )
    result = suite.run("-n", "2")
    assert result.ret == 1
    assert "INTERNALERROR" not in result.stdout.str()
    assert list(suite.states().values()) == ["lost", "lost", "complete", "complete", "complete", "complete"]


@pytest.mark.parametrize("dist", ["load", "worksteal"])
def test_a_worker_that_dies_while_another_ones_death_is_handled_is_a_lost_cell_too(suite, dist):
    suite.write(
        HEAD
        + """
import time

WORKER = os.environ.get("PYTEST_XDIST_WORKER")

class Dying(MinimalHarness):
    name = "dying"
    def run_episode(self, spec):
        if WORKER == "gw1":
            open("begun", "w").close()
        while WORKER == "gw1" or (WORKER == "gw0" and not os.path.exists("begun")):
            time.sleep(0.01)
        if WORKER == "gw0":
            os._exit(7)
        return super().run_episode(spec)

pytestmark = pytest.mark.sweep(episodes=2, seed=range(6), harness=["test_it:Dying"])
def test_it(run): pass
"""
    )
    suite.write(
        """
import os, signal

NODES = {}

def pytest_configure_node(node):
    NODES[node.gateway.id] = node

def pytest_testnodedown(node, error):
    if node is NODES["gw0"]:
        NODES["gw1"].channel.send = die

def die(_):
    os.kill(NODES["gw1"].gateway._io.popen.pid, signal.SIGKILL)
    raise OSError("cannot send (already closed?)")
""",
        "conftest",
    )
    result = suite.run("-n", "2", "--dist", dist)
    assert "INTERNALERROR" not in result.stdout.str()
    assert result.ret == 1
    assert sorted(suite.states().values()) == ["complete"] * 4 + ["lost"] * 2


def test_stopping_at_a_failure_is_a_fail_in_every_mode(suite):
    suite.write(HEAD + "pytestmark = pytest.mark.sweep(episodes=1, seed=range(4))\ndef test_it(run): assert 0\n")
    for workers in ("0", "2"):
        suite.run("-x", "-n", workers)
        assert suite.proteus["outcome"] == "fail"


def test_showing_the_plan_of_setups_writes_nothing(suite):
    suite.write(HEAD + "def test_it(run): pass\n")
    for option in ("--setup-plan", "--fixtures", "--fixtures-per-test"):
        assert suite.pytester.runpytest("-p", "no:cacheprovider", option).ret == 0
    assert not (suite.folder / ".proteus").exists()


def test_a_changed_base_class_of_a_harness_is_another_condition(suite):
    base = (
        "from pytest_proteus.harnesses.minimal import MinimalHarness\nclass Base(MinimalHarness):\n    name = 'sub'\n"
    )
    (suite.folder / "basemod.py").write_text(base)
    (suite.folder / "submod.py").write_text("from basemod import Base\nclass Sub(Base):\n    pass\n")
    suite.write(
        HEAD + "pytestmark = pytest.mark.sweep(episodes=1, seed=[0], harness=['submod:Sub'])\ndef test_it(run): pass\n"
    )
    suite.run()
    suite.run()
    assert suite.sweep["ledger"]["reused"] == 1
    (suite.folder / "basemod.py").write_text(base + "    extra = 1\n")
    suite.run()
    assert suite.sweep["ledger"]["reused"] == 0


HELPED = (
    HEAD
    + """
import time

DEMANDS = []

class Meeting(MinimalHarness):
    name = "meeting"
    def run_episode(self, spec):
        with open(f"ran-{os.getpid()}", "a") as file:
            file.write("x")
        if DEMANDS:
            until = time.monotonic() + 60
            while not os.path.exists("helped") and time.monotonic() < until:
                time.sleep(0.01)
        elif not os.path.exists("helped"):
            open("helped", "w").close()
            self.when_it_helps()
        return super().run_episode(spec)
    def when_it_helps(self):
        pass

class Dying(Meeting):
    name = "dying"
    def when_it_helps(self):
        os._exit(7)

@pytest.fixture(scope="session", autouse=True)
def demands():
    DEMANDS.append(1)

def test_it(sweep): assert len(sweep.runs) == 6
"""
)


@pytest.mark.parametrize("dist", ["load", "worksteal", "loadfile"])
def test_a_worker_with_no_test_left_runs_cells_that_the_test_of_another_waits_for(suite, dist):
    suite.write(HELPED + 'pytestmark = pytest.mark.sweep(episodes=1, seed=range(6), harness=["test_it:Meeting"])\n')
    suite.run("-n", "2", "--dist", dist).assert_outcomes(passed=1)
    assert list(suite.states().values()) == ["complete"] * 6
    assert len(list(suite.folder.glob("ran-*"))) == 2
    assert sum(len(path.read_text()) for path in suite.folder.glob("ran-*")) == 6


def test_a_worker_that_dies_while_it_helps_loses_one_cell(suite):
    suite.write(HELPED + 'pytestmark = pytest.mark.sweep(episodes=1, seed=range(6), harness=["test_it:Dying"])\n')
    result = suite.run("-n", "2")
    assert result.ret == 1
    assert "INTERNALERROR" not in result.stdout.str()
    assert sorted(suite.states().values()) == ["complete"] * 5 + ["lost"]
