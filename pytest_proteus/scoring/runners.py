"""What test runners report: which runner a command starts, and how many tests passed, failed and were skipped.

Pure functions of texts that a hostile subject may have written: bounded, and never executed. A report counts only when
the runner came to its end; what stops in the middle has none.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

#: Longest report that is read, in characters.
LIMIT = 16 << 20


@dataclass(frozen=True)
class Counts:
    """How the tests of one command ended: numbers of tests."""

    passed: int
    failed: int
    skipped: int = 0


def runner_of(argv: Sequence[str]) -> str:
    """The runner that a command starts: ``pytest``, ``unittest``, ``node``, ``go``, ``cargo``; empty for another."""
    name = re.sub(r"(\d+(\.\d+)*)?(\.exe)?$", "", PurePosixPath(argv[0]).name)
    rest = list(argv[1:])
    if name in ("python", "pypy"):
        module = rest[rest.index("-m") + 1] if "-m" in rest[:-1] else ""
        return module if module in ("pytest", "unittest") else ""
    if name in ("pytest", "py.test"):
        return "pytest"
    if name == "node" and "--test" in rest:
        return "node"
    return name if name in ("go", "cargo") and rest[:1] == ["test"] else ""


def with_report(argv: Sequence[str], runner: str, report: str) -> list[str]:
    """The command with what makes its runner report: pytest writes JUnit XML to ``report``, go prints JSON."""
    if runner == "pytest":
        return [*argv, "-p", "no:cacheprovider", f"--junitxml={report}"]
    if runner == "go":
        return [argv[0], "test", "-json", *argv[2:]]
    if runner == "node":
        return [argv[0], "--test-reporter=tap", *argv[1:]]
    return list(argv)


def counts_of(runner: str, stdout: str, stderr: str, report: str) -> Counts | None:
    """What the runner says of its tests; None where it does not say that it came to its end.

    Args:
        runner: see ``runner_of``.
        stdout, stderr: what it wrote; the middle may be left out.
        report: the file that it was told to write; empty where it wrote none.
    """
    readers: Mapping[str, Callable[[], Counts | None]] = {
        "pytest": lambda: junit(report),
        "unittest": lambda: unittest(stderr),
        "node": lambda: node(stdout),
        "go": lambda: go(stdout),
        "cargo": lambda: cargo(stdout),
    }
    return readers[runner]() if runner in readers else None


def junit(text: str) -> Counts | None:
    """A JUnit XML report; one with declarations of its own, which could swell, is none."""
    if not text or len(text) > LIMIT or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        top = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return None
    suites = [top] if top.tag == "testsuite" else top.findall("testsuite") if top.tag == "testsuites" else []
    if not suites:
        return None
    numbers = [[_whole(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")] for suite in suites]
    if any(number is None for row in numbers for number in row[:3]):
        return None
    tests, failures, errors, skipped = (sum(row[column] or 0 for row in numbers) for column in range(4))
    return Counts(max(tests - failures - errors - skipped, 0), failures + errors, skipped)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


_UNITTEST = re.compile(
    r"^Ran (\d{1,9}) tests? in [\d.]+s\s*\n\s*\n(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]*)\))?\s*\Z", re.M
)


def unittest(stderr: str) -> Counts | None:
    """The last lines of ``python -m unittest``: nothing may follow them."""
    found = _UNITTEST.search(stderr[-4096:])
    if found is None:
        return None
    told = dict(re.findall(r"([a-z ]+)=(\d{1,9})", found[3] or ""))
    named = {name.strip(): int(number) for name, number in told.items()}
    failed = named.get("failures", 0) + named.get("errors", 0) + named.get("unexpected successes", 0)
    skipped = named.get("skipped", 0) + named.get("expected failures", 0)
    return Counts(max(int(found[1]) - failed - skipped, 0), failed, skipped)


_NODE_FILE = re.compile(r"^ok \d+ - /.*\.[cm]?[jt]sx?$", re.M)


def node(stdout: str) -> Counts | None:
    """The summary at the end of TAP as node's runner writes it; none where a file ended without having told a test.

    Such a file stands for a test of its own, by its path, and passes whatever its tests would have said.
    """
    if _NODE_FILE.search(stdout):
        return None
    found = dict(re.findall(r"^# (tests|pass|fail|cancelled|skipped|todo) (\d{1,9})$", stdout[-4096:], re.M))
    if not {"tests", "pass", "fail"} <= found.keys():
        return None
    number = {name: int(text) for name, text in found.items()}
    return Counts(
        number["pass"], number["fail"] + number.get("cancelled", 0), number.get("skipped", 0) + number.get("todo", 0)
    )


def go(stdout: str) -> Counts | None:
    """The events of ``go test -json``, if every package that began came to its end."""
    ends: dict[tuple[str, str], str] = {}
    packages: set[str] = set()
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict) or not isinstance(event.get("Package"), str):
            continue
        packages.add(event["Package"])
        if event.get("Action") in ("pass", "fail", "skip"):
            ends[event["Package"], str(event.get("Test") or "")] = event["Action"]
    if not packages or any((package, "") not in ends for package in packages):
        return None
    tests = [action for (_, test), action in ends.items() if test]
    return Counts(tests.count("pass"), tests.count("fail"), tests.count("skip"))


_CARGO = re.compile(r"^test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;", re.M)
_CARGO_BEGAN = re.compile(r"^running \d{1,9} tests?$", re.M)


def cargo(stdout: str) -> Counts | None:
    """The lines of results of ``cargo test``, if every binary that began to run tests has one."""
    found = [[int(number) for number in match] for match in _CARGO.findall(stdout)]
    if not found or len(found) < len(_CARGO_BEGAN.findall(stdout)):
        return None
    passed, failed, ignored = (sum(row[column] for row in found) for column in range(3))
    return Counts(passed, failed, ignored)
