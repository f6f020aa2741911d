"""The experimental condition: what shapes a trajectory, as plain data with a hash: runs are reused for equals only.

A cell's condition covers everything that its run depends on and nothing else: hidden evaluators without selection
have a hash of their own, because changing them changes what is known of a run and not the run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pytest_proteus import __version__
from pytest_proteus.core.evaluators import is_built_in
from pytest_proteus.core.goal import EvaluatorSpec, Visibility
from pytest_proteus.core.records import plain
from pytest_proteus.sweep.arms import Arm
from pytest_proteus.sweep.declare import Declaration

#: Raised when the meaning of a condition's keys changes; conditions of different versions are never equal.
CONDITION_VERSION = 1


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest(obj: Any) -> str | None:
    """SHA-256 of the file that defines a function or class, else of its bytecode; None for what has neither."""
    target = obj if inspect.isroutine(obj) or isinstance(obj, type) else type(obj)
    module = sys.modules.get(getattr(target, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    if file and Path(file).is_file():
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    code = getattr(target, "__code__", None)
    return hashlib.sha256(code.co_code).hexdigest() if code else None


def class_digest(kind: type) -> str | None:
    """One digest for the files of a class and of every class that it inherits from, the standard library's left out."""
    standard = sysconfig.get_paths()["stdlib"]
    found = {}
    for base in kind.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or standard
        if not file.startswith(standard) or "site-packages" in file:
            found[base.__module__] = source_digest(base)
    return digest(found) if found else None


def evaluator_condition(spec: EvaluatorSpec) -> dict[str, Any]:
    """What of an evaluator makes its results what they are."""
    return {
        "name": spec.name,
        "spec": spec.spec,
        "kind": spec.kind,
        "visibility": spec.visibility.value,
        "source_sha256": None if is_built_in(spec.run) else source_digest(_innermost(spec.run)),
    }


def _innermost(fn: Callable[..., Any]) -> Any:
    while hasattr(fn, "__wrapped__") or hasattr(fn, "func"):
        fn = getattr(fn, "__wrapped__", None) or fn.func  # type: ignore[attr-defined]
    return fn


def adapter_condition(adapter: Any, label: str) -> dict[str, Any]:
    """What of a harness adapter shapes a trajectory: its class, its source and its public attributes."""
    kind = type(adapter)
    return {
        "label": label,
        "type": f"{kind.__module__}:{kind.__qualname__}",
        "source_sha256": class_digest(kind),
        "version": plain(getattr(adapter, "version", None)),
        "knobs": {
            name: _knob(value)
            for name, value in sorted(getattr(adapter, "__dict__", {}).items())
            if name[:1] != "_" and name != "sandbox"  # which rung it is, the plan says
        },
        "surfaces": [plain(asdict(surface)) for surface in adapter.surfaces()],
    }


def _knob(value: Any) -> Any:
    if inspect.isroutine(value) or isinstance(value, type):
        return {"callable": f"{value.__module__}:{value.__qualname__}", "source_sha256": source_digest(value)}
    return plain(value)


def arm_condition(arm: Arm, files_sha256: str | None) -> dict[str, Any]:
    """What of an arm shapes a trajectory; its label does not, nor what it is a control of."""
    frozen = {} if arm.evolves else {"evolves": False}  # no key for most arms: their conditions stay what they were
    return {
        **frozen,
        "disposition": {key: plain(value) for key, value in asdict(arm.disposition).items() if key != "label"},
        "framework": arm.framework,
        "env": arm.env,
        "files_sha256": files_sha256,
    }


def sweep_condition(declaration: Declaration, evaluators: Mapping[str, EvaluatorSpec]) -> dict[str, Any]:
    """What all cells of a sweep share."""
    shaping = [
        evaluator_condition(spec)
        for spec in evaluators.values()
        if declaration.selection != "none" or spec.visibility is Visibility.OBSERVE
    ]
    return {
        "condition_version": CONDITION_VERSION,
        "pytest_proteus": __version__,
        "goal": declaration.goal,
        "selection": declaration.selection,
        "evaluators": shaping,
        "phases": list(declaration.phases),
        "budget": plain(asdict(declaration.budget)),
        "phase_timeout": declaration.phase_timeout,
    }


def versioned(spec: EvaluatorSpec) -> EvaluatorSpec:
    """The evaluator with the hash of what makes its results what they are."""
    return replace(spec, version=digest(evaluator_condition(spec)))


def measurement_digest(evaluators: Mapping[str, EvaluatorSpec]) -> str:
    """Hash of all evaluators: it changes when what is measured does, whether or not that shapes a trajectory."""
    return digest([evaluator_condition(evaluators[name]) for name in sorted(evaluators)])


def differing_keys(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Dotted names of the leaves in which two conditions differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [name for key in keys for name in differing_keys(old.get(key), new.get(key), f"{prefix}{key}.")]
    return [] if old == new else [prefix.rstrip(".")]
