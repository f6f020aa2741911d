"""Recorded sessions as episodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_proteus.core.adapter import EpisodeSpec
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.registry import harness_label, resolve
from pytest_proteus.harnesses.replay import ReplayHarness

DATA = Path(__file__).parent / "data"

#: Log → the stream that all agents' logs of the same session tell; codex was told one step less.
LOGS = {
    "claude_full": ["write", "shell", "edit", "read", "shell"],
    "claude_session_file": ["write", "shell", "edit", "read", "shell"],
    "codex_full": ["write", "shell", "edit", "read"],
    "copilot_full": ["write", "shell", "edit", "read", "shell"],
    "gemini_full": ["write", "shell", "edit", "read", "shell"],
    "opencode_full": ["write", "shell", "edit", "read", "shell"],
    "pi_full": ["write", "shell", "edit", "read", "shell"],
    "qwen_full": ["write", "shell", "edit", "read", "shell"],
}


def recordings(folder: Path, **logs: str) -> Path:
    """A folder with copies of logs, in which the agent worked in ``/place``; ``__`` in a name is a folder's end."""
    for name, log in logs.items():
        path = folder / f"{name.replace('__', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((DATA / f"{log}.jsonl").read_text().replace("$CWD", "/place"))
    return folder


def spec(root: Path, episode: int = 1, **more) -> EpisodeSpec:
    return EpisodeSpec(root, episode, "", {"act": ""}, **more)


@pytest.mark.parametrize("log", LOGS)
def test_the_sessions_of_every_agent_are_told_apart_and_read(tmp_path, log):
    harness = resolve(f"replay:{recordings(tmp_path / 'logs', one=log)}")
    result = harness.run_episode(spec(tmp_path))
    trace = harness.read_trace(tmp_path, 1)
    assert harness.normalized(trace) == LOGS[log]
    assert (result.ok, result.counters["tool_calls"]) == (True, len(LOGS[log]))
    assert {event.phase for event in trace} == {"act"}
    assert harness.recorded == log.partition("_")[0]


def test_a_file_is_on_a_surface_relative_to_where_the_recorded_agent_worked(tmp_path):
    folder = recordings(tmp_path / "logs", one="pi_full")
    path = folder / "one.jsonl"
    path.write_text(path.read_text().replace("/place/hello.txt", "/place/notes/hello.md"))
    harness = ReplayHarness(folder)
    harness.run_episode(spec(tmp_path))
    assert [event.surface for event in harness.read_trace(tmp_path, 1) if event.tool][:2] == ["notes", None]


def test_sessions_are_episodes_in_the_order_in_which_they_began(tmp_path):
    harness = ReplayHarness(recordings(tmp_path / "logs", a="codex_err400", b="codex_full"))
    streams = []
    for episode in (1, 2):
        assert harness.run_episode(spec(tmp_path, episode)).ok
        streams.append(harness.normalized(harness.read_trace(tmp_path, episode)))
    assert streams == [LOGS["codex_full"], []]


def test_folders_named_after_seeds_hold_the_sessions_of_that_seed(tmp_path):
    harness = ReplayHarness(recordings(tmp_path / "logs", s0__x="pi_full", s1__x="pi_chat_api"))
    calls = [harness.run_episode(spec(tmp_path, seed=seed)).counters["tool_calls"] for seed in (0, 1)]
    assert calls == [5, 2]


def test_phases_that_were_noted_with_a_session_are_told_apart(tmp_path):
    folder = recordings(tmp_path / "logs", ep001__log="codex_full")
    (folder / "ep001" / "phases.json").write_text(json.dumps([["observe", 0], ["act", 25]]))
    harness = ReplayHarness(folder)
    harness.run_episode(spec(tmp_path))
    assert [event.phase for event in harness.read_trace(tmp_path, 1) if event.tool] == ["observe"] * 2 + ["act"] * 2


def test_an_episode_without_a_session_says_how_many_there_are(tmp_path):
    result = ReplayHarness(recordings(tmp_path / "logs", one="pi_full")).run_episode(spec(tmp_path, 2))
    assert (result.ok, result.error_class) == (False, "configuration")
    assert result.error.startswith("1 recorded sessions lie in ")


def test_other_recordings_are_another_condition(tmp_path):
    one, two = (ReplayHarness(recordings(tmp_path / name, x=f"pi_{name}")) for name in ("full", "chat_api"))
    assert one.sessions_sha256 != two.sessions_sha256
    assert "sessions_sha256" in vars(one)


@pytest.mark.parametrize(
    ("logs", "sentence"),
    [
        ({}, "no .jsonl file lies below"),
        ({"a": "pi_full", "b": "codex_full"}, "the logs are of codex and pi; put each"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_what_to_do(tmp_path, logs, sentence):
    (tmp_path / "logs").mkdir()
    with pytest.raises(ConfigurationError, match=sentence):
        ReplayHarness(recordings(tmp_path / "logs", **logs))


def test_a_file_that_is_no_log_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"type": "novelty"}\n')
    with pytest.raises(ConfigurationError, match=r"x\.jsonl is no log of a known agent"):
        ReplayHarness(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no folder"):
        resolve(f"replay:{tmp_path / 'none'}")


def test_its_label_is_the_folders_name():
    assert harness_label("replay:logs/mine/") == "replay-mine"


SUITE = """
import pytest
pytestmark = [
    pytest.mark.sweep(episodes=2, harness=["replay:logs"], seed=[0]),
    pytest.mark.evaluator("tool-calls", at_least=4, when="last"),
]
def test_run(run):
    assert run.scores("tool-calls") == [4.0, 4.0]
"""


def test_a_sweep_measures_recorded_sessions(tmp_path):
    recordings(tmp_path / "logs", a="codex_unknown_model", b="codex_full")
    (tmp_path / "test_it.py").write_text(SUITE)
    call = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
