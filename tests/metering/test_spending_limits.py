"""Budgets: no call goes out that might pass the limit, and what a session bought is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from model_calls import SERVED, WIRES, ask, request, served

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering import spans
from pytest_proteus.metering.budget import MOST_OUTPUT, RESERVED, SPENT, WAIT, Budget, Limits, most, spent
from pytest_proteus.metering.prices import builtin
from pytest_proteus.metering.spans import Meter

CALL = SERVED.input + SERVED.output + SERVED.cache_read


@pytest.fixture(autouse=True)
def _closed():
    yield
    spans.close()


def test_what_is_reserved_by_others_is_waited_for_and_what_is_spent_is_not(tmp_path):
    first, second = (Budget(tmp_path / "b", Limits(max_tokens=100)) for _ in range(2))
    assert first.reserve("a", 60, 0).result() == RESERVED
    assert first.reserve("a", 60, 0).result() == RESERVED, "asking twice takes once"
    assert second.reserve("b", 60, 0).result() == WAIT
    assert second.reserve("c", 101, 0).result() == SPENT
    first.settle("a", 10, 0.0).result()
    assert second.reserve("b", 60, 0).result() == RESERVED
    second.settle("b", None, None).result()
    assert spent(tmp_path / "b") == (70, 0.0), "what a call cost is not known: its reservation stands"
    assert first.reserve("d", 60, 0).result() == SPENT
    first.close()
    second.close()


def test_processes_at_once_do_not_pass_the_limit_together(tmp_path):
    budgets = [Budget(tmp_path / "b", Limits(max_usd=1.0)) for _ in range(4)]
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(budgets[n % 4].reserve(str(n), 1, 0.03).result) for n in range(100)]
        answers = [one.result() for one in asked]
    assert answers.count(RESERVED) == 33
    assert set(answers) == {RESERVED, WAIT}
    for budget in budgets:
        budget.close()


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_may_cost_its_whole_prompt_and_the_output_that_it_allows(wire):
    body = json.loads(request(wire)[1])
    assert most(wire, json.dumps(body).encode(), "nameless", builtin())[0] > MOST_OUTPUT
    allowed = {"max_tokens": 77, "max_output_tokens": 77, "generationConfig": {"maxOutputTokens": 77}}
    tokens, usd = most(wire, json.dumps({**body, **allowed}).encode(), "nameless", builtin())
    assert 77 < tokens < 77 + len(json.dumps({**body, **allowed}))
    assert usd is None
    assert most(wire, json.dumps({**body, **allowed}).encode(), "gpt-5.4", builtin())[1] > 77 * 15 / 1e6


def test_calls_beyond_the_budget_are_answered_with_a_status_that_no_agent_tries_again(tmp_path):
    spans.set_budget(tmp_path / "budget.db", Limits(max_tokens=MOST_OUTPUT + 2 * CALL + 500))
    with served() as server:
        span = Meter(tmp_path, "r1").open(1, agent="a", model="m", upstream=server.endpoint["openai-responses"])
        statuses = [ask(span.url, "openai-responses")[0] for _ in range(6)]
        span.close("abort", None)
        assert len(server.requests) == statuses.count(200)
    assert set(statuses) == {200, 400}
    assert statuses == sorted(statuses)
    assert span.spent
    assert spent(tmp_path / "budget.db") == (statuses.count(200) * CALL, 0.0)


def test_an_error_of_the_endpoint_costs_nothing(tmp_path):
    spans.set_budget(tmp_path / "budget.db", Limits(max_tokens=10**6))
    with served(error=429) as server:
        span = Meter(tmp_path, "r1").open(1, agent="a", model="m", upstream=server.url)
        assert ask(span.url, "anthropic")[0] == 429
        span.close("errored", None)
    spans.close()
    assert spent(tmp_path / "budget.db") == (0, 0.0)


def test_calls_that_cannot_be_seen_are_refused_where_there_is_a_budget(tmp_path):
    spans.set_budget(tmp_path / "budget.db", Limits(max_tokens=10**6))
    with pytest.raises(ConfigurationError, match="only be kept where calls are metered"):
        Meter(tmp_path, "r1").open(1, agent="pi", model="m", upstream="")


#: Every run takes one call an episode, of two episodes.
HARNESS = """
import sys
sys.path.insert(0, {tests!r})
from model_calls import ask
from pytest_proteus.core.adapter import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness


class Paid(MinimalHarness):
    name = "paid"
    deterministic = False

    def run_episode(self, spec):
        span = spec.meter.open(spec.episode, agent="a", model="m", upstream={url!r})
        ask(span.url, "openai-responses")
        result = super().run_episode(spec)
        span.close("complete", None)
        if span.spent:
            return EpisodeResult(spec.episode, False, error="the budget is used up", error_class="budget")
        return result
"""

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = pytest.mark.sweep(episodes=2, harness=["kinds:Paid"], arm=[NEUTRAL, review("notes")], seed=range(4))


def test_it(run):
    pass
"""


def session(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess, dict]:
    (folder / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-q", "--json-report", "--json-report-file=report.json"]
    command += ["--proteus-out=out", "--rootdir", str(folder), *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    path = folder / "report.json"
    return done, json.loads(path.read_text()).get("proteus", {}) if path.exists() else {}


def test_a_session_stops_at_its_budget_and_says_what_it_bought(tmp_path):
    with served() as server:
        kinds = HARNESS.format(tests=str(Path(__file__).parent), url=server.endpoint["openai-responses"])
        (tmp_path / "kinds.py").write_text(kinds)
        # a seed is four calls; the fifth one still fits
        done, report = session(tmp_path, f"--proteus-max-tokens={MOST_OUTPUT + 4 * CALL + 200}")
        states = [(run["seed"], run["state"]) for run in report["sweeps"][0]["runs"]]
        assert len(server.requests) * CALL <= report["budget"]["max_tokens"]
        first = len(server.requests)
        _, more = session(tmp_path, "--proteus-retry=skipped")
        assert len(server.requests) == 16, "what was bought is kept, and the rest follows"
    complete = [seed for seed, state in states if state == "complete"]
    assert complete == [0, 0], "the second seed is begun, and cut short"
    assert {state for _, state in states} <= {"complete", "abort", "skipped:budget"}
    assert ("skipped:budget") in {state for _, state in states}
    assert report["outcome"] == "incomplete"
    assert report["budget"]["stopped_by"] == "budget"
    assert report["budget"]["blocks_bought"] == 1
    assert report["budget"]["spent_tokens"] == first * CALL
    assert f"it bought {len(complete)} of 8 cells" in done.stdout
    assert {run["state"] for run in more["sweeps"][0]["runs"]} == {"complete"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--proteus-max-tokens=many"], "write a whole number"),
        (["--proteus-max-usd=0"], "write US dollars"),
        (["--proteus-max-usd=1", "--proteus-model=house-model"], "no price of model 'house-model' is known"),
        (["--proteus-prices=nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_a_usage_error_before_anything_runs(tmp_path, words, said):
    (tmp_path / "kinds.py").write_text(HARNESS.format(tests=str(Path(__file__).parent), url="http://127.0.0.1:1"))
    done, _ = session(tmp_path, *words)
    assert done.returncode == 4
    assert said in done.stdout + done.stderr
