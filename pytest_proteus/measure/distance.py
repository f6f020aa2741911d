"""How far harnesses are from each other, and how far one travelled, in units of their declared surfaces.

Counts of added, dropped, revised and unchanged units; no weighting and no judgement of quality. States are folders
on disk, or the checkpoints of a run, whose tables are made from object ids without writing anything out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from pytest_proteus.core.adapter import Surface
from pytest_proteus.core.snapshot import Reader, git_dir_of
from pytest_proteus.core.units import SurfaceDelta, UnitTable, UnitTables, delta, units

__all__ = ["SurfaceDelta", "compare", "delta", "path_length", "path_length_of_run", "units"]


def compare(root_a: Path, root_b: Path, surfaces: Sequence[Surface]) -> dict[str, SurfaceDelta]:
    """Surface → what changes from the harness at ``root_a`` to the one at ``root_b``."""
    a, b = units(root_a, surfaces), units(root_b, surfaces)
    return {surface.name: delta(a[surface.name], b[surface.name], surface.name) for surface in surfaces}


def path_length(states: Sequence[Path], surfaces: Sequence[Surface]) -> dict[str, SurfaceDelta]:
    """Surface → the sum of the changes from each state to the next.

    Larger is more movement; a unit that changes back and forth counts every time. Fewer than two states have not
    moved: all counts are 0.
    """
    return _along((units(state, surfaces) for state in states), surfaces)


def path_length_of_run(
    work_tree: Path, surfaces: Sequence[Surface], episodes: int | None = None
) -> dict[str, SurfaceDelta]:
    """``path_length`` over all checkpoints of a run, episode 0 included; rejected candidates are no states of it.

    Args:
        work_tree: the run's harness folder, ``<root>/harness``; only the repository beside it has to exist.
        surfaces: the declared surfaces.
        episodes: how many of them, the first ones; all by default.

    Raises:
        SnapshotError: the repository is damaged.
    """
    reader = Reader(git_dir_of(work_tree))
    try:
        tables = UnitTables(surfaces, reader.read_blob)
        return _along(
            map(tables.move_by, islice(reader.changes(), None if episodes is None else episodes + 1)), surfaces
        )
    finally:
        reader.close()


def _along(states: Iterable[dict[str, UnitTable]], surfaces: Sequence[Surface]) -> dict[str, SurfaceDelta]:
    sums = {surface.name: SurfaceDelta(surface.name, 0, 0, 0, 0) for surface in surfaces}
    before: dict[str, UnitTable] = {}
    for state in states:
        for name in before:
            total, step = sums[name], delta(before[name], state[name], name)
            sums[name] = SurfaceDelta(
                name,
                total.added + step.added,
                total.dropped + step.dropped,
                total.revised + step.revised,
                total.unchanged + step.unchanged,
            )
        before = state
    return sums
