"""What a scripted model says: steps, the conversation they answer, and how a step becomes calls of offered tools.

Knows no wire protocol: see ``wires`` for those and ``model_server`` for the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: What an ``error`` step does beside an HTTP status: never answer; stop in the middle of the answer and stay silent;
#: stop in the middle and reset the connection.
TROUBLES = ("hang", "stall", "drop")

#: Role of a call → names that real agents give to the tool of that role, in the order in which they are looked for.
ROLES: Mapping[str, tuple[str, ...]] = {
    "write": ("write", "write_file", "Write", "create_file", "create", "apply_patch"),
    "edit": ("edit", "replace", "Edit", "str_replace", "edit_file", "apply_patch"),
    "read": ("read", "read_file", "Read", "view", "open_file"),
    "shell": ("bash", "run_shell_command", "Bash", "exec_command", "shell", "local_shell"),
}

#: Meaning of an argument → the names that real tools have for it.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file_path", "filePath", "filepath", "absolute_path", "filename", "file"),
    "content": ("content", "file_text", "contents", "text"),
    "old": ("oldText", "old_string", "oldString", "old_str", "old"),
    "new": ("newText", "new_string", "newString", "new_str", "new"),
    "command": ("command", "cmd"),
}


@dataclass(frozen=True)
class Call:
    """One tool call of a step.

    Args:
        tool: a role of ``ROLES``, or the exact name of a tool.
        arguments: by meaning (``path``, ``content``, ``old``, ``new``, ``command``) or by the tool's own names.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer, as they are served and logged.

    Args:
        input: prompt tokens that came from no cache.
        output: completion tokens, those of ``reasoning`` included.
        cache_read, cache_write: prompt tokens read from and written to a cache; only Anthropic tells the latter.
        reasoning: completion tokens that were reasoning; Anthropic does not tell them.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Step:
    """One answer of the model.

    Args:
        text: what it says; an answer without calls ends the agent's turn.
        calls: tool calls, in one answer.
        thinking: reasoning that goes before.
        error: an HTTP status from 400 on, or one of ``TROUBLES``; 0 for none.
        times: how often the error is served before the conversation goes on with the next step; 0 for ever.
        retry_after: seconds in the ``retry-after`` header of an error; None for no header.
        usage: tokens to be served; None for an estimate from the lengths.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    error: int | str = 0
    times: int = 0
    retry_after: float | None = None
    usage: Usage | None = None

    def __post_init__(self) -> None:
        wrong = self.error not in TROUBLES if isinstance(self.error, str) else self.error and self.error < 400
        if wrong:
            raise ValueError(f"Step: error={self.error!r} is neither a status from 400 on nor one of {TROUBLES}")


@dataclass(frozen=True)
class Conversation:
    """What a request tells of the conversation so far.

    Args:
        wire: ``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``.
        path: path of the request, its prefix included.
        model: name of the model that was asked for.
        system: system text.
        user_texts: texts of the user's messages, those that only carry tool results left out.
        results: texts of all tool results, in order.
        answers: how often the model has answered so far.
        new_answers: how often since the last of ``user_texts``.
        tools: name → JSON schema of its arguments; None for a tool that takes free text.
        stream: whether the answer is to be streamed.
    """

    wire: str
    path: str
    model: str
    system: str = ""
    user_texts: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    answers: int = 0
    new_answers: int = 0
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    stream: bool = False

    @property
    def prompt(self) -> str:
        """The last thing that the user said."""
        return self.user_texts[-1] if self.user_texts else ""


#: Steps for a whole conversation, or a function that gives the steps for what the user has said last, or the one step.
Script: TypeAlias = "Sequence[Step] | Callable[[Conversation], Sequence[Step] | Step]"


def say(text: str, **more: Any) -> Step:
    """A final text; ``more`` are further fields of ``Step``, as in the functions below."""
    return Step(text=text, **more)


def write(path: str, content: str, **more: Any) -> Step:
    """Write a file by whatever tool the agent has for it."""
    return Step(calls=(Call("write", {"path": path, "content": content}),), **more)


def edit(path: str, old: str, new: str, **more: Any) -> Step:
    """Replace one piece of text in a file."""
    return Step(calls=(Call("edit", {"path": path, "old": old, "new": new}),), **more)


def read(path: str, **more: Any) -> Step:
    """Read a file."""
    return Step(calls=(Call("read", {"path": path}),), **more)


def shell(command: str, **more: Any) -> Step:
    """Run a shell command."""
    return Step(calls=(Call("shell", {"command": command}),), **more)


def use(tool: str, **arguments: Any) -> Step:
    """Call a tool by its exact name."""
    return Step(calls=(Call(tool, arguments),))


def both(*steps: Step, **more: Any) -> Step:
    """The calls of several steps in one answer."""
    return Step(calls=tuple(call for step in steps for call in step.calls), **more)


def fail(error: int | str, times: int = 0, retry_after: float | None = None) -> Step:
    """An HTTP error, or one of ``TROUBLES``."""
    return Step(error=error, times=times, retry_after=retry_after)


def choose(script: Script, conversation: Conversation, served: Callable[[int], int]) -> tuple[int, Step]:
    """The step that answers a conversation, and its number in the script.

    The position follows from the conversation alone: it is the number of answers given so far, for a function's steps
    those since the user spoke last. An error is no answer: it is passed over when it has been served often enough.
    Behind the last step comes a short text.

    Args:
        served: number of an error step → how often this conversation has been given it at this place.
    """
    steps = script(conversation) if callable(script) else script
    if isinstance(steps, Step):
        return 0, steps
    left = conversation.new_answers if callable(script) else conversation.answers
    for number, step in enumerate(steps):
        if step.error:
            if left == 0 and (step.times == 0 or served(number) < step.times):
                return number, step
        elif left == 0:
            return number, step
        else:
            left -= 1
    return len(steps), Step(text="Done.")


@dataclass(frozen=True)
class FilledCall:
    """A call of a tool that the request offers.

    Args:
        name: the tool's name.
        arguments: an object for its schema, or the text for a tool that takes free text.
    """

    name: str
    arguments: dict[str, Any] | str


def fill(call: Call, tools: Mapping[str, Mapping[str, Any] | None]) -> FilledCall:
    """A call as the offered tools can take it.

    A role whose tools are not offered is carried out by the shell tool.

    Raises:
        LookupError: neither is offered.
    """
    wanted = dict(call.arguments)
    candidates = ROLES.get(call.tool, (call.tool,))
    name = next((name for name in candidates if name in tools), None)
    if name is None and call.tool in ROLES:
        name = next((name for name in ROLES["shell"] if name in tools), None)
        wanted = {"command": _as_command(call.tool, wanted)}
    if name is None:
        raise LookupError(f"no tool for {call.tool!r} is offered, only {', '.join(tools) or 'none'}")
    schema = tools[name]
    if schema is None:
        return FilledCall(name, _as_patch(wanted) if "path" in wanted else str(next(iter(wanted.values()), "")))
    return FilledCall(name, _object(schema, wanted))


def _object(schema: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not properties:
        return dict(wanted)
    required = set(schema.get("required") or ())
    filled = {}
    for name, inner in properties.items():
        value = _value(name, inner, wanted, name in required)
        if value is not None:
            filled[name] = value
    return filled


def _value(name: str, schema: Mapping[str, Any], wanted: Mapping[str, Any], required: bool) -> Any:
    meaning = next((meaning for meaning, names in _ARGUMENTS.items() if name in names and meaning in wanted), name)
    if meaning in wanted:
        line = meaning == "command" and _kind(schema) == "array" and isinstance(wanted[meaning], str)
        return ["bash", "-lc", wanted[meaning]] if line else wanted[meaning]
    items = schema.get("items")
    if _kind(schema) == "array" and isinstance(items, Mapping) and items.get("properties"):
        inner = _object(items, wanted)
        return [inner] if inner.keys() & set(_ARGUMENTS["old"]) else ([] if required else None)
    return _anything(schema) if required else None


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        kind = next((one for one in kind if one != "null"), "string")
    return str(kind or "string").lower()


def _anything(schema: Mapping[str, Any]) -> Any:
    """A value of the right type for an argument that the script does not speak of."""
    if schema.get("enum"):
        return schema["enum"][0]
    kinds: dict[str, Any] = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}, "null": None}
    return kinds.get(_kind(schema), "as asked")


def _as_command(role: str, wanted: Mapping[str, Any]) -> str:
    """A shell command that does what a role's own tool would do."""
    path = _quoted(str(wanted.get("path", "")))
    if role == "write":
        return f'mkdir -p "$(dirname -- {path})" && printf %s {_quoted(str(wanted.get("content", "")))} > {path}'
    if role == "edit":
        program = "import sys; p, a, b = sys.argv[1:]; t = open(p).read(); open(p, 'w').write(t.replace(a, b, 1))"
        return f"python3 -c {_quoted(program)} {path} {_quoted(str(wanted['old']))} {_quoted(str(wanted['new']))}"
    return f"cat {path}" if role == "read" else str(wanted.get("command", ""))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _as_patch(wanted: Mapping[str, Any]) -> str:
    """A write or an edit in the patch format of ``apply_patch``."""
    if "old" in wanted:
        lines = [f"*** Update File: {wanted['path']}", "@@"]
        lines += [f"-{line}" for line in str(wanted["old"]).splitlines()]
        lines += [f"+{line}" for line in str(wanted["new"]).splitlines()]
    else:
        lines = [f"*** Add File: {wanted['path']}"]
        lines += [f"+{line}" for line in str(wanted.get("content", "")).splitlines()]
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])
