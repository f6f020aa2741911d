"""``proteus run`` in a process of its own, from the command line to the artifacts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_proteus.cli import main
from pytest_proteus.report.models import load_report

SEED_LINE = [
    "--harness", "minimal", "--goal", "Make your durable knowledge easier to navigate.",
    "--evaluator", "units:notes@observe", "--evaluator", "step", "--evaluator", "tool-calls",
    "--arm", "neutral", "--seeds", "2", "--episodes", "10", "--out", "runs/navigation",
]  # fmt: skip


def command():
    found = shutil.which("proteus", path=str(Path(sys.executable).parent))
    assert found, "the package is not installed beside this Python: pip install -e ."
    return found


def environment():
    return {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTHONPATH")}


def call(*words, cwd):
    options = {"cwd": cwd, "env": environment(), "capture_output": True, "text": True, "check": False}
    return subprocess.run([command(), *words], **options)


@pytest.fixture
def proteus(tmp_path, monkeypatch):
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(*words, cwd=tmp_path)


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """The sweep of the documented command line, run once."""
    folder = tmp_path_factory.mktemp("documented")
    done = call("run", *SEED_LINE, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "navigation", done


@pytest.fixture
def navigated(documented, tmp_path):
    """A copy of it in the test's own folder."""
    out, done = documented
    shutil.copytree(out, tmp_path / "runs" / "navigation", symlinks=True)
    return tmp_path / "runs" / "navigation", done


def scores_of(report):
    return [
        (run["run_id"], run["arm"], run["seed"], name, values["scores"])
        for run in report["sweeps"][0]["runs"]
        for name, values in run["evaluators"].items()
    ]


def test_the_documented_line_leaves_the_documented_artifacts(navigated):
    out, _ = navigated
    manifest = json.loads((out / "manifest.json").read_text())
    lines = [json.loads(line) for line in (out / "seeds.jsonl").read_text().splitlines()]
    assert [(line["arm"], line["seed"], line["episodes_complete"]) for line in lines] == [
        ("neutral", 0, 10),
        ("neutral", 1, 10),
    ]
    for run in manifest["runs"]:
        root = out / "runs" / run["id"]
        assert len((out / "progress" / f"{run['id']}.jsonl").read_text().splitlines()) == 10
        assert (root / "harness").is_dir()
        assert (root / ".snapshot.git").is_dir()
        assert len(json.loads((out / "runs" / ".proteus-records" / run["id"] / "eval_history.json").read_text())) == 10


def test_its_report_has_every_score(navigated):
    report = load_report(navigated[0])
    assert report["outcome"] == "pass"
    ledger = report["sweeps"][0]["ledger"]
    assert (ledger["planned"], ledger["complete"], ledger["reused"]) == (2, 2, 0)
    for run in report["sweeps"][0]["runs"]:
        assert list(run["evaluators"]) == ["units:notes", "step", "tool-calls"]
        assert all(
            len(values["scores"]) == 10 and None not in values["scores"] for values in run["evaluators"].values()
        )


def test_the_suite_that_it_prints_does_the_same(navigated, tmp_path):
    out, done = navigated
    suite = done.stdout[: done.stdout.index("=====")]
    (tmp_path / "test_navigation.py").write_text(suite)
    pytest_words = ["-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--proteus-out", "again"]
    subprocess.run(
        [sys.executable, *pytest_words, "test_navigation.py"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
    )
    assert scores_of(load_report(tmp_path / "again" / "navigation")) == scores_of(load_report(out))


def test_the_same_line_again_runs_nothing_again(navigated, proteus):
    out, _ = navigated
    before = scores_of(load_report(out))
    assert proteus("run", *SEED_LINE).returncode == 0
    report = load_report(out)
    assert report["sweeps"][0]["ledger"]["reused"] == 2
    assert scores_of(report) == before


def test_another_condition_in_the_same_folder_is_refused_and_changes_nothing(navigated, proteus):
    out, _ = navigated
    before = (out / "manifest.json").read_bytes()
    done = proteus("run", *SEED_LINE, "--goal", "Something else.")
    assert done.returncode == 2
    assert "goal" in done.stderr
    assert (out / "manifest.json").read_bytes() == before


def test_a_folder_of_other_things_is_refused_and_left_alone(proteus, tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = proteus("run", *SEED_LINE[:-1], ".")
    assert done.returncode == 2
    assert "manifest.json" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_ctrl_c_ends_it_with_what_is_complete(proteus, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pytest_proteus.harnesses.minimal import MinimalHarness\n"
        "class Slow(MinimalHarness):\n"
        "    def __init__(self):\n"
        "        super().__init__(hang_at=[3])\n"
    )
    words = ["run", "--harness", "mine:Slow", "--seeds", "1", "--episodes", "3", "--out", "out"]
    with subprocess.Popen([command(), *words], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        while not any(len(path.read_bytes().splitlines()) == 2 for path in tmp_path.glob("out/progress/*.jsonl")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    report = load_report(tmp_path / "out")
    assert report["outcome"] == "incomplete"
    assert report["sweeps"][0]["runs"][0]["episodes_complete"] == 2


def test_overwrite_discards_what_was_there(navigated, proteus):
    out, _ = navigated
    assert proteus("run", *SEED_LINE, "--goal", "Something else.", "--on-existing", "overwrite").returncode == 0
    assert load_report(out)["sweeps"][0]["ledger"]["reused"] == 0


def test_its_history_is_exported(navigated, proteus, tmp_path):
    out, _ = navigated
    run_id = json.loads((out / "manifest.json").read_text())["runs"][0]["id"]
    assert proteus("export", f"runs/navigation/runs/{run_id}", "history").returncode == 0
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=tmp_path / "history", capture_output=True, text=True, check=True
    )
    assert [line.partition(":")[0] for line in log.stdout.splitlines()] == [f"episode {n}" for n in range(10, -1, -1)]


def test_for_machines_there_is_the_report_and_nothing_else(proteus):
    done = proteus("run", "--json", "--seeds", "1", "--episodes", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sweeps"][0]["ledger"]["complete"] == 1


def test_it_can_be_called_from_python_again_and_again(tmp_path, capsys):
    words = ["run", "--seeds", "1", "--episodes", "1", "--out", str(tmp_path / "out")]
    path = list(sys.path)
    assert main(words) == 0
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told[told.index('{\n "schema_version"') :])["sweeps"][0]["ledger"]["reused"] == 1
    assert sys.path == path


def test_workers_share_the_sweep(proteus):
    done = proteus("run", "-n", "2", "--seeds", "2", "--episodes", "2", "--out", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert load_report("out/report.json")["session"]["workers"] == 2


def test_a_run_that_does_not_complete_is_exit_1(proteus, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pytest_proteus.harnesses.minimal import MinimalHarness\n"
        "class Slow(MinimalHarness):\n"
        "    def __init__(self):\n"
        "        super().__init__(hang_at=[2])\n"
    )
    words = ["--harness", "mine:Slow", "--seeds", "1", "--episodes", "2", "--phase-timeout", "0.2", "--out", "out"]
    done = proteus("run", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    report = load_report("out/report.json")
    assert (report["outcome"], report["sweeps"][0]["runs"][0]["state"]) == ("fail", "timeout")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--harness", "minmal"], "minimal"),
        (["--arm", "review:note"], "notes"),
        (["--evaluator", "units:note"], "notes"),
    ],
)
def test_what_does_not_exist_is_one_line_with_the_nearest_spelling(proteus, words, said):
    done = proteus("run", *words, "--out", "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert len([line for line in done.stderr.splitlines() if line]) == 1
