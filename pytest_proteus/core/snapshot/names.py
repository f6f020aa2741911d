"""Which names of files and targets of links a snapshot refuses, and how a name is shown to people.

Pure functions of bytes and text.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable

#: Code points that some file systems ignore in names, so that ``.g<U+200C>it`` is ``.git`` there.
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
#: ``.git`` as git itself recognises it on any file system: any case, trailing dots and spaces, streams, 8.3 names.
_GIT = re.compile(r"(\.git|git~1)[ .]*($|[:\\])")
_MODULES = re.compile(r"(\.gitmodules|gitmod~\d+|gi7eb[0-9a-f]*~\d+)[ .]*($|:)")
_STEERING = re.compile(r"(\.git(modules|attributes|ignore)|\.mailmap|git(mod|att|ign)~\d+|gi[0-9a-f]{4}~\d+)[ .]*($|:)")


def shown(path: bytes) -> str:
    """A path as people and records see it: one line of printable text, anything else escaped."""
    text = path.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    out = []
    for char in text:
        if 0xDC80 <= ord(char) <= 0xDCFF:
            out.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif char == "\\":
            out.append("\\\\")
        elif char.isprintable():
            out.append(char)
        else:
            out.append(char.encode("unicode_escape").decode())
    return "".join(out)


def refused(name: bytes, is_link: bool) -> tuple[str, str] | None:
    """(kind, detail) when a name cannot be kept, else None."""
    if name.isascii():
        lower = name.decode().lower()
    else:
        try:
            lower = name.decode("utf-8").translate(_IGNORED).lower()
        except UnicodeDecodeError:
            return "name-not-utf8", "the name is not UTF-8"
    if "git" not in lower and "gi" not in lower and "mailmap" not in lower:
        return None
    for part in lower.split("\\"):
        if _GIT.match(part):
            return "nested-git", "nested git metadata cannot be kept in a snapshot"
        if _MODULES.match(part) or (is_link and _STEERING.match(part)):
            return "nested-git", "git would refuse or obey a file of this name"
    return None


def colliding(names: Iterable[bytes]) -> list[bytes]:
    """Names that another name of the same folder equals on a file system that folds case; sorted, all but the first."""
    ordered = sorted(names)
    if b"".join(ordered).isascii() and len({name.lower() for name in ordered}) == len(ordered):
        return []
    seen: set[str] = set()
    out = []
    for name in ordered:
        folded = unicodedata.normalize("NFKC", os.fsdecode(name)).casefold()
        if folded in seen:
            out.append(name)
        seen.add(folded)
    return out


def link_problem(target: bytes, depth: int) -> str:
    """Why a link whose folder lies ``depth`` folders below the root may not be kept; empty when it may.

    A target is relative, climbs only at its start and never above the root: then nothing that it passes through can
    lead out, other links included, since they obey the same rule.
    """
    if target.startswith(b"/"):
        return "leads to an absolute path"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    if climbs > depth:
        return "leads out of the tree"
    if b".." in parts[climbs:]:
        return "climbs after it has gone down, so where it leads depends on other links"
    return ""


def long_attribute_line(name: bytes, data: bytes) -> bool:
    """Whether git would refuse an attributes file for a line of more than 2,048 bytes."""
    return b"gitattributes" in name.lower() and any(len(line) >= 2048 for line in data.split(b"\n"))
