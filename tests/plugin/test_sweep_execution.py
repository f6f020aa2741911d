"""Every cell runs at most once, whatever the mode; every planned cell is in the ledger; all modes report alike."""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LEDGER = ("complete", "timeout", "abort", "skipped", "errored", "lost", "not_run")

COUNTING = '''
import os, pathlib
import pytest
from pytest_proteus import NEUTRAL, review
from pytest_proteus.harnesses.minimal import MinimalHarness

STARTS = pathlib.Path(__file__).with_name("starts.txt")


class Counting(MinimalHarness):
    """Notes every episode that it begins."""

    name = "counting"

    def run_episode(self, spec):
        with STARTS.open("a") as file:
            file.write(f"{os.getpid()} {spec.seed} {spec.episode} {'look through your' in str(spec.phase_prompts)}\\n")
        return super().run_episode(spec)


pytestmark = [
    pytest.mark.sweep(episodes=2, harness=["test_it:Counting"], arm=[NEUTRAL, review("notes")], seed=range(3)),
    pytest.mark.evaluator("units:notes@observe"),
]


@pytest.mark.evaluator("tool-calls", at_most=40)
def test_completes(run):
    assert run.episodes_complete == run.episodes


def test_again(run):
    assert run.last("units:notes") is not None


def test_whole(sweep, gate):
    gate("cells", len(sweep.runs), equals=6)
'''


def starts(suite) -> list[tuple[str, ...]]:
    """(seed, episode, whether reviewing) of every begun episode."""
    return sorted(tuple(line.split()[1:]) for line in (suite.folder / "starts.txt").read_text().splitlines())


def without_clocks(proteus: dict) -> dict:
    """The report without what differs between two equal sessions."""
    report = copy.deepcopy(proteus)
    for key in ("session", "environment"):
        report.pop(key)
    for sweep in report["sweeps"]:
        sweep.pop("out")
        for run in sweep["runs"]:
            for clock in ("started_at", "seconds", "working_seconds", "waiting_seconds"):
                run.pop(clock)
    return report


EVERY_CELL = [tuple(map(str, key)) for key in sorted(itertools.product("012", "12", ("False", "True")))]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, request) -> dict:
    """The report of the plain, serial session."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "test_it.py").write_text(COUNTING)
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "--json-report", "--json-report-file=report.json"]
    subprocess.run([*command, "-q"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return without_clocks(json.loads((folder / "report.json").read_text())["proteus"])


#: Every pair of two settings stands in some row: workers, distribution, reruns, stopping, autoload.
MODES = [
    ("0", "load", "", "", "on"),
    ("0", "worksteal", "--reruns=2", "-x", "off"),
    ("2", "loadscope", "", "--maxfail=2", "off"),
    ("4", "loadfile", "--reruns=2", "--maxfail=2", "on"),
    ("2", "load", "--reruns=2", "", "off"),
    ("2", "worksteal", "", "-x", "on"),
    ("4", "loadfile", "", "", "off"),
    ("4", "loadscope", "--reruns=2", "-x", "on"),
    ("0", "load", "", "--maxfail=2", "on"),
    ("0", "loadscope", "", "", "on"),
    ("0", "loadfile", "", "-x", "on"),
    ("4", "load", "", "-x", "on"),
    ("4", "worksteal", "", "", "on"),
    ("0", "worksteal", "", "--maxfail=2", "on"),
    ("2", "loadfile", "", "", "on"),
]


def test_the_modes_cover_every_pair_of_settings():
    settings = [sorted(set(column)) for column in zip(*MODES, strict=True)]
    for one, other in itertools.combinations(range(5), 2):
        covered = {(mode[one], mode[other]) for mode in MODES}
        assert covered == set(itertools.product(settings[one], settings[other]))


@pytest.mark.parametrize(("workers", "distribution", "reruns", "stop", "autoload"), MODES)
def test_all_modes_run_every_cell_once_and_report_alike(
    suite, reference, monkeypatch, workers, distribution, reruns, stop, autoload
):
    suite.write(COUNTING)
    more = [option for option in (reruns, stop) if option]
    if autoload == "off":
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        more = ["-p", "xdist", "-p", "pytest_jsonreport", "-p", "rerunfailures", *more]
    result = suite.run("-n", workers, "--dist", distribution, *more)
    assert result.ret == 0
    assert starts(suite) == EVERY_CELL
    assert without_clocks(suite.proteus) == reference


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_whole_sweep_test_alone_runs_every_cell(suite, workers):
    suite.write(COUNTING)
    result = suite.run("-n", workers, "-k", "whole")
    result.assert_outcomes(passed=1)
    assert starts(suite) == EVERY_CELL
    assert set(suite.states().values()) == {"complete"}


def test_one_node_id_runs_one_cell_and_the_ledger_knows_the_others(suite):
    suite.write(COUNTING)
    result = suite.run("test_it.py::test_completes[Counting-neutral-s1]")
    assert result.ret == 0
    assert [seed for seed, *_ in starts(suite)] == ["1", "1"]
    ledger = suite.sweep["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["not_run"]) == (6, 1, 5)
    assert ledger["planned"] == sum(ledger[state] for state in LEDGER)


def test_last_failed_runs_the_failed_cell_and_nothing_else(suite):
    failing = COUNTING + "\ndef test_one_fails(run):\n    assert (run.arm, run.seed) != ('neutral', 1)\n"
    suite.write(failing)
    suite.run("-k", "one_fails").assert_outcomes(passed=5, failed=1)
    before = len(starts(suite))
    suite.run("--lf", "-n", "2").assert_outcomes(failed=1)
    assert len(starts(suite)) == before


def test_stopping_at_the_first_failure_begins_no_further_cell(suite):
    text = COUNTING.replace("seed=range(3)", "seed=range(20)").replace("episodes=2", "episodes=1")
    suite.write(text + "\ndef test_fails(run):\n    assert False\n")
    result = suite.run("-x", "-n", "2")
    assert result.ret in (1, 2)
    ledger = suite.sweep["ledger"]
    assert ledger["not_run"] > 20
    assert ledger["planned"] == sum(ledger[state] for state in LEDGER) == 40


def test_a_second_session_reuses_every_cell(suite):
    suite.write(COUNTING)
    suite.run()
    first = suite.proteus
    result = suite.run("-n", "2")
    assert starts(suite) == EVERY_CELL
    assert suite.sweep["ledger"]["reused"] == 6
    assert suite.sweep["out"] == first["sweeps"][0]["out"]
    result.stdout.fnmatch_lines(["*6 reused*"])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_header_says_which_cells_are_run_again(suite, workers):
    suite.write(
        """
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

pytestmark = pytest.mark.sweep(episodes=2, harness=[MinimalHarness(fail_at={(1, 2)})], seed=[0, 1, 2])

def test_completes(run): pass
"""
    )
    suite.run()
    result = suite.run("-n", workers, "--proteus-retry=errored")
    result.stdout.fnmatch_lines(["*3 cells × 2 episodes, 2 reused, 1 retried →*"])


def test_more_episodes_continue_every_run(suite):
    suite.write(COUNTING)
    suite.run("--proteus-episodes=1")
    suite.run("--proteus-episodes=2")
    assert starts(suite) == EVERY_CELL
    assert {run["episodes_complete"] for run in suite.sweep["runs"]} == {2}


def test_more_seeds_extend_a_sweep(suite):
    suite.write(COUNTING.replace("range(3)", "range(2)"))
    suite.run("-k", "completes")
    suite.write(COUNTING)
    suite.run("-k", "completes")
    assert suite.sweep["ledger"]["planned"] == 6
    assert len([line for line in starts(suite) if line[0] == "0"]) == 4 * (1 if suite.sweep["ledger"]["reused"] else 2)


def test_fewer_episodes_report_no_more_than_what_is_asked(suite):
    suite.write(COUNTING)
    suite.run()
    suite.run("--proteus-episodes=1")
    (scores,) = {len(run["evaluators"]["units:notes"]["scores"]) for run in suite.sweep["runs"]}
    assert scores == 1
    assert {run["episodes_complete"] for run in suite.sweep["runs"]} == {1}


def test_a_changed_goal_starts_a_fresh_folder(suite):
    suite.write(COUNTING)
    suite.run("-k", "completes")
    suite.write(COUNTING.replace("episodes=2,", "episodes=2, goal='another',"))
    suite.run("-k", "completes")
    assert Path(suite.sweep["out"]).name == "0002"
    assert suite.sweep["ledger"]["reused"] == 0


def test_a_changed_condition_is_refused_in_a_named_folder_before_anything_is_written(suite):
    suite.write(COUNTING)
    suite.run("-k", "completes", "--proteus-out=out")
    before = {path: path.stat().st_mtime_ns for path in (suite.folder / "out").rglob("*") if path.is_file()}
    suite.write(COUNTING.replace("episodes=2,", "episodes=2, goal='another',"))
    for workers in ("0", "2"):
        result = suite.run("-k", "completes", "--proteus-out=out", "-n", workers)
        assert result.ret == 4
        assert "it differs in" in result.stderr.str()
        assert "goal" in result.stderr.str()
        assert "outcome" not in result.stdout.str()
        after = {path: path.stat().st_mtime_ns for path in (suite.folder / "out").rglob("*") if path.is_file()}
        assert after == before


def test_fresh_pays_again_and_overwrite_discards(suite):
    suite.write(COUNTING)
    suite.run("-k", "completes")
    suite.run("-k", "completes", "--proteus-on-existing=fresh")
    assert Path(suite.sweep["out"]).name == "0002"
    suite.run("-k", "completes", "--proteus-on-existing=overwrite")
    assert Path(suite.sweep["out"]).name == "0002"
    assert suite.sweep["ledger"]["reused"] == 0
    assert len(starts(suite)) == 3 * len(EVERY_CELL)


def test_nothing_is_begun_with_no_run(suite):
    suite.write(COUNTING)
    result = suite.run("--proteus-no-run")
    assert not (suite.folder / "starts.txt").exists()
    assert suite.sweep["ledger"]["not_run"] == 6
    assert result.ret == 1
    assert suite.proteus["outcome"] == "incomplete"


def test_two_sessions_at_once_share_nothing(suite):
    suite.write(COUNTING.replace("episodes=2", "episodes=30"))
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "-n", "2", "-k", "completes"]
    both = [
        subprocess.Popen(
            [*command, "--json-report", f"--json-report-file=report{number}.json"],
            cwd=suite.folder,
            stdout=subprocess.DEVNULL,
        )
        for number in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    reports = [json.loads((suite.folder / f"report{number}.json").read_text())["proteus"] for number in range(2)]
    outs = [report["sweeps"][0]["out"] for report in reports]
    if outs[0] == outs[1]:  # the one was through before the other began
        assert sorted(report["sweeps"][0]["ledger"]["reused"] for report in reports) == [0, 6]
    assert {report["outcome"] for report in reports} == {"pass"}


# --- workers and processes that die -----------------------------------------------------------------------------------

DYING = COUNTING.replace(
    "        return super().run_episode(spec)",
    "        if (spec.seed, spec.episode) == (1, 2) and 'look through your' in str(spec.phase_prompts)"
    " and os.environ.get('DIE'):\n"
    "            os._exit(3)\n"
    "        return super().run_episode(spec)",
)


def test_a_worker_that_dies_loses_one_cell_and_nothing_else(suite, monkeypatch):
    suite.write(DYING)
    monkeypatch.setenv("DIE", "1")
    result = suite.run("-n", "2", "-k", "completes or again")
    assert result.ret == 1
    states = suite.states()
    assert states.pop("review_notes-s1") == "lost"
    assert set(states.values()) == {"complete"}
    assert suite.proteus["outcome"] == "fail"
    assert suite.sweep["ledger"]["lost"] == 1
    (lost,) = [run for run in suite.sweep["runs"] if run["state"] == "lost"]
    assert lost["episodes_complete"] in (1, None, 0)

    monkeypatch.delenv("DIE")
    before = len(starts(suite))
    assert suite.run("-n", "2", "-k", "completes").ret == 1  # still lost: nobody asked to retry
    assert len(starts(suite)) == before
    result = suite.run("-n", "2", "-k", "completes", "--proteus-retry=lost")
    assert result.ret == 0
    assert len(starts(suite)) == before + 1
    assert suite.attempts() == {cell: 2 if cell == "review_notes-s1" else 1 for cell in suite.attempts()}


def session(folder: Path, *arguments: str, **kwargs) -> subprocess.Popen:
    """A session in a process group of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--json-report"]
    return subprocess.Popen(
        [*command, "--json-report-file=report.json", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **kwargs,
    )


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Wait until a file is there, or the process has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_interrupted_session_reports_and_the_next_one_continues(suite, number, workers):
    suite.write(COUNTING.replace("episodes=2", "episodes=200"))
    process = session(suite.folder, "-n", workers, "-k", "completes")
    wait_for(suite.folder / "starts.txt", process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.wait(timeout=60) == 2
    ledger = suite.sweep["ledger"]
    assert ledger["planned"] == sum(ledger[state] for state in LEDGER) == 6
    assert ledger["complete"] < 6
    assert session(suite.folder, "-n", workers, "-k", "completes").wait() == 0
    assert set(suite.states().values()) == {"complete"}
    begun = starts(suite)
    assert len(set(begun)) == 6 * 200
    assert len(begun) - len(set(begun)) <= 6  # an episode that was cut short is begun again


def test_a_test_that_a_worker_could_not_report_fails_the_session(suite):
    suite.write(
        COUNTING + "\nimport numpy\n\ndef test_numpy(run, record_property):\n"
        "    record_property('x', numpy.float64(1.5))\n"
    )
    assert suite.run("-n", "2").ret != 0


def test_a_time_limit_for_tests_does_not_cut_a_running_cell(suite):
    slow = COUNTING.replace(
        "        return super().run_episode(spec)", "        time.sleep(0.6)\n        return super().run_episode(spec)"
    ).replace("import os, pathlib", "import os, pathlib, time")
    suite.write(slow + "\ndef test_slow(run):\n    time.sleep(5)\n")
    result = suite.run("--timeout=1", "-k", "(completes or slow) and neutral and s0")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*1.0s*"])


def test_fixtures_of_these_names_that_others_define_are_left_alone(suite):
    suite.write(
        "import pytest\n\n@pytest.fixture(params=[1, 2])\ndef run(request): return request.param\n\n"
        "@pytest.fixture\ndef sweep(): return 'broom'\n\ndef test_it(run, sweep): assert sweep == 'broom'\n"
    )
    suite.run("-n", "2").assert_outcomes(passed=2)
    assert "proteus" not in suite.report
    assert not (suite.folder / ".proteus").exists()


def test_a_fixture_that_wraps_run_keeps_its_cell(suite):
    suite.write(
        COUNTING
        + "\n@pytest.fixture\ndef run(run):\n    return run\n\ndef test_wrapped(run):\n    assert run.episodes == 2\n"
    )
    suite.run("-k", "wrapped").assert_outcomes(passed=6)


def test_a_harness_that_cannot_run_here_is_skipped_with_its_reason(suite):
    text = COUNTING.replace(
        '    name = "counting"', "    name = \"counting\"\n\n    def preflight(self):\n        return 'no such agent'"
    )
    suite.write(text)
    result = suite.run("-k", "completes")
    result.assert_outcomes(skipped=6)
    assert set(suite.states().values()) == {"skipped:no such agent"}
    assert suite.proteus["outcome"] == "incomplete"
    assert result.ret == 1


def test_a_session_that_died_before_its_plan_was_written_leaves_no_obstacle(suite):
    suite.write(COUNTING)
    (suite.folder / ".proteus" / "test_it" / "0001").mkdir(parents=True)
    (suite.folder / "out" / "test_it" / "cells").parent.mkdir(parents=True)
    suite.run("-k", "completes")
    assert Path(suite.sweep["out"]).name == "0001"
    assert suite.run("-k", "completes", "--proteus-out=out").ret == 0


def test_a_damaged_cell_is_one_sentence(suite):
    suite.write(COUNTING)
    suite.run("-k", "completes")
    cell = next((suite.folder / ".proteus" / "test_it" / "0001" / "cells").glob("*.json"))
    cell.write_text("{")
    result = suite.run("-k", "completes")
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["*is not JSON*"])
