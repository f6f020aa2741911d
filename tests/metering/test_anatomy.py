"""What a context is made of, on every wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_calls import WIRES

from pytest_proteus.metering.anatomy import PARTS, anatomy

#: The same conversation on each wire: a question, an answer with a call, its result, and another question.
TALKS = {
    "anthropic": {
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "bash"}],
        "messages": [
            {"role": "user", "content": "First question?"},
            {"role": "assistant", "content": [{"type": "tool_use", "name": "bash"}]},
            {"role": "user", "content": [{"type": "tool_result", "content": "out"}]},
            {"role": "user", "content": [{"type": "text", "text": "Schön?"}]},
        ],
    },
    "openai-chat": {
        "tools": [{"type": "function"}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "First question?"},
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "out"},
            {"role": "user", "content": "Schön?"},
        ],
    },
    "openai-responses": {
        "instructions": "Be brief.",
        "tools": [{"type": "function"}],
        "input": [
            {"role": "user", "content": "First question?"},
            {"type": "function_call", "name": "bash"},
            {"type": "function_call_output", "output": "out"},
            {"role": "user", "content": [{"type": "input_text", "text": "Schön?"}]},
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": []}],
        "contents": [
            {"role": "user", "parts": [{"text": "First question?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "bash"}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash"}}]},
            {"role": "user", "parts": [{"text": "Schön?"}]},
        ],
    },
}


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_tells_the_same_parts(wire):
    sizes = anatomy(wire, json.dumps(TALKS[wire]).encode())
    assert set(sizes) == set(PARTS)
    assert all(sizes.values())
    more = json.loads(json.dumps(TALKS[wire]).replace("Sch\\u00f6n?", "Sch\\u00f6n? " + "x" * 1000))
    grown = anatomy(wire, json.dumps(more).encode())
    assert {part: grown[part] - sizes[part] for part in PARTS if grown[part] != sizes[part]} == {"user_input": 1001}


def test_letters_count_as_they_are_sent_and_not_as_they_are_escaped():
    assert anatomy("openai-responses", json.dumps({"input": "Schön?"}).encode())["user_input"] == 7


@given(wire=st.sampled_from(WIRES), data=st.binary(max_size=100) | st.sampled_from([b"[]", b"3", b'{"messages": [1]}']))
def test_what_is_no_request_has_no_parts(wire, data):
    found = anatomy(wire, data)
    assert found is None or set(found) == set(PARTS)
