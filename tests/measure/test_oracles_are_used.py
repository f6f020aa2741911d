"""No case with an independent answer goes without the test that asks for it."""

from __future__ import annotations

import re
from pathlib import Path

from measure_oracles import MEASURES


def test_every_measure_of_the_cases_has_a_test():
    asked = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        asked |= set(re.findall(r'cases\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert asked == MEASURES
