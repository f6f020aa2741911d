"""The units of a harness's surfaces, and how two states differ in them.

A unit is a file, a top-level folder with all its members, or a top-level definition of Python code, as its surface
declares. Its digest is made of bytes: an edit that changes only line ends or invalid characters is a revision.
Links count as themselves and are never followed; ``__pycache__`` and ``.pyc`` files are not counted. Nothing here is
executed: code is parsed at most, and code that does not parse is one unit that says so.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.snapshot.names import shown
from pytest_proteus.core.snapshot.objects import EMPTY, LINK, Entry, Node, differences
from pytest_proteus.core.snapshot.scan import Limits, Scanner, reader

if TYPE_CHECKING:
    from pytest_proteus.core.snapshot.scan import Scan

UnitTable = dict[str, str]
Read = Callable[[bytes], bytes]
_Change = tuple[bytes, Entry | None, Entry | None]

#: Python files that are larger, or nest brackets deeper, or (before 3.12) have more braces are not parsed: with more of
#: them Python 3.10's parser can be made to crash the process, and 3.11's to take half a minute for one string.
PARSED_BYTES, PARSED_NESTING, PARSED_BRACES = 64 << 10, 80, 4000
_REMEMBERED_FILES = 1 << 16

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_BRACKETS = re.compile(rb"[()\[\]{}]")
_definitions: dict[bytes, tuple[tuple[str, str], ...] | None] = {}
_warnings_lock = threading.Lock()


@dataclass(frozen=True)
class SurfaceDelta:
    """How one surface differs between two states, or along a path of states, in numbers of units."""

    surface: str
    added: int
    dropped: int
    revised: int
    unchanged: int

    @property
    def union(self) -> int:
        """Units that are in either state; at least 0."""
        return self.added + self.dropped + self.revised + self.unchanged

    @property
    def distance(self) -> float:
        """Share of the union that differs, 0 (equal, or both empty) to 1 (nothing in common): larger is farther."""
        return (self.added + self.dropped + self.revised) / self.union if self.union else 0.0

    @property
    def churn(self) -> float | None:
        """Share of the differing units that replaced or removed something, 0 (pure growth) to 1; None: none differ."""
        moved = self.added + self.dropped + self.revised
        return (self.dropped + self.revised) / moved if moved else None


def delta(a: Mapping[str, str], b: Mapping[str, str], surface: str) -> SurfaceDelta:
    """What changes from table ``a`` to table ``b`` of a surface; units are matched by name."""
    if a is b:
        return SurfaceDelta(surface, 0, 0, 0, len(a))
    unchanged = revised = 0
    for name, digest in b.items():
        was = a.get(name)
        if was == digest:
            unchanged += 1
        elif was is not None:
            revised += 1
    common = unchanged + revised
    return SurfaceDelta(surface, len(b) - common, len(a) - common, revised, unchanged)


# -- definitions -------------------------------------------------------------------------------------------------------


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parse_python(data: bytes) -> ast.Module | None:
    """The module, or None when this is not Python, or not for a parser."""
    if len(data) > PARSED_BYTES or (sys.version_info < (3, 12) and data.count(b"{") > PARSED_BRACES):
        return None
    depth = deepest = 0
    for bracket in _BRACKETS.findall(data):
        depth += 1 if bracket in b"([{" else -1
        deepest = max(deepest, depth)
    if deepest > PARSED_NESTING:
        return None
    text = data.decode("utf-8-sig", "replace")
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _split(data: bytes) -> tuple[tuple[str, str], ...] | None:
    """(name, digest) of a module's top-level functions and classes, and ``<module>`` for all other lines."""
    module = parse_python(data)
    if module is None:
        return None
    lines = _LINES.findall(data)
    bodies: dict[str, list[bytes]] = {}
    rest, at = [], 0
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            start, end = node.lineno - 1, node.end_lineno or node.lineno
            bodies.setdefault(node.name, []).extend(lines[start:end])
            rest += lines[at:start]
            at = max(at, end)
    rest += lines[at:]
    out = [(name, _digest(b"".join(body))) for name, body in bodies.items()]
    remainder = b"".join(rest)
    if remainder.strip():
        out.append(("<module>", _digest(remainder)))
    return tuple(out)


def _split_once(oid: bytes, read: Read) -> tuple[tuple[str, str], ...] | None:
    """``_split`` of a stored file, remembered by its id for every run of this process."""
    if oid not in _definitions:
        if len(_definitions) >= _REMEMBERED_FILES:
            _definitions.clear()
        _definitions[oid] = _split(read(oid))
    return _definitions[oid]


# -- tables ------------------------------------------------------------------------------------------------------------


def _token(entry: Entry) -> str:
    return f"link:{entry.oid.hex()}" if entry.mode == LINK else entry.oid.hex()


def _counted(path: bytes) -> bool:
    return not path.endswith(b".pyc") and (b"__pycache__" not in path or b"__pycache__" not in path.split(b"/"))


def _units_of_file(unit: str, name: bytes, entry: Entry, read: Read) -> list[tuple[str, str]]:
    """(unit, digest) of one file of a surface of files or definitions."""
    label, token = shown(name), _token(entry)
    if unit == "file":
        return [(label, token)]
    if entry.mode == LINK:
        return [(f"{label}::<link>", token)]
    if not name.endswith(b".py"):
        return [(f"{label}::<module>", token)] if entry.size else []
    found = _split_once(entry.oid, read)
    if found is None:
        return [(label, f"unparsable:{token}")]
    return [(f"{label}::{name}", digest) for name, digest in found]


class _Table:
    """The units of one surface, brought along by changes. A table that was given out is never changed."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        subdir = os.fsencode(surface.subdir).strip(b"/")
        parts = [part for part in subdir.split(b"/") if part != b"."]
        self.place = b"/".join(parts)
        self.prefix = self.place + b"/" if self.place else b""
        self.units: UnitTable = {}
        self._of_file: dict[bytes, list[str]] = {}
        self._folders: dict[bytes, dict[bytes, str]] = {}

    def _name(self, path: bytes) -> bytes | None:
        """A path relative to the surface (the last part of it for a surface that is a file); None outside."""
        if path.startswith(self.prefix):
            return path[len(self.prefix) :] if _counted(path) else None
        return self.place.rpartition(b"/")[2] if path == self.place else None

    def apply(self, changes: Iterable[_Change], read: Read) -> None:
        """Bring the table along."""
        mine = [(name, old, new) for path, old, new in changes if (name := self._name(path)) is not None]
        if not mine:
            return
        self.units = dict(self.units)
        if self.surface.unit == "directory":
            self._apply_folders(mine)
            return
        for name, _, _ in mine:
            for unit in self._of_file.pop(name, ()):
                self.units.pop(unit, None)
        for name, _, new in mine:
            if new is not None:
                found = _units_of_file(self.surface.unit, name, new, read)
                self._of_file[name] = [unit for unit, _ in found]
                self.units.update(found)

    def _apply_folders(self, mine: list[_Change]) -> None:
        touched = set()
        for name, _, new in mine:
            folder = name.partition(b"/")[0]
            members = self._folders.setdefault(folder, {})
            if new is None:
                members.pop(name, None)
            else:
                members[name] = _token(new)
            touched.add(folder)
        for folder in touched:
            members = self._folders[folder]
            if members:
                rows = [b"%s\0%s\n" % (name, token.encode()) for name, token in sorted(members.items())]
                self.units[shown(folder)] = _digest(b"".join(rows))
            else:
                del self._folders[folder]
                self.units.pop(shown(folder), None)


class UnitTables:
    """The units of all surfaces of one run, kept up to date by what changed.

    Args:
        surfaces: the declared surfaces.
        read: content of a blob, for a scan's blobs while they are not stored.
    """

    def __init__(self, surfaces: Sequence[Surface], read: Read) -> None:
        self._surfaces = tuple(surfaces)
        self._read = read
        self._tables = [_Table(surface) for surface in self._surfaces]
        self._node = EMPTY

    def update(self, scan: Scan) -> dict[str, UnitTable]:
        """Surface → table of what a scan saw. Only what changed since the last call is looked at.

        The tables are not changed by later calls; do not change them either.
        """
        if scan.base_node is self._node and scan.node is not self._node:
            return self._apply(scan.node, scan.changes, scan.read)
        return self.move_to(scan.node, scan.read)

    def move_to(self, node: Node, read: Read | None = None) -> dict[str, UnitTable]:
        """Surface → table of a tree."""
        return self._apply(node, list(differences(self._node, node)), read or self._read)

    def move_by(self, changes: Sequence[_Change]) -> dict[str, UnitTable]:
        """Surface → table of the tree that changes lead to; for a history that is gone through by changes alone."""
        return self._apply(self._node, changes, self._read)

    def _apply(self, node: Node, changes: Sequence[_Change], read: Read) -> dict[str, UnitTable]:
        self._node = node
        if changes:
            for table in self._tables:
                table.apply(changes, read)
        return {table.surface.name: table.units for table in self._tables}

    def from_entries(self, entries: Mapping[bytes, Entry], read: Read | None = None) -> dict[str, UnitTable]:
        """Surface → table of any tree, given as path → entry; what ``update`` remembers stays as it is."""
        tables = [_Table(surface) for surface in self._surfaces]
        changes: list[_Change] = [(path, None, entry) for path, entry in entries.items()]
        for table in tables:
            table.apply(changes, read or self._read)
        return {table.surface.name: table.units for table in tables}


def units(harness_root: Path, surfaces: Sequence[Surface]) -> dict[str, UnitTable]:
    """Surface → table of a folder on disk: the same as of a snapshot of it.

    A folder or surface that does not exist has no units. What is neither file nor link is not counted.
    """
    unlimited = Limits(entries=1 << 30, file_bytes=1 << 31, tree_bytes=1 << 40, depth=200)
    scanner = Scanner(os.fsencode(harness_root), _never, unlimited, paranoid=True, racy_ns=0, lenient=True)
    node, _ = scanner.walk()
    tables = UnitTables(surfaces, reader(scanner.pending, _nothing)).move_to(node)
    return {name: dict(sorted(table.items())) for name, table in tables.items()}


def _never(oid: bytes) -> bool:
    return False


def _nothing(oid: bytes) -> bytes:
    raise KeyError(oid)
