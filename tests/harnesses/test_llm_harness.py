"""The harness llm: its loop over both wires, its tools against hostile trees, and how it ends."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from pytest_proteus.core import GoalConfig, RunConfig, run
from pytest_proteus.core.adapter import PHASES, EpisodeResult, EpisodeSpec
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.core.errors import PhaseTimeout
from pytest_proteus.harnesses.llm import LlmHarness, read_session
from pytest_proteus.harnesses.llm_tools import ANSWER_LIMIT, FILE_LIMIT, Tools
from pytest_proteus.sandbox import Limits, LocalSandbox, choose
from pytest_proteus.testing import ModelServer, Usage, both, edit, fail, read, say, shell, use, write

NO_BOX = choose("bwrap").preflight()
RUNGS = ["none", pytest.param("bwrap", marks=pytest.mark.skipif(bool(NO_BOX), reason=NO_BOX or "-"))]
SKILL = "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n"


@pytest.fixture
def root(root):
    (root / "harness").mkdir()
    return root


def episode(root: Path, server: ModelServer, *phases: str, wire: str = "anthropic", rung: str = "none", **more):
    harness = LlmHarness({wire: server.endpoint[wire]}, sandbox=choose(rung))
    harness.seed(root / "harness")
    prompts = {phase: f"Now {phase}." for phase in phases or ("act",)}
    more.setdefault("phase_timeout", 120.0)
    return harness.run_episode(EpisodeSpec(root, 1, "some-model", prompts, **more))


def counters(result: EpisodeResult) -> dict:
    return dict(result.counters)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])
def test_four_phases_edit_two_surfaces(root, wire, rung):
    steps = {
        "observe": [read("AGENTS.md"), say("Seen.")],
        "propose": [shell("ls notes; exit 3"), say("Planned.")],
        "act": [
            both(
                write("notes/found.md", "# Found\n"), edit(str(root / "harness/AGENTS.md"), "# Instructions", "# Mine")
            ),
            say("Done."),
        ],
        "reflect": [shell("cat notes/found.md >> notes/index.md"), say("Noted.")],
    }
    (root / "harness" / "skills" / "greet").mkdir(parents=True)
    (root / "harness" / "skills" / "greet" / "SKILL.md").write_text(SKILL)

    def answer(talk):
        return next(found for phase, found in steps.items() if f"Now {phase}." in talk.prompt)

    with ModelServer(answer) as server:
        result = episode(root, server, *PHASES, wire=wire, rung=rung)
    assert result.ok, result.error
    tree = root / "harness"
    assert (tree / "AGENTS.md").read_text().startswith("# Mine\n")
    assert (tree / "notes" / "index.md").read_text().endswith("# Found\n")
    trace = LlmHarness().read_trace(root, 1)
    calls = [event for event in trace if event.tool]
    assert LlmHarness().normalized(trace) == ["read", "shell", "write", "edit", "shell"]
    assert [event.surface for event in calls] == ["instructions", None, "notes", "instructions", None]
    assert [event.phase for event in calls] == ["observe", "propose", "act", "act", "reflect"]
    assert calls[1].text == "error: index.md\n[exit status 3]"
    assert counters(result)["phase_act_turns"] == 2
    told = str(server.requests[-1].body)
    assert "This folder is yours to change." in told
    assert "skills/greet/SKILL.md: How to greet." in told
    assert "Now observe." in told, "phases are one conversation"
    assert "proteus" not in told.lower()
    assert sorted(path.name for path in root.iterdir()) == ["harness", "traces"]


@pytest.mark.parametrize(("wire", "write_tokens"), [("anthropic", {"cache_write": 10}), ("openai-chat", {})])
def test_tokens_are_those_that_the_endpoint_told(root, wire, write_tokens):
    usage = Usage(input=100, output=20, cache_read=30, cache_write=5)
    with ModelServer([write("notes/a.md", "a", usage=usage), say("Done.", usage=usage)]) as server:
        result = episode(root, server, wire=wire)
    assert counters(result)["agent_log_tokens"] == {"input": 200, "output": 40, "cache_read": 60, **write_tokens}


def test_tokens_that_one_answer_does_not_tell_are_unknown_and_not_a_part():
    told = '{"type": "answer", "text": "", "calls": [], "stop": "stop", "tokens": %s}\n'
    both_told = read_session(told % '{"input": 1}' + told % '{"input": 2}', [("act", 0)], lambda _: None)
    one_told = read_session(told % '{"input": 1}' + told % "null", [("act", 0)], lambda _: None)
    assert (both_told.tokens, one_told.tokens) == ({"input": 3}, {})


@pytest.mark.parametrize(
    ("status", "error_class", "asked"), [(401, "configuration", 1), (400, "apparatus", 1), (429, "apparatus", 3)]
)
def test_an_error_of_the_endpoint_ends_the_episode(root, status, error_class, asked):
    with ModelServer([fail(status)]) as server:
        result = episode(root, server)
    assert (result.ok, result.error_class) == (False, error_class)
    assert f"the model's endpoint failed: {status}" in result.error
    assert len(server.requests) == asked


def test_an_error_that_passes_is_tried_again(root):
    with ModelServer([fail(500, times=1), say("Done.")]) as server:
        assert episode(root, server).ok


def test_a_phase_that_uses_up_its_turns_ends_well_and_is_counted(root):
    with ModelServer(lambda talk: shell("echo again")) as server:
        result = episode(root, server, max_turns=2)
    assert (result.ok, counters(result)["turn_limited_phases"], len(server.requests)) == (True, 1, 2)


def test_a_silent_endpoint_is_a_time_out_and_what_was_done_is_kept(root):
    with ModelServer([write("notes/a.md", "a"), fail("hang")]) as server, pytest.raises(PhaseTimeout):
        episode(root, server, phase_timeout=3.0)
    assert [event.tool for event in LlmHarness().read_trace(root, 1)] == ["write"]


@pytest.mark.skipif(bool(NO_BOX), reason=NO_BOX or "-")
def test_a_command_over_its_limits_ends_the_episode_as_its_own_doing(root):
    from pytest_proteus.sandbox import BwrapSandbox

    with ModelServer([shell("head -c 200M /dev/zero > notes/large; sleep 60"), say("Done.")]) as server:
        harness = LlmHarness(server.endpoint, sandbox=BwrapSandbox(limits=Limits(disk=64 << 20)))
        harness.seed(root / "harness")
        result = harness.run_episode(EpisodeSpec(root, 1, "m", {"act": "Now act."}, phase_timeout=120.0))
    assert (result.ok, result.error_class) == (False, "abort")
    assert "it used more disk than the 64 MiB that it may" in result.error


def test_a_command_has_no_key_and_nothing_that_it_starts_lives_on(root, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    with ModelServer([shell("env; setsid sleep 618 >/dev/null 2>&1 &"), say("Done.")]) as server:
        result = episode(root, server)
    assert result.ok, result.error
    assert "sk-secret" not in str(server.requests[-1].body)
    assert not [p for p in psutil.process_iter(["cmdline"]) if "618" in (p.info["cmdline"] or [])]


def test_a_wrong_call_is_told_to_the_model_and_the_work_goes_on(root):
    wrong = [use("write", path="notes/a.md", content=5), edit("AGENTS.md", "no such text", "x")]
    with ModelServer([*wrong, say("Done.")]) as server:
        assert episode(root, server).ok
    told = str(server.requests[-1].body)
    assert "write needs the text 'content'" in told
    assert "old_string occurs 0 times in AGENTS.md" in told


@pytest.mark.parametrize(
    ("page", "listed"),
    [
        (SKILL, True),
        (SKILL.removeprefix("---\n"), False),
        ("---\ndescription: No end.\n", False),
        ("---\nname: greet\n---\ndescription: No front matter.\n---\n", False),
        ("---\ndescription:" + " " * (1 << 15) + "x\n" + "\n" * (1 << 14), False),
    ],
)
def test_a_skill_is_listed_by_what_its_front_matter_says_and_no_page_holds_that_up(root, page, listed):
    (root / "harness" / "skills" / "greet").mkdir(parents=True)
    (root / "harness" / "skills" / "greet" / "SKILL.md").write_text(page)
    began = time.process_time()
    with ModelServer([say("Done.")]) as server:
        assert episode(root, server).ok
    assert ("greet/SKILL.md" in str(server.requests[0].body)) == listed
    assert time.process_time() - began < 5


# --- tools ------------------------------------------------------------------------------------------------------------


def tools(root: Path, active: Path | None = None) -> Tools:
    def launch(argv, seconds):
        return LocalSandbox().launch(argv, env={"PATH": "/usr/bin:/bin"}, cwd=root / "harness", timeout=seconds)

    tree = root / "harness"
    return Tools(active or tree, [tree], [active] if active else [], launch, time.monotonic() + 60)


def test_a_tool_that_is_none_is_told(root):
    said, failed = tools(root).use("fly", {"to": "moon"})
    assert (failed, said) == (True, "there is no tool 'fly', only write, edit, read, shell")


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "notes/../../outside", ".", "link/file", "link"])
def test_no_path_leads_out(root, path):
    (root / "outside").write_text("secret\n")
    (root / "harness" / "link").symlink_to(root)
    for tool, more in (("read", {}), ("write", {"content": "x"}), ("edit", {"old_string": "s", "new_string": "x"})):
        said, failed = tools(root).use(tool, {"path": path, **more})
        if tool == "write" and path == "link":
            assert not failed, "what is written takes the link's place"
            assert not (root / "harness" / "link").is_symlink()
            (root / "harness" / "link").unlink()
            (root / "harness" / "link").symlink_to(root)
        else:
            assert failed, said
    assert (root / "outside").read_text() == "secret\n"
    assert sorted(path.name for path in root.iterdir()) == ["harness", "outside"]


@pytest.mark.parametrize("name", ["fifo", "folder", "binary", "long", "nothing"])
def test_what_is_no_text_file_is_told_at_once(root, name):
    place = root / "harness"
    os.mkfifo(place / "fifo")
    (place / "folder").mkdir()
    (place / "binary").write_bytes(b"\xff\x00")
    with (place / "long").open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    said, failed = tools(root).use("read", {"path": name})
    assert failed
    assert name in said


def test_a_hard_link_is_not_written_through(root):
    (root / "outside").write_text("theirs\n")
    os.link(root / "outside", root / "harness" / "mine")
    assert tools(root).use("write", {"path": "mine", "content": "x"}) == ("Wrote mine.", False)
    assert (root / "outside").read_text() == "theirs\n"


def test_an_edit_keeps_the_right_to_run_and_nothing_more(root):
    script = root / "harness" / "run.sh"
    script.write_text("echo one\n")
    script.chmod(0o4777)
    assert tools(root).use("edit", {"path": "run.sh", "old_string": "one", "new_string": "two"})[1] is False
    assert stat.S_IMODE(script.stat().st_mode) & ~0o022 == 0o755
    assert script.read_text() == "echo two\n"


def test_the_tree_that_it_runs_from_is_read_and_not_written(root):
    active = root / "active"
    active.mkdir()
    (active / "AGENTS.md").write_text("# Active\n")
    use_ = tools(root, active).use
    assert use_("read", {"path": "AGENTS.md"}) == ("# Active\n", False)
    said, failed = use_("write", {"path": "AGENTS.md", "content": "x"})
    assert (failed, "is not below" in said) == (True, True)
    assert use_("write", {"path": str(root / "harness" / "AGENTS.md"), "content": "x"})[1] is False


def test_long_answers_are_cut(root):
    (root / "harness" / "long.txt").write_text("x" * (ANSWER_LIMIT + 100))
    said, _ = tools(root).use("read", {"path": "long.txt"})
    assert said.endswith("[100 characters left out]")


class Staged(LlmHarness):
    staged_activation = True


@pytest.mark.parametrize("rung", RUNGS)
def test_staged_it_runs_from_the_accepted_tree_and_edits_the_other(root, rung):
    steps = {
        1: [write("AGENTS.md", "x"), edit("../harness/AGENTS.md", "# Instructions", "# Mine"), say("Done.")],
        2: [read("AGENTS.md"), shell("head -1 AGENTS.md; echo x >> AGENTS.md"), say("Done.")],
    }
    asked: list[str] = []

    def answer(talk):
        asked.extend([talk.prompt] if talk.prompt not in asked else [])
        return steps[1 if "# Mine" not in talk.system else 2]

    with ModelServer(answer) as server:
        result = run(
            RunConfig(
                name="staged",
                adapter=Staged(server.endpoint, sandbox=choose(rung)),
                disposition=NEUTRAL,
                goal=GoalConfig.of("Keep your page short."),
                root=root / "run",
                model="some-model",
                episodes=2,
                phases=("act",),
                phase_timeout=120.0,
                live_root=root / "live",
            )
        )
    assert (result.state, result.error) == ("complete", "")
    first, second = ([e.text for e in Staged().read_trace(root / "run", number) if e.tool] for number in (1, 2))
    assert "is not below" in first[0]
    assert first[1] == "Edited ../harness/AGENTS.md."
    assert second[0].startswith("# Mine")
    assert second[1].startswith("error: # Mine") or rung == "none"
