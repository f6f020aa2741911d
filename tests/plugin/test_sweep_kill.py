"""SIGKILL of everything at a random instant costs no complete episode and changes no result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kill_sessions import EPISODES, storm


@pytest.mark.parametrize(("workers", "kills"), [(0, 30), (2, 10)])
def test_a_killed_session_ends_like_an_uninterrupted_one(workers, kills):
    counts = storm(kills, workers, seed=kills)
    assert any(0 < count < EPISODES for count in counts), counts
