"""Evidence of what an attempt at a task came to: what the agent changed, and what the objective test command says.

The command runs in a copy of what the agent left, in a sandbox, after everything that steers the tests has been put
back as the repository has it. Its exit status decides; one of 0 counts only with the runner's own report that tests
passed. What runs in the tests' own process can still lie about them: see docs/comparison.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.evaluators import read_confined
from pytest_proteus.core.goal import EvalResult, EvaluatorSpec, GoalContext
from pytest_proteus.core.snapshot import SnapshotStore
from pytest_proteus.core.snapshot.names import shown
from pytest_proteus.core.snapshot.objects import LINK, Entry
from pytest_proteus.core.trees import remove
from pytest_proteus.sandbox import Outcome, Sandbox, let_in, open_folders
from pytest_proteus.sandbox.none import SupervisorLost
from pytest_proteus.scoring import TESTS, runners
from pytest_proteus.scoring.repository import Member, TaskRepository, put

#: Kind of the evaluator that a test command becomes.
GATE = "gate"
#: Seconds that a test command may take.
TIMEOUT = 600.0
#: Files and lines of a diffstat that are listed; the sums are of all.
_LISTED, _LINES = 200, 50_000
_OUTPUT = 4 << 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = re.compile(r"[|&;<>`$\n\0]")

#: Files that are tests or that steer a runner, by name: they count as the repository has them, and no others do.
_STEERING = re.compile(
    r"conftest\.py|(site|user)customize\.py|.*\.pth|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|noxfile\.py"
    r"|test_.*\.py|.*_test\.py|tests?\.py|.*_test\.go|.*\.(test|spec)\.[cm]?[jt]sx?|test\.[cm]?[jt]s|package\.json|\.npmrc"
    r"|(jest|vitest|mocha|babel)\b.*\.[cm]?[jt]s(on)?|\.mocharc.*|makefile|\.coveragerc|build\.rs",
    re.IGNORECASE,
)
_STEERING_FOLDERS = frozenset(
    {"tests", "test", "__tests__", "testing", "testdata", ".cargo", "node_modules", ".venv", "venv"}
)


# --- what was changed -------------------------------------------------------------------------------------------------


def diffstat(
    before: Mapping[bytes, Entry], after: Mapping[bytes, Entry], read: Callable[[bytes], bytes]
) -> dict[str, Any]:
    """What differs between two trees, new files included.

    Args:
        before, after: path → entry, as snapshots have them.
        read: content of an object id.

    Returns:
        ``files`` (``path``, ``status`` A, M or D, ``added`` and ``deleted`` lines, None where they are not counted: a
        binary or very large file; a line that only moved is neither), the number of ``changed`` files, and ``added``
        and ``deleted`` lines over all that are counted.
    """
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    files, added, deleted = [], 0, 0
    for path in changed:
        old, new = before.get(path), after.get(path)
        plus, minus = _lines(_text(old, read), _text(new, read))
        added, deleted = added + (plus or 0), deleted + (minus or 0)
        status = "A" if old is None else "D" if new is None else "M"
        files.append({"path": shown(path), "status": status, "added": plus, "deleted": minus})
    return {"files": files[:_LISTED], "changed": len(changed), "added": added, "deleted": deleted}


def _text(entry: Entry | None, read: Callable[[bytes], bytes]) -> list[str] | None:
    """The lines of a file, None where they are not to be counted."""
    if entry is None:
        return []
    data = read(entry.oid)
    if b"\0" in data[:8192] or data.count(b"\n") > _LINES:
        return None
    return data.decode("utf-8", "replace").splitlines()


def _lines(old: list[str] | None, new: list[str] | None) -> tuple[int | None, int | None]:
    """Lines that only one side has; a line that moved counts on neither, and no file makes this take long."""
    if old is None or new is None:
        return None, None
    was, now = Counter(old), Counter(new)
    return sum((now - was).values()), sum((was - now).values())


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that the user of boxes can get to, and that is removed afterwards."""
    folder = let_in(Path(tempfile.mkdtemp(prefix="ws-", dir=next(iter(open_folders()), None))))
    try:
        yield folder
    finally:
        remove(folder)


def changes(repository: TaskRepository, tree: Path, folder: Path) -> dict[str, Any]:
    """The diffstat between what the agent got and the tree that it left.

    Args:
        repository: what it got.
        tree: what it left.
        folder: an empty folder for the objects.
    """
    before = repository.entries()
    contents = {entry.oid: data for entry, (_, _, data) in zip(before.values(), repository.members, strict=True)}
    with contextlib.closing(SnapshotStore.create_or_open(tree, folder / "objects.git")) as store:
        scan = store.scan()

        def read(oid: bytes) -> bytes:
            return contents[oid] if oid in contents else scan.read(oid)

        return diffstat(before, dict(scan.entries), read)


# --- the gate ---------------------------------------------------------------------------------------------------------


def check_command(argv: Any, where: str) -> tuple[str, ...]:
    """A test command as the words that are run.

    Raises:
        ConfigurationError: it is no list of words, is empty, or has words that only a shell would understand.
    """
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not argv or not all(isinstance(w, str) for w in argv):
        raise ConfigurationError(
            f"{where}: test_command={argv!r} must be a list of words, such as ['python', '-m', 'pytest', '-q']"
        )
    for word in argv:
        if _SHELL.search(word) or not word:
            raise ConfigurationError(
                f"{where}: test_command: {word!r} has a character of the shell, and none runs it; put the line into a "
                f"script of the repository and write ['bash', 'script.sh']"
            )
    return tuple(argv)


def is_steering(path: str) -> bool:
    """Whether a file is a test, or steers the runner of tests, by its name or by a folder that it lies in."""
    *folders, name = PurePosixPath(path).parts
    return bool(_STEERING.fullmatch(name)) or any(folder.casefold() in _STEERING_FOLDERS for folder in folders)


def _shadows(path: str, known: frozenset[str]) -> bool:
    """Whether a file at the top of a tree takes the place of a module that a runner of tests imports."""
    name = PurePosixPath(path).parts[0].removesuffix(".py")
    return name in known


#: What a new module at the top of a tree may not be called: it would be imported in place of the runner's.
_MODULES = frozenset(sys.stdlib_module_names) | {
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "py",
}


def restore(tree: Path, repository: TaskRepository, held_out: Sequence[Member] = ()) -> list[str]:
    """Put back all that steers the tests of a tree: edited and deleted files, planted ones, and held-out tests.

    Args:
        tree: a copy of what the agent left; no process of it is alive.
        repository: what it got.
        held_out: tests that it never saw.

    Returns:
        What of the agent's doing that took away, as paths.
    """
    wanted = {path: (mode, data) for path, mode, data in repository.members if is_steering(path)}
    wanted |= {path: (mode, data) for path, mode, data in held_out}
    original = {path for path, _, _ in repository.members}
    undone = []
    for path in _files(tree):
        planted = path not in original and (is_steering(path) or _shadows(path, _MODULES))
        if path not in wanted and planted:
            remove(tree / path)
            undone.append(path)
    for path, (mode, data) in wanted.items():
        if not _is(tree, path, mode, data):
            put(tree, path, mode, data)
            undone.append(path)
    return sorted(undone)


def _files(tree: Path) -> list[str]:
    """Every file and link below a folder, relative to it."""
    found = []
    for here, folders, names in os.walk(tree):
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        found += [(Path(here) / name).relative_to(tree).as_posix() for name in (*names, *links)]
    return found


def _is(tree: Path, path: str, mode: int, data: bytes) -> bool:
    """Whether a member stands in a tree as it should, with no link on the way."""
    target = tree / path
    if any(parent.is_symlink() for parent in target.parents if parent != tree and parent.is_relative_to(tree)):
        return False
    try:
        if mode == LINK:
            return target.is_symlink() and os.fsencode(target.readlink()) == data
        seen = target.lstat()
        return (
            not target.is_symlink()
            and target.is_file()
            and seen.st_size == len(data)
            and bool(seen.st_mode & 0o100) == (mode == 0o755)
            and target.read_bytes() == data
        )
    except OSError:
        return False


@dataclass(frozen=True)
class Verdict:
    """What a test command says.

    Args:
        gate: ``passed`` or ``failed``.
        reason: why, in one sentence.
        exit_status: of the command; None where it was stopped.
        counts: the runner's own, None where it told none.
        runner: which it was; empty for an unknown one, whose exit status alone decides.
        seconds: wall time.
        undone: files of the agent's that were put back or taken away before.
    """

    gate: str
    reason: str
    exit_status: int | None
    counts: runners.Counts | None
    runner: str
    seconds: float
    undone: tuple[str, ...] = ()


class TestCommand:
    """The evaluator ``tests`` of a task: 1.0 when the test command passes, else 0.0; larger is better.

    Its result's ``data`` has the verdict and the diffstat. What the machinery fails at is an evaluator error, not a
    failure of the agent.

    Args:
        repository: what the agent got.
        argv: the command; see ``check_command``.
        sandbox: where it runs.
        timeout: seconds that it may take.
        held_out: tests that the agent never saw.
    """

    __test__ = False  # no test of pytest's, for all its name
    built_in = True  # bounded by the sandbox, and it works in a copy

    def __init__(
        self,
        repository: TaskRepository,
        argv: Sequence[str],
        sandbox: Sandbox,
        timeout: float = TIMEOUT,
        held_out: Sequence[Member] = (),
    ) -> None:
        self._repository = repository
        self._argv = tuple(argv)
        self._sandbox = sandbox
        self._timeout = timeout
        self._held_out = tuple(held_out)
        self._expected: int | None = None

    def spec(self, digest: str) -> EvaluatorSpec:
        """The evaluator as a sweep attaches it.

        Args:
            digest: tells the held-out tests apart.
        """
        told = json.dumps([self._argv, self._timeout, self._repository.tree, digest])
        return EvaluatorSpec(TESTS, self, GATE, spec=f"{TESTS}:{told}", direction="higher", bounds=(0.0, 1.0))

    def unconfigured(self) -> str:
        """Why the command cannot run here, in one sentence; empty when it can."""
        program = self._program()
        if not program:
            return f"test_command: there is no program {self._argv[0]!r} on {_path()}"
        told = self._sandbox.preflight(_needed(program))
        return f"test_command: {told}" if told else ""

    def _program(self) -> str:
        return shutil.which(self._argv[0], path=_path()) or ""

    def __call__(self, trace: Sequence[ActionEvent], ctx: GoalContext) -> EvalResult:
        with scratch() as folder:
            work = folder / "work"
            shutil.copytree(ctx.harness_root, work, symlinks=True)
            stat = changes(self._repository, work, folder)
            remove(folder / "objects.git")
            verdict = self.verdict(work, folder, self._least())
        data = {
            "gate": verdict.gate,
            "reason": verdict.reason,
            "exit_status": verdict.exit_status,
            "runner": verdict.runner,
            "counts": verdict.counts.__dict__ if verdict.counts else None,
            "seconds": verdict.seconds,
            "undone": list(verdict.undone[:_LISTED]),
            "diffstat": stat,
        }
        passed = verdict.gate == "passed"
        return EvalResult(TESTS, float(passed), passed, f"{verdict.gate}: {verdict.reason}", data=data)

    def _least(self) -> int:
        """How many tests the commit has, of a runner that gives each file a process of its own: there one that ends
        early takes its tests along, and nobody misses them. 0 of other runners."""
        if self._expected is None:
            self._expected = 0
            if runners.runner_of(self._argv) == "node":
                with scratch() as folder:
                    (folder / "work").mkdir()
                    self._repository.export(folder / "work")
                    counts = self.verdict(folder / "work", folder).counts
                    self._expected = counts.passed + counts.failed + counts.skipped if counts else 0
        return self._expected

    def verdict(self, work: Path, folder: Path, least: int = 0) -> Verdict:
        """Put the tests of a copy back and run the command in it.

        Args:
            work: the copy.
            folder: a folder beside it for what the runner writes.
            least: number of tests that must have come to an end.
        """
        undone = restore(work, self._repository, self._held_out)
        state = folder / "state"
        for place in (state, state / "home", state / "tmp"):
            place.mkdir()
        runner, report = runners.runner_of(self._argv), state / "report.xml"
        argv = runners.with_report(self._argv, runner, str(report))
        program = self._program()
        if not program:
            raise ConfigurationError(self.unconfigured())
        try:
            outcome = self._sandbox.launch(
                [program, *argv[1:]],
                env=_environment(state),
                cwd=work,
                timeout=self._timeout,
                stdout_limit=_OUTPUT,
                stderr_limit=_OUTPUT,
                writable=[work, state],
                readable=_needed(program),
            )
        except SupervisorLost as lost:  # the tested code can do that, and no retry would make it stop
            return Verdict("failed", str(lost), None, None, runner, 0.0, tuple(undone))
        counts = runners.counts_of(runner, outcome.stdout, outcome.stderr, _report(report))
        gate, reason = _decided(outcome, runner, counts, self._timeout)
        ended = counts.passed + counts.failed + counts.skipped if counts else 0
        if gate == "passed" and ended < least:
            gate, reason = "failed", f"exit status 0, but {ended} of the commit's {least} tests came to an end"
        status = None if outcome.timed_out else outcome.returncode
        return Verdict(gate, reason, status, counts, runner, outcome.seconds, tuple(undone))


def _decided(outcome: Outcome, runner: str, counts: runners.Counts | None, timeout: float) -> tuple[str, str]:
    if outcome.timed_out:
        return "failed", f"the test command took longer than {timeout:g} s"
    if outcome.interrupted or outcome.exceeded:
        return "failed", f"the test command was stopped: {outcome.exceeded or 'something ended it from outside'}"
    if outcome.returncode:
        told = f": {counts.failed} of {counts.passed + counts.failed} tests failed" if counts and counts.failed else ""
        return "failed", f"exit status {outcome.returncode}{told}"
    if not runner:
        return "passed", "exit status 0; the runner is unknown, so nothing else speaks for it"
    if counts is None:
        return "failed", f"exit status 0, but {runner} did not report that it came to its end"
    if counts.failed:
        return "failed", f"exit status 0, but {runner} reports {counts.failed} failed tests"
    if not counts.passed:
        return "failed", f"exit status 0, but {runner} reports no test that passed"
    return "passed", f"{counts.passed} tests passed" + (f", {counts.skipped} were skipped" if counts.skipped else "")


def _path() -> str:
    """Where programs are looked for: beside the Python that runs this, then where the system has them."""
    return os.pathsep.join([str(Path(sys.executable).parent), _PATH])


def _environment(state: Path) -> dict[str, str]:
    """The whole environment of a test command: what the agent or the user has set steers nothing."""
    return {
        "PATH": _path(),
        "HOME": str(state / "home"),
        "TMPDIR": str(state / "tmp"),
        "LANG": "C.UTF-8",
        "CI": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
    }


def _needed(program: str) -> list[str]:
    """What of the machine a program needs besides the system: its Python environment, where it is of one."""
    here = Path(program)
    if any(str(here).startswith(f"{top}/") for top in ("/usr", "/bin", "/sbin")):
        return []
    environment = here.parent.parent
    if (environment / "pyvenv.cfg").exists():
        return [str(environment), str(Path(sys.base_prefix))]
    return [str(environment)]


def _report(path: Path) -> str:
    """What the runner wrote; empty for anything but a plain file of bearable size."""
    data, problem = read_confined(path.parent, path.name)
    return "" if problem or len(data) > runners.LIMIT else data.decode("utf-8", "replace")


__all__ = ["TestCommand", "Verdict", "changes", "check_command", "diffstat", "is_steering", "restore"]
