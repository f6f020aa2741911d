"""Tables, numbers and sentences as plain text: columns that line up, lines that fit, no control characters."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

_GAP = "  "


def number(value: Any) -> str:
    """A number for people, ``-`` for one that is missing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equal length as lines: the first column to the left, the others to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        _GAP.join(
            cell.ljust(widths[column]) if column == 0 else cell.rjust(widths[column]) for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def blocks(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table as lines no longer than ``width``: columns that do not fit follow below, beside the first one again."""
    table = [header, *rows]
    widths = [max(len(printable(row[column])) for row in table) for column in range(len(header))]
    lines: list[str] = []
    column = 1
    while column < len(header):
        end, used = column + 1, widths[0] + len(_GAP) + widths[column]
        while end < len(header) and used + len(_GAP) + widths[end] <= width:
            used += len(_GAP) + widths[end]
            end += 1
        lines += align([[row[0], *row[column:end]] for row in table])
        column = end
    return lines


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """A text as lines of at most ``width`` columns where its words allow it."""
    return textwrap.wrap(
        printable(text), max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def printable(text: str) -> str:
    """Text that moves no cursor: an agent may have had a say in it, and control characters are orders to a terminal."""
    return "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)
