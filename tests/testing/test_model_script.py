from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_proteus.testing import Call, Conversation, both, edit, fail, read, say, shell, write
from pytest_proteus.testing.script import choose, fill


def schema(required: list[str] | None = None, **properties) -> dict:
    return {"type": "object", "properties": properties, "required": required or list(properties)}


STRING = {"type": "string"}

#: The tools of real agents, as they offer them.
AGENTS = {
    "pi": {
        "read": schema(["path"], path=STRING, offset={"type": "number"}, limit={"type": "number"}),
        "bash": schema(["command"], command=STRING, timeout={"type": "number"}),
        "edit": schema(path=STRING, edits={"type": "array", "items": schema(oldText=STRING, newText=STRING)}),
        "write": schema(path=STRING, content=STRING),
    },
    "claude": {
        "Write": schema(file_path=STRING, content=STRING),
        "Edit": schema(
            ["file_path", "old_string", "new_string"],
            file_path=STRING,
            old_string=STRING,
            new_string=STRING,
            replace_all={"type": "boolean"},
        ),
        "Read": schema(file_path=STRING),
        "Bash": schema(["command"], command=STRING, description=STRING),
    },
    "gemini": {
        "write_file": schema(file_path={"type": "STRING"}, content={"type": "STRING"}),
        "replace": schema(file_path=STRING, old_string=STRING, new_string=STRING, instruction=STRING),
        "read_file": schema(file_path=STRING),
        "run_shell_command": schema(["command"], command=STRING),
    },
    "copilot": {
        "create": schema(path=STRING, file_text=STRING),
        "edit": schema(path=STRING, old_str=STRING, new_str=STRING),
        "view": schema(path=STRING),
        "bash": schema(command=STRING, description=STRING),
    },
}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("step", [write("p", "c"), edit("p", "o", "n"), read("p"), shell("ls")])
def test_a_role_finds_the_agents_own_tool_and_fills_what_it_requires(agent, step):
    filled = fill(step.calls[0], AGENTS[agent])
    required = AGENTS[agent][filled.name]["required"]
    assert set(required) <= set(filled.arguments)
    assert set(str(filled.arguments)) >= set("".join(step.calls[0].arguments.values()))


def test_nested_edits_are_filled():
    filled = fill(edit("p", "old", "new").calls[0], AGENTS["pi"])
    assert filled.arguments == {"path": "p", "edits": [{"oldText": "old", "newText": "new"}]}


def test_a_tool_of_free_text_gets_a_patch():
    filled = fill(write("p", "one\ntwo\n").calls[0], {"apply_patch": None})
    assert filled.arguments == "*** Begin Patch\n*** Add File: p\n+one\n+two\n*** End Patch\n"
    assert "-a\n+b" in fill(edit("p", "a", "b").calls[0], {"apply_patch": None}).arguments


@pytest.mark.parametrize("content", ["plain\n", "it's $HOME \\n `x`\n", "ä\n"])
def test_a_shell_stands_in_for_the_other_roles(tmp_path, content):
    only_shell = {"exec_command": schema(cmd=STRING)}
    path = str(tmp_path / "a folder" / "file")
    outputs = []
    for step in (write(path, content), edit(path, "\n", "!"), read(path)):
        command = fill(step.calls[0], only_shell).arguments["cmd"]
        outputs.append(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    assert outputs[2] == content.replace("\n", "!", 1)


def test_an_array_command_is_a_shell_command_line():
    tools = {"shell": schema(command={"type": "array", "items": STRING})}
    assert fill(shell("ls").calls[0], tools).arguments == {"command": ["bash", "-lc", "ls"]}


def test_required_arguments_that_the_script_does_not_speak_of_get_a_value_of_their_type():
    tools = {"odd": schema(flag={"type": "boolean"}, mode={"enum": ["x", "y"]}, n={"type": ["integer", "null"]})}
    assert fill(Call("odd"), tools).arguments == {"flag": False, "mode": "x", "n": 1}


def test_a_tool_that_is_not_offered_is_an_error():
    with pytest.raises(LookupError, match="no tool for 'search' is offered, only write"):
        fill(Call("search"), {"write": {}})


def conversation(answers: int, new: int = 0) -> Conversation:
    return Conversation("anthropic", "/", "m", user_texts=("x",), answers=answers, new_answers=new)


def test_behind_the_last_step_comes_a_short_text():
    assert choose([write("a", "b")], conversation(1), lambda n: 0) == (1, say("Done."))


def test_a_list_goes_on_through_what_the_user_says_later():
    script = [write("a", "b"), say("One."), write("c", "d"), say("Two.")]
    assert choose(script, conversation(2, new=0), lambda n: 0)[0] == 2


def test_a_functions_steps_begin_anew_when_the_user_speaks():
    assert choose(lambda c: [write("a", "b"), say("One.")], conversation(2, new=0), lambda n: 0)[0] == 0


@given(st.lists(st.booleans(), max_size=8), st.integers(0, 30))
def test_the_position_never_goes_back_as_answers_are_given(kinds, answers):
    script = [both(write("a", "b"), shell("ls")) if kind else fail(500, times=1) for kind in kinds]
    places = [choose(script, conversation(n), lambda n: 1)[0] for n in range(answers)]
    assert places == sorted(places)
