"""A small suite to run under the plugin, and readers of what it leaves."""

from __future__ import annotations

import json
import os

import pytest

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(episodes=3, goal="Keep your notes in order."),
    pytest.mark.evaluator("units:notes", visibility="observe"),
    pytest.mark.evaluator("step"),
]


@pytest.fixture(scope="session", params=[NEUTRAL, review("notes")], ids=str)
def arm(request):
    return request.param


@pytest.fixture(scope="session", params=range(3), ids="s{}".format)
def seed(request):
    return request.param


@pytest.mark.evaluator("tool-calls", at_most=40)
def test_completes(run):
    assert run.episodes_complete == run.episodes


def test_again(run):
    assert run.last("units:notes") is not None


def test_whole(sweep, gate):
    gate("cells", len(sweep.runs), equals=6)
"""


class Suite:
    """Runs a suite in a process of its own and reads the report."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.folder = pytester.path
        self._written = 0

    def write(self, text: str = SUITE, name: str = "test_it") -> None:
        """Write a module of the suite, with another time stamp each time: what is compiled is told apart by seconds."""
        path = self.folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        self._written += 1
        os.utime(path, (0, 10**9 + self._written))

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest as a user does, with a JSON report."""
        (self.folder / "report.json").unlink(missing_ok=True)
        return self.pytester.runpytest_subprocess(
            "-p", "proteus", "--json-report", "--json-report-file=report.json", *arguments
        )

    @property
    def report(self) -> dict:
        """The whole JSON report."""
        return json.loads((self.folder / "report.json").read_text())

    @property
    def proteus(self) -> dict:
        """Its section of ours."""
        return self.report["proteus"]

    @property
    def sweep(self) -> dict:
        """The only sweep of the report."""
        (sweep,) = self.proteus["sweeps"]
        return sweep

    def states(self) -> dict[str, str]:
        """arm-seed → state."""
        return {f"{run['arm']}-s{run['seed']}": run["state"] for run in self.sweep["runs"]}

    def attempts(self) -> dict[str, int]:
        """arm-seed → how often the cell was begun."""
        return {f"{run['arm']}-s{run['seed']}": run["attempts"] for run in self.sweep["runs"]}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """An empty suite in a folder of its own."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester)
