"""Cases whose answers were computed by other means; each says how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_CASES = json.loads((Path(__file__).parent / "data" / "statistics.json").read_text())["cases"]


def cases(measure: str) -> list[Any]:
    """Parameters (inputs, expected) of a measure's cases, for ``pytest.mark.parametrize``."""
    return [pytest.param(c["inputs"], c["expected"], id=c["id"]) for c in _CASES if c["measure"] == measure]


#: All measures that there are cases of.
MEASURES = {c["measure"] for c in _CASES}
