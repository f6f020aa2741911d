"""A first sweep: does a harness that reviews its notes, or its tools, grow differently from one that is left alone?

Three arms, four seeds, eight episodes each: twelve runs of the offline harness. Everything is measured after every
episode; the tests below gate on it.
"""

from pathlib import Path
from statistics import fmean

import pytest

from pytest_proteus import NEUTRAL, EvalResult, review


def broken_tools(trace, ctx):
    """Files of the tools surface that are not Python. The agent never sees this result."""
    broken = []
    for path in sorted((Path(ctx.harness_root) / "tools").rglob("*.py")):
        try:
            compile(path.read_text(encoding="utf-8"), path.name, "exec")
        except (SyntaxError, ValueError, OSError):
            broken.append(path.name)
    return EvalResult("broken-tools", float(len(broken)), not broken, ", ".join(broken) or "every tool compiles")


pytestmark = [
    pytest.mark.sweep(name="quickstart", episodes=8, goal="Keep what you learn where you will find it again."),
    pytest.mark.evaluator("units:notes", visibility="observe", direction="higher", at_least=1),
    pytest.mark.evaluator("units:tools@hidden"),
    pytest.mark.evaluator("step", direction="neutral"),
    pytest.mark.evaluator(broken_tools, name="broken-tools", direction="lower", equals=0, when="every"),
]


@pytest.fixture(scope="session", params=["minimal"])
def harness(request):
    return request.param


@pytest.fixture(scope="session", params=[NEUTRAL, review("notes"), review("tools")], ids=str)
def arm(request):
    return request.param


@pytest.fixture(scope="session", params=range(4), ids="s{}".format)
def seed(request):
    return request.param


def mean_last(sweep, evaluator):
    """The mean over seeds of an evaluator's last score, per arm."""
    return {label: fmean(run.last(evaluator) for run in runs) for label, runs in sweep.by_arm().items()}


@pytest.mark.evaluator("tool-calls", direction="lower", at_most=40)
def test_every_run_completes(run):
    assert run.episodes_complete == run.episodes
    assert len(run.scores("units:notes")) == run.episodes


def test_the_record_agrees_with_the_checkpoint(run):
    with run.checkpoint(run.episodes) as tree:
        notes = [path for path in (tree / "notes").rglob("*") if path.is_file()]
    assert len(notes) == run.last("units:notes")


def test_an_arm_grows_the_surface_that_it_reviews(sweep, gate):
    notes, tools = mean_last(sweep, "units:notes"), mean_last(sweep, "units:tools")
    gate("notes gained by reviewing notes", notes["review_notes"] - notes["neutral"], at_least=4)
    gate("tools gained by reviewing tools", tools["review_tools"] - tools["neutral"], at_least=4)


def test_reviewing_costs_no_more_than_a_few_calls(sweep, gate):
    calls = mean_last(sweep, "tool-calls")
    for label in ("review_notes", "review_tools"):
        gate(f"calls[{label}]", calls[label] - calls["neutral"], at_most=6)
