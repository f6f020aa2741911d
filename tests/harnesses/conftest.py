"""A folder outside of pytest's own: where runs of agents live."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def root():
    """A live root whose path, unlike pytest's own, spells nothing, and that the user of boxes of root gets through."""
    folder = Path(tempfile.mkdtemp(prefix="live-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
