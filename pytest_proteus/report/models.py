"""The shape of the report, in one place: types for readers, the JSON Schema, and ``load_report``.

A report stays plain dictionaries and lists: these types describe it and check it, they do not wrap it. Fields that
are not known are null; a number that is missing is never 0. ``schema-v1.json`` beside this module is written by
``python -m pytest_proteus.report.models`` and holds what ``schema()`` returns.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict, is_typeddict

from pytest_proteus.core.errors import ConfigurationError

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).with_name(f"schema-v{SCHEMA_VERSION}.json")

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
State = Annotated[str, Field(pattern=r"^(complete|timeout|abort|skipped(:.*)?|errored|lost|not_run)$")]


class Session(TypedDict):
    """The invocation. Times are seconds since the epoch."""

    id: str | None
    started_at: Number | None
    finished_at: Number | None
    argv: list[str]
    workers: Count | None
    exitstatus: int | None


class Environment(TypedDict):
    """Where it ran. ``git`` describes the repository around the suite, ``packages`` maps names to versions."""

    git: dict[str, str | bool | None] | None
    python: str
    packages: dict[str, str]
    ci: dict[str, str | None] | None


class Budget(TypedDict):
    """What might be spent and what was."""

    max_usd: Number | None
    max_tokens: Count | None
    max_seconds: Number | None
    spent_usd: Number | None
    spent_tokens: Count | None
    stopped_by: str | None
    blocks_bought: Count | None


class EvaluatorEntry(TypedDict):
    """A declared evaluator; ``bounds`` are its lowest and highest possible score."""

    spec: str | None
    kind: str | None
    visibility: Literal["hidden", "observe"] | None
    direction: Literal["higher", "lower", "neutral"] | None
    bounds: list[Number | None] | None
    source_sha256: str | None


class Sandbox(TypedDict):
    """The isolation that was asked for and the one that was used."""

    requested: str | None
    used: str | None
    enforcement: Any


class Plan(TypedDict):
    """What was planned before anything ran.

    ``p_min`` is the smallest p that a contrast or comparison could have. Beside a baseline, ``mde`` is the effect off
    its margin that each comparison tells with power 0.8, and the rest what the cells take after the baseline's runs.
    """

    cells: Count | None
    p_min: Number | None
    mde: Any
    tokens_low: Number | None
    tokens_high: Number | None
    usd_low: Number | None
    usd_high: Number | None


class Counts(TypedDict):
    """How cells ended: ``planned`` is the sum of the seven states. ``retried`` cells were begun more than once."""

    planned: Count
    complete: Count
    timeout: Count
    abort: Count
    skipped: Count
    errored: Count
    lost: Count
    not_run: Count
    reused: Count
    retried: Count


class Ledger(Counts):
    """The counts of a sweep, whole, by arm and by stratum."""

    by_arm: dict[str, Counts]
    by_stratum: dict[str, Counts]


ErrorEntry = TypedDict(
    "ErrorEntry",
    {"class": str | None, "type": str | None, "message": str | None, "retryable": bool | None},
)


class Trajectory(TypedDict):
    """One evaluator over the episodes of a run, in order, one item an episode.

    A score is null where the episode has no result or the evaluator failed; ``errors`` then says why, else it is null.
    ``last_data``: what the evaluator gave behind its last score, null for nothing.
    """

    scores: list[Number | None]
    passed: list[bool | None]
    errors: list[str | None]
    last_detail: str | None
    last_data: dict[str, Any] | None


class Usage(TypedDict):
    """What model calls cost."""

    input_tokens: Count | None
    output_tokens: Count | None
    cache_read_tokens: Count | None
    cache_write_tokens: Count | None
    reasoning_tokens: Count | None
    total_tokens: Count | None
    cost_usd: Number | None
    price_source: str | None
    requests: Count | None
    token_source: str | None
    discrepancy: Any


class RunEntry(TypedDict):
    """One cell of the grid.

    ``reused``: settled by an earlier session. ``refused``: why the tree of the last completed episode could not be
    kept, null where it could. ``accepted``: number of completed episodes whose candidate was kept.
    ``violations``: number of things in the harness tree that could not be represented. Durations are in seconds.
    """

    run_id: str
    task_id: str | None
    harness: str | None
    arm: str | None
    seed: Any
    model: str | None
    task: Any
    axes: dict[str, Any]
    state: State
    error: ErrorEntry | None
    reused: bool
    attempts: Count
    episodes_planned: Count | None
    episodes_complete: Count
    refused: str | None
    accepted: Count | None
    violations: Count | None
    evaluators: dict[str, Trajectory]
    counters: dict[str, Any]
    usage: Usage
    started_at: Number | None
    seconds: Number | None
    working_seconds: Number | None
    waiting_seconds: Number | None
    nodeids: list[str]


class Metric(TypedDict):
    """The score of one evaluator at the last planned episode over the cells of an arm; ``n_missing`` have none there.

    ``std`` divides by n - 1, null when n < 2.
    """

    mean: Number | None
    n: Count
    n_missing: Count
    std: Number | None
    min: Number | None
    max: Number | None


class ArmEntry(TypedDict):
    """One arm. Its key is the label, or ``<label> [<stratum>]`` where the sweep has several strata."""

    metrics: dict[str, Metric]
    usage: Usage
    success_rate: Number | None
    cost_per_success: Number | None


class StatisticEntry(TypedDict):
    """One computed statistic.

    ``unavailable`` says why ``value`` is null (``status``, ``reason``, ``detail``, ``n``), or why parts of it are:
    ``{"status": "partly", "parts": {place: why}}``. ``observations``: the runs behind it, where the value tells none.
    """

    name: str
    stratum: Any
    value: Any
    unavailable: Any
    direction: str | None
    scale: str | None
    interpretation: str | None
    observations: Any
    seconds: Number | None


class SweepEntry(TypedDict):
    """One sweep. ``out`` is its folder; hashes are those of the manifest."""

    name: str
    out: str
    condition: Any
    condition_sha256: str | None
    measurement_sha256: str | None
    surfaces: dict[str, list[dict[str, Any]]]
    harnesses: list[str]
    evaluators: dict[str, EvaluatorEntry]
    sandbox: Sandbox
    plan: Plan
    ledger: Ledger
    runs: list[RunEntry]
    arms: dict[str, ArmEntry]
    statistics: list[StatisticEntry]


class Threshold(TypedDict):
    """The bound of a gate."""

    op: str | None
    bound: Any


class Interval(TypedDict):
    """The interval behind a verdict."""

    method: str | None
    level: Number | None
    low: Number | None
    high: Number | None


class GateEntry(TypedDict):
    """One decided gate."""

    nodeid: str | None
    name: str
    source: str | None
    sweep: str | None
    stratum: Any
    metric: str | None
    arm: str | None
    against: str | None
    kind: str | None
    direction: str | None
    margin: Any
    value: Any
    threshold: Threshold | None
    alpha: Number | None
    effect: Any
    interval: Interval | None
    n: Count | None
    n_missing: Count | None
    p: Number | None
    p_adjusted: Number | None
    family: str | None
    p_min: Number | None
    mde: Any
    n_needed: Number | None
    rare_event_bound: Number | None
    assumption: str | None
    blocking: bool
    verdict: Literal["pass", "fail", "undecided", "unavailable"]
    reason: str | None


class Effect(TypedDict):
    """What a metric of an arm is beside the baseline: ``effect`` is now - then, whichever is better.

    ``reason`` says why there is no effect, null where there is one.
    """

    sweep: str | None
    stratum: str | None
    arm: str | None
    metric: str | None
    effect: Number | None
    effect_percent: Number | None
    baseline_mean: Number | None
    candidate_mean: Number | None
    interval: Interval | None
    n: Count | None
    n_missing: Count | None
    reason: str | None


class Baseline(TypedDict):
    """The saved session that this one was held against.

    ``differs``: sweep → keys of the condition in which the two differ, arms' files included; ``allowed``: the keys that
    may. ``condition_sha256``: of the one sweep, or a digest of those of several.
    """

    name: str | None
    commit: str | None
    created_at: Number | None
    condition_sha256: str | None
    differs: dict[str, list[str]]
    allowed: list[str]
    effects: list[Effect]


class Report(TypedDict):
    """Everything a session says about its sweeps: the ``"proteus"`` object of a JSON report.

    Further keys are those that ``pytest_proteus_modify_report`` added.
    """

    schema_version: Literal[1]
    outcome: Literal["pass", "fail", "undecided", "incomplete"]
    outcome_reasons: list[str]
    session: Session
    environment: Environment
    budget: Budget
    sweeps: list[SweepEntry]
    gates: list[GateEntry]
    baseline: Baseline | None


for _kind in [kind for kind in globals().values() if is_typeddict(kind)]:
    # Set from outside, because mypy takes an assignment in the class body for a field.
    _kind.__pydantic_config__ = ConfigDict(extra="allow" if _kind is Report else "forbid", strict=True)


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a report."""
    generated = TypeAdapter(Report).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pytest-proteus report, version {SCHEMA_VERSION}",
        **_tidy(generated),
    }


def _tidy(value: Any) -> Any:
    """Without what says nothing, and what versions of pydantic write differently."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _tidy(item) for key, item in value.items()}
    if isinstance(kept.get("title"), str):
        del kept["title"]
    if kept.get("additionalProperties") is True:
        del kept["additionalProperties"]
    if "const" in kept:
        kept.pop("enum", None)
    return kept


def load_report(path: str | Path) -> Report:
    """Read a report from a pytest-json-report file, from a sweep's ``report.json``, or from the sweep's folder.

    Fields that this version does not know are kept and not looked at.

    Raises:
        ConfigurationError: no such file, no JSON, no report in it, a schema version that this package does not know,
            or a field of the wrong type; one sentence that names the file.
    """
    path = Path(path) / "report.json" if Path(path).is_dir() else Path(path)
    value = _read(path)
    found = value.get("proteus", value) if isinstance(value, dict) else None
    if not isinstance(found, dict) or "schema_version" not in found:
        raise ConfigurationError(
            f"{path} holds no pytest-proteus report; give the file of `pytest -p proteus --json-report` "
            f"or the report.json in a sweep's folder"
        )
    version = found["schema_version"]
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} has report schema version {version!r}; this pytest-proteus reads version {SCHEMA_VERSION}: "
            f"use the version of pytest-proteus that wrote it"
        )
    _check(path, found)
    return found  # type: ignore[return-value]


def _read(path: Path) -> Any:
    try:
        # a FIFO without a writer would keep an ordinary open waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigurationError(f"{path} is no regular file; give the file of a report or a sweep's folder")
    try:
        with os.fdopen(descriptor, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


def _check(path: Path, found: dict[str, Any]) -> None:
    try:
        TypeAdapter(Report).validate_python(found)
    except ValidationError as error:
        wrong = [e for e in error.errors(include_url=False) if e["type"] != "extra_forbidden"]
        if wrong:
            place = ".".join(str(part) for part in wrong[0]["loc"])
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise ConfigurationError(
                f"{path} is not a valid pytest-proteus report: {place}: {wrong[0]['msg']}{more}"
            ) from error


def write_schema() -> None:
    """Write ``schema-v1.json``, after a change of the types above."""
    SCHEMA_PATH.write_text(json.dumps(schema(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_schema()
