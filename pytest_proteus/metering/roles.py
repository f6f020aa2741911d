"""What a call is for: development in the foreground, capture of knowledge, or infrastructure, by who made it.

A list of background processes goes before everything else, so that a daemon never counts as the work that is measured.
``roles.json`` in the folder of the store replaces the package's list: role → patterns of names of processes.
"""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError

FOREGROUND = "foreground"

#: Role of the background → names of its processes.
BACKGROUND: Mapping[str, Sequence[str]] = {
    "knowledge": ("consolidator-*", "observation-writer*", "knowledge-*"),
    "infrastructure": ("health-coordinator*", "*-daemon", "*-healthcheck*"),
}

#: Name of the user's list.
NAME = "roles.json"


def read(folder: Path) -> Mapping[str, Sequence[str]]:
    """The list that holds in a folder.

    Raises:
        ConfigurationError: it is not of the form ``{"knowledge": ["name-*"], "infrastructure": []}``.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return BACKGROUND
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict) or not all(
        role in BACKGROUND and isinstance(names, list) and all(isinstance(name, str) for name in names)
        for role, names in value.items()
    ):
        raise ConfigurationError(f'{path}: write {{"knowledge": ["name-*"], "infrastructure": ["other"]}}')
    return value


def role_of(process: str, background: Mapping[str, Sequence[str]] = BACKGROUND) -> str:
    """The role of a process."""
    name = process.partition("/")[0].lower()
    for role, patterns in background.items():
        if any(fnmatch.fnmatchcase(name, pattern.lower()) for pattern in patterns):
            return role
    return FOREGROUND


def canonical(rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Process and model that have the most tokens of the foreground; empty where it has none."""
    weights: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["role"] == FOREGROUND:
            weights[row["process"] or "", row["model"] or ""] += row["total_tokens"] or 1
    return max(weights, key=lambda key: (weights[key], key)) if weights else ("", "")
