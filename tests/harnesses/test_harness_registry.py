from __future__ import annotations

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.harnesses.registry import harness_label, load, names, resolve


class Asking(MinimalHarness):
    """An adapter that wants to know the endpoint and where the agent is."""

    def __init__(self, endpoint=None, agent=None):
        super().__init__()
        self.endpoint, self.agent = endpoint, agent


class Broken(MinimalHarness):
    def __init__(self):
        raise RuntimeError("no luck")


def test_a_registered_name_gives_a_fresh_adapter_each_time():
    first, second = resolve("minimal"), resolve("minimal")
    assert isinstance(first, MinimalHarness)
    assert first is not second


def test_a_module_and_class_give_an_adapter():
    assert type(resolve("pytest_proteus.harnesses.minimal:MinimalHarness")) is MinimalHarness


def test_an_adapter_object_is_used_as_it_is():
    harness = MinimalHarness()
    assert resolve(harness) is harness


def test_names_of_others_are_known_beside_the_built_in_ones():
    assert type(resolve("mine", extra={"mine": Asking})) is Asking
    assert names({"mine": Asking}) == sorted([*names(), "mine"])


def test_a_factory_is_given_the_endpoint_and_its_agents_path_when_it_asks_for_them():
    harness = resolve("mine", extra={"mine": Asking}, endpoint={"anthropic": "http://u"}, agents={"mine": "/bin/x"})
    assert (harness.endpoint, harness.agent) == ({"anthropic": "http://u"}, "/bin/x")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("minimul", r"unknown harness 'minimul'; did you mean 'minimal'\?"),
        ("zzz", r"known: .*minimal, .*pi"),
        ("no.such.module:X", "importing 'no.such.module' failed"),
        ("pytest_proteus.harnesses.minimal:MinimalHarnes", r"did you mean 'MinimalHarness'\?"),
        ("pytest_proteus.harnesses.minimal:SURFACES", "is a tuple, not a class"),
        (":X", "write 'package.module:Class'"),
        (object(), "object lacks name, surfaces"),
        (MinimalHarness, r"is a class; write MinimalHarness\(\)"),
        ("builtins:dict", "dict lacks name"),
    ],
)
def test_what_is_no_harness_is_refused_with_what_to_write_instead(value, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        resolve(value)


def test_an_adapter_that_cannot_be_made_is_one_sentence():
    with pytest.raises(ConfigurationError, match=r"harness 'b': making the adapter failed \(RuntimeError: no luck\)"):
        resolve("b", extra={"b": Broken})


def test_load_follows_dotted_attributes():
    assert load("pytest_proteus.core.adapter:Surface.__init__")


@pytest.mark.parametrize(
    ("value", "label"), [("pi", "pi"), ("a.b:Mine", "Mine"), (MinimalHarness(), "minimal"), (object(), "object")]
)
def test_a_label_is_short_and_needs_no_import(value, label):
    assert harness_label(value) == label
