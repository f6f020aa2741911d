"""Measurements that follow the live sessions of agents."""

from __future__ import annotations

import json
import os
import sqlite3

import pytest
from model_calls import ask, served

from pytest_proteus.cli import main
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering import slots
from pytest_proteus.metering.always_on import NAME, reset, settings, tick
from pytest_proteus.metering.serve import serve
from pytest_proteus.metering.timeline import timeline

SESSIONS = {
    "claude": (".claude/projects/-home-me/{}.jsonl", "11111111-1111-4111-8111-111111111111"),
    "codex": (
        ".codex/sessions/2026/11/30/rollout-2026-11-30T12-00-00-{}.jsonl",
        "22222222-2222-4222-8222-222222222222",
    ),
    "copilot": (".copilot/session-state/{}/events.jsonl", "33333333-3333-4333-8333-333333333333"),
    "pi": (".pi/agent/sessions/--home-me--/2026-11-30T12-00-00_{}.jsonl", "44444444-4444-4444-8444-444444444444"),
}


@pytest.fixture
def place(tmp_path):
    """A home and a folder of slots."""
    (tmp_path / "home").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path


def wrote(place, agent: str, ident: str, when: float) -> None:
    if agent == "opencode":
        path = place / "home" / ".local/share/opencode/opencode.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, parent_id TEXT, time_updated INTEGER)"
        )
        connection.execute("INSERT OR REPLACE INTO session VALUES (?, NULL, ?)", (ident, int(when * 1000)))
        connection.execute("INSERT OR REPLACE INTO session VALUES ('ses_child', ?, ?)", (ident, int(when * 1000) + 5))
        connection.commit()
        connection.close()
        return
    path = place / "home" / SESSIONS[agent][0].format(ident)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")
    os.utime(path, (when, when))


def look(place, now: float) -> list[str]:
    return tick(place / "data", now, {"HOME": str(place / "home")})


def bound(place) -> dict[str, str]:
    return {slot.agent: slot.task_id for slot in slots.open_slots(place / "data")}


@pytest.mark.parametrize("agent", [*SESSIONS, "opencode"])
def test_the_slot_of_an_agent_follows_its_live_session(place, agent):
    first = SESSIONS[agent][1] if agent in SESSIONS else "ses_first"
    second = first[:-1] + "9"
    assert look(place, 1000.0) == []
    wrote(place, agent, first, 1000.0)
    assert look(place, 1010.0) == [f"{agent}: {first} is being measured"]
    assert look(place, 1015.0) == []
    wrote(place, agent, second, 1020.0)
    assert look(place, 1021.0) == [f"{agent}: {first} is over", f"{agent}: {second} is being measured"]
    assert bound(place) == {agent: second}
    assert look(place, 1020.0 + 121) == [f"{agent}: {second} is over"]
    assert bound(place) == {}
    assert timeline(place / "data", first)["spans"][0]["state"] == "complete"


def test_slots_of_operators_are_left_alone(place):
    slots.start(place / "data", "mine", agent="claude")
    slots.start(place / "data", "for-all")
    wrote(place, "claude", SESSIONS["claude"][1], 1000.0)
    assert look(place, 1001.0) == []
    assert reset(place / "data") == []
    assert bound(place) == {"": "for-all", "claude": "mine"}


def test_settings_hold_from_the_next_look_on(place):
    wrote(place, "claude", SESSIONS["claude"][1], 1000.0)
    look(place, 1001.0)
    (place / "data" / NAME).write_text('{"enabled": false}')
    assert len(look(place, 1002.0)) == 1
    assert bound(place) == {}
    (place / "data" / NAME).write_text('{"freshness_ms": 500, "agents": ["claude"]}')
    assert look(place, 1002.0) == []
    (place / "data" / NAME).write_text('{"agents": ["vim"]}')
    with pytest.raises(ConfigurationError, match="no sessions of 'vim'"):
        settings(place / "data")


@pytest.mark.parametrize("name", ["..", "a b", "x" * 200, "$(id)"])
def test_what_is_no_id_of_a_session_is_passed_over(place, name):
    path = place / "home" / ".copilot/session-state" / name.replace("..", "x..;y")
    path.mkdir(parents=True)
    (path / "events.jsonl").write_text("")
    os.utime(path / "events.jsonl", (1000.0, 1000.0))
    assert look(place, 1000.0) == []


def test_a_session_never_inherits_the_measurement_of_everybody(place):
    with served() as server:
        running, store = serve(place / "data", {"anthropic": server.url}, 0)
        slots.start(place / "data", "for-all")
        wrote(place, "claude", SESSIONS["claude"][1], 1000.0)
        look(place, 1001.0)
        url = f"http://127.0.0.1:{running.port}"
        ask(url, "anthropic", User_Agent="claude-cli/2")
        ask(url, "anthropic", User_Agent="pi/1.6")
        ask(url, "anthropic", User_Agent="curl/8")
        running.close()
        store.close()
    found = dict(sqlite3.connect(place / "data" / "usage.db").execute("SELECT process, task_id FROM token_usage"))
    assert found == {"claude-cli/2": SESSIONS["claude"][1], "pi/1.6": None, "curl/8": "for-all"}


def test_the_command_looks_once_and_resets(place, capsys, monkeypatch):
    import time

    monkeypatch.setenv("HOME", str(place / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "PI_CODING_AGENT_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    wrote(place, "claude", SESSIONS["claude"][1], time.time())
    assert main(["reconcile", "--once", "--dir", str(place / "data")]) == 0
    assert "is being measured" in capsys.readouterr().out
    assert main(["reconcile", "--reset", "--json", "--dir", str(place / "data")]) == 0
    assert json.loads(capsys.readouterr().out) == [SESSIONS["claude"][1]]
