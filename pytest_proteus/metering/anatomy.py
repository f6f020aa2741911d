"""What the context of a call is made of, in bytes: nothing of its texts is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Parts of a context: the instructions, the descriptions of tools, what was said before, what tools gave back, and the
#: last that the user said.
PARTS = ("system", "tools", "history", "tool_outputs", "user_input")


def anatomy(wire: str, body: bytes) -> dict[str, int] | None:
    """Part → bytes of a request, as JSON without the escapes; None for one that is not of its wire's form."""
    try:
        value = json.loads(body)
        items = [item for item in _items(wire, value) if item[1]]
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
        return None
    sizes = dict.fromkeys(PARTS, 0)
    last = max((number for number, (part, _) in enumerate(items) if part == "user"), default=-1)
    for number, (part, content) in enumerate(items):
        place = part if part != "user" else "user_input" if number == last else "history"
        sizes[place] += _size(content)
    return sizes


def _items(wire: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a request in order; what users said is ``user``."""
    yield "tools", value.get("tools")
    if wire == "gemini":
        yield "system", value.get("systemInstruction")
        for content in value.get("contents") or ():
            for part in content.get("parts") or ():
                spoken = "history" if content.get("role") == "model" else "user"
                yield "tool_outputs" if "functionResponse" in part else spoken, part
        return
    yield "system", value.get("system") if wire == "anthropic" else value.get("instructions")
    given = value.get("messages") if wire != "openai-responses" else value.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given or ():
        role = item.get("role")
        if role == "tool" or str(item.get("type", "")).endswith("_output"):
            yield "tool_outputs", item
        elif role in ("system", "developer"):
            yield "system", item.get("content")
        elif role == "user":
            content = item.get("content")
            for part in [content] if isinstance(content, str) else content or ():
                is_result = isinstance(part, dict) and part.get("type") == "tool_result"
                yield "tool_outputs" if is_result else "user", part
        else:
            yield "history", item


def _size(content: Any) -> int:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))
