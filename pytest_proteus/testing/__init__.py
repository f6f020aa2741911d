"""For people who test their own adapters and suites offline: a scripted model server and its script language.

Nothing in the package imports this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "edit",
    "fail",
    "read",
    "say",
    "shell",
    "use",
    "write",
]


def __getattr__(name: str) -> Any:
    # not imported above: the server is also a program, which must not be imported before it runs
    if name == "ModelServer":
        from pytest_proteus.testing.model_server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
