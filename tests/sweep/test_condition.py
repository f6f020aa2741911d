"""What a condition holds of the user's objects: equal for equals in every process, different where results may be."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import pytest

from pytest_proteus import EvalResult
from pytest_proteus.core.goal import EvaluatorSpec
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.sweep.condition import adapter_condition, described, evaluator_condition


def score(trace, ctx, n=1):
    return EvalResult("k", n)


class Scores:
    def __init__(self, n):
        self._n = n

    def __call__(self, trace, ctx):
        return EvalResult("k", self._n)

    def method(self, trace, ctx):
        return EvalResult("k", self._n)


def closing_over(n):
    def inner(trace, ctx):
        return EvalResult("k", n)

    return inner


def with_default(n):
    def inner(trace, ctx, n=n):
        return EvalResult("k", n)

    return inner


EVALUATORS = {
    "partial": lambda n: functools.partial(score, n=n),
    "object": Scores,
    "method": lambda n: Scores(n).method,
    "closure": closing_over,
    "default": with_default,
    "partial of an object": lambda n: functools.partial(Scores(n)),
}


@pytest.mark.parametrize("make", EVALUATORS.values(), ids=EVALUATORS)
def test_what_an_evaluator_carries_is_part_of_its_condition(make):
    def of(n):
        return evaluator_condition(EvaluatorSpec(name="k", run=make(n)))

    assert of(1) == of(1)
    assert of(1) != of(2)


class Slotted(MinimalHarness):
    __slots__ = ("n",)


class Config:
    def __init__(self, n):
        self.n = n


@dataclass
class Data:
    n: object


def harness(**knobs):
    adapter = Slotted()
    for name, value in knobs.items():
        setattr(adapter, name, value)
    return adapter_condition(adapter, "h")


@pytest.mark.parametrize("make", [int, Config, Data, lambda n: [Config(n)], lambda n: {"a": Config(n)}, closing_over])
def test_a_public_attribute_of_a_harness_is_part_of_its_condition_by_what_it_holds(make):
    assert harness(n=make(1)) == harness(n=make(1))
    assert harness(n=make(1)) != harness(n=make(2))


def test_a_private_attribute_of_a_harness_is_its_own_business():
    assert harness(_n=1) == harness(_n=2)


def test_what_has_no_content_is_described_by_its_type():
    assert described(threading.Lock()) == described(threading.Lock())
    assert "0x" not in str(described([threading.Lock(), object(), lambda: None]))


def test_what_holds_itself_or_is_huge_is_described_in_finite_time():
    loop = Config(None)
    loop.n = [loop]
    assert described(loop) == described(loop)
    wide = [Config([Config(i) for i in range(300)]) for _ in range(300)]
    assert described(wide) == described(wide)
