"""Reading counts from replies: the four wires, however they come in pieces, and whatever else comes."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_calls import SERVED, TOLD, WIRES

from pytest_proteus.metering.usage import KINDS, Reader, encodings, wire_of
from pytest_proteus.testing.script import FilledCall
from pytest_proteus.testing.wires import Answer, Anthropic, Gemini, OpenAIChat, OpenAIResponses

CLASSES = {"anthropic": Anthropic, "openai-chat": OpenAIChat, "openai-responses": OpenAIResponses, "gemini": Gemini}
ANSWER = Answer(
    "x1", "some-model", "Hm.", "Grüße ☃", (FilledCall("bash", {"command": "ls"}), FilledCall("read", {})), SERVED, 1
)


def streamed(wire: str) -> bytes:
    return b"".join(CLASSES[wire].events(ANSWER))


def whole(wire: str) -> bytes:
    return json.dumps(CLASSES[wire].whole(ANSWER)).encode()


def read(wire: str, data: bytes, *cuts: int, encoding: str = "") -> Reader:
    reader = Reader(wire, encoding)
    places = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
    reader.close()
    return reader


@pytest.mark.parametrize("form", [streamed, whole])
@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_tells_its_counts_in_one_convention(wire, form):
    reader = read(wire, form(wire))
    assert (reader.usage.counts(), reader.trouble, reader.usage.final) == (TOLD[wire], "", True)
    assert (reader.usage.model, reader.usage.tools) == ("some-model", ["bash", "read"])
    assert reader.usage.message_id.endswith("x1")


@pytest.mark.parametrize("wire", WIRES)
@given(data=st.data())
def test_pieces_may_end_anywhere_also_within_a_letter(wire, data):
    form = data.draw(st.sampled_from([streamed, whole]))(wire)
    cuts = data.draw(st.lists(st.integers(0, len(form)), max_size=8))
    assert read(wire, form, *cuts).usage.counts() == TOLD[wire]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("wire", WIRES)
def test_lines_may_end_in_all_three_ways(wire, end):
    data = streamed(wire).replace(b"\n", end.encode())
    assert read(wire, data, *range(0, len(data), 7)).usage.counts() == TOLD[wire]


FOLDED = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw deflate": lambda data: zlib.compress(data)[2:-4],
    "two members": lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:]),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded_replies_are_read_as_they_come(name):
    encoding = "gzip" if name in ("gzip", "two members") else "deflate"
    data = FOLDED[name](streamed("anthropic"))
    assert read("anthropic", data, *range(0, len(data), 5), encoding=encoding).usage.counts() == TOLD["anthropic"]


def test_zstd_is_read_where_there_is_a_library():
    if "zstd" not in encodings():
        pytest.skip("no library for zstd is here")
    zstd = pytest.importorskip("compression.zstd")
    data = zstd.compress(streamed("gemini"))
    assert read("gemini", data, *range(0, len(data), 5), encoding="zstd").usage.counts() == TOLD["gemini"]


def test_an_unknown_encoding_is_unmeasured_and_says_so():
    reader = read("anthropic", b"xx", encoding="rot13")
    assert "'rot13' cannot be read" in reader.trouble
    assert reader.usage.counts() == dict.fromkeys(KINDS)


def test_a_bomb_is_given_up_and_not_unfolded():
    reader = read("anthropic", gzip.compress(b"\n" * (70 << 20)), encoding="gzip")
    assert reader.trouble


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"data: {\n\n", b"{" * 100_000, b"[1, 2]", b'"a"']
)
@pytest.mark.parametrize("wire", WIRES)
def test_rubbish_tells_nothing_and_raises_nothing(wire, data):
    assert read(wire, data).usage.counts() == dict.fromkeys(KINDS)


@given(wire=st.sampled_from(WIRES), data=st.binary(max_size=400), encoding=st.sampled_from(["", "gzip", "deflate"]))
def test_no_bytes_raise(wire, data, encoding):
    read(wire, data, 1, 50, encoding=encoding)


def test_a_malformed_event_costs_no_other():
    data = b'data: {"usage": broken\n\n' + streamed("anthropic")
    assert read("anthropic", data).usage.counts() == TOLD["anthropic"]


def test_an_event_that_is_too_long_is_passed_over_and_not_held():
    reader = Reader("anthropic", most_held=1000)
    for _ in range(1000):
        reader.feed(b"data: " + b"x" * 500)
    assert len(reader._held) <= 1000
    reader.feed(b"\n\n" + streamed("anthropic"))
    assert reader.usage.counts() == TOLD["anthropic"]


@pytest.mark.parametrize("value", [-1, 1.5, True, "12", None, 1 << 60, {}])
def test_what_is_no_count_is_missing_and_not_zero(value):
    reader = read("anthropic", json.dumps({"type": "message", "usage": {"input_tokens": value}}).encode())
    assert reader.usage.input is None


def test_the_output_of_a_killed_stream_is_not_known():
    data = streamed("anthropic")
    usage = read("anthropic", data[: data.index(b"event: message_delta")]).usage
    assert (usage.input, usage.output, usage.total, usage.final) == (1000, None, None, False)


def test_a_chat_reply_without_usage_is_not_known():
    events = [event for event in OpenAIChat.events(ANSWER) if b'"usage"' not in event]
    usage = read("openai-chat", b"".join(events)).usage
    assert (usage.known, usage.final) == (False, True)


def test_only_calls_of_a_model_are_metered():
    assert wire_of("POST", "/x/v1/messages") == "anthropic"
    assert wire_of("POST", "/v1/messages/count_tokens") == ""
    assert wire_of("GET", "/v1/messages") == ""
    assert wire_of("POST", "/v1beta/models/m:countTokens") == ""
