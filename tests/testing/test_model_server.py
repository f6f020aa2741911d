from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping

import aiohttp
import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.testing import Conversation, ModelServer, Step, Usage, both, fail, read, say, shell, write

PARAMETERS = {
    "write": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
    "bash": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
WIRES = ("anthropic", "openai-chat", "openai-responses", "gemini")
USAGE = Usage(input=70, output=30, cache_read=20, cache_write=5, reasoning=10)
STEP = both(write("a.md", "# Ä\n"), shell("ls"), thinking="Let me think.", text="I write it.", usage=USAGE)


def request(
    wire: str, prompt: str = "Do it.", results: int = 0, stream: bool = True, tools=PARAMETERS
) -> tuple[str, dict]:
    """Path and body of a request, after a number of tool results."""
    if wire == "anthropic":
        messages = [{"role": "user", "content": prompt}]
        for n in range(results):
            messages += [
                {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{n}", "name": "w", "input": {}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"result {n}"}],
                },
            ]
        offered = [{"name": name, "input_schema": schema} for name, schema in tools.items()]
        body = {"model": "m", "max_tokens": 99, "system": [{"type": "text", "text": "Sys."}], "messages": messages}
        return "/some/prefix/v1/messages?beta=true", body | {"tools": offered, "stream": stream}
    if wire == "openai-chat":
        messages = [{"role": "system", "content": "Sys."}, {"role": "user", "content": prompt}]
        for n in range(results):
            messages += [{"role": "assistant"}, {"role": "tool", "tool_call_id": f"t{n}", "content": f"result {n}"}]
        offered = [{"type": "function", "function": {"name": k, "parameters": v}} for k, v in tools.items()]
        return "/v1/chat/completions", {"model": "m", "messages": messages, "tools": offered, "stream": stream}
    if wire == "openai-responses":
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}]
        for n in range(results):
            items.append({"type": "reasoning", "id": f"r{n}", "summary": []})
            items.append({"type": "function_call", "call_id": f"t{n}", "name": "write", "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": f"t{n}", "output": f"result {n}"})
        offered = [{"type": "function", "name": k, "parameters": v} for k, v in tools.items()]
        body = {"model": "m", "instructions": "Sys.", "input": items, "tools": offered, "stream": stream}
        return "/t/x/v1/responses", body
    contents = [{"role": "user", "parts": [{"text": prompt}]}]
    for n in range(results):
        answer = {"functionResponse": {"name": "write", "response": {"output": f"result {n}"}}}
        contents += [{"role": "model", "parts": []}, {"role": "user", "parts": [answer]}]
    offered = [{"functionDeclarations": [{"name": k, "parameters": v} for k, v in tools.items()]}]
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    body = {"contents": contents, "systemInstruction": {"parts": [{"text": "Sys."}]}, "tools": offered}
    return f"/v1beta/models/m:{method}", body


def post(
    server: ModelServer, wire: str, *, headers=None, timeout: float = 20, **more
) -> tuple[int, str, Mapping[str, str]]:
    """Status, body and headers of an answer, got by a real HTTP client."""
    path, body = request(wire, **more)

    async def ask():
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.post(server.url + path, json=body, headers=headers) as response,
        ):
            return response.status, await response.text(), response.headers

    return asyncio.run(ask())


def events(text: str) -> list[dict]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def heard(wire: str, text: str, stream: bool) -> dict:
    """What a client makes of an answer: thinking, text, calls (name, arguments) and the tokens it is told."""
    return HEARD[wire, stream](events(text) if stream else json.loads(text))


def anthropic_whole(value):
    found = {"thinking": "", "text": "", "calls": [], "usage": value["usage"], "stop": value["stop_reason"]}
    for block in value["content"]:
        if block["type"] == "tool_use":
            found["calls"].append((block["name"], block["input"]))
        else:
            found[block["type"]] += block[block["type"]]
    return found


def anthropic_stream(values):
    assert [values[0]["type"], values[-1]["type"]] == ["message_start", "message_stop"]
    blocks, whole = {}, values[0]["message"]
    for value in values:
        if value["type"] == "content_block_start":
            blocks[value["index"]] = dict(value["content_block"], json="")
        elif value["type"] == "content_block_delta":
            for name, piece in value["delta"].items():
                if name != "type":
                    name = {"partial_json": "json"}.get(name, name)
                    blocks[value["index"]][name] += piece
        elif value["type"] == "message_delta":
            whole["usage"].update(value["usage"])
            whole["stop_reason"] = value["delta"]["stop_reason"]
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
    return anthropic_whole({**whole, "content": list(blocks.values())})


def chat_whole(value):
    message = value["choices"][0]["message"]
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]
    return {
        "thinking": message.get("reasoning_content", ""),
        "text": message["content"] or "",
        "calls": calls,
        "usage": value["usage"],
        "stop": value["choices"][0]["finish_reason"],
    }


def chat_stream(values):
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for value in values[:-1]:
        choice = value["choices"][0]
        for name in ("content", "reasoning_content"):
            message[name] += choice["delta"].get(name, "")
        for call in choice["delta"].get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return chat_whole({"choices": [{"message": message, "finish_reason": finish}], "usage": values[-1]["usage"]})


def responses_whole(value):
    found = {"thinking": "", "text": "", "calls": [], "usage": value["usage"], "stop": value["status"]}
    for item in value["output"]:
        if item["type"] == "reasoning":
            found["thinking"] += item["summary"][0]["text"]
        elif item["type"] == "message":
            found["text"] += item["content"][0]["text"]
        else:
            found["calls"].append((item["name"], json.loads(item["arguments"])))
    return found


def responses_stream(values):
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    deltas: dict[str, str] = {}
    for value in values:
        if value["type"].endswith(".delta"):
            deltas[value["item_id"]] = deltas.get(value["item_id"], "") + value["delta"]
    whole = responses_whole(values[-1]["response"])
    said = [whole["thinking"], whole["text"], *(json.dumps(arguments) for _, arguments in whole["calls"])]
    assert list(deltas.values()) == [text for text in said if text]
    return whole


def gemini_stream(values):
    found = {"thinking": "", "text": "", "calls": [], "usage": values[-1]["usageMetadata"], "stop": None}
    for value in values:
        candidate = value["candidates"][0]
        found["stop"] = candidate.get("finishReason")
        for part in candidate["content"]["parts"]:
            if "functionCall" in part:
                found["calls"].append((part["functionCall"]["name"], part["functionCall"]["args"]))
            else:
                found["thinking" if part.get("thought") else "text"] += part["text"]
    return found


HEARD = {
    ("anthropic", False): anthropic_whole,
    ("anthropic", True): anthropic_stream,
    ("openai-chat", False): chat_whole,
    ("openai-chat", True): chat_stream,
    ("openai-responses", False): responses_whole,
    ("openai-responses", True): responses_stream,
    ("gemini", False): lambda value: gemini_stream([value]),
    ("gemini", True): gemini_stream,
}


@pytest.fixture(scope="module")
def server():
    with ModelServer([STEP, read("a.md"), say("All done.")]) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_step_arrives_with_thinking_text_and_calls(server, wire, stream):
    status, text, _ = post(server, wire, stream=stream)
    got = heard(wire, text, stream)
    assert status == 200
    assert (got["thinking"], got["text"]) == ("Let me think.", "I write it.")
    assert got["calls"] == [("write", {"path": "a.md", "content": "# Ä\n"}), ("bash", {"command": "ls"})]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (
            "anthropic",
            {
                "input_tokens": 70,
                "output_tokens": 30,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 5,
            },
        ),
        (
            "openai-chat",
            {
                "prompt_tokens": 90,
                "completion_tokens": 30,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 20},
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
        ),
        (
            "openai-responses",
            {
                "input_tokens": 90,
                "output_tokens": 30,
                "total_tokens": 120,
                "input_tokens_details": {"cached_tokens": 20},
                "output_tokens_details": {"reasoning_tokens": 10},
            },
        ),
        (
            "gemini",
            {
                "promptTokenCount": 90,
                "cachedContentTokenCount": 20,
                "candidatesTokenCount": 20,
                "thoughtsTokenCount": 10,
                "totalTokenCount": 120,
            },
        ),
    ],
)
def test_tokens_are_told_by_the_convention_of_the_wire(server, wire, told, stream):
    assert heard(wire, post(server, wire, stream=stream)[1], stream)["usage"] == told
    assert server.requests[-1].usage == USAGE


@pytest.mark.parametrize("wire", WIRES)
def test_the_position_in_the_script_is_the_number_of_answers_so_far(server, wire):
    third = heard(wire, post(server, wire, results=1)[1], True)
    last = heard(wire, post(server, wire, results=2)[1], True)
    assert third["calls"] == [("bash", {"command": "cat 'a.md'"})]
    assert (last["text"], last["calls"]) == ("All done.", [])
    assert [request.step for request in server.requests[-2:]] == [1, 2]


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_that_offers_no_tools_gets_a_text(server, wire):
    got = heard(wire, post(server, wire, tools={})[1], True)
    assert (got["text"], got["calls"]) == ("I write it.", [])


@pytest.mark.parametrize("wire", WIRES)
def test_a_function_chooses_by_the_conversation(wire):
    seen: list[Conversation] = []

    def script(conversation):
        seen.append(conversation)
        return [write("a", "b"), say("in act")] if "act" in conversation.prompt else say("elsewhere")

    with ModelServer(script) as server:
        answers = [heard(wire, post(server, wire, prompt=p, results=1)[1], True)["text"] for p in ("act", "observe")]
    assert answers == ["in act", "elsewhere"]
    assert (seen[0].wire, seen[0].model, seen[0].system, seen[0].stream) == (wire, "m", "Sys.", True)
    assert seen[0].user_texts == ("act",)
    assert "result 0" in seen[0].results[0]
    assert (seen[0].answers, seen[0].new_answers, list(seen[0].tools)) == (1, 1, ["write", "bash"])


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
@pytest.mark.parametrize("wire", WIRES)
def test_an_error_has_its_status_and_a_json_body(wire, status):
    with ModelServer([fail(status, retry_after=1.5)]) as server:
        got, text, headers = post(server, wire)
    assert got == status
    assert f"scripted error {status}" in json.dumps(json.loads(text)["error"])
    assert headers["retry-after"] == "1.5"
    assert (server.requests[0].status, server.requests[0].usage) == (status, None)


def test_an_error_may_pass_after_some_times():
    with ModelServer([fail(500, times=2), say("Now.")]) as server:
        assert [post(server, "anthropic")[0] for _ in range(3)] == [500, 500, 200]
        assert [post(server, "anthropic", prompt="Another.")[0] for _ in range(3)] == [500, 500, 200]


def test_an_error_in_mid_conversation_comes_at_its_place():
    with ModelServer([write("a", "b"), fail(429), say("Never.")]) as server:
        assert [post(server, "openai-chat", results=n)[0] for n in (0, 1)] == [200, 429]


@pytest.mark.parametrize("trouble", ["hang", "stall"])
def test_silence_lasts_until_the_client_gives_up(trouble):
    with ModelServer([fail(trouble)]) as server, pytest.raises(asyncio.TimeoutError):
        post(server, "anthropic", timeout=0.3)


def test_a_dropped_answer_is_a_broken_connection():
    with ModelServer([fail("drop")]) as server, pytest.raises(aiohttp.ClientError):
        post(server, "anthropic")


def test_stopping_cuts_open_requests():
    server = ModelServer([fail("hang")]).start()

    async def ask():
        async with aiohttp.ClientSession() as session:
            path, body = request("anthropic")
            asking = asyncio.create_task(session.post(server.url + path, json=body))
            await asyncio.sleep(0.05)
            await asyncio.get_running_loop().run_in_executor(None, server.stop)
            with pytest.raises(aiohttp.ClientError):
                await asking

    asyncio.run(ask())


def test_requests_are_kept_without_keys(tmp_path):
    secret = {"Authorization": "Bearer sk-1", "x-api-key": "sk-2", "X-Goog-Api-Key": "sk-3", "X-Task": "visible"}
    with ModelServer([say("x")], log=tmp_path / "log.jsonl") as server:
        post(server, "anthropic", headers=secret)
    kept = repr(server.requests[0]) + json.dumps(server.requests[0].body) + (tmp_path / "log.jsonl").read_text()
    assert "sk-" not in kept
    assert server.requests[0].headers["x-task"] == "visible"
    assert json.loads((tmp_path / "log.jsonl").read_text())["path"] == "/some/prefix/v1/messages"


def test_a_script_that_fails_is_told_to_the_agent():
    with ModelServer(lambda conversation: 1 / 0) as server:
        status, text, _ = post(server, "gemini")
    assert status == 400
    assert "the script failed: ZeroDivisionError" in text


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"messages": [1]}'])
def test_a_body_that_makes_no_sense_is_a_400(server, body):
    async def ask():
        async with aiohttp.ClientSession() as session, session.post(server.url + "/v1/messages", data=body) as response:
            return response.status

    assert asyncio.run(ask()) == 400


def test_what_agents_ask_before_they_start_is_answered(server):
    async def ask():
        async with aiohttp.ClientSession() as session:
            asked = [
                session.head(server.url),
                session.get(server.url + "/v1/models"),
                session.post(server.url + "/v1/messages/count_tokens", json={}),
                session.get(server.url + "/nothing"),
            ]
            answers = []
            for one in asked:
                async with one as response:
                    answers.append(response.status)
            return answers

    assert asyncio.run(ask()) == [200, 200, 200, 404]


def test_gemini_without_server_sent_events_is_a_json_array(server):
    async def ask():
        path, body = request("gemini")
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.url + path.partition("?")[0], json=body) as got,
        ):
            return await got.json()

    assert gemini_stream(asyncio.run(ask()))["text"] == "I write it."


def test_a_base_url_for_each_wire(server):
    assert set(server.endpoint) == set(WIRES)
    assert all(url.startswith(server.url) for url in server.endpoint.values())


def test_many_conversations_at_once_do_not_mix(server):
    async def ask(session, number):
        path, body = request("anthropic", prompt=f"number {number}", results=number % 4, stream=False)
        async with session.post(server.url + path, json=body) as response:
            return await response.json()

    async def all_of_them():
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(ask(session, number) for number in range(40)))

    for number, value in enumerate(asyncio.run(all_of_them())):
        assert len(value["content"]) == {0: 4, 1: 1, 2: 1, 3: 1}[number % 4]


def test_a_port_in_use_is_one_sentence(server):
    with pytest.raises(ConfigurationError, match=f"cannot listen on port {server.port}"):
        ModelServer([], port=server.port).start()


def test_without_aiohttp_the_error_names_the_extra(monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name == "aiohttp":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'pytest-proteus\[web\]'"):
        ModelServer([])


def test_importing_the_room_does_not_import_aiohttp():
    code = "import sys, pytest_proteus.testing.model_server; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_server_runs_as_a_program():
    argv = [sys.executable, "-m", "pytest_proteus.testing.model_server", "--script", f"{__name__}:PROGRAM"]
    env = {**dict(__import__("os").environ), "PYTHONPATH": f"{__import__('os').getcwd()}:{__file__.rpartition('/')[0]}"}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
    try:
        server = ModelServer([])
        server.port = int(process.stdout.readline().rpartition(":")[2])
        assert heard("anthropic", post(server, "anthropic")[1], True)["text"] == "From a program."
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


PROGRAM = [say("From a program.")]


def test_a_program_without_a_usable_script_ends_with_two(capsys):
    module = builtins.__import__("pytest_proteus.testing.model_server", fromlist=["main"])
    assert module.main(["--script", "no.such:thing"]) == 2
    assert "write package.module:name" in capsys.readouterr().err


def test_a_step_with_a_wrong_error_is_refused():
    with pytest.raises(ValueError, match="neither a status from 400 on"):
        Step(error=200)


def test_what_is_asked_behind_results_is_heard_and_reminders_are_not():
    from pytest_proteus.testing.wires import Anthropic

    def talk(*texts: str):
        path, body = request("anthropic", "Observe.", results=1)
        body["messages"][-1]["content"] += [{"type": "text", "text": text} for text in texts]
        return Anthropic.read(body, path)

    assert talk().user_texts == talk("<system-reminder>Be\nbrief.</system-reminder>").user_texts == ("Observe.",)
    assert talk("<system-reminder>Be brief.</system-reminder>", "Now act.").user_texts == ("Observe.", "Now act.")
    assert talk("Now act.").results == ("result 0",)
