"""What tests of the rung bwrap share: whether it can be used here, and a Python for the subject."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_proteus.sandbox import BwrapSandbox, Limits, Outcome, choose

MISSING = choose("bwrap").preflight()

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}

#: A Python that a box holds: one below /usr.
PYTHON = shutil.which("python3", path=ENVIRONMENT["PATH"])

needs_bwrap = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")
needs_python = pytest.mark.skipif(PYTHON is None, reason="there is no python3 below /usr for the subject")

#: Before every program of a hostile subject: ``tried(call)`` is the name of the error, or "did it".
PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys, time
def tried(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "did it"
def write(path):
    with open(path, "a") as file:
        file.write("x")
def read(path):
    with open(path) as file:
        file.read()
def libc(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def show(value):
    print(json.dumps(value), flush=True)
"""


def marked(token: str) -> list[psutil.Process]:
    """The processes with that word on their command line; what has ended has none."""
    return [process for process in psutil.process_iter(["cmdline"]) if token in (process.info["cmdline"] or [])]


def subject(code: str, *arguments: object, cwd: Path, limits: Limits | None = None, **more: Any) -> Outcome:
    """Run a hostile program in a box whose only writable folder, if ``more`` says nothing else, is ``cwd``."""
    assert PYTHON
    more.setdefault("env", ENVIRONMENT)
    more.setdefault("timeout", 60.0)
    command = [PYTHON, "-c", PRELUDE + code, *map(str, arguments)]
    return BwrapSandbox(limits=limits).launch(command, cwd=cwd, **more)


def shown(outcome: Outcome) -> Any:
    """The value that the program has shown."""
    assert outcome.stdout, outcome
    return json.loads(outcome.stdout.splitlines()[-1])


def stand_in(world: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program on ``PATH`` that says what bubblewrap says where the kernel refuses it."""
    program = world / "bin" / "bwrap"
    program.parent.mkdir()
    program.parent.chmod(0o755)
    program.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo 0.9.0; exit; fi\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
