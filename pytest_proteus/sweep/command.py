"""The plugin that ``proteus run`` adds to its session: it tells that pytest came to its end, and hides usage errors.

A usage error is one line of the command's own, so what pytest writes is held back until the first test begins.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_proteus.sweep.orphan import end_with_parent

#: File in the root folder that is there once the session has reported.
ENDED = "ended"


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch, in the session's first process only."""
    if not hasattr(config, "workerinput"):
        end_with_parent()
        config.pluginmanager.register(_Session(config), "proteus-cli-session")


class _Held:
    """A stream that keeps what is written until it is released or dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._kept: list[str] | None = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._kept is None:
            return int(self._stream.write(text))
        self._kept.append(text)
        return len(text)

    def release(self) -> None:
        kept, self._kept = self._kept, None
        if kept:
            self._stream.write("".join(kept).encode("utf-8", "backslashreplace").decode())  # names may be no Unicode
            self._stream.flush()


class _Session:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._held: _Held | None = None
        self._is_wrong = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            self._held = terminal._tw._file = _Held(terminal._tw._file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._release()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._is_wrong = exitstatus == pytest.ExitCode.USAGE_ERROR
        self._release()

    def pytest_unconfigure(self) -> None:
        self._release()
        (self._config.rootpath / ENDED).touch()

    def _release(self) -> None:
        if self._held is not None and not self._is_wrong:
            self._held.release()
            self._held = None
