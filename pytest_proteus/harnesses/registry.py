"""The names of harnesses: from what a user writes on the ``harness`` axis to an adapter object, and to its label.

Knows nothing of plugins: names that others register are handed in.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias

from pytest_proteus.core.adapter import HarnessAdapter
from pytest_proteus.core.errors import ConfigurationError

#: What makes a fresh adapter: a class, a function, or the ``"package.module:Class"`` of one. Arguments called
#: ``endpoint``, ``agent`` and ``model`` are filled in where the factory has them (see ``resolve``).
Factory: TypeAlias = "Callable[..., HarnessAdapter] | str"

#: The harnesses that come with the package; imported when they are asked for.
BUILTIN: Mapping[str, Factory] = MappingProxyType(
    {
        "claude": "pytest_proteus.harnesses.claude:ClaudeHarness",
        "codex": "pytest_proteus.harnesses.codex:CodexHarness",
        "copilot": "pytest_proteus.harnesses.copilot:CopilotHarness",
        "gemini": "pytest_proteus.harnesses.gemini:GeminiHarness",
        "llm": "pytest_proteus.harnesses.llm:LlmHarness",
        "mini-swe-agent": "pytest_proteus.harnesses.mini_swe_agent:MiniSweAgentHarness",
        "minimal": "pytest_proteus.harnesses.minimal:MinimalHarness",
        "opencode": "pytest_proteus.harnesses.opencode:OpencodeHarness",
        "pi": "pytest_proteus.harnesses.pi:PiHarness",
        "qwen": "pytest_proteus.harnesses.qwen:QwenHarness",
    }
)

_METHODS = (
    "surfaces",
    "required_edit_tools",
    "seed",
    "install_disposition",
    "run_episode",
    "read_trace",
    "disposition_fingerprint",
)


def names(extra: Mapping[str, Factory] | None = None) -> list[str]:
    """Every registered name, sorted."""
    return sorted({*BUILTIN, *(extra or {})})


def resolve(
    value: Any,
    *,
    extra: Mapping[str, Factory] | None = None,
    endpoint: Mapping[str, str] | None = None,
    agents: Mapping[str, str] | None = None,
) -> HarnessAdapter:
    """The adapter that a value of the ``harness`` axis stands for; a fresh one for names, the object itself otherwise.

    Args:
        value: a registered name, ``"replay:<folder>"``, ``"package.module:Class"``, or an adapter object.
        extra: further names; they take the place of built-in ones of the same name.
        endpoint: wire protocol → base URL, for factories with a parameter ``endpoint``.
        agents: agent name → path of its executable, for factories with a parameter ``agent``; looked up by the name
            that ``value`` is.

    Raises:
        ConfigurationError: an unknown name (with the nearest known one), a module or class that cannot be had, or an
            object that is no harness adapter.
    """
    made = make(value, extra=extra, endpoint=endpoint, agents=agents)
    return _checked(made, f"harness {value!r}")


def make(
    value: Any,
    *,
    extra: Mapping[str, Factory] | None = None,
    endpoint: Mapping[str, str] | None = None,
    agents: Mapping[str, str] | None = None,
) -> Any:
    """As ``resolve``, but whatever comes of it, be it a harness adapter or not."""
    if not isinstance(value, str):
        return value
    if value.startswith("replay:"):
        from pytest_proteus.harnesses.replay import ReplayHarness

        return ReplayHarness(value.partition(":")[2])
    known = {**BUILTIN, **(extra or {})}
    if value not in known and ":" not in value:
        near = difflib.get_close_matches(value, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names(extra))}."
        raise ConfigurationError(
            f"unknown harness {value!r}; {hint} A class of your own is written 'package.module:Class'"
        )
    factory = known.get(value, value)
    offered = {"endpoint": endpoint, "agent": (agents or {}).get(value)}
    return _call(load(factory) if isinstance(factory, str) else factory, offered, value)


def load(path: str) -> Callable[..., Any]:
    """The class or function that ``"package.module:name"`` names.

    Raises:
        ConfigurationError: there is none.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"harness {path!r}: write 'package.module:Class'")
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigurationError(
            f"harness {path!r}: importing {module_name!r} failed ({type(error).__name__}: {error})"
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"harness {path!r}: {module_name!r} has no {attribute!r}{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise ConfigurationError(f"harness {path!r} is a {type(value).__name__}, not a class or function")
    return value  # type: ignore[no-any-return]


def harness_label(value: Any) -> str:
    """How a value of the ``harness`` axis is written in node ids, options and reports; nothing is imported for it."""
    if isinstance(value, str):
        kind, _, rest = value.rpartition(":")
        return f"replay-{PurePath(rest).name}" if kind == "replay" else rest
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and name else type(value).__name__


def _call(factory: Callable[..., Any], offered: Mapping[str, Any], value: str) -> Any:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        parameters = MappingProxyType({})
    wanted = {name: given for name, given in offered.items() if name in parameters and given is not None}
    try:
        return factory(**wanted)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"harness {value!r}: making the adapter failed ({type(error).__name__}: {error})"
        ) from error


def lacking(adapter: Any) -> list[str]:
    """Names of what an object lacks to be a harness adapter; empty when nothing is missing."""
    missing = [name for name in _METHODS if not callable(getattr(adapter, name, None))]
    return missing if isinstance(getattr(adapter, "name", None), str) else ["name", *missing]


def _checked(adapter: Any, what: str) -> HarnessAdapter:
    if isinstance(adapter, type):
        raise ConfigurationError(
            f"{what} is a class; write {adapter.__name__}() or 'package.module:{adapter.__name__}'"
        )
    missing = lacking(adapter)
    if missing:
        raise ConfigurationError(f"{what} is no harness adapter: {type(adapter).__name__} lacks {', '.join(missing)}")
    _check_surfaces(adapter, what)
    return adapter  # type: ignore[no-any-return]


def _check_surfaces(adapter: Any, what: str) -> None:
    try:
        surfaces = list(adapter.surfaces())
    except Exception as error:
        raise ConfigurationError(f"{what}: surfaces() failed ({type(error).__name__}: {error})") from error
    for surface in surfaces:
        if not isinstance(getattr(surface, "name", None), str) or not isinstance(getattr(surface, "subdir", None), str):
            raise ConfigurationError(f"{what}: surfaces() gave {surface!r}, which is no Surface")
