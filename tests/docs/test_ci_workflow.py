"""The workflow of docs/ci.md is run step by step: what its shell would be given, in a copy of the project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from run_commands import ROOT, copy_of_project

STEP = re.compile(r"- name: (?P<name>.+)\n(?P<rest>(?: {8}.*\n)+)")


def steps():
    """Name → script of each step that has one."""
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    workflow = re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    found = {}
    for step in STEP.finditer(workflow):
        block = re.search(r"^ {8}run: (?:\|\n((?: {10}.*\n)+)|(.+)\n)", step["rest"], re.MULTILINE)
        found[step["name"]] = textwrap.dedent(block[1]) if block[1] else block[2]
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    copy_of_project(folder)
    return folder


def run(script, folder, **environment):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV"))}
    known.update(PATH=path, GITHUB_STEP_SUMMARY=str(folder / "summary.md"), **environment)
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=known, capture_output=True, text=True, check=False
    )


def test_it_has_the_steps_that_are_run_here():
    assert list(steps()) == [
        "Install",
        "Save the baseline",
        "Hold it against the baseline",
        "Run base and candidate side by side",
        "Tell the reviewers",
    ]


def test_a_pull_request_before_the_first_baseline_is_an_error_that_says_so(tmp_path):
    copy_of_project(tmp_path)
    done = run(steps()["Hold it against the baseline"], tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--proteus-save=main" in done.stderr


def test_main_saves_and_a_pull_request_is_held_against_it(project):
    for name in ("Save the baseline", "Hold it against the baseline", "Tell the reviewers"):
        done = run(steps()[name], project)
        assert done.returncode == 0, f"{name}\n{done.stdout}{done.stderr}"
    assert "## Baseline" in (project / "summary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("candidate", "status"), [("harmless", 0), ("harmful", 1)])
def test_base_and_candidate_side_by_side(project, candidate, status):
    done = run(steps()["Run base and candidate side by side"], project, CANDIDATE_REF=candidate)
    assert done.returncode == status, done.stdout + done.stderr
