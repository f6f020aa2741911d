"""The hooks that conftests and plugins may implement.

Every name starts with ``pytest_proteus_``. Implementations may leave out arguments that they do not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_proteus.core.adapter import HarnessAdapter
    from pytest_proteus.core.goal import EvaluatorSpec


@pytest.hookspec
def pytest_proteus_register_harnesses(config: pytest.Config) -> Mapping[str, type[HarnessAdapter]]:  # type: ignore[empty-body]
    """Give further harnesses: name → adapter class, or a callable without arguments that makes an adapter."""


@pytest.hookspec
def pytest_proteus_register_evaluators(config: pytest.Config, sweep: str) -> Sequence[EvaluatorSpec | str]:  # type: ignore[empty-body]
    """Give evaluators that are attached to every run of the sweep called ``sweep``.

    A conftest's implementation is asked for the sweeps of its own folder only.
    """


@pytest.hookspec
def pytest_proteus_register_statistics(config: pytest.Config) -> Sequence[Any]:  # type: ignore[empty-body]
    """Give statistics: functions decorated with ``pytest_proteus.statistic(...)``, which become fixtures.

    A conftest's implementation is asked for the modules of its own folder only.
    """


@pytest.hookspec
def pytest_proteus_run_finished(config: pytest.Config, run: Any) -> None:
    """A cell came to its end in this process; ``run`` is what the fixture gives. Not called for reused cells."""


@pytest.hookspec
def pytest_proteus_modify_report(config: pytest.Config, report: dict[str, Any]) -> None:
    """Add to the finished ``proteus`` section, in the controller, before it is written.

    Add plain data, under keys of your own at its top level: the report's schema admits them there and nowhere else.
    """
