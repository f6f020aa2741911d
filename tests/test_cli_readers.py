"""The sub-commands that read finished artifacts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.cli import main
from pytest_proteus.report.build import build_report


@pytest.fixture
def report(tmp_path):
    """A report without sweeps, and the file it is in."""
    value = build_report(tmp_path / "nothing")
    value.update(outcome="pass", outcome_reasons=[])
    return value


@pytest.fixture
def file_of(tmp_path):
    def write(value):
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"proteus": value}))
        return str(path)

    return write


@pytest.mark.parametrize(("outcome", "code"), [("pass", 0), ("fail", 1), ("undecided", 3), ("incomplete", 4)])
def test_verdict_exits_with_the_outcome(report, file_of, outcome, code, capsys):
    report.update(outcome=outcome, outcome_reasons=["because"])
    assert main(["verdict", file_of(report)]) == code
    assert capsys.readouterr().out == f"{outcome}\n- because\n"


def test_verdict_as_json(report, file_of, capsys):
    assert main(["verdict", "--json", file_of(report)]) == 0
    assert json.loads(capsys.readouterr().out) == {"outcome": "pass", "outcome_reasons": []}


def test_a_folder_stands_for_the_report_in_it(report, tmp_path, capsys):
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert main(["verdict", str(tmp_path)]) == 0


@pytest.mark.parametrize("command", ["verdict", "report"])
@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "device", "empty folder", "folder with a fifo", "socket"])
def test_what_is_no_file_with_a_report_is_one_line_and_never_waits(command, kind, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder
    if kind in ("fifo", "link to a fifo", "folder with a fifo"):
        os.mkfifo(folder / "report.json")
        path = folder / "report.json" if kind == "fifo" else folder
    if kind == "link to a fifo":
        path = tmp_path / "link"
        path.symlink_to(folder / "report.json")
    if kind == "device":
        path = Path("/dev/zero")
    if kind == "socket":
        path = folder / "socket"
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    words = [sys.executable, "-m", "pytest_proteus.cli", command, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"proteus {command}: ")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr


def test_a_report_as_markdown(report, file_of, capsys):
    assert main(["report", file_of(report), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("# Sweep report: pass\n")


def test_a_report_as_a_table(report, file_of, capsys):
    assert main(["report", file_of(report)]) == 0
    assert "outcome: pass" in capsys.readouterr().out


def test_a_report_as_json(report, file_of, capsys):
    assert main(["report", "--json", file_of(report)]) == 0
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(
    "words",
    [
        ["verdict", "no-such-file"],
        ["report", "no-such-file"],
        ["export", "no-such-run", "dest"],
        ["agents", "install", "no-such-agent"],
        ["measure", "no-such-sweep"],
        ["run", "--out", "x", "--phase-turns", "act=3", "--max-turns", "4"],
        ["verdict", "x", "--", "-q"],
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"proteus {words[0]}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "--out", "x", "--seeds", "none"],
        ["run", "--out", "x", "--seeds", "0"],
        ["run", "--out", "x", "--phase-turns", "act"],
        ["run", "--out", "x", "--phase-timeout", "nan"],
        ["run", "--out", "x", "-n", "many"],
        ["report", "x", "--format", "pdf"],
        ["rescore", "x"],
        ["reliability", "x", "--level", "ncd"],
        ["agents"],
    ],
)
def test_words_that_cannot_be_parsed_are_one_line_and_exit_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["verdict"],
        ["report"],
        ["export"],
        ["measure"],
        ["reliability"],
        ["audit"],
        ["rescore"],
        ["agents", "list"],
    ],
)
def test_the_help_of_each_command_has_an_example_of_it(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    assert f"example:\n  proteus {' '.join(words)}" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error(report, file_of):
    report["outcome_reasons"] = ["x" * 100] * 10_000
    command = [sys.executable, "-m", "pytest_proteus.cli", "verdict", file_of(report)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_the_command_imports_nothing_heavy_before_it_is_needed():
    code = (
        "import sys; from pytest_proteus.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'pytest', 'pydantic', 'git', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_agents_are_listed_with_their_pinned_versions(capsys):
    assert main(["agents", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["agents", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[1].split()[0] == rows[0]["name"]
