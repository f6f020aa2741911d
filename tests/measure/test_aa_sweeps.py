"""Sweeps of identical arms of the minimal harness: no verdict is wrong more often than its alpha."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from pytest_proteus.core import GoalConfig, SweepConfig, review
from pytest_proteus.core.evaluators import parse_evaluator
from pytest_proteus.core.records import read_records, read_trace
from pytest_proteus.harnesses.minimal import SURFACES, MinimalHarness
from pytest_proteus.measure.gate import compare
from pytest_proteus.measure.sweeps import arm_separation
from pytest_proteus.sweep.serial import run_sweep

SEEDS, EPISODES, SWEEPS, N, ALPHA = 120, 3, 250, 5, 0.05
#: As many as a rate of alpha gives in all but one of some thousand suites.
MOST = ALPHA * SWEEPS + 3.1 * math.sqrt(ALPHA * (1 - ALPHA) * SWEEPS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs of one arm with many seeds: traces, and the notes at the end."""
    root = tmp_path_factory.mktemp("aa") / "sweep"
    goal = GoalConfig.of("Keep it tidy.", (parse_evaluator("units:notes", SURFACES),))
    lines = run_sweep(SweepConfig("aa", MinimalHarness, (review("notes"),), SEEDS, goal, root, episodes=EPISODES))
    return [
        ([read_trace(line["root"], episode) for episode in range(1, EPISODES + 1)],
         read_records(line["root"])[-1]["results"][0]["score"])
        for line in lines
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sweeps(finished):
    """Sweeps of two identical arms: the runs of each are different ones, as an agent's would be."""
    source = random.Random(11)
    return [source.sample(finished, 2 * N) for _ in range(SWEEPS)]


def separated(sweep):
    runs = [
        SimpleNamespace(
            arm="arm" if at < N else "arm_aa", seed=at % N, state="complete", episodes=EPISODES,
            episodes_complete=EPISODES, trace=lambda episode, traces=traces: traces[episode - 1],
        )
        for at, (traces, _) in enumerate(sweep)
    ]  # fmt: skip
    return arm_separation(runs, copies={"arm_aa": "arm"})


def test_separation_tells_identical_arms_apart_no_more_often_than_alpha(sweeps):
    found = [separated(sweep) for sweep in sweeps]
    for name in ("p", "p_R"):
        assert 0 < sum(getattr(one, name) <= ALPHA for one in found) <= MOST
    assert sum(one.by_episode.p <= ALPHA for one in found) <= MOST
    assert sum(one.placebos["arm_aa"].p <= ALPHA for one in found) <= MOST


def test_a_contrast_fails_identical_arms_no_more_often_than_alpha(sweeps):
    verdicts = [
        compare(
            {at: sweep[at][1] for at in range(N)},
            {at: sweep[N + at][1] for at in range(N)},
            direction="higher",
            margin=0.01,
            bounds=(0, 20),
        ).verdict
        for sweep in sweeps
    ]
    assert verdicts.count("fail") <= MOST
    assert verdicts.count("pass") <= MOST
