"""Variance components of seeds, tasks and repeats."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.variance import variance_components


def crossed(table, repeats=1):
    """values, seeds and tasks of a table by (seed, task); with repeats an item is a list."""
    rows = [
        (value, seed, task)
        for seed, own in enumerate(table)
        for task, item in enumerate(own)
        for value in (item if repeats > 1 else [item])
    ]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def components(table, repeats=1, **more):
    values, seeds, tasks = crossed(table, repeats)
    return variance_components(values, seeds=seeds, tasks=tasks, **more)


def by_anova(table):
    """Two-way analysis of variance without repeats: seed, task, residual."""
    n, m = len(table), len(table[0])
    grand = sum(map(sum, table)) / (n * m)
    rows = [sum(row) / m for row in table]
    columns = [sum(row[j] for row in table) / n for j in range(m)]
    ms_seed = m * sum((row - grand) ** 2 for row in rows) / (n - 1)
    ms_task = n * sum((column - grand) ** 2 for column in columns) / (m - 1)
    left = sum((table[i][j] - rows[i] - columns[j] + grand) ** 2 for i in range(n) for j in range(m))
    ms_rest = left / ((n - 1) * (m - 1))
    return (ms_seed - ms_rest) / m, (ms_task - ms_rest) / n, ms_rest


def test_a_complete_design_gives_the_analysis_of_variance():
    source = random.Random(1)
    for n, m in itertools.product((2, 3, 6), (2, 5)):
        table = [[source.gauss(0, 1) + i + 3 * j for j in range(m)] for i in range(n)]
        found = components(table)
        wanted = dict(zip(("seed", "task", "seed x task"), by_anova(table), strict=True))
        assert found.raw == pytest.approx(wanted)
        assert found.repeat.reason == "not_measured"


def test_repeats_are_told_from_the_interaction():
    table = [[[1.0, 3.0], [5.0, 7.0]], [[2.0, 4.0], [10.0, 12.0]]]  # repeats differ by 2 in every cell
    found = components(table, repeats=2)
    assert found.repeat == pytest.approx(2.0)
    means = [[2.0, 6.0], [3.0, 11.0]]
    seed, task, rest = by_anova(means)
    assert (found.raw["seed"], found.raw["task"]) == pytest.approx((seed, task))
    assert found.raw["seed x task"] == pytest.approx(rest - 2.0 / 2)


def test_only_tasks_differ():
    found = components([[0.0, 1.0, 5.0]] * 4)
    assert found.shares == {"seed": 0.0, "task": 1.0, "seed x task": 0.0}
    assert found.purchases[0].what == "tasks"
    assert found.purchases[0].stderr == pytest.approx(found.stderr / 2**0.5)
    assert "what to buy next: tasks" in found.finding


def test_only_seeds_differ():
    found = components([[value] * 3 for value in (1.0, 2.0, 4.0)])
    assert found.shares["seed"] == pytest.approx(1.0)
    assert [one.what for one in found.purchases] == ["seeds", "tasks"]


def test_only_repeats_differ():
    found = components([[[0.0, 1.0]] * 2] * 2, repeats=2, repeat_cost=0.1)
    assert found.purchases[0].what == "repeats"
    assert found.purchases[0].number == pytest.approx(2 + 1.1 / 0.1)


def test_a_component_below_zero_is_zero_and_said_so():
    found = components([[0.0, 1.0], [1.0, 0.0]])  # seeds and tasks have equal means: all is interaction
    assert (found.seed, found.task) == (0.0, 0.0)
    assert found.negative == ("seed", "task")
    assert found.raw["seed"] < 0
    assert found.shares["seed x task"] == 1.0
    assert "below zero and taken as zero: seed, task" in found.finding


def test_what_does_not_vary_needs_nothing():
    found = components([[1.0, 1.0], [1.0, 1.0]])
    assert found.total == 0
    assert found.negative == ()
    assert "nothing" in found.finding


def test_arms_keep_their_own_means():
    table = [[0.0, 1.0, 5.0], [1.0, 2.0, 7.0]]
    values, seeds, tasks = crossed(table)
    one = variance_components(values, seeds=seeds, tasks=tasks)
    both = variance_components(
        values + [value + 100 for value in values], seeds=seeds * 2, tasks=tasks * 2, arms=["a"] * 6 + ["b"] * 6
    )
    assert both.raw == pytest.approx(one.raw)
    assert (both.seeds, both.tasks, both.n) == (2, 3, 12)


def test_missing_cells_are_counted_and_left_out():
    table = [[0.0, 1.0, 5.0], [0.0, None, 5.0], [0.0, 1.0, 5.0]]
    found = components(table)
    assert (found.n, found.n_missing) == (8, 1)
    assert found.shares["task"] == pytest.approx(1.0)


def test_the_estimates_are_unbiased_with_missing_cells():
    source, sums = random.Random(3), [0.0, 0.0, 0.0]
    for _ in range(400):
        seeds, tasks = [source.gauss(0, 1) for _ in range(5)], [source.gauss(0, 2) for _ in range(4)]
        table = [[a + b + source.gauss(0, 1) for b in tasks] for a in seeds]
        table[0][0] = table[1][2] = None
        for i, part in enumerate(components(table).raw.values()):
            sums[i] += part / 400
    assert sums == pytest.approx([1.0, 4.0, 1.0], abs=0.5)


def test_too_small_a_design_is_unavailable():
    assert components([[1.0, 2.0]]).reason == "n_below_minimum"
    assert components([[1.0], [2.0]]).reason == "n_below_minimum"
    nested = variance_components([1.0, 2.0, 3.0], seeds=[0, 1, 2], tasks=["a", "b", "c"])
    assert nested.reason == "n_below_minimum"
    assert variance_components([], seeds=[], tasks=[]).reason == "n_below_minimum"


def test_it_is_plain_data():
    json.dumps(components([[0.0, 1.0], [2.0, 0.0]]).to_json(), allow_nan=False)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigurationError, match="a seed and a task"):
        variance_components([1.0], seeds=[], tasks=["a"])
    with pytest.raises(ConfigurationError, match="repeat_cost"):
        components([[0.0, 1.0], [2.0, 0.0]], repeat_cost=0)
