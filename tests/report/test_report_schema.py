"""The schema, the types and a real report say the same."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import jsonschema
import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.report import build, models, runs
from pytest_proteus.report.build import build_report, write_sweep_reports
from pytest_proteus.report.models import SCHEMA_PATH, load_report


@pytest.fixture
def report(finished):
    finished.gate(threshold={"op": "at_most", "bound": 40}, value=3.0, n=4)
    (finished.session / "statistics").mkdir()
    line = {"sweep": "demo", "name": "reliability", "stratum": None, "value": {"ratio": 0.4}}
    (finished.session / "statistics" / "main.jsonl").write_text(json.dumps(line) + "\n")
    finished.cell(
        "run-b", "errored", error={"class": "apparatus", "type": "OSError", "message": "m", "retryable": True}
    )
    return build_report(finished.session, exitstatus=1, finished_at=2.0)


@pytest.fixture
def validator():
    schema = json.loads(SCHEMA_PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_a_real_report_is_valid(report, validator):
    assert [error.message for error in validator.iter_errors(report)] == []


def test_the_schema_in_the_package_is_the_one_of_the_types(validator):
    if validator.schema != models.schema():
        pytest.fail("run python -m pytest_proteus.report.models")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (build.BUDGET, models.Budget),
        (build.EVALUATOR, models.EvaluatorEntry),
        (build.SANDBOX, models.Sandbox),
        (build.PLAN, models.Plan),
        (build.STATISTIC, models.StatisticEntry),
        (build.GATE, models.GateEntry),
        (runs.ERROR, models.ErrorEntry),
        (runs.USAGE, models.Usage),
    ],
)
def test_the_builder_and_the_types_name_the_same_fields(fields, kind):
    assert list(fields) == list(kind.__annotations__)


def leaves(value, path=()):
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value[:1]) for found in leaves(item, (*path, index))]
    return [path]


#: Fields whose shape is the user's or a later version's, so that any value is right.
OPEN = {
    "condition", "enforcement", "seed", "task", "axes", "counters", "value", "stratum", "observations", "unavailable",
    "mde", "margin", "effect", "bound", "surfaces", "discrepancy", "last_data",
}  # fmt: skip


def test_a_value_of_a_wrong_type_is_refused_everywhere_else(report, validator):
    accepted = []
    for path in leaves(report):
        if OPEN & {part for part in path if isinstance(part, str)}:
            continue
        wrong = copy.deepcopy(report)
        target = wrong
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = {"not": ["a", {"leaf": 1}]}
        if validator.is_valid(wrong):
            accepted.append(path)
    assert accepted == []


def test_a_field_that_is_missing_or_too_much_is_refused(report, validator):
    for change in (lambda run: run.pop("state"), lambda run: run.update(colour="red")):
        wrong = copy.deepcopy(report)
        change(wrong["sweeps"][0]["runs"][0])
        assert not validator.is_valid(wrong)


def test_keys_that_a_hook_added_are_admitted_at_the_top_level_only(report, validator, tmp_path):
    report["of_my_team"] = {"any": ["plain", "data", None]}
    assert validator.is_valid(report)
    (tmp_path / "r.json").write_text(json.dumps({"proteus": report}))
    assert load_report(tmp_path / "r.json")["of_my_team"] == report["of_my_team"]
    for place in (report["session"], report["environment"], report["budget"], report["sweeps"][0]):
        place["of_my_team"] = 1
        assert not validator.is_valid(report)
        del place["of_my_team"]


# --- load_report ------------------------------------------------------------------------------------------------------


def test_the_file_of_the_json_report_is_read(report, tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"created": 1.0, "tests": [], "proteus": report}))
    assert load_report(tmp_path / "r.json") == report


def test_the_report_in_a_sweep_folder_is_read(report, finished):
    write_sweep_reports(report)
    assert load_report(finished.out / "report.json")["sweeps"][0]["name"] == "demo"
    assert load_report(finished.out) == load_report(finished.out / "report.json")


def test_fields_of_a_later_version_are_kept(report, tmp_path):
    report["sweeps"][0]["later"] = 1
    (tmp_path / "r.json").write_text(json.dumps(report))
    assert load_report(tmp_path / "r.json")["sweeps"][0]["later"] == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot read .*r.json: No such file"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no pytest-proteus report"),
        ('{"tests": []}', "holds no pytest-proteus report"),
        ('{"proteus": {"schema_version": 2}}', "schema version 2; this pytest-proteus reads version 1"),
        ('{"schema_version": 1}', "not a valid pytest-proteus report: outcome: Field required"),
    ],
)
def test_what_is_no_report_is_refused_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        load_report(path)
    assert "\n" not in str(caught.value)


def test_a_wrong_type_is_named_with_its_place(report, tmp_path):
    report["sweeps"][0]["runs"][2]["attempts"] = "many"
    (tmp_path / "r.json").write_text(json.dumps(report))
    with pytest.raises(ConfigurationError, match=r"sweeps\.0\.runs\.2\.attempts"):
        load_report(tmp_path / "r.json")


def test_making_a_report_does_not_import_pydantic():
    code = "import sys, pytest_proteus.report.build; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
