"""Whatever a folder holds, there is a report, and every planned cell is in its ledger."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_proteus.core.errors import STATES
from pytest_proteus.core.ledger import cell_path
from pytest_proteus.core.records import EPISODES, private_record_dir
from pytest_proteus.report.build import build_report, write_sweep_reports
from pytest_proteus.report.markdown import markdown
from pytest_proteus.report.models import SCHEMA_PATH
from pytest_proteus.report.terminal import summary_lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text()))
FIXTURES = [HealthCheck.function_scoped_fixture]


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def put(value, path, item):
    if not path:
        return item
    target = value
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = item
    return value


@pytest.mark.parametrize("file", ["manifest", "cell", "records", "gates", "nodes", "session", "sweep"])
@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(data=st.data())
def test_any_value_in_place_of_any_other_still_gives_a_report(finished, file, data):
    finished.complete()
    gates = finished.session / "gates" / "main.jsonl"
    gates.unlink(missing_ok=True)
    finished.gate(threshold={"op": "at_most", "bound": 1}, interval={"low": 0.0})
    path = {
        "manifest": finished.out / "manifest.json",
        "cell": cell_path(finished.out, "run-b"),
        "records": private_record_dir(finished.out / "runs" / "run-b") / EPISODES,
        "gates": gates,
        "nodes": finished.session / "nodes.json",
        "session": finished.session / "session.json",
        "sweep": finished.session / "sweeps" / "demo.json",
    }[file]
    before = path.read_text()
    first, _, rest = before.partition("\n")
    value = json.loads(first)
    changed = put(value, data.draw(st.sampled_from(list(places(value)))), data.draw(JSON))
    path.write_text(json.dumps(changed) + "\n" + rest)
    try:
        report = build_report(finished.session)
        VALIDATOR.validate(json.loads(json.dumps(report, allow_nan=False)))
        write_sweep_reports(report)
        summary_lines(report)
        markdown(report)
    finally:
        path.write_text(before)


@pytest.mark.parametrize("name", ["manifest.json", "cells/run-b.json"])
@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(data=st.data())
def test_a_file_cut_anywhere_still_gives_a_report(finished, name, data):
    path = finished.out / name
    before = path.read_bytes()
    path.write_bytes(before[: data.draw(st.integers(0, len(before)))])
    try:
        build_report(finished.session)
    finally:
        path.write_bytes(before)


@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(states=st.lists(st.sampled_from([*STATES, "running", None]), min_size=4, max_size=4))
def test_planned_is_always_the_sum_of_the_states(finished, states):
    for (run_id, *_), state in zip(finished.rows, states, strict=True):
        if state is None:
            cell_path(finished.out, run_id).unlink(missing_ok=True)
        else:
            finished.cell(run_id, state)
    ledger = build_report(finished.session)["sweeps"][0]["ledger"]
    assert ledger["planned"] == 4 == sum(ledger[state] for state in STATES)
    for counts in (*ledger["by_arm"].values(), *ledger["by_stratum"].values()):
        assert counts["planned"] == sum(counts[state] for state in STATES)
