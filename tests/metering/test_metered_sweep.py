"""A sweep whose harness calls a model through its meter: what tests, gates and the report are told of its tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_calls import SERVED, served

from pytest_proteus.core.adapter import EpisodeSpec
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.metering import spans
from pytest_proteus.metering.spans import Meter
from pytest_proteus.metering.totals import usage_of

TOTAL = SERVED.input + SERVED.output + SERVED.cache_read

#: A run of seed s asks its model s + 1 times an episode. Seed 2 goes past the meter, and its agent's log tells so.
HARNESS = """
import sys
sys.path.insert(0, {tests!r})
from model_calls import ask
from pytest_proteus.harnesses.minimal import MinimalHarness


class Metered(MinimalHarness):
    name = "metered"
    past = (2,)

    def run_episode(self, spec):
        span = spec.meter.open(spec.episode, agent="a", model="some-model", upstream={url!r})
        for _ in range(spec.seed + 1):
            ask({url!r} if spec.seed in self.past else span.url, "openai-responses")
        result = super().run_episode(spec)
        span.close("complete", {{"input": 1}} if spec.seed in self.past else None)
        return result


class Past(Metered):
    name = "past"
    past = (0, 1, 2)
"""

SUITE = """
import pytest

pytestmark = pytest.mark.sweep(episodes=2, harness=["kinds:Metered"], seed=[0, 1, 2])


def test_tokens_of_a_run(run):
    wanted = None if run.seed == 2 else 2 * (run.seed + 1)
    assert (run.usage.token_source, run.usage.requests) == (("wire", wanted) if wanted else ("unmeasured", 0))
    assert run.usage.total_tokens == (wanted and wanted * {total})


def test_tokens_of_an_arm(scores, gate):
    found = scores("usage.total_tokens", arm="neutral")
    assert (found.n, found.n_missing) == (2, 1)
    assert found.value == 3 * {total}
    gate("tokens", found, above=1, blocking=False)
"""

PAST = """
import pytest

pytestmark = pytest.mark.sweep(episodes=1, harness=["kinds:Past"], seed=[0, 1, 2])


def test_tokens_that_nobody_measured(scores, gate):
    gate("past", scores("usage.total_tokens", arm="neutral"), at_most=10)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a session that was run twice, the second time with nothing left to run."""
    place = tmp_path_factory.mktemp("metered")
    with served() as server:
        kinds = HARNESS.format(tests=str(Path(__file__).parent), url=server.endpoint["openai-responses"])
        (place / "kinds.py").write_text(kinds)
        (place / "test_it.py").write_text(SUITE.format(total=TOTAL))
        (place / "test_past.py").write_text(PAST)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "proteus",
            "-q",
            "--json-report",
            "--proteus-out=out",
        ]
        command += ["-p", "no:cacheprovider", "--rootdir", str(place)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        for number in (1, 2):
            asked = [*command, f"--json-report-file=report{number}.json"]
            done = subprocess.run(asked, cwd=place, env=environment, capture_output=True, text=True, check=False)
            (place / f"told{number}").write_text(done.stdout + done.stderr)
            assert len(server.requests) == 18, done.stdout + done.stderr
    return place


def report(folder: Path, number: int = 1) -> dict:
    return json.loads((folder / f"report{number}.json").read_text())


def sweep(folder: Path, name: str, number: int = 1) -> dict:
    return next(found for found in report(folder, number)["proteus"]["sweeps"] if name in found["name"])


def test_a_test_sees_the_tokens_of_its_run_and_a_statistic_those_of_an_arm(folder):
    outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in report(folder)["tests"]}
    past = outcomes.pop("test_tokens_that_nobody_measured")
    assert set(outcomes.values()) == {"passed"}, (folder / "told1").read_text()
    assert past == "failed"


def test_a_gate_on_tokens_that_nobody_measured_is_unavailable(folder):
    gates = {gate["name"]: gate for gate in report(folder)["proteus"]["gates"]}
    assert gates["past"]["verdict"] == "unavailable"
    assert gates["tokens"]["n_missing"] == 1


def test_the_report_has_a_usage_block_a_run_and_an_arm(folder):
    runs = {run["seed"]: run["usage"] for run in sweep(folder, "test_it")["runs"]}
    assert [runs[seed]["total_tokens"] for seed in range(3)] == [2 * TOTAL, 4 * TOTAL, None]
    assert [runs[seed]["requests"] for seed in range(3)] == [2, 4, 0]
    assert {runs[2][name] for name in runs[2] if name.endswith("_tokens")} == {None}
    assert "did not come by" in runs[2]["discrepancy"]["reason"]
    arm = sweep(folder, "test_it")["arms"]["neutral"]["usage"]
    assert (arm["total_tokens"], arm["requests"], arm["token_source"]) == (6 * TOTAL, 6, "wire")
    assert arm["discrepancy"] == {"n": 2, "n_missing": 1}


def test_a_session_that_runs_nothing_again_reports_the_same_usage(folder):
    for name in ("test_it", "test_past"):
        first, second = sweep(folder, name, 1), sweep(folder, name, 2)
        assert [run["usage"] for run in first["runs"]] == [run["usage"] for run in second["runs"]]


def test_a_harness_that_calls_no_model_has_no_usage_and_no_store(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\npytestmark = pytest.mark.sweep(episodes=1, seed=[0])\n"
        "def test_none(run):\n    assert run.usage is None\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-q", "--proteus-out=out", "--rootdir", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert not list(tmp_path.rglob("usage.db"))


# --------------------------------------------------------------------------------------------- the driver of agents

#: Stands in for codex: asks the endpoint of its configuration once, and logs what it was told.
AGENT = f"""#!{sys.executable}
import json, os, pathlib, re, sys, urllib.request
sys.stdin.read()
home = pathlib.Path(os.environ["CODEX_HOME"])
log = home / "sessions" / "2026" / "11" / "30" / "rollout-x.jsonl"
log.parent.mkdir(parents=True, exist_ok=True)
url = re.search('base_url = "(.*)"', (home / "config.toml").read_text())[1]
if "PAST" in os.environ:
    url = os.environ["PAST"]
body = json.dumps({{"model": "some-model", "input": "hello"}}).encode()
usage = json.load(urllib.request.urlopen(urllib.request.Request(url + "/responses", body)))["usage"]
usage["output_tokens"] += int(os.environ.get("MORE", "0"))
told = {{"input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"]}}
told["cached_input_tokens"] = usage["input_tokens_details"]["cached_tokens"]
for number, (kind, payload) in enumerate([
    ("session_meta", {{"id": "s", "cli_version": "0.171.0"}}),
    ("response_item", {{"type": "message", "role": "assistant", "content": [{{"text": "said"}}]}}),
    ("token_usage_record", {{"usage": told}}),
    ("event_msg", {{"type": "task_complete"}}),
]):
    with log.open("a") as file:
        file.write(json.dumps({{"ordinal": number, "type": kind, "payload": payload}}) + "\\n")
"""


def driven(tmp_path: Path, url: str, **env: str):
    root = tmp_path / "live"
    (root / "harness").mkdir(parents=True)
    program = tmp_path / "agent"
    program.write_text(AGENT)
    program.chmod(0o755)
    meter = Meter(tmp_path, "r1")
    spec = EpisodeSpec(root, 1, "some-model", {"act": "Now act."}, extra_env=env, meter=meter, phase_timeout=120.0)
    result = CodexHarness({"openai-responses": url}, program).run_episode(spec)
    assert result.ok, result.error
    spans.close()
    return usage_of(tmp_path)["r1"]


@pytest.mark.parametrize("path", ["", "/v1", "/some/gateway/v1"])
def test_an_agent_is_metered_without_knowing_it_and_its_log_agrees(tmp_path, path):
    with served() as server:
        usage = driven(tmp_path, server.url + path)
        assert [request.path for request in server.requests] == [(path or "/v1") + "/responses"]
    assert (usage.total_tokens, usage.token_source, usage.discrepancy["badge"]) == (TOTAL, "wire+log", "reconciled")


def test_a_log_that_tells_more_than_came_by_is_a_discrepancy(tmp_path):
    with served() as server:
        usage = driven(tmp_path, server.url, MORE="5")
    assert (usage.total_tokens, usage.discrepancy["badge"]) == (TOTAL, "discrepancy")
    assert usage.discrepancy["differences"] == {"output": {"wire": SERVED.output, "log": SERVED.output + 5}}


def test_an_agent_that_goes_past_the_meter_is_unmeasured_whatever_its_log_tells(tmp_path):
    with served() as server:
        usage = driven(tmp_path, server.url, PAST=server.url + "/v1")
    assert (usage.total_tokens, usage.requests, usage.token_source) == (None, 0, "unmeasured")
