"""Is the harness of the candidate's branch at least as good as the one of the base branch, at no more cost?"""

import os
from statistics import fmean

import ci_gate_history
import pytest

from pytest_proteus import Arm, Files

BASE = "base"
CANDIDATE = os.environ.get("CANDIDATE_REF", "good")

pytestmark = [
    pytest.mark.sweep(name="ci_gate", episodes=4, goal="Leave behind what the next episode can use."),
    pytest.mark.evaluator("units:notes", direction="higher"),
    pytest.mark.evaluator("units:tools", direction="higher"),
    pytest.mark.evaluator("tool-calls", direction="lower"),
]


@pytest.fixture(scope="session", params=["ci_gate_agent:PlaybookHarness"], ids=["playbook"])
def harness(request):
    return request.param


def arm_of(label, ref):
    source = Files(source=ref, repo=ci_gate_history.repository(), paths=["playbook.md"], mode="replace")
    return Arm(label, files=source)


@pytest.fixture(scope="session", params=[arm_of("base", BASE), arm_of("candidate", CANDIDATE)], ids=str)
def arm(request):
    return request.param


@pytest.fixture(scope="session", params=range(3), ids="s{}".format)
def seed(request):
    return request.param


def difference(sweep, evaluator):
    """Candidate minus base, of the mean over seeds of the last score."""
    arms = sweep.by_arm()
    mean = {label: fmean(run.last(evaluator) for run in arms[label]) for label in ("base", "candidate")}
    return mean["candidate"] - mean["base"]


def test_every_run_completes(run):
    assert run.episodes_complete == run.episodes


def test_the_candidate_leaves_no_less_behind(sweep, gate):
    gate("notes", difference(sweep, "units:notes"), at_least=0)
    gate("tools", difference(sweep, "units:tools"), at_least=0)


def test_the_candidate_costs_at_most_two_calls_more(sweep, gate):
    gate("calls", difference(sweep, "tool-calls"), at_most=2)
