"""Real agents, metered: what was served is what is on record; an agent that is not on this machine is skipped."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_proteus.core.adapter import EpisodeSpec
from pytest_proteus.harnesses.agent import AgentHarness
from pytest_proteus.harnesses.registry import resolve
from pytest_proteus.metering import spans
from pytest_proteus.metering.spans import Meter
from pytest_proteus.metering.totals import RunUsage, usage_of
from pytest_proteus.sandbox import BwrapSandbox, choose
from pytest_proteus.testing import ModelServer, Step, both, fail, say, shell, write
from pytest_proteus.testing.script import Usage

#: Agent → a model that it offers its tools to, and what it takes to end.
AGENTS = {
    "claude": "claude-sonnet-4-5",
    "codex": "gpt-5.5",
    "copilot": "claude-sonnet-4.5",
    "gemini": "gemini-2.5-flash",
    "mini-swe-agent": "some-model",
    "opencode": "some-model",
    "pi": "some-model",
    "qwen": "some-model",
}
ALL = os.environ.get("PROTEUS_TEST_REAL_AGENTS") == "all"
thorough = pytest.mark.skipif(not ALL, reason="takes minutes: set PROTEUS_TEST_REAL_AGENTS=all")
NO_BOX = choose("bwrap").preflight()

KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")


@pytest.fixture(autouse=True)
def _closed():
    yield
    spans.close()


@pytest.fixture
def place():
    folder = Path(tempfile.mkdtemp(prefix="live-", dir="/tmp"))
    folder.chmod(0o755)  # the user that boxes of root run as gets through
    yield folder
    shutil.rmtree(folder)


def script(name: str, root: Path, again: bool = False):
    """Two calls in one reply, one that fails, then an answer; where ``again``, first a 429 that a retry makes good,
    with all agents but codex and mini-swe-agent, which do not try again."""
    served = iter(range(1, 10_000))
    end = shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT") if name == "mini-swe-agent" else say("Done.")
    two = (
        shell("echo a")
        if name == "mini-swe-agent"
        else both(write(str(root / "harness/notes/a.md"), "a\n"), shell("exit 3"))
    )

    def answer(talk):
        steps = [shell("echo out"), two, end]
        number = next(served)
        usage = Usage(
            900 + number, 200 + number, cache_read=300 + number, cache_write=40 + number, reasoning=50 + number
        )
        told = [Step(step.text, step.calls, "Hm, let me think." * 4, usage=usage) for step in steps]
        return [fail(429, times=1, retry_after=0.1), *told] if again else told

    return answer


def metered(name: str, out: Path, root: Path, server: ModelServer, run: str = "r1", sandbox=None) -> RunUsage:
    adapter = resolve(name, endpoint=server.endpoint)
    assert isinstance(adapter, AgentHarness)
    if missing := adapter.preflight():
        pytest.skip(missing)
    adapter.sandbox = sandbox
    (root / "harness").mkdir(parents=True)
    adapter.seed(root / "harness")
    prompts = {"observe": f"Now observe {run}.", "act": f"Now act {run}."}
    meter = Meter(out, run)
    result = adapter.run_episode(EpisodeSpec(root, 1, AGENTS[name], prompts, phase_timeout=300.0, meter=meter))
    assert result.ok, result.error
    return usage_of(out)[run]


def held(usage: RunUsage, requests: list) -> None:
    """What is on record is exactly what was served."""
    told = Counter()
    for request in requests:
        for kind in KINDS if request.usage else ():
            told[kind] += getattr(request.usage, kind)
    unseen = ("reasoning",) if requests[0].wire == "anthropic" else ("cache_write",)
    for kind in KINDS:
        assert getattr(usage, f"{kind}_tokens") == (None if kind in unseen else told[kind]), kind
    assert usage.requests == len(requests)
    assert usage.discrepancy["badge"] in ("reconciled", "wire-only")


def agents(*quick: str):
    return pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in quick else thorough) for n in AGENTS])


@agents("claude", "codex", "pi")
def test_served_tokens_are_those_on_record(name, place, tmp_path):
    with ModelServer(script(name, place)) as server:
        usage = metered(name, tmp_path, place, server)
    held(usage, server.requests)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=thorough) for n in AGENTS if n not in ("codex", "mini-swe-agent")]
)
def test_a_retry_after_429_is_in_the_usage_of_the_run_that_paid_for_it(name, place, tmp_path):
    with ModelServer(script(name, place, again=True)) as server:
        usage = metered(name, tmp_path, place, server)
    assert 429 in [request.status for request in server.requests]
    held(usage, server.requests)


@pytest.mark.skipif(bool(NO_BOX), reason=NO_BOX or "-")
@agents("codex")
def test_in_a_box_it_is_the_same(name, place, tmp_path):
    with ModelServer(script(name, place)) as server:
        usage = metered(name, tmp_path, place, server, sandbox=BwrapSandbox())
    held(usage, server.requests)


@thorough
def test_twenty_at_once_mix_nothing(place, tmp_path):
    here = [
        name
        for name in AGENTS
        if not resolve(
            name, endpoint=dict.fromkeys(("anthropic", "openai-responses", "gemini"), "http://127.0.0.1")
        ).preflight()
    ]
    names = {f"mark{number:02}": here[number % len(here)] for number in range(20)}

    def answer(talk):
        mark = next(mark for mark in names if mark in talk.prompt)
        return scripts[mark](talk)

    scripts = {mark: script(name, place / mark) for mark, name in names.items()}
    with ModelServer(answer) as server, ThreadPoolExecutor(6) as pool:
        used = dict(
            zip(
                names,
                pool.map(lambda mark: metered(names[mark], tmp_path, place / mark, server, mark), names),
                strict=True,
            )
        )
    for mark in names:
        held(used[mark], [request for request in server.requests if mark in request.prompt])
