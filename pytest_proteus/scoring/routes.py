"""How an attempt went about its task: six numbers of its trace, which know nothing of whether it succeeded.

Pure functions of the normalized actions of one episode. They go by the names that agents give to their tools and to
the arguments of these; a tool of another name is a step like any other. Without a trace there is no number.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import EvalResult, EvaluatorSpec, GoalContext, Visibility

#: Form of the evaluators: ``route:<name>``; also their kind.
ROUTE = "route"
#: A block of calls is a loop when it is made so often in a row; blocks of up to so many calls are looked for.
_TIMES, _PERIODS = 3, (1, 2, 3)
#: Calls of other tools after which a tool that was called once counts as abandoned.
_AFTER = 5
#: Seconds after which an agent that did nothing was idle.
IDLE = 300.0

_READS = frozenset({"read", "read_file", "view", "open_file"})
_SHELLS = frozenset({"bash", "shell", "exec_command", "run_shell_command", "execute"})
_PATHS = ("path", "file_path", "filePath", "filename", "absolute_path", "file")
_OLD = ("old_string", "oldString", "oldText", "old_str", "old")
_NEW = ("new_string", "newString", "newText", "new_str", "new")
_CONTENT = ("content", "file_text", "contents", "text")


def path_of(event: ActionEvent) -> str:
    """The path that a call names; empty where it names none."""
    return _first(event.params, _PATHS) or ""


def is_read(event: ActionEvent) -> bool:
    """Whether a call reads a file and does nothing else, by the tool's name."""
    return (event.tool or "").casefold() in _READS


def _calls(trace: Sequence[ActionEvent]) -> list[ActionEvent]:
    return [event for event in trace if event.tool]


def _first(params: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((params[name] for name in names if isinstance(params.get(name), str)), None)


def _signature(event: ActionEvent) -> str:
    return json.dumps([event.tool, event.params], sort_keys=True, default=repr)


def total_step_count(trace: Sequence[ActionEvent]) -> int | None:
    """Calls of tools."""
    return len(_calls(trace)) if trace else None


def loop_count(trace: Sequence[ActionEvent]) -> int | None:
    """Loops: a block of one, two or three calls that is made three times or more in a row, with the same arguments.

    The shortest block counts, from the first call on, and calls of one loop belong to no other.
    """
    if not trace:
        return None
    calls = [_signature(event) for event in _calls(trace)]
    found = at = 0
    while at < len(calls):
        length = next((period * times for period in _PERIODS if (times := _times(calls, at, period)) >= _TIMES), 0)
        found += bool(length)
        at += length or 1
    return found


def _times(calls: Sequence[str], at: int, period: int) -> int:
    """How often in a row the block at a place is made."""
    block, times = calls[at : at + period], 1
    while len(block) == period and calls[at + times * period : at + (times + 1) * period] == block:
        times += 1
    return times


def edit_revert_count(trace: Sequence[ActionEvent]) -> int | None:
    """Edits that are taken back: one that puts back what an earlier edit of the same file took out and takes out what
    that put in, or one that writes a file as an earlier call had written it, with another content between them.

    An edit is taken back once at most.
    """
    if not trace:
        return None
    found = 0
    edits: Counter[tuple[str, str, str]] = Counter()
    written: dict[str, list[str]] = {}
    for event in _calls(trace):
        path, content = _first(event.params, _PATHS), _first(event.params, _CONTENT)
        old, new = _first(event.params, _OLD), _first(event.params, _NEW)
        if path is None:
            continue
        if old is not None and new is not None:
            if edits[path, new, old]:
                edits[path, new, old] -= 1
                found += 1
            else:
                edits[path, old, new] += 1
        elif content is not None and (event.tool or "").casefold() not in _READS:
            earlier = written.setdefault(path, [])
            if content in earlier[:-1] and content != earlier[-1]:
                found += 1
            earlier.append(content)
    return found


def redundant_read_count(trace: Sequence[ActionEvent]) -> int | None:
    """Reads of a file with the same arguments as an earlier read, where no call in between could have changed it.

    A call with the file's path that is no read, and any call of a shell, could.
    """
    if not trace:
        return None
    found = 0
    known: dict[str, set[str]] = {}  # path → reads of it
    for event in _calls(trace):
        tool, path = (event.tool or "").casefold(), _first(event.params, _PATHS)
        if tool in _SHELLS:
            known.clear()
        elif tool in _READS and path is not None:
            reads, signature = known.setdefault(path, set()), _signature(event)
            found += signature in reads
            reads.add(signature)
        elif path is not None:
            known.pop(path, None)
    return found


def abandoned_tool_count(trace: Sequence[ActionEvent]) -> int | None:
    """Tools that were tried once and given up: called once, with five or more calls of others after that."""
    if not trace:
        return None
    tools = [event.tool for event in _calls(trace)]
    often = Counter(tools)
    return sum(often[tool] == 1 and len(tools) - 1 - at >= _AFTER for at, tool in enumerate(tools))


def wallclock_per_step(trace: Sequence[ActionEvent]) -> float | None:
    """Seconds from one action to the next, on average; gaps over five minutes are idle and left out.

    None where fewer than two actions have times, or all of their gaps are idle.
    """
    times = [event.timestamp for event in trace if event.timestamp is not None]
    gaps = [after - before for before, after in itertools.pairwise(times) if 0 <= after - before <= IDLE]
    return sum(gaps) / len(gaps) if gaps else None


#: Name → function; fewer is better for all but the number of steps, which is only more.
ROUTES: Mapping[str, Callable[[Sequence[ActionEvent]], float | None]] = {
    "loop_count": loop_count,
    "edit_revert_count": edit_revert_count,
    "redundant_read_count": redundant_read_count,
    "abandoned_tool_count": abandoned_tool_count,
    "total_step_count": total_step_count,
    "wallclock_per_step": wallclock_per_step,
}


def route_evaluator(form: str, visibility: Visibility) -> EvaluatorSpec:
    """The evaluator ``route:<name>``; without a number its result is an evaluator error, read as missing.

    Raises:
        ConfigurationError: there is no such number.
    """
    name = form.partition(":")[2]
    if name not in ROUTES:
        raise ConfigurationError(f"evaluator {form!r}: write route: and one of {', '.join(ROUTES)}")

    def evaluate(trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        value = ROUTES[name](trace)
        if value is None:
            raise LookupError("the trace does not tell" if trace else "there is no trace")
        return EvalResult(form, float(value))

    evaluate.built_in = True  # type: ignore[attr-defined]
    direction = "neutral" if name == "total_step_count" else "lower"
    return EvaluatorSpec(form, evaluate, ROUTE, visibility, spec=form, direction=direction, bounds=(0.0, None))
