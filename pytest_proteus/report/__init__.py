"""The JSON section of a session, its schema, and the texts made from it.

``build`` makes the section from the artifacts on disk, ``models`` is its shape and reads it back, ``terminal`` and
``markdown`` turn it into text. Nothing here runs a cell, decides a gate or imports pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_proteus.report.models import load_report

__all__ = ["load_report"]


def __getattr__(name: str) -> Any:
    """``load_report``, whose module imports pydantic, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_proteus.report import models

    return getattr(models, name)
