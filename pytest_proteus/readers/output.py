"""What the readers of sweeps print alike."""

from __future__ import annotations

import json
import sys
from typing import Any

from pytest_proteus.report.tables import printable
from pytest_proteus.sweep.finished import FinishedSweep


def tell_gone(sweep: FinishedSweep) -> bool:
    """Say what of the artifacts is not there; whether anything is not."""
    for why in sweep.gone:
        print(f"proteus: {printable(why)}", file=sys.stderr)
    return bool(sweep.gone)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))
