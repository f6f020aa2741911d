"""Is the harness of the candidate's branch no worse than the one of the base branch, by more than we would accept?"""

import os

import ci_gate_history
import pytest

from pytest_proteus import Arm, Files

BASE = "base"
CANDIDATE = os.environ.get("CANDIDATE_REF", "harmless")

pytestmark = [
    pytest.mark.sweep(name="ci_gate", episodes=2, goal="Leave behind what the next episode can use."),
    pytest.mark.evaluator("units:notes", direction="higher", at_least=1),
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


@pytest.fixture(scope="session", params=range(8), ids="s{}".format)
def seed(request):
    return request.param


def test_every_run_leaves_something_behind(run):
    assert run.episodes_complete == run.episodes


def test_the_candidate_does_not_need_more_calls(contrast, gate):
    gate("calls", contrast("tool-calls", arm="candidate", against="base", margin="10%"))
