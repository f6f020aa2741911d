"""The note that goes from phase to phase: what it may hold, whose it is, and that it survives what a run survives."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_harness import TinyHarness, fail, files, go

from pytest_proteus.core import ActionEvent, EpisodeSpec
from pytest_proteus.core.continuity import HANDOFF_LIMIT, Handoff, bounded_note, redacted

FILLER = "A1b2C3d4E5f6G7h8"


@pytest.mark.parametrize(
    "secret",
    [
        f"sk-ant-api03-{FILLER}",
        f"sk-{FILLER}{FILLER}",
        f"ghp_{FILLER}{FILLER}",
        f"github_pat_{FILLER}",
        f"AKIA{FILLER}",
        f"AIza{FILLER}{FILLER}",
        f"eyJhbGciOiJI.{FILLER}.{FILLER}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{FILLER}\n{FILLER}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{FILLER} and no end",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(secret):
    text = redacted(f"before {secret} after")
    assert FILLER not in text
    assert text.startswith("before [removed]")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Authorization: Bearer {FILLER}", "Authorization: Bearer [removed]"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic [removed]"),
        ("OPENAI_API_KEY=abcdef123 x", "OPENAI_API_KEY=[removed] x"),
        ("password: 'hunter22'", "password: [removed]'"),
        ("see https://user:hunter22@host/x", "see https://[removed]@host/x"),
        ("my own-key-1234 here", "my [removed] here"),
        ("the token count is 5; tokens: 12", "the token count is 5; tokens: 12"),
    ],
)
def test_secrets_are_known_by_where_they_stand_and_other_words_stay(text, left):
    assert redacted(text, ["own-key-1234"]) == left


@pytest.mark.parametrize(
    "text",
    [
        "see tools/skip_slow_tests.py",
        "skills-for-testing, pkg_resources_shim and sk-learn-like-ones",
        "basic functionality works",
        "Basic Authentication is next",
    ],
)
def test_words_that_begin_like_a_secret_stay(text):
    assert redacted(text) == text


@pytest.mark.parametrize("piece", ["a-", "eyJ-", "eyJ-a.", "sk-a-", "token: ", "://a:", "basic ", "-----BEGIN A"])
def test_secrets_are_looked_for_in_no_more_time_than_a_long_text_takes(piece):
    began = time.process_time()
    redacted(piece * ((1 << 20) // len(piece)))
    assert time.process_time() - began < 10  # a fraction of a second; hours where it grows with the square


@given(st.text(max_size=3 * HANDOFF_LIMIT))
def test_a_note_is_bounded_and_a_bounded_one_stays(text):
    note = bounded_note(text)
    assert len(note) <= HANDOFF_LIMIT + 50
    assert bounded_note(note) == note or len(text) > HANDOFF_LIMIT


def spec(root: Path, handoff: str = "") -> EpisodeSpec:
    return EpisodeSpec(root, 1, "m", {"observe": "", "act": ""}, continuity_mode="framework", handoff=handoff)


def test_what_the_agent_writes_goes_on_without_secrets(tmp_path):
    note = Handoff(spec(tmp_path, "from before"), ["the-key-itself"])
    assert note.path.read_text() == "from before\n"
    note.path.write_text("found it with the-key-itself")
    assert note.finish("observe", []) == note.path.read_text() == "found it with [removed]\n"
    assert note.phases == {"observe": {"source": "agent", "text": "found it with [removed]\n"}}


def test_an_agent_that_writes_nothing_leaves_its_calls_and_what_it_had_found(tmp_path):
    note = Handoff(spec(tmp_path, "from before"))
    call = ActionEvent(1, "act", "write", "notes", {"path": "notes/a.md", "content": "secret thoughts"}, "said")
    text = note.finish("act", [call, ActionEvent(2, "act", text="hidden reasoning")])
    assert note.phases["act"]["source"] == "calls"
    assert "- write [notes] notes/a.md" in text
    assert "from before" in text
    assert "hidden reasoning" not in text
    assert "secret thoughts" not in text
    assert "proteus" not in text


@pytest.mark.parametrize(
    "planted", ["fifo", "link", "folder", "folder link", "closed folder", "nothing", "bytes", "much"]
)
def test_whatever_lies_in_the_notes_place_is_read_as_far_as_it_is_one(tmp_path, planted):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "note.md").write_text("not ours")
    root = tmp_path / "live"
    root.mkdir()
    note = Handoff(spec(root))
    place = note.path
    place.unlink()
    if planted == "fifo":
        os.mkfifo(place)
    elif planted == "link":
        place.symlink_to(tmp_path / "elsewhere" / "note.md")
    elif planted == "folder":
        place.mkdir()
    elif planted == "folder link":
        place.parent.rmdir()
        place.parent.symlink_to(tmp_path / "elsewhere")
    elif planted == "closed folder":
        place.write_text("hidden")
        place.chmod(0)
        place.parent.chmod(0)
    elif planted == "bytes":
        place.write_bytes(b"\xff\xfe note")
    elif planted == "much":
        place.write_text("x" * (3 << 20))
    text = note.finish("act", [])
    assert "not ours" not in text
    assert len(text) <= HANDOFF_LIMIT + 50
    assert place.read_text() == text
    assert (tmp_path / "elsewhere" / "note.md").read_text() == "not ours"


def kept(root: Path) -> list[dict]:
    path = root.parent / ".proteus-records" / root.name / "handoffs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_phase_finds_the_note_of_the_one_before_it_over_episodes_too(tmp_path):
    harness = TinyHarness(continuity="framework")
    go(tmp_path / "run", harness, episodes=2, phases=("observe", "act"))
    found = [text for _, _, text in harness.notes]
    assert found[1:] == ["note of 1 observe\n", "note of 1 act\n", "note of 2 observe\n"]
    assert "Nobody" in found[0]
    assert [line["episode"] for line in kept(tmp_path / "run")] == [1, 2]
    assert kept(tmp_path / "run")[1]["phases"]["act"] == {"source": "agent", "text": "note of 2 act\n"}
    assert "handoff" in harness.specs[2].phase_prompts["act"]
    assert not [name for name in files(tmp_path / "run") if "note.md" in name]
    assert sorted(os.listdir(tmp_path / "run")) == [".snapshot.git", "harness", "traces"]


def test_an_attempt_that_failed_leaves_no_note_to_the_next(tmp_path):
    go(tmp_path / "run", TinyHarness({2: fail()}, continuity="framework"), episodes=2, phases=("act",))
    again = TinyHarness(continuity="framework")
    go(tmp_path / "run", again, episodes=2, phases=("act",), resume=True)
    assert again.notes == [(2, "act", "note of 1 act\n")]
    assert len(kept(tmp_path / "run")) == 2


def test_where_nothing_evolves_no_episode_finds_a_note(tmp_path):
    harness = TinyHarness(continuity="framework")
    go(tmp_path / "run", harness, episodes=2, phases=("act",), evolves=False)
    assert all("Nobody" in text for _, _, text in harness.notes)


def test_without_framework_continuity_nothing_is_said_or_kept(tmp_path):
    harness = TinyHarness()
    go(tmp_path / "run", harness, episodes=1)
    assert "note.md" not in harness.specs[1].phase_prompts["act"]
    assert not (tmp_path / ".proteus-records" / "run" / "handoffs.jsonl").exists()
