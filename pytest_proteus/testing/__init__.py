"""For people who test their own adapters and suites offline: a scripted model server and its script language, and the
checks of ``proteus check`` as a function.

Nothing in the package imports this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_proteus.harnesses.conformance import check
from pytest_proteus.testing.script import (
    Call,
    Conversation,
    Script,
    Step,
    Usage,
    both,
    edit,
    fail,
    read,
    say,
    shell,
    use,
    write,
)

if TYPE_CHECKING:
    from pytest_proteus.testing.model_server import ModelServer

__all__ = [
    "Call",
    "Conversation",
    "ModelServer",
    "Script",
    "Step",
    "Usage",
    "both",
    "check_adapter",
    "edit",
    "fail",
    "read",
    "say",
    "shell",
    "use",
    "write",
]


def check_adapter(adapter: Any, *, episode: bool = False, verbose: bool = True) -> list[str]:
    """Whether a harness adapter keeps the contract.

    Args:
        adapter: the adapter.
        episode: also run one neutral episode, which may cost money.
        verbose: print a line a check.

    Returns:
        What to change, one sentence for each check that fails.
    """
    found = check(adapter, episode=episode)
    for one in found if verbose else ():
        print(one)
    return [f"{one.name}: {one.advice}" for one in found if not one.ok]


def __getattr__(name: str) -> Any:
    # not imported above: the server is also a program, which must not be imported before it runs
    if name == "ModelServer":
        from pytest_proteus.testing.model_server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
