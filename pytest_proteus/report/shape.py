"""Values of a known kind out of artifacts that may hold anything: a report keeps to its schema whatever it reads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from pytest_proteus.core.errors import ProteusError
from pytest_proteus.core.records import plain

#: What reading artifacts that somebody cut, changed or removed may raise.
UNREADABLE = (OSError, ProteusError, ValueError, TypeError, LookupError, AttributeError, RecursionError)

Kind: TypeAlias = Callable[[Any], Any]

_T = TypeVar("_T")
_D = TypeVar("_D")


def text(value: Any) -> str | None:
    """A text; other values as JSON, None for None."""
    return value if value is None or isinstance(value, str) else json.dumps(plain(value))


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def count(value: Any) -> int | None:
    """A whole number of 0 or more, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def flag(value: Any) -> bool | None:
    """True, False or None."""
    return value if isinstance(value, bool) else None


def anything(value: Any) -> Any:
    """The value itself: its shape is somebody else's."""
    return value


def one_of(*known: str) -> Kind:
    """One of a few words, or None."""
    return lambda value: value if isinstance(value, str) and value in known else None


def record_of(**kinds: Kind) -> Kind:
    """A mapping with these fields, or None."""
    return lambda value: fields(value, kinds) if isinstance(value, Mapping) else None


def fields(value: Any, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The named fields of a mapping, each of its kind; null where the mapping does not have them."""
    given = mapping(value)
    return {name: kind(given.get(name)) for name, kind in kinds.items()}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def attempt(read: Callable[[], _T], default: _D, said: str, problems: list[str]) -> _T | _D:
    """What ``read`` returns, or ``default`` and a sentence in ``problems``."""
    try:
        return read()
    except UNREADABLE as error:
        problems.append(f"{said}: {in_words(error)}")
        return default


def in_words(error: BaseException) -> str:
    """An exception as part of a sentence."""
    return f"{type(error).__name__}: {error}"[:300]
