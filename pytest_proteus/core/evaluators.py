"""The built-in per-episode evaluators, and the one parser of evaluator specs.

Each factory gives a callable ``(trace, ctx) -> EvalResult``. They read and never write. ``core.evaluation`` runs them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import ActionEvent, Surface
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import EvalResult, Evaluator, EvaluatorSpec, GoalContext, Visibility

#: How much of a file ``file_contains`` reads, in bytes; longer files are searched up to there.
READ_LIMIT = 16 * 1024 * 1024

_FORMS = ("units:<surface>", "tool-calls", "tool-calls:<ceiling>", "step", "contains:<relpath>:<needle>")
_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Units = Mapping[str, Mapping[str, str]]
#: What makes an evaluator of a form without its ``@visibility``, and of that.
Form = Callable[[str, Visibility], EvaluatorSpec]


def _built_in(run: Callable[[Sequence[ActionEvent], GoalContext], EvalResult]) -> Evaluator:
    run.built_in = True  # type: ignore[attr-defined]
    return run


def is_built_in(run: Any) -> bool:
    """Whether ``run`` came from a factory of this module: it is trusted to end and to write nothing."""
    return getattr(run, "built_in", False) is True


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _current_units(ctx: GoalContext, surfaces: Sequence[Surface]) -> Units:
    if ctx.units is not None and all(surface.name in ctx.units for surface in surfaces):
        return ctx.units
    return _units_on_disk(ctx, surfaces)


def _units_on_disk(ctx: GoalContext, surfaces: Sequence[Surface]) -> Units:
    from pytest_proteus.core.units import units

    return units(Path(ctx.harness_root), surfaces)


def _units_by_name(ctx: GoalContext, declared: Surface) -> Units:
    # a folder's name may be that of a declared surface whose units are no files
    if ctx.units is None or os.path.lexists(Path(ctx.harness_root) / declared.subdir):
        return _units_on_disk(ctx, (declared,))
    if declared.name not in ctx.units:
        known = ", ".join(ctx.units) or "(none)"
        raise LookupError(
            f"{declared.name!r} is no folder or file of the harness and no surface; its surfaces: {known}"
        )
    return ctx.units


def surface_units(surface: Surface | str, name: str = "", target: int = 0) -> Evaluator:
    """How many units a surface has: a count ≥ 0, no direction of its own.

    Args:
        surface: a declared surface, or a folder of the harness whose files are counted (a file counts 1). A name that
            is no folder or file stands for the declared surface of that name; when there is none either, that is an
            evaluator error, except where ``ctx`` has no units to tell by: the count is then 0.
        name: of the result; ``units:<surface>`` when not given.
        target: when given, the score is no larger than it and ``passed`` says that it was reached.
    """
    named = isinstance(surface, str)
    declared = Surface(surface, surface) if isinstance(surface, str) else surface
    label = name or f"units:{declared.name}"

    def evaluate(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        tables = _units_by_name(ctx, declared) if named else _current_units(ctx, (declared,))
        count = len(tables[declared.name])
        return EvalResult(
            name=label,
            score=float(min(count, target) if target else count),
            passed=bool(target) and count >= target,
            detail=f"{_plural(count, 'unit')} in {declared.name}",
        )

    return _built_in(evaluate)


def tool_calls(name: str = "tool-calls", ceiling: int = 0) -> Evaluator:
    """How many tools the agent called: a count ≥ 0, activity and not quality.

    Args:
        name: of the result.
        ceiling: when given, the score is what is left up to it (negative beyond it: larger is then better) and
            ``passed`` says that it was kept.
    """

    def evaluate(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        count = sum(1 for event in trace if event.tool)
        return EvalResult(
            name=name,
            score=float(ceiling - count if ceiling else count),
            passed=bool(ceiling) and count <= ceiling,
            detail=_plural(count, "tool call") + (f" of at most {ceiling}" if ceiling else ""),
        )

    return _built_in(evaluate)


def file_contains(relpath: str, needle: str, name: str = "") -> Evaluator:
    """Whether a file of the harness holds a text: 1.0 or 0.0, larger is better.

    Only a regular file below the harness root is read, up to ``READ_LIMIT`` bytes: no link is followed on the way,
    nothing that could block is opened, and a path that is absolute or has ``..`` in it scores 0.0.

    Args:
        relpath: path of the file relative to the harness root.
        needle: text to look for.
        name: of the result; ``contains:<relpath>`` when not given.
    """
    label = name or f"contains:{relpath}"

    def evaluate(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        data, problem = read_confined(Path(ctx.harness_root), relpath)
        found = not problem and needle.encode("utf-8", "surrogateescape") in data
        detail = problem or f"{relpath} has the text" if found or problem else f"{relpath} does not have the text"
        return EvalResult(name=label, score=1.0 if found else 0.0, passed=found, detail=detail)

    return _built_in(evaluate)


def read_confined(root: Path, relpath: str) -> tuple[bytes, str]:
    """The bytes of a regular file below ``root`` without following any link, and what was wrong ("" when nothing)."""
    parts = [part for part in relpath.split("/") if part not in ("", ".")]
    if relpath.startswith("/") or ".." in parts or not parts:
        return b"", f"{relpath!r} does not lie below the harness root"
    follow_none = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            opened.append(os.open(part, follow_none | os.O_DIRECTORY, dir_fd=opened[-1]))
        # looked at before it is opened: to open a device can already do something
        if not stat.S_ISREG(os.stat(parts[-1], dir_fd=opened[-1], follow_symlinks=False).st_mode):
            return b"", f"{relpath} is not a regular file"
        opened.append(os.open(parts[-1], follow_none, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return b"", f"{relpath} is not a regular file"
        return _read_bounded(opened[-1]), ""
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            return b"", f"{relpath} does not exist"
        return b"", f"{relpath} cannot be read: {getattr(error, 'strerror', None) or error}"
    finally:
        for fd in opened:
            os.close(fd)


def _read_bounded(fd: int) -> bytes:
    blocks, size = [], 0
    while size < READ_LIMIT and (block := os.read(fd, min(1 << 20, READ_LIMIT - size))):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def structural_step(surfaces: Sequence[Surface], name: str = "structural-step") -> Evaluator:
    """How far the harness moved in this episode: units added, dropped or revised over all ``surfaces``.

    A count ≥ 0 against the last accepted state (episode 0 in the first episode); movement and not quality.
    """
    declared = tuple(surfaces)

    def evaluate(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        from pytest_proteus.core.units import delta

        now = _current_units(ctx, declared)
        before = ctx.previous_units if ctx.previous_units is not None else _units_before(ctx, declared)
        moved, parts = 0, []
        for surface in declared:
            step = delta(before.get(surface.name, {}), now.get(surface.name, {}), surface.name)
            if step.added or step.dropped or step.revised:
                moved += step.added + step.dropped + step.revised
                parts.append(f"{surface.name}: +{step.added}/-{step.dropped}/~{step.revised}")
        return EvalResult(name=name, score=float(moved), detail=", ".join(parts) or "nothing moved")

    return _built_in(evaluate)


def _units_before(ctx: GoalContext, surfaces: Sequence[Surface]) -> Units:
    """Units of the previous checkpoint, for callers that have no tables at hand."""
    from pytest_proteus.core import snapshot
    from pytest_proteus.core.units import units

    work_tree = Path(ctx.harness_root)
    commit = snapshot.commit_for_episode(work_tree, ctx.episode - 1)
    if commit is None:
        raise LookupError(f"there is no checkpoint of episode {ctx.episode - 1} beside {work_tree}")
    with tempfile.TemporaryDirectory() as folder:
        snapshot.materialize(work_tree, commit, Path(folder) / "before")
        return units(Path(folder) / "before", surfaces)


# ------------------------------------------------------------------------------------------------- the parser


def parse_evaluator(
    text: str,
    surfaces: Sequence[Surface],
    further: Mapping[str, Form] | None = None,
) -> EvaluatorSpec:
    """The evaluator that ``text`` declares.

    Args:
        text: the form.
        surfaces: declared surfaces of the harness.
        further: first word of a form → what makes an evaluator of the whole form, for forms of other rooms.

    Forms: ``units:<surface>`` (its name or its subdir; the name is what gets recorded), ``tool-calls``,
    ``tool-calls:<ceiling>``, ``step``, ``contains:<relpath>:<needle>`` and ``package.module:function``, each with
    ``@hidden`` (default) or ``@observe`` behind it.

    Raises:
        ConfigurationError: it declares none; the message has the nearest valid spelling.
    """
    form, visibility = _split_visibility(text)
    head, _, rest = form.partition(":")
    if further and head in further:
        return further[head](form, visibility)
    if head == "units":
        return _parse_units(text, rest, visibility, surfaces)
    if head == "tool-calls":
        return _parse_tool_calls(text, form, rest, visibility)
    if form == "step":
        return EvaluatorSpec("step", structural_step(surfaces, "step"), "measurement", visibility, spec=form)
    if head == "contains":
        return _parse_contains(text, form, rest, visibility)
    if _CALLABLE.fullmatch(form):
        return EvaluatorSpec(form, _import_callable(text, form, surfaces), "custom", visibility, spec=form)
    raise ConfigurationError(f"evaluator {text!r} is unknown{_nearest_form(form, surfaces)}")


def _split_visibility(text: str) -> tuple[str, Visibility]:
    form, at, word = text.rpartition("@")
    if not at:
        return text, Visibility.HIDDEN
    if word in ("hidden", "observe"):
        return form, Visibility(word)
    if form.startswith("contains:"):  # the needle has an @ in it
        return text, Visibility.HIDDEN
    near = difflib.get_close_matches(word, ("hidden", "observe"), n=1, cutoff=0.3)
    hint = f"{form}@{near[0]}" if near else f"{form}@hidden or {form}@observe"
    raise ConfigurationError(f"evaluator {text!r}: @{word} is no visibility; write {hint}")


def _parse_units(text: str, wanted: str, visibility: Visibility, surfaces: Sequence[Surface]) -> EvaluatorSpec:
    by_subdir = {surface.subdir.strip("/"): surface for surface in reversed(surfaces)}
    by_name = {surface.name: surface for surface in surfaces}
    surface = by_name.get(wanted) or by_subdir.get(wanted.strip("/"))
    if wanted and surface is not None:
        name = f"units:{surface.name}"
        return EvaluatorSpec(name, surface_units(surface), "measurement", visibility, spec=name, bounds=(0.0, None))
    names = [surface.name for surface in surfaces]
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    choice = f"write units:{near[0]}" if near else f"choose one of {', '.join(names) or '(it declares none)'}"
    raise ConfigurationError(f"evaluator {text!r}: this harness has no surface {wanted!r}; {choice}")


def _parse_tool_calls(text: str, form: str, rest: str, visibility: Visibility) -> EvaluatorSpec:
    ceiling = 0
    if form != "tool-calls":
        if not (rest.isascii() and rest.isdigit() and int(rest) > 0):
            raise ConfigurationError(
                f"evaluator {text!r}: the ceiling must be a whole number above 0, as in tool-calls:40"
            )
        ceiling = int(rest)
    return EvaluatorSpec(
        "tool-calls",
        tool_calls(ceiling=ceiling),
        "measurement",
        visibility,
        spec=form,
        direction="higher" if ceiling else "neutral",
        bounds=(None, float(ceiling)) if ceiling else (0.0, None),
    )


def _parse_contains(text: str, form: str, rest: str, visibility: Visibility) -> EvaluatorSpec:
    relpath, _, needle = rest.partition(":")
    if not relpath or not needle:
        raise ConfigurationError(f"evaluator {text!r}: write contains:<relpath>:<needle>, both not empty")
    if relpath.startswith("/") or ".." in relpath.split("/"):
        raise ConfigurationError(f"evaluator {text!r}: {relpath!r} must be relative to the harness root, without '..'")
    return EvaluatorSpec(
        f"contains:{relpath}",
        file_contains(relpath, needle),
        "custom",
        visibility,
        spec=form,
        direction="higher",
        bounds=(0.0, 1.0),
    )


def _import_callable(text: str, form: str, surfaces: Sequence[Surface]) -> Evaluator:
    module_name, _, path = form.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigurationError(
            f"evaluator {text!r}: module {module_name} cannot be imported ({type(error).__name__}: {error})"
            f"{_did_you_mean(form, surfaces, cutoff=0.8)}"
        ) from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            names = [name for name in dir(found) if callable(getattr(found, name, None))]
            near = difflib.get_close_matches(attribute, names, n=1)
            raise ConfigurationError(
                f"evaluator {text!r}: {module_name} has no {attribute!r}"
                + (f"; did you mean {module_name}:{near[0]}?" if near else "")
            )
        found = getattr(found, attribute)
    if not callable(found):
        raise ConfigurationError(f"evaluator {text!r}: {form} is not callable")
    evaluator: Evaluator = found
    return evaluator


def _did_you_mean(form: str, surfaces: Sequence[Surface], cutoff: float) -> str:
    valid = ["tool-calls", "step", *(f"units:{surface.name}" for surface in surfaces)]
    near = difflib.get_close_matches(form, valid, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def _nearest_form(form: str, surfaces: Sequence[Surface]) -> str:
    near = _did_you_mean(form, surfaces, cutoff=0.6)
    if near:
        return near
    head = difflib.get_close_matches(form.partition(":")[0], ("units", "contains", "tool-calls"), n=1)
    shown = [known for known in _FORMS if head and known.startswith(head[0])]
    return f"; write {', '.join(shown or (*_FORMS, 'package.module:function'))}, with @hidden or @observe behind it"
