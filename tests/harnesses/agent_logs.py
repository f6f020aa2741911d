"""Logs for the tests of their readers: real ones with values exchanged, lines cut and lines that are none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).parent / "data"

OTHERS = [None, True, 7, -1.5, 1e300, "", "text", [], [None], ["text"], {}, {"type": "text"}, [{"text": 3}], [[]]]


def _exchanged(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The value with some of what is in it put into the form of something else."""
    if depth and chance.random() < 0.05:
        return chance.choice(OTHERS)
    if isinstance(value, dict):
        return {key: _exchanged(inner, chance, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_exchanged(inner, chance, depth + 1) for inner in value]
    return value


def _broken(name: str, seed: int, tail: str) -> str:
    chance = random.Random(seed)
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    chosen = sorted(chance.sample(range(len(lines)), min(len(lines), 12)))
    texts = [json.dumps(_exchanged(json.loads(lines[number]), chance)) for number in chosen]
    last = chance.choice(lines)
    return "\n".join([*texts, last[: chance.randrange(len(last))], tail])


def broken_logs(name: str) -> Any:
    """A decorator: the test's argument ``log`` is a broken form of the log ``name``."""
    logs = st.builds(_broken, st.just(name), st.integers(0, 1 << 32), st.text(max_size=5))
    return lambda test: settings(deadline=None, max_examples=300)(given(log=logs)(test))
