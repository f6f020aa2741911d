"""The experimental condition: what shapes a trajectory, as plain data with a hash: runs are reused for equals only.

A cell's condition covers everything that its run depends on and nothing else: hidden evaluators without selection
have a hash of their own, because changing them changes what is known of a run and not the run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import re
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
    """One digest for the files of a class, of every class that it inherits from, and of the user's modules they import.

    The standard library is left out, and so are installed packages that no class of them is in.
    """
    standard = sysconfig.get_paths()["stdlib"]
    found = {}
    for base in kind.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or standard
        if not file.startswith(standard) or "site-packages" in file:
            found[base.__module__] = source_digest(base)
    waiting = list(found)
    while waiting:
        for name, file in _imported_by(waiting.pop(), standard).items():
            if name not in found:
                found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
                waiting.append(name)
    return digest(found) if found else None


def _imported_by(module: str, standard: str) -> dict[str, Path]:
    """The user's own modules that the names in a module lead to: module → file."""
    found = {}
    for value in list(getattr(sys.modules.get(module), "__dict__", {}).values()):
        name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
        if not name or not file or file.startswith(standard) or name.partition(".")[0] == "pytest_proteus":
            continue
        if not {"site-packages", "dist-packages"} & set(Path(file).parts) and Path(file).is_file():
            found[name] = Path(file)
    return found


def described(value: Any) -> Any:
    """A value of the user's as plain data that is the same in every process: by what it holds, not by where it lies.

    Functions are their source and what is bound to them, objects without a ``repr`` of their own their class and their
    attributes; the rest as ``plain`` has it. Of what is very large or deep only the beginning tells.
    """
    return _Description().of(value)


class _Description:
    """One description in the making."""

    def __init__(self) -> None:
        self._within: list[int] = []
        self._left = 10_000

    def of(self, value: Any) -> Any:
        self._left -= 1
        if id(value) in self._within or len(self._within) > 12 or self._left < 0:
            return {"type": _name_of(type(value))}
        self._within.append(id(value))
        try:
            return self._of(value)
        finally:
            self._within.pop()

    def _of(self, value: Any) -> Any:
        if inspect.ismodule(value):
            return {"module": value.__name__}
        if isinstance(value, functools.partial):
            return {"partial": self.of(value.func), "args": self.of(value.args), "keywords": self.of(value.keywords)}
        if inspect.isroutine(value) or isinstance(value, type):
            return {"callable": _name_of(value), "source_sha256": source_digest(value), **self.bound_to(value)}
        if isinstance(value, Mapping):
            return {str(plain(key)): self.of(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self.of(item) for item in value), key=digest)
        if _says_what_it_is(value):
            return plain(value)
        return {
            "type": _name_of(type(value)),
            "source_sha256": source_digest(value),
            "state": self.of(attributes(value)),
        }

    def bound_to(self, fn: Any) -> dict[str, Any]:
        """What a function carries besides its source: defaults, the variables that it closes over, and its object."""
        cells = {}
        names = getattr(getattr(fn, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(fn, "__closure__", None) or (), strict=False):
            with contextlib.suppress(ValueError):  # not filled yet
                cells[name] = cell.cell_contents
        owner = getattr(fn, "__self__", None)
        held = {
            "closes_over": cells,
            "defaults": getattr(fn, "__defaults__", None) or (),
            "keyword_defaults": getattr(fn, "__kwdefaults__", None) or {},
            "self": () if inspect.ismodule(owner) or isinstance(owner, type) or owner is None else (owner,),
        }
        return {key: self.of(item) for key, item in held.items() if item}


def _says_what_it_is(value: Any) -> bool:
    """Whether ``plain`` says what a value is, rather than where it lies."""
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__:
        return False
    return re.search(r" at 0x[0-9a-fA-F]+", json.dumps(plain(value))) is None


def attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes, those in slots included."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for listed in slots for name in ([listed] if isinstance(listed, str) else listed)]
    held = {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', None)}"


def evaluator_condition(spec: EvaluatorSpec) -> dict[str, Any]:
    """What of an evaluator makes its results what they are."""
    held = {} if is_built_in(spec.run) else {"holds": _held_by(spec.run), "bounds": plain(spec.bounds)}
    return {
        "name": spec.name,
        "spec": spec.spec,
        "kind": spec.kind,
        "visibility": spec.visibility.value,
        "source_sha256": None if is_built_in(spec.run) else source_digest(_innermost(spec.run)),
        **{key: value for key, value in held.items() if value},
    }


def _held_by(run: Any) -> Any:
    """What an evaluator carries besides its source; nothing for a plain function."""
    if inspect.isroutine(run):
        return _Description().bound_to(run)
    return described(run if isinstance(run, functools.partial) else attributes(run))


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
        "knobs": {name: described(item) for name, item in sorted(attributes(adapter).items()) if name[:1] != "_"},
        "surfaces": [plain(asdict(surface)) for surface in adapter.surfaces()],
    }


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


def sweep_condition(
    declaration: Declaration, evaluators: Mapping[str, EvaluatorSpec], tree: str | None = None
) -> dict[str, Any]:
    """What all cells of a sweep share.

    Args:
        declaration: what was declared.
        evaluators: the evaluators by name.
        tree: id of the tree that a task's agents are given; None for no task.
    """
    shaping = [
        evaluator_condition(spec)
        for spec in evaluators.values()
        if declaration.selection != "none" or spec.visibility is Visibility.OBSERVE
    ]
    given = {} if tree is None else {"tree": tree}  # no key for most sweeps: their conditions stay what they were
    return {
        **given,
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
