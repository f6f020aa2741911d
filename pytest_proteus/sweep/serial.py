"""A sweep without pytest: arms × seeds of one harness, one run after the other, resumable.

It shares its records with sweeps that pytest runs; grids, workers, gates and retries are theirs alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_proteus.core import episode
from pytest_proteus.core.adapter import HarnessAdapter
from pytest_proteus.core.config import RunConfig, RunResult, SweepConfig
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.errors import ApparatusError, ConfigurationError
from pytest_proteus.core.ledger import read_manifest
from pytest_proteus.core.records import (
    append_jsonl,
    completed_episodes_in,
    plain,
    private_record_dir,
    read_jsonl,
    write_json_atomic,
)
from pytest_proteus.core.trees import remove
from pytest_proteus.sweep.condition import adapter_condition, digest, evaluator_condition

__all__ = [
    "SweepConfig",
    "SweepStateError",
    "completed_episodes_in",
    "completed_seeds",
    "opaque_id",
    "read_seed_records",
    "run_sweep",
]

FORMAT_VERSION = 3
_BUDGET = ("max_turns", "min_turns_per_phase", "phase_turns", "hard_max_turns", "checkpoint_turns", "announce_budget")
_STATE = ("manifest.json", "seeds.jsonl", "progress", "runs")


class SweepStateError(ConfigurationError):
    """What lies in a sweep's folder does not fit what is asked for."""


def opaque_id(arm: str, seed: int) -> str:
    """Id of a run, as its folder is called: the same for the same arm and seed, and telling neither."""
    return f"run-{hashlib.sha256(json.dumps([arm, seed]).encode()).hexdigest()[:12]}"


def read_seed_records(root: Path) -> list[dict[str, Any]]:
    """The records in ``seeds.jsonl``, one an attempt at a run, in order; [] when there are none.

    Raises:
        RecordError: a whole line that is no JSON object (a half last line, left by a kill, is passed over).
    """
    return read_jsonl(Path(root) / "seeds.jsonl")


def completed_seeds(root: Path, episodes: int) -> set[tuple[str, int]]:
    """(arm, seed) of every run that completed at least ``episodes`` episodes without an error."""
    return {
        (str(line["arm"]), int(line["seed"]))
        for line in read_seed_records(root)
        if not line.get("error") and int(line.get("episodes_complete", 0)) >= episodes
    }


def run_sweep(cfg: SweepConfig) -> list[dict[str, Any]]:
    """Run every arm with every seed that is not complete yet, arm by arm.

    Returns:
        The record of each run that was run now: ``arm``, ``seed``, ``harness``, ``model``, ``root``, ``run_id``,
        ``episodes_complete``, ``error``, ``state``, ``counters``. A run that fails does not stop the others.

    Raises:
        ConfigurationError: no arms or seeds, two arms of one label, or an unknown ``on_existing``.
        FileExistsError: there is a sweep in ``cfg.root`` and ``on_existing`` is ``refuse``.
        SweepStateError: it was run under another condition; the message names what differs. Nothing was written.
    """
    _check(cfg)
    root = Path(cfg.root)
    manifest = _manifest(cfg, cfg.adapter_factory())
    exists = any((root / name).exists() for name in _STATE)
    if exists and cfg.on_existing == "refuse":
        raise FileExistsError(
            f"{root} already holds a sweep; use another folder, or on_existing='resume' or 'overwrite'"
        )
    if exists and cfg.on_existing == "resume":
        _check_condition(root, manifest["condition"])
    else:
        for name in _STATE:
            remove(root / name)
        write_json_atomic(root / "manifest.json", manifest)
    done = completed_seeds(root, cfg.episodes)
    todo = [(arm, seed) for arm in cfg.arms for seed in range(cfg.seeds) if (arm.label, seed) not in done]
    return [_run_one(cfg, arm, seed) for arm, seed in todo]


def _check(cfg: SweepConfig) -> None:
    if cfg.on_existing not in ("refuse", "resume", "overwrite"):
        raise ConfigurationError(f"on_existing must be refuse, resume or overwrite, not {cfg.on_existing!r}")
    labels = [arm.label for arm in cfg.arms]
    if not labels or cfg.seeds < 1:
        raise ConfigurationError(
            f"sweep {cfg.name!r} has {len(labels)} arms and {cfg.seeds} seeds; it needs at least one of each"
        )
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigurationError(f"sweep {cfg.name!r}: two arms are called {label!r}; give one another label")


def _check_condition(root: Path, condition: Mapping[str, Any]) -> None:
    there = (read_manifest(root) or {}).get("condition")
    if not isinstance(there, dict):
        raise SweepStateError(f"cannot resume {root}: there is no manifest with a condition; use another folder")
    now = json.loads(json.dumps(condition))
    differs = sorted(key for key in there.keys() | now.keys() if there.get(key) != now.get(key))
    if differs:
        raise SweepStateError(
            f"cannot resume {root}: its condition differs in {', '.join(differs)}; use what it was begun with, or "
            f"another folder"
        )


def _condition(cfg: SweepConfig, adapter: HarnessAdapter) -> dict[str, Any]:
    """What shapes the trajectories of this sweep, one key a thing that a user can change."""
    condition: dict[str, Any] = plain(
        {
            "adapter": adapter_condition(adapter, adapter.name),
            "arms": {arm.label: digest(_asked(arm)) for arm in cfg.arms},
            "seeds": cfg.seeds,
            "episodes": cfg.episodes,
            "model": cfg.model,
            "goal": {
                "text": cfg.goal.goal_text(),
                "selection": cfg.goal.selection,
                "evaluators": [evaluator_condition(spec) for spec in cfg.goal.specs()],
            },
            **{name: getattr(cfg, name) for name in _BUDGET},
            "task": _named(cfg.task),
            "grader_sandbox": _named(cfg.grader_sandbox),
            "metadata": cfg.condition_metadata,
        }
    )
    return condition


def _manifest(cfg: SweepConfig, adapter: HarnessAdapter) -> dict[str, Any]:
    condition = _condition(cfg, adapter)
    cell: dict[str, Any] = {
        "harness": adapter.name,
        "model": cfg.model,
        "task": None,
        "axes": {},
        "condition_sha256": digest(condition),
    }
    return {
        "format_version": FORMAT_VERSION,
        "name": cfg.name,
        "episodes": cfg.episodes,
        "goal": cfg.goal.goal_text(),
        "selection": cfg.goal.selection,
        "model": cfg.model,
        "harnesses": [adapter.name],
        "arms": [arm.label for arm in cfg.arms],
        "seeds": list(range(cfg.seeds)),
        "surfaces": {adapter.name: condition["adapter"]["surfaces"]},
        "seeded": [adapter.name] if getattr(adapter, "seeded", False) else [],
        "evaluators": {
            spec.name: {
                **condition["goal"]["evaluators"][index],
                "direction": spec.direction,
                "bounds": spec.bounds,
                "thresholds": [],
            }
            for index, spec in enumerate(cfg.goal.specs())
        },
        "sandbox": {"requested": "none", "used": "none", "enforcement": "none"},
        "condition": condition,
        "condition_sha256": digest(condition),
        "measurement_sha256": digest(condition["goal"]["evaluators"]),
        "runs": [
            {"id": opaque_id(arm.label, seed), "arm": arm.label, "seed": seed, **cell}
            for arm in cfg.arms
            for seed in range(cfg.seeds)
        ],
        "plan": {"cells": cfg.seeds * len(cfg.arms)},
        "created_at": time.time(),
    }


def _asked(arm: Disposition) -> list[Any]:
    """What an arm asks for, without its label."""
    asked: list[Any] = plain([arm.prompt_suffix, arm.per_phase, arm.config, arm.patch])
    return asked


def _named(thing: Any) -> str | None:
    """What tells one task, or one grader's sandbox, from another."""
    if thing is None:
        return None
    return f"{type(thing).__module__}:{type(thing).__qualname__}:{getattr(thing, 'id', '')}"


def _run(cfg: RunConfig, *, resume: bool) -> RunResult:
    try:
        return episode.run(cfg, resume=resume)
    except ApparatusError as error:
        complete = completed_episodes_in(cfg.root)
        return RunResult(cfg.name, complete, str(cfg.root), str(error), state="errored", error_class="apparatus")


def _run_one(cfg: SweepConfig, arm: Disposition, seed: int) -> dict[str, Any]:
    root = Path(cfg.root)
    run_id = opaque_id(arm.label, seed)
    run_root = root / "runs" / run_id
    adapter = cfg.adapter_factory()
    budget: dict[str, Any] = {name: getattr(cfg, name) for name in _BUDGET}
    result = _run(
        RunConfig(
            name=f"{arm.label} s{seed}",
            adapter=adapter,
            disposition=arm,
            goal=cfg.goal,
            root=run_root,
            model=cfg.model,
            episodes=cfg.episodes,
            seed=seed,
            task=cfg.task,
            grader_sandbox=cfg.grader_sandbox,
            progress_path=root / "progress" / f"{run_id}.jsonl",
            **budget,
        ),
        resume=private_record_dir(run_root).exists(),
    )
    record: dict[str, Any] = {
        "arm": arm.label,
        "seed": seed,
        "harness": adapter.name,
        "model": cfg.model,
        "root": str(run_root),
        "run_id": run_id,
        "episodes_complete": result.episodes_complete,
        "error": result.error,
        "state": result.state,
        "counters": plain(result.counters),
    }
    append_jsonl(root / "seeds.jsonl", record)
    return record
