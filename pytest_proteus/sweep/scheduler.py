"""How pytest-xdist hands out a sweep's tests: all tests of one cell to one worker, cells in the order of the plan.

With stock ``load`` two workers meet at one cell and one of them waits. Sessions without a sweep keep stock ``load``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling, LoadScopeScheduling


class CellScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Groups tests by the cell they need; tests that need none, or the whole sweep, stand alone.

    Args:
        config, log: as xdist gives them.
        groups: node id → group.
    """

    def __init__(self, config: pytest.Config, log: Any, groups: Mapping[str, str]) -> None:
        super().__init__(config, log)
        self._groups = groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    def schedule(self) -> None:
        """Distribute without sorting the groups by size: the order of the plan is meant."""
        before = self.config.option.loadscopereorder
        self.config.option.loadscopereorder = False
        try:
            super().schedule()
        finally:
            self.config.option.loadscopereorder = before

    def _reschedule(self, node: Any) -> None:
        """Give a worker more tests; one that takes a dead worker's place gets its first when it has collected.

        A worker begins a test when it knows the next one, or that there is none.
        """
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()

    def remove_node(self, node: Any) -> str | None:
        """As in ``load``, a test whose worker died is not begun again: its cell is lost, which one failure says."""
        for unit in self.assigned_work.get(node, {}).values():
            for nodeid, completed in unit.items():
                if not completed:
                    unit[nodeid] = True
                    super().remove_node(node)
                    return str(nodeid)
        super().remove_node(node)
        return None


class CellOrLoadScheduling:
    """Stock ``load`` or ``CellScheduling``, chosen when the first worker has collected: only then is the plan known."""

    def __init__(self, config: pytest.Config, log: Any, groups: Callable[[], Mapping[str, str]]) -> None:
        self._config = config
        self._log = log
        self._groups = groups
        self._waiting: list[Any] = []
        self._chosen: Any = None

    @property
    def nodes(self) -> list[Any]:
        """Active workers."""
        return self._chosen.nodes if self._chosen else list(self._waiting)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every first worker has collected."""
        return bool(self._chosen and self._chosen.collection_is_completed)

    @property
    def tests_finished(self) -> bool:
        """Whether every test has been handed out and run."""
        return bool(self._chosen and self._chosen.tests_finished)

    @property
    def has_pending(self) -> bool:
        """Whether tests wait or run."""
        return bool(self._chosen and self._chosen.has_pending)

    def add_node(self, node: Any) -> None:
        """A worker is ready."""
        if self._chosen:
            self._chosen.add_node(node)
        else:
            self._waiting.append(node)

    def remove_node(self, node: Any) -> str | None:
        """A worker is gone; the test that it was running, if any."""
        if self._chosen:
            crashed: str | None = self._chosen.remove_node(node)
            return crashed
        self._waiting.remove(node)
        return None

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """A worker has collected."""
        if self._chosen is None:
            groups = self._groups()
            self._chosen = (
                CellScheduling(self._config, self._log, groups) if groups else LoadScheduling(self._config, self._log)
            )
            for waiting in self._waiting:
                self._chosen.add_node(waiting)
        self._chosen.add_node_collection(node, collection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)
