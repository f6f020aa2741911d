"""One planned cell becomes a finished run: configuration, bounded retries, and how it ended.

Whoever calls this holds the cell's lock; once-only execution is the store's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_proteus.core.config import RunConfig, RunResult
from pytest_proteus.core.errors import ConfigurationError, RecordError
from pytest_proteus.core.ledger import CellRecord, read_cell
from pytest_proteus.core.records import append_jsonl, completed_episodes_in, read_records, read_trace
from pytest_proteus.metering import spans
from pytest_proteus.metering.names import of_cell
from pytest_proteus.metering.prices import prices_of
from pytest_proteus.metering.spans import Meter
from pytest_proteus.metering.totals import usage_of
from pytest_proteus.sandbox import let_in, open_folders
from pytest_proteus.sandbox.guard import Guard, repository
from pytest_proteus.sweep.asking import Variants
from pytest_proteus.sweep.declare import AXES
from pytest_proteus.sweep.grid import Cell
from pytest_proteus.sweep.plan import Plan

#: Class of the error, and reason, of cells for which the budget did not suffice.
BUDGET = "budget"

#: Attempts in one session at a cell whose apparatus fails.
MAX_ATTEMPTS = 3

#: Seconds before the second and the third attempt.
BACKOFF = (0.2, 1.0)

#: Names of files that an agent would take for its instructions when they lie in a folder above it.
INSTRUCTIONS = (
    "AGENTS.md",
    "AGENTS.override.md",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "GEMINI.md",
    "QWEN.md",
    ".agents",
    ".claude",
    ".codex",
    ".gemini",
    ".opencode",
    ".pi",
    ".qwen",
)


@contextlib.contextmanager
def quiet_environment() -> Iterator[None]:
    """Take pytest's variables out of this process' environment while a cell runs in it.

    ``PYTEST_CURRENT_TEST`` spells the arm, and an adapter that starts processes in the ordinary way hands it on.
    """
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("PYTEST", "PROTEUS"))}
    try:
        yield
    finally:
        os.environ.update(hidden)


def run_cell(
    plan: Plan, cell: Cell, out: Path, record: CellRecord, variants: Variants, *, should_stop: Callable[[], bool]
) -> CellRecord:
    """Run a cell to its end, or continue it, and say how it ended.

    Args:
        plan: the sweep.
        cell: the cell.
        out: the sweep's folder.
        record: how the cell stands; the returned one takes its place.
        variants: what the session knows of harnesses and models.
        should_stop: asked between episodes and attempts.
    """
    config = run_config(plan, cell, out, should_stop)
    reason = preflight(config.adapter) or variants.silent(config.adapter, cell)
    if reason:
        record.state, record.reason = "skipped", reason
        return record
    if over_budget(plan, cell, out, config.adapter):
        if not completed_episodes_in(config.root):
            record.state, record.reason = "skipped", BUDGET
            return record
        record.state = "abort"
        said = "the session's budget was used up before the run could go on"
        record.error = {"class": BUDGET, "type": None, "message": said, "retryable": False}
        return record
    began = time.perf_counter()
    guard = _guard(plan, cell, out)
    with quiet_environment():
        result = _attempts(config, record, should_stop)
    changes = guard.changes() if guard else None
    if changes is not None:  # beside what an earlier session saw of the same run
        record.outside = list(dict.fromkeys([*(record.outside or ()), *changes]))
    record.state = result.state
    record.error = _error(result)
    record.episodes_complete = result.episodes_complete
    record.counters = result.counters
    record.seconds = (record.seconds or 0.0) + time.perf_counter() - began
    _append_seed_record(plan, cell, out, config, result)
    variants.ended(config.adapter, cell, record)
    return record


def _guard(plan: Plan, cell: Cell, out: Path) -> Guard | None:
    """What watches the folder where pytest runs while an agent runs that nothing keeps from it, and a task's repository
    while any does."""
    folders = repository(plan.setting.root) if plan.rungs[cell.harness] == "none" else []
    if plan.repository is not None:
        folders += repository(plan.repository.path)
    return Guard(folders, besides=(out, *plan.setting.own)) if folders else None


def over_budget(plan: Plan, cell: Cell, out: Path, adapter: Any) -> bool:
    """Whether a cell is not to be begun, or gone on with, because of the session's budget: it is used up, or would be
    before all cells of the cell's seed are through, none of which has been begun. What a cell takes is taken from those
    that are complete."""
    if getattr(adapter, "deterministic", False) or not spans.has_budget():
        return False  # what is deterministic asks no model
    if spans.budget_is_spent():
        return True
    block = [plan.run_ids[other] for other in plan.cells if other.seed == cell.seed and other != cell]
    records = [read_cell(out, run_id) for run_id in block]
    if any(record is not None and record.reason == BUDGET for record in records):
        return True
    if any(record is not None for record in records):
        return False
    used = usage_of(out)
    whole = [used[run_id] for run_id in used if (record := read_cell(out, run_id)) and record.state == "complete"]
    tokens, costs = [one.total_tokens or 0 for one in whole], [one.cost_usd or 0.0 for one in whole]
    if not whole:
        return False
    cells = len(block) + 1
    return spans.budget_is_spent(cells * sum(tokens) / len(whole), cells * sum(costs) / len(whole))


def check_priced(plan: Plan, out: Path, cells: Sequence[Cell]) -> None:
    """See to it that a budget in US dollars can be kept.

    Raises:
        ConfigurationError: a model of ``cells`` has no price.
    """
    known = prices_of(out)
    for cell in cells:
        if cell.model and not getattr(plan.adapter(cell), "deterministic", False) and not known.of(cell.model):
            raise ConfigurationError(
                f"{plan.declaration.where}: --proteus-max-usd: no price of model {cell.model!r} is known; give it in "
                f"--proteus-prices=FILE (docs/metering.md), or limit tokens with --proteus-max-tokens"
            )


def score_cell(plan: Plan, cell: Cell, out: Path, *, should_stop: Callable[[], bool]) -> bool:
    """Compute what a run lacks of the plan's evaluators, from its checkpoints and traces; False when it was stopped.

    Raises:
        RecordError: these cannot be read.
    """
    from pytest_proteus.core.rescore import rescore

    root = out / "runs" / plan.run_ids[cell]
    specs, surfaces = plan.specs[cell.harness], plan.surfaces[cell.harness]
    with quiet_environment():
        return rescore(
            root, specs, surfaces, read_records(root), partial(read_trace, root), should_stop=should_stop
        ).complete


def preflight(adapter: Any) -> str:
    """Why a harness cannot run here, in one sentence; empty when it can, and when it does not say."""
    return str(getattr(adapter, "preflight", str)() or "")


def check_configured(plan: Plan, out: Path, cells: Sequence[Cell]) -> None:
    """See to it, before anything runs, that no harness lacks what only a user can give it.

    Raises:
        ConfigurationError: a harness of ``cells`` that are not complete does, as its ``unconfigured`` says.
    """
    asked: dict[tuple[str, str | None], str] = {}
    _check_evaluators(plan, out, cells)
    for cell in cells:
        key = cell.harness, cell.model
        if key in asked or _is_complete(out, plan.run_ids[cell]):
            continue
        adapter = plan.adapter(cell)
        asked[key] = str(getattr(adapter, "unconfigured", lambda _: "")(cell.model or ""))
        if not asked[key] and plan.rungs[cell.harness] and not preflight(adapter):
            asked[key] = str(getattr(getattr(adapter, "sandbox", None), "preflight", str)())
        if asked[key]:
            raise ConfigurationError(f"{plan.declaration.where}: {asked[key]}")


def _check_evaluators(plan: Plan, out: Path, cells: Sequence[Cell]) -> None:
    """Test commands and judges need something, too."""
    if all(_is_complete(out, plan.run_ids[cell]) for cell in cells):
        return
    for specs in plan.specs.values():
        for spec in specs:
            told = getattr(spec.run, "unconfigured", str)()
            if told:
                raise ConfigurationError(f"{plan.declaration.where}: {told}")


def _is_complete(out: Path, run_id: str) -> bool:
    try:
        record = read_cell(out, run_id)
    except RecordError:
        return True  # whoever needs the cell says what is wrong with its file
    return record is not None and record.state == "complete"


def _attempts(config: RunConfig, record: CellRecord, should_stop: Callable[[], bool]) -> RunResult:
    from pytest_proteus.core.episode import run

    for attempt in range(MAX_ATTEMPTS):
        result = run(config, resume=True)
        retryable = result.state == "errored" and result.error_class == "apparatus"
        if not retryable or attempt + 1 == MAX_ATTEMPTS or should_stop():
            return result
        time.sleep(BACKOFF[attempt])
        record.attempts += 1
    raise AssertionError("unreachable")


def run_config(plan: Plan, cell: Cell, out: Path, should_stop: Callable[[], bool]) -> RunConfig:
    """What the episode transaction is told about a cell."""
    declared, budget = plan.declaration, plan.declaration.budget
    run_id = plan.run_ids[cell]
    return RunConfig(
        name=cell.arm,
        adapter=plan.adapter(cell),
        disposition=cell.arm_value.disposition,
        goal=plan.goal(cell),
        root=out / "runs" / run_id,
        model=cell.model or "",
        episodes=plan.episodes,
        max_turns=budget.max_turns,
        min_turns_per_phase=budget.min_turns_per_phase,
        phase_turns=budget.phase_turns,
        hard_max_turns=budget.hard_max_turns,
        checkpoint_turns=budget.checkpoint_turns,
        announce_budget=budget.announce,
        seed=cell.seed,
        progress_path=out / "progress" / f"{run_id}.jsonl",
        phases=declared.phases,
        phase_timeout=declared.phase_timeout,
        live_root=live_root(out, run_id),
        should_stop=should_stop,
        evolves=cell.arm_value.evolves,
        meter=Meter(out, run_id, task_id(plan, cell, out)),
    )


def task_id(plan: Plan, cell: Cell, out: Path) -> str:
    """The id of a cell that people can read, for whoever looks at what it used."""
    labels = {axis: getattr(cell, axis) for axis in AXES}
    return of_cell(plan.name, out.name, {**labels, "axes": dict(cell.axes)})


def live_root(out: Path, run_id: str) -> Path:
    """Where a run's live trees lie: a neutral place outside any repository, the same whenever the run is continued."""
    name = hashlib.sha256(os.fsencode(f"{out.resolve()}\0{run_id}")).hexdigest()[:16]
    return _neutral_base() / name


def _neutral_base() -> Path:
    for parent in open_folders():
        base = Path(parent) / f"ws-{os.getuid()}"
        if not _is_neutral(base):
            continue
        try:
            base.mkdir(mode=0o700, exist_ok=True)
            found = base.lstat()
        except OSError:
            continue
        if base.is_dir() and not base.is_symlink() and found.st_uid == os.getuid():
            return let_in(base)
    return let_in(Path(tempfile.mkdtemp(prefix="ws-")))


def _is_neutral(base: Path) -> bool:
    spelled = str(base).lower()
    if "proteus" in spelled or "pytest" in spelled:
        return False
    return not any((parent / name).exists() for parent in base.parents for name in (".git", *INSTRUCTIONS))


def _error(result: RunResult) -> dict[str, Any] | None:
    if not result.error:
        return None
    kind, separator, message = result.error.partition(": ")
    named = bool(separator) and kind.isidentifier()
    return {
        "class": result.error_class or None,
        "type": kind if named else None,
        "message": message if named else result.error,
        "retryable": result.error_class == "apparatus",
    }


def _append_seed_record(plan: Plan, cell: Cell, out: Path, config: RunConfig, result: RunResult) -> None:
    """One line in ``seeds.jsonl``, unless a session that was killed right after it wrote the same line."""
    line: Mapping[str, Any] = {
        "run_id": plan.run_ids[cell],
        "harness": cell.harness,
        "arm": cell.arm,
        "seed": cell.seed,
        "model": cell.model,
        "root": str(config.root),
        "episodes_complete": result.episodes_complete,
        "state": result.state,
        "error": result.error,
        "counters": result.counters,
    }
    path = out / "seeds.jsonl"
    if not _ends_with(path, line):
        append_jsonl(path, line)


def _ends_with(path: Path, line: Mapping[str, Any]) -> bool:
    import json

    if not path.exists():
        return False
    for text in reversed(path.read_text(encoding="utf-8").splitlines()):
        try:
            known = json.loads(text)
        except ValueError:
            continue
        if known.get("run_id") == line["run_id"]:
            return bool(known == json.loads(json.dumps(line)))
    return False
