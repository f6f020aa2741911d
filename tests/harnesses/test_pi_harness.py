"""The adapter's own logic, against a stand-in for the agent; the agent itself is in test_pi_real_agent.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pytest_proteus.core.adapter import PHASES, EpisodeSpec, HarnessAdapter
from pytest_proteus.core.disposition import NEUTRAL, Disposition, review
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.harnesses.registry import resolve

#: Stands in for pi: appends what the variable LOG holds to the session file, prints how it was started, runs CODE.
AGENT = f"""#!{sys.executable}
import json, os, pathlib, sys
arguments = sys.argv[1:]
folder, ident = (arguments[arguments.index(name) + 1] for name in ("--session-dir", "--session-id"))
home = pathlib.Path(os.environ["PI_CODING_AGENT_DIR"])
seen = {{"argv": arguments, "prompt": sys.stdin.read(), "env": dict(os.environ), "cwd": os.getcwd(),
        "files": {{path.name: json.loads(path.read_text()) for path in home.iterdir()}},
        "left": sorted(map(str, pathlib.Path(os.environ["HOME"]).iterdir()))}}
with open(os.environ["SEEN"], "a") as file:
    file.write(json.dumps(seen) + "\\n")
log = pathlib.Path(f"{{folder}}/time_{{ident}}.jsonl")
with log.open("a") as file:
    file.write("" if file.tell() else '{{"type": "session", "version": 3, "id": "s"}}\\n')
    file.write(os.environ.get("LOG", ""))
exec(os.environ.get("CODE", ""))
"""


def entry(stop: str = "stop", error: str = "", **more) -> str:
    message = {"role": "assistant", "content": [{"type": "text", "text": "said"}], "stopReason": stop, **more}
    return json.dumps({"type": "message", "message": message | ({"errorMessage": error} if error else {})}) + "\n"


@pytest.fixture
def agent(tmp_path) -> Path:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path, agent, monkeypatch):
    """Run an episode with the stand-in; gives the result and what the agent saw in each phase."""
    root = tmp_path / "live"
    (root / "harness").mkdir(parents=True)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    def go(log=None, code="", *, endpoint=None, phases=("act",), episode=1, timeout=30.0, **env):
        harness = PiHarness(endpoint or {"anthropic": "http://127.0.0.1:1"}, agent)
        harness.seed(root / "harness")
        extra = {"LOG": entry() if log is None else log, "CODE": code, "SEEN": str(tmp_path / "seen"), **env}
        prompts = {phase: f"Prompt of {phase}." for phase in phases}
        spec = EpisodeSpec(root, episode, "some-model", prompts, extra_env=extra, phase_timeout=timeout)
        result = harness.run_episode(spec)
        return result, [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]

    go.root = root
    return go


def test_pi_is_a_harness_adapter_that_the_registry_knows():
    assert isinstance(resolve("pi", endpoint={"gemini": "http://127.0.0.1:1"}), HarnessAdapter)


def test_every_phase_is_a_prompt_on_stdin_of_the_same_session(run):
    result, seen = run(phases=PHASES)
    assert result.ok
    assert [one["prompt"] for one in seen] == [f"Prompt of {phase}." for phase in PHASES]
    assert len({one["argv"][one["argv"].index("--session-id") + 1] for one in seen}) == 1
    assert result.counters == {
        **{f"phase_{phase}_turns": 1 for phase in PHASES},
        "phase_ends": dict.fromkeys(PHASES, "stop"),
        **dict.fromkeys(("tool_calls", "model_errors", "endpoint_calls", "endpoint_turns"), 0),
    }


def test_the_trace_tells_the_phases_apart_after_the_run(run):
    run(phases=("observe", "act"))
    assert [event.phase for event in PiHarness().read_trace(run.root, 1)] == ["observe", "act"]


def test_the_agent_works_in_the_harness_and_has_homes_of_its_own(run):
    _, (seen,) = run()
    assert seen["cwd"] == str(run.root / "harness") == seen["env"]["PWD"]
    for name in ("HOME", "TMPDIR", "PI_CODING_AGENT_DIR"):
        assert seen["env"][name].startswith(f"{run.root}/state/")


def test_nothing_of_our_environment_is_inherited(run, monkeypatch):
    monkeypatch.setenv("CANARY", "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    _, (seen,) = run()
    assert not {"CANARY", "HTTPS_PROXY", "PYTHONPATH"} & set(seen["env"])


def test_what_the_agent_keeps_outside_the_harness_is_gone_in_the_next_episode(run):
    keep = "open(os.environ['HOME'] + '/memory', 'w')"
    run(code=keep)
    _, seen = run(code=keep, episode=2)
    assert seen[1]["left"] == []
    assert not (run.root / "state").exists()


def test_a_second_attempt_does_not_see_the_first_ones_session(run):
    run(log=entry("error", "500 x"))
    result, _ = run()
    assert result.ok
    assert result.counters["model_errors"] == 0


@pytest.mark.parametrize(
    ("wire", "given", "api", "url"),
    [
        ("anthropic", "http://127.0.0.1:1/t/x", "anthropic-messages", "http://127.0.0.1:1/t/x"),
        ("anthropic", "http://127.0.0.1:1/v1/", "anthropic-messages", "http://127.0.0.1:1"),
        ("openai-chat", "http://127.0.0.1:1", "openai-completions", "http://127.0.0.1:1/v1"),
        ("openai-responses", "http://127.0.0.1:1/x/v1", "openai-responses", "http://127.0.0.1:1/x/v1"),
        ("gemini", "http://127.0.0.1:1/v1beta", "google-generative-ai", "http://127.0.0.1:1/v1beta"),
    ],
)
def test_the_endpoint_becomes_a_provider_of_the_agent(run, wire, given, api, url):
    _, (seen,) = run(endpoint={wire: given})
    ((_, provider),) = seen["files"]["models.json"]["providers"].items()
    counted = re.sub(r"127.0.0.1:[0-9]+", "127.0.0.1:1", provider["baseUrl"])
    assert (provider["api"], counted) == (api, url)
    assert provider["models"][0]["id"] == "some-model"


def test_the_key_stays_in_the_environment(run, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    _, (seen,) = run()
    assert seen["env"]["ANTHROPIC_API_KEY"] == "sk-secret"
    assert "sk-secret" not in json.dumps([seen["files"], seen["argv"]])


def test_an_endpoint_elsewhere_without_a_key_cannot_run(agent, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    harness = PiHarness({"openai-chat": "https://models.example/v1"}, agent)
    assert harness.preflight().endswith("needs a key in the environment variable OPENAI_API_KEY")


def test_a_run_without_a_model_is_refused(tmp_path, agent):
    with pytest.raises(ConfigurationError, match="name one with --proteus-model"):
        PiHarness({"gemini": "http://127.0.0.1:1"}, agent).run_episode(EpisodeSpec(tmp_path, 1, "", {"act": "x"}))


def test_without_the_agent_the_reason_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTEST_PROTEUS_AGENTS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert PiHarness().preflight().endswith("install it with: proteus agents install pi")
    assert PiHarness().version == ""


def test_an_unknown_wire_is_refused():
    with pytest.raises(ConfigurationError, match="no wire protocol 'smoke'; choose one of anthropic"):
        PiHarness({"smoke": "http://127.0.0.1:1"})


def test_a_good_end_counts_whatever_the_exit_status(run):
    result, _ = run(code="sys.exit(7)")
    assert result.ok


@pytest.mark.parametrize(
    ("log", "error_class", "sentence"),
    [
        (entry("error", "500 overloaded"), "apparatus", "phase act: the model's endpoint failed: 500 overloaded"),
        (entry("error", "429 slow down"), "apparatus", "failed: 429"),
        (entry("error", "fetch failed"), "apparatus", "failed: fetch failed"),
        (entry("error", "401 who are you"), "configuration", "failed: 401"),
        (entry("error", "404 no such model"), "configuration", "failed: 404"),
        (entry("aborted"), "apparatus", "the agent was stopped"),
        (entry("toolUse"), "apparatus", "ended in the middle of its work (exit status 0)"),
        ("", "apparatus", "ended with status 0 before it got an answer"),
    ],
)
def test_a_bad_end_is_told_by_the_last_answer_and_not_by_the_exit_status(run, log, error_class, sentence):
    result, _ = run(log=log)
    assert (result.ok, result.error_class) == (False, error_class)
    assert sentence in result.error


def test_a_later_phase_without_an_answer_is_not_taken_for_an_earlier_one(run):
    code = (
        "file = next(pathlib.Path(folder).glob('*.jsonl'))\n"
        "if 'observe' in seen['prompt']: file.open('a').write(os.environ['ENTRY'])"
    )
    result, _ = run(log="", code=code, phases=("observe", "act"), ENTRY=entry())
    assert "phase act: the agent ended with status 0 before it got an answer" in result.error


def test_a_phase_that_takes_too_long_is_a_time_out_and_keeps_its_trace(run):
    with pytest.raises(PhaseTimeout, match="phase act took longer"):
        run(code="import time; time.sleep(60)", timeout=3.0)
    assert len(PiHarness().read_trace(run.root, 1)) == 1


def test_an_agent_that_prints_why_it_failed_is_quoted(run):
    result, _ = run(log="", code="print('No such model', file=sys.stderr); sys.exit(1)")
    assert result.error.endswith("status 1 before it got an answer: No such model")


def test_no_tokens_in_the_log_means_no_count(run):
    result, _ = run()
    assert "agent_log_tokens" not in result.counters


def test_tokens_in_the_log_are_counted_under_a_name_that_says_whose_they_are(run):
    result, _ = run(log=entry(usage={"input": 5, "output": 2}))
    assert result.counters["agent_log_tokens"] == {"input": 5, "output": 2}


@pytest.mark.parametrize("hostile", ["os.mkfifo", "os.mkdir", "lambda p: os.symlink('/etc/passwd', p)"])
def test_a_session_file_that_is_none_is_read_as_no_answer(run, hostile):
    code = f"p = next(pathlib.Path(folder).glob('*.jsonl')); p.unlink(); ({hostile})(str(p))"
    result, _ = run(code=code)
    assert not result.ok
    assert PiHarness().read_trace(run.root, 1) == []


def test_a_trace_of_an_episode_that_never_ran_is_empty(tmp_path):
    assert PiHarness().read_trace(tmp_path, 3) == []


def test_a_disposition_leaves_the_tree_alone(tmp_path):
    harness = PiHarness()
    prints = []
    for disposition in (NEUTRAL, review("notes"), NEUTRAL):
        harness.install_disposition(tmp_path, disposition)
        prints.append(harness.disposition_fingerprint(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert len(set(prints)) == 1


def test_a_disposition_that_is_a_patch_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="give 'x' a prompt_suffix"):
        PiHarness().install_disposition(tmp_path, Disposition("x", patch="--- a"))


def test_the_seeded_harness_does_not_name_the_framework(tmp_path):
    PiHarness().seed(tmp_path)
    text = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file()).lower()
    assert "proteus" not in text
    assert "pytest" not in text


def test_addresses_and_paths_are_no_public_attributes(agent):
    public = {
        name: value
        for name, value in vars(PiHarness({"gemini": "http://127.0.0.1:7"}, agent)).items()
        if name[0] != "_"
    }
    assert public == {"wire": "gemini", "reasoning": False, "sandbox": None}


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("log.unlink()", "what it held before the phase is not there any more"),
        ("log.write_text('')", "what it held before the phase is not there any more"),
        ("log.unlink(); log.write_text(os.environ['LOG'])", "what it held before the phase is not there any more"),
        ("log.write_text(log.read_text()[20:])", "what it held before the phase is not there any more"),
        ("shutil.rmtree(folder)", "its folder is no folder any more"),
        ("shutil.move(folder, '../kept'); os.symlink('../kept', folder)", "its folder is no folder any more"),
        ("shutil.move('../traces', '../kept'); os.symlink('kept', '../traces')", "its folder is no folder any more"),
    ],
)
def test_a_log_that_the_agent_destroys_is_an_error_of_the_episode(run, deed, told):
    code = f"import shutil\nif 'act' in seen['prompt']: {deed}"
    result, _ = run(code=code, phases=("observe", "act"))
    assert (result.ok, result.error_class) == (False, "apparatus")
    assert told in result.error


@pytest.mark.parametrize(
    "deed", ["log.unlink(); log.write_text(os.environ['LOG'])", "log.unlink()", "log.write_text('')"]
)
def test_a_log_that_is_destroyed_in_the_first_phase_is_an_error_too(run, deed):
    result, _ = run(code=deed)
    assert (result.ok, result.error_class) == (False, "apparatus")
    assert "before it got an answer" in result.error or "its first record is missing" in result.error


def test_a_link_in_place_of_the_traces_is_no_way_to_delete_or_write_elsewhere(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "ep002").mkdir(parents=True)
    (elsewhere / "ep002" / "mine").write_text("mine")
    run(code=f"import shutil; shutil.rmtree('../traces'); os.symlink({str(elsewhere)!r}, '../traces')")
    result, _ = run(episode=2)
    assert result.ok
    assert [path.name for path in elsewhere.rglob("*")] == ["ep002", "mine"]


def test_killing_the_supervisor_cuts_the_run_short_and_is_not_tried_again(run):
    result, _ = run(code="os.kill(os.getppid(), 9); import time; time.sleep(60)")
    assert (result.ok, result.error_class) == (False, "abort")
    assert result.error.startswith("phase act: the process that supervises")
