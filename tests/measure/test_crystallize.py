"""Probes of checkpoints against their own and other endpoints."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_oracles import cases

from pytest_proteus.core import NEUTRAL, review, snapshot
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.measure import crystallize
from pytest_proteus.measure.crystallize import (
    arm_shift,
    fidelity,
    joint_assignment,
    joint_fidelity,
    materialize_state,
)
from pytest_proteus.measure.stream import separation

streams = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


@pytest.mark.parametrize(("inputs", "expected"), cases("fidelity"))
def test_fidelity_agrees_with_scipys_distances(inputs, expected):
    found = fidelity(inputs["probe"], inputs["own"], inputs["others"])
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), name


@pytest.mark.parametrize(("inputs", "expected"), cases("fidelity_joint"))
def test_the_joint_p_is_that_of_all_assignments(inputs, expected):
    found = joint_assignment(inputs["distance_probe_to_endpoint"])
    assert {name: found[name] for name in expected} == expected
    assert found.exact


def test_endpoints_that_cannot_be_told_apart_give_no_ratio():
    found = fidelity(["a"], ["a"], [["a"], ["a", "a"]])
    assert found.ratio.reason == found.index.reason == "endpoints_indistinguishable"
    assert found.rank_p == 1.0
    json.dumps(found.to_json(), allow_nan=False)


def test_fidelity_needs_a_stream_and_something_to_be_unlike():
    assert fidelity([], ["a"], [["b"]]).reason == "empty_stream"
    assert fidelity(["a"], [], [["b"]]).reason == "empty_stream"
    assert fidelity(["a"], ["a"], []).reason == "no_other_endpoints"
    assert fidelity(["a"], ["a"], [[], ["b"]]).n_excluded == 1
    assert fidelity(["a"], ["b"], [["a", "b"]], level="order").reason == "fewer_than_two_actions"


@given(streams, streams, st.lists(streams, min_size=1, max_size=5), st.randoms())
def test_fidelity_does_not_depend_on_the_order_of_the_others(probe, own, others, source):
    mixed = others[:]
    source.shuffle(mixed)
    one, other = fidelity(probe, own, others), fidelity(probe, own, mixed)
    assert (one.to_own, one.to_others, one.rank_p) == (other.to_own, other.to_others, other.rank_p)
    assert one.p_min <= one.rank_p <= 1


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=4, max_size=4), st.permutations(range(4)))
def test_a_joint_p_counts_ties_and_depends_on_no_order(rows, order):
    sums = [sum(rows[i][j] for i, j in enumerate(one)) for one in itertools.permutations(range(4))]
    found = joint_assignment([[x / 3 for x in row] for row in rows])
    assert found.p == sum(s <= sum(rows[i][i] for i in range(4)) for s in sums) / 24
    assert found.expected == pytest.approx(sum(sums) / 24 / 3)
    assert joint_assignment([[rows[i][j] for j in order] for i in order]).p == found.p


def test_more_probes_than_can_be_enumerated_are_drawn(monkeypatch):
    rows = [[abs(i - j) % 4 + (i * j) % 3 for j in range(6)] for i in range(6)]
    exact = joint_assignment(rows)
    monkeypatch.setattr(crystallize, "ENUMERATED_PROBES", 3)
    drawn = joint_assignment(rows, permutations=20_000)
    assert drawn.p == pytest.approx(exact.p, abs=5 * drawn.p_se)
    assert drawn.p_min == 1 / math.factorial(6)


def test_probes_close_to_their_own_endpoints_are_found():
    ends = [["a"] * 8 + ["b"], ["b"] * 8 + ["c"], ["c"] * 8 + ["d"], ["d"] * 8 + ["a"]]
    found = joint_fidelity([end[:-2] for end in ends], ends)
    assert found.p == 1 / 24
    assert joint_fidelity([["a"], []], [["a"], ["b"]]).reason == "empty_stream"
    assert joint_fidelity([["a"]], [["a"]]).reason == "n_below_minimum"
    with pytest.raises(ConfigurationError, match="its own"):
        joint_fidelity([["a"]], [])
    with pytest.raises(ConfigurationError, match="n × n"):
        joint_assignment([[1.0, 2.0]])


@settings(max_examples=10)
@given(st.lists(streams, min_size=2, max_size=3), st.lists(streams, min_size=2, max_size=3))
def test_the_shift_of_arms_is_their_separation(a, b):
    assert arm_shift({"a": a, "b": b}) == separation({"a": a, "b": b})


def test_a_checkpoint_is_mounted_under_another_disposition_and_the_run_stays_as_it_was(tmp_path):
    adapter, run = MinimalHarness(), tmp_path / "run"
    work_tree = run / "harness"
    work_tree.mkdir(parents=True)
    adapter.seed(work_tree, 0)
    adapter.install_disposition(work_tree, review("notes"))
    snapshot.init(work_tree)
    before = sorted((p.relative_to(run), p.lstat().st_mtime_ns) for p in run.rglob("*"))
    mounted = materialize_state(run, 0, tmp_path / "probe", adapter, NEUTRAL)
    assert mounted == tmp_path / "probe" / "harness"
    assert adapter.disposition_fingerprint(mounted) == ""
    assert adapter.disposition_fingerprint(work_tree) != ""
    assert sorted((p.relative_to(run), p.lstat().st_mtime_ns) for p in run.rglob("*")) == before
    with pytest.raises(ConfigurationError, match="no snapshot of episode 5"):
        materialize_state(run, 5, tmp_path / "other", adapter, NEUTRAL)
    with pytest.raises(ConfigurationError, match="already"):
        materialize_state(run, 0, tmp_path / "probe", adapter, NEUTRAL)
