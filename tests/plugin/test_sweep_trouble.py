"""Broken evaluators, failing harnesses, odd values and bad disks cost what they must and nothing else."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile

import pytest

EVALUATORS = """
import os, pathlib, time
import numpy as np
import pytest
from pytest_proteus import EvalResult

def good(trace, ctx): return EvalResult("good", float(ctx.episode), detail=os.fspath(ctx.harness_root)[:0])
def raises(trace, ctx): raise ZeroDivisionError("no")
def nan(trace, ctx): return EvalResult("x", float("nan"))
def inf(trace, ctx): return EvalResult("x", float("inf"))
def none(trace, ctx): return None
def text(trace, ctx): return EvalResult("x", "7")
def scalar(trace, ctx): return EvalResult("x", np.float32(1.5), passed=np.bool_(True), detail=pathlib.Path("a"))
def hangs(trace, ctx):
    pipe = pathlib.Path(__file__).with_name(f"pipe{os.getpid()}-{ctx.episode}")
    os.mkfifo(pipe)
    open(pipe).read()
def dies(trace, ctx): os._exit(1)
def spins(trace, ctx):
    while True: pass
def writes(trace, ctx):
    root = pathlib.Path(ctx.harness_root)
    (root / "notes").mkdir(exist_ok=True)
    (root / "notes" / "planted.md").write_text("x")
    return EvalResult("x", 1.0)

NAMES = "good raises nan inf none text scalar hangs dies spins writes".split()
pytestmark = [
    pytest.mark.sweep(episodes=2, seed=[0]),
    *(pytest.mark.evaluator(globals()[name], name=name, timeout=0.5) for name in NAMES),
    pytest.mark.evaluator("units:notes"),
]

def test_scores(run):
    assert run.state == "complete"
    assert run.scores("good") == [1.0, 2.0]
    assert run.scores("scalar") == [1.5, 1.5]
    for name in set(NAMES) - {"good", "scalar"}:
        assert run.scores(name) == [None, None], name
    with run.checkpoint(2) as tree:
        assert not (tree / "notes" / "planted.md").exists()

@pytest.mark.evaluator(raises, name="raises", timeout=0.5, at_least=0)
def test_a_threshold_on_what_is_missing_fails(run):
    pass
"""


def test_a_broken_evaluator_costs_its_own_result_only(suite):
    suite.write(EVALUATORS)
    result = suite.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*raises: unavailable: there is no value; wanted at least 0*"])
    (run,) = suite.sweep["runs"]
    broken = {name for name, entry in run["evaluators"].items() if entry["scores"] == [None, None]}
    assert broken == {"raises", "nan", "inf", "none", "text", "hangs", "dies", "spins", "writes"}
    assert run["evaluators"]["good"]["scores"] == [1.0, 2.0]
    (gate,) = suite.proteus["gates"]
    assert (gate["verdict"], gate["value"]) == ("unavailable", None)


def test_a_harness_that_fails_is_retried_and_then_an_error_of_setup(suite):
    suite.write(
        """
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

pytestmark = pytest.mark.sweep(episodes=3, harness=[MinimalHarness(fail_at={(1, 2)})], seed=[0, 1])

def test_completes(run): pass
"""
    )
    suite.run().assert_outcomes(passed=1, errors=1)
    assert suite.states() == {"neutral-s0": "complete", "neutral-s1": "errored"}
    assert suite.attempts() == {"neutral-s0": 1, "neutral-s1": 3}
    assert suite.proteus["outcome"] in ("fail", "incomplete")


def test_hostile_trees_are_findings_and_the_session_goes_on(suite):
    suite.write(
        """
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

KINDS = ["fifo", "nested-git", "deep"]
pytestmark = [
    pytest.mark.sweep(episodes=3, seed=[0], harness=["test_it:Hostile"]),
    pytest.mark.evaluator("units:notes"),
]

class Hostile(MinimalHarness):
    name = "hostile"
    def __init__(self):
        super().__init__(hostile_at={2: "fifo"})

def test_completes(run):
    assert run.state == "complete"
    assert [record["accepted"] for record in run.records] == [True, False, True]
    assert run.records[1]["violations"]
    assert run.scores("units:notes")[1] is None
"""
    )
    suite.run().assert_outcomes(passed=1)
    assert suite.sweep["runs"][0]["violations"] >= 1


def test_odd_values_in_gates_are_never_a_pass(suite):
    suite.write(
        """
import pathlib
import numpy as np
import pytest

@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "3", {1}, pathlib.Path("x"), [1, 2]])
def test_odd(gate, value):
    assert not gate("odd", value, at_least=0)

def test_numpy(gate):
    assert gate("numpy", np.float32(2.0), at_least=np.float64(1.0))
    assert not gate("twice", 1, at_least=2, blocking=False)
    assert gate("between", np.int64(3), at_least=2, at_most=4)
"""
    )
    suite.run().assert_outcomes(failed=7, passed=1)
    verdicts = [gate["verdict"] for gate in suite.proteus["gates"]]
    assert verdicts.count("unavailable") == 7
    assert json.dumps(suite.report, allow_nan=False)


def test_a_gate_may_be_named_by_anything_that_has_a_text(suite):
    suite.write(
        """
import pathlib

def test_it(gate):
    assert gate(pathlib.Path("z"), 1, at_least=0).name == "z"
    gate(3, 1, at_least=0)
    gate("3", 1, at_least=0)
    gate(None, 1, at_least=0)
"""
    )
    suite.run().assert_outcomes(passed=1)
    assert [gate["name"] for gate in suite.proteus["gates"]] == ["3", "3#2", "None", "z"]


def test_texts_that_are_no_unicode_are_escaped_in_reports_and_end_no_session(suite):
    suite.write(
        r"""
import pytest
from pytest_proteus import NEUTRAL, Arm, EvalResult, statistic
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.measure.unavailable import Unavailable

class Skips(MinimalHarness):
    def preflight(self): return "skip \udc81"

class Fails(MinimalHarness):
    def run_episode(self, spec): raise RuntimeError("fail \udc82")

def measured(trace, ctx): return EvalResult("x", 1.0, detail="detail \udc83")

pytestmark = [
    pytest.mark.sweep(
        episodes=1,
        seed=[0],
        harness=["minimal", "test_it:Skips", "test_it:Fails"],
        arm=[Arm("arm \udc84", disposition=NEUTRAL)],
    ),
    pytest.mark.evaluator(measured, name="evaluator \udc85", at_least=5),
]

@statistic(direction="higher", scale="scale \udc86")
def mine(sweep): return Unavailable("because \udc87")

@pytest.mark.gate("mine", at_least=1)
def test_statistic(mine): pass
def test_run(run): assert run.last("evaluator \udc85") == 1
def test_gate(gate): gate("name \udc80", 1, at_least=2)
def test_reason(gate): gate("reason", Unavailable("gone \udc88"), at_least=1)
def test_no_such_arm(contrast): contrast("tool-calls", arm="nix", against="neutral", margin=1)
"""
    )
    result = suite.run("-n2", "-rs")
    result.assert_outcomes(failed=5, skipped=1, errors=1)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    shown = result.stdout.str()
    for text in ("name", "skip", "fail", "arm", "evaluator", "because", "gone"):
        assert f"{text} \\udc8" in shown, text
    assert str(suite.report).encode()


def test_all_failing_gates_of_a_test_are_told_together(suite):
    suite.write(
        "def test_it(gate):\n    gate('a', 1, at_least=2)\n    gate('b', 5, below=3)\n    gate('c', 1, equals=1)\n"
    )
    result = suite.run()
    result.stdout.fnmatch_lines(["*a = 1, wanted at least 2: fail*", "*b = 5, wanted below 3: fail*"])
    assert [gate["verdict"] for gate in suite.proteus["gates"]] == ["fail", "fail", "pass"]


def test_thresholds_after_a_failing_body_are_recorded_and_not_asserted(suite):
    suite.write(
        """
import pytest
pytestmark = pytest.mark.sweep(episodes=1, seed=[0])

@pytest.mark.evaluator("step", at_least=1000)
def test_it(run):
    assert False, "the body's own reason"
"""
    )
    result = suite.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the body's own reason*"])
    (gate,) = suite.proteus["gates"]
    assert (gate["verdict"], gate["blocking"]) == ("fail", False)


def test_every_episode_is_held_against_a_threshold_that_says_every(suite):
    suite.write(
        """
import pytest
pytestmark = pytest.mark.sweep(episodes=4, seed=[0])

@pytest.mark.evaluator("units:notes", at_least=10**6, when="every")
def test_it(run): pass
"""
    )
    suite.run().assert_outcomes(failed=1)
    assert [gate["name"] for gate in suite.proteus["gates"]] == [f"units:notes[episode {n}]" for n in (1, 2, 3, 4)]


@pytest.fixture
def small_disk():
    """A disk of one megabyte at a place where live trees may lie, or a skip where nobody may mount one."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)
    place.rmdir()


DISK = """
import pytest
pytestmark = [pytest.mark.sweep(episodes=40, seed=[0, 1], name="disk"), pytest.mark.evaluator("units:notes")]

def test_completes(run):
    assert run.episodes_complete == 40
"""


def test_a_full_disk_is_one_sentence_and_loses_no_complete_episode(suite, small_disk):
    suite.write(DISK)
    (small_disk / "filler").write_bytes(b"x" * 700_000)
    result = suite.run(f"--proteus-out={small_disk / 'out'}")
    assert result.ret != 0
    assert "No space left on device" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    result = suite.run(f"--proteus-out={small_disk / 'out'}")
    assert result.ret == 0
    assert set(suite.states().values()) == {"complete"}


def test_a_full_disk_under_the_live_trees_is_one_sentence_and_the_next_session_goes_on(suite, monkeypatch):
    suite.write(
        """
import errno, os, pathlib
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

pytestmark = pytest.mark.sweep(episodes=3, harness=["test_it:Full"], seed=[0, 1])

class Full(MinimalHarness):
    name = "full"

    def seed(self, harness_root, rng_seed=0):
        self.fills(rng_seed == 1)
        super().seed(harness_root, rng_seed)

    def run_episode(self, spec):
        self.fills(spec.episode == 3)
        return super().run_episode(spec)

    def fills(self, now):
        if now and "FILLED" in os.environ:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

def test_completes(run): pass
"""
    )
    monkeypatch.setenv("FILLED", "1")
    result = suite.run()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*No space left on device; make room*run the same command again*"] * 2)
    assert suite.states() == {"neutral-s0": "abort", "neutral-s1": "abort"}
    assert {run["error"]["class"] for run in suite.sweep["runs"]} == {"storage"}
    assert set(suite.attempts().values()) == {1}
    monkeypatch.delenv("FILLED")
    suite.run().assert_outcomes(passed=2)
    assert set(suite.states().values()) == {"complete"}


def test_a_small_disk_under_the_live_trees_alone_loses_no_complete_episode(suite, small_disk, monkeypatch):
    suite.write(DISK)
    (small_disk / "filler").write_bytes(b"x" * 900_000)
    small_disk.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(small_disk))
    result = suite.run("--proteus-out=out")
    assert "No space left on device" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
    assert set(suite.states().values()) <= {"abort", "complete"}
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert suite.run("--proteus-out=out").ret == 0
    assert set(suite.states().values()) == {"complete"}


@pytest.mark.parametrize(
    "ending", ["KeyboardInterrupt", "lambda: OSError(28, 'No space left on device')", "SystemExit"]
)
def test_a_cell_that_was_cut_short_says_how_many_of_its_episodes_are_complete(suite, ending):
    suite.write(
        f"""
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

pytestmark = pytest.mark.sweep(episodes=4, harness=["test_it:Cut"], seed=[0])

class Cut(MinimalHarness):
    name = "cut"
    def read_trace(self, root, episode):
        if episode == 3:
            raise ({ending})()
        return super().read_trace(root, episode)

def test_completes(run): pass
"""
    )
    suite.run("--proteus-out=out")
    (cell,) = [json.loads(path.read_text()) for path in suite.folder.glob("out/*/cells/*.json")]
    assert cell["episodes_complete"] == 2
    assert cell["counters"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_disk_that_cannot_be_written_is_one_sentence(suite, small_disk, workers):
    suite.write(DISK)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    result = suite.run(f"--proteus-out={small_disk / 'out'}", "-n", workers)
    assert result.ret == 4
    assert "Read-only file system" in result.stderr.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("files", [2, 8, 14])
def test_a_disk_without_room_for_a_folder_is_one_sentence(suite, tmp_path, workers, files):
    place = tmp_path / "disk"
    place.mkdir()
    options = f"size=1m,nr_inodes={files}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        suite.write(DISK)
        result = suite.run(f"--proteus-out={place / 'out'}", "-n", workers)
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    said = result.stdout.str() + result.stderr.str()
    assert result.ret in (1, 4)
    assert "No space left on device" in said
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
