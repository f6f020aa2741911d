"""What every translation of an agent's log into ``ActionEvent``s needs: safe reading, bounds, surfaces by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import Surface

#: Longest text, in characters, that an event keeps of one value.
TEXT_LIMIT = 2000

_ITEM_LIMIT = 50
_DEPTH_LIMIT = 5


def open_folder(root: Path, *names: str) -> int | None:
    """A descriptor of the folder at ``root/names…``; None when one of ``names`` is no folder, a link included."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(root, flags)
    except OSError:
        return None
    for name in names:
        try:
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def bounded_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and a note of how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} characters left out]"


def bounded(value: Any, depth: int = 0) -> Any:
    """JSON data with long texts, lists and objects cut, and nothing deeper than five levels."""
    if isinstance(value, str):
        return bounded_text(value)
    if isinstance(value, (dict, list)) and depth >= _DEPTH_LIMIT:
        return "… [deeper levels left out]"
    if isinstance(value, dict):
        items = list(value.items())[:_ITEM_LIMIT]
        return {bounded_text(str(key), 200): bounded(inner, depth + 1) for key, inner in items}
    if isinstance(value, list):
        return [bounded(inner, depth + 1) for inner in value[:_ITEM_LIMIT]]
    return value


def surface_finder(
    harness_root: Path, surfaces: Sequence[Surface], also: Path | None = None
) -> Callable[[str], str | None]:
    """A function from a path, as an agent whose working folder is ``harness_root`` writes it, to the surface it is on.

    The path is read as text alone: links are not followed, and nothing need exist. Of nested surfaces the innermost
    is meant. ``also`` is another tree of the same surfaces.
    """
    trees = [harness_root, *([also] if also else [])]
    roots = [form(tree) for tree in trees for form in (os.path.normpath, os.path.realpath)]
    places = sorted(((os.path.normpath(s.subdir), s.name) for s in surfaces), key=lambda place: -len(place[0]))

    def find(path: str) -> str | None:
        whole = os.path.normpath(os.path.join(roots[0], path))  # noqa: PTH118 - as text: nothing is looked up
        for root in roots:
            if whole.startswith(root + os.sep):
                inside = whole[len(root) + 1 :]
                for place, name in places:
                    if inside == place or inside.startswith(place + os.sep):
                        return name
        return None

    return find
