"""Whether somebody's measurement can be trusted: an evaluator over odd episodes, a statistic over odd sweeps.

Each check is one sentence, with what to change. No model is asked and no agent runs: the episodes are made up, from the
surfaces and the seeded tree of a harness, and the sweeps are those of the offline harness.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, EpisodeSpec, HarnessAdapter, Surface
from pytest_proteus.core.config import RunConfig
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import EvaluatorSpec, GoalConfig
from pytest_proteus.core.ledger import read_json
from pytest_proteus.harnesses.conformance import Check

#: Seconds that a measurement may take over an episode of a few files, and over a sweep of a dozen short runs.
EVALUATOR_SECONDS, STATISTIC_SECONDS = 20.0, 120.0

_CHANGED, _LATE, _NOT_JSON = "it changed the harness", "it took longer than", "NotPlain: "

#: The made-up episodes, in order, and what each of them asks of an evaluator.
_EPISODES = (
    "it scores an ordinary episode",
    "it survives missing surfaces and an empty trace",
    "it survives source that does not parse, bytes that are no text, and odd events",
)


class NotPlain(TypeError):
    """A result holds what JSON cannot."""


class _Episodes:
    """A harness with the surfaces and the tree of another one, whose episodes are made up."""

    name = "made-up"
    runs_code = False

    def __init__(self, adapter: HarnessAdapter) -> None:
        self._adapter = adapter
        self._surfaces = list(adapter.surfaces())

    def surfaces(self) -> Sequence[Surface]:
        return self._surfaces

    def required_edit_tools(self) -> frozenset[str]:
        return frozenset()

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        self._adapter.seed(harness_root, rng_seed)

    def install_disposition(self, harness_root: Path, disposition: object) -> None:
        pass

    def disposition_fingerprint(self, harness_root: Path) -> str:
        return ""

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        tree = spec.harness_root
        if spec.episode == 2:
            from pytest_proteus.core.trees import remove

            for path in list(tree.iterdir()):
                remove(path)
        for surface in self._surfaces if spec.episode != 2 else ():
            for name, data in (_PLAIN if spec.episode == 1 else _ODD).items():
                _write(tree / surface.subdir, surface, name, data)
        return EpisodeResult(spec.episode, True, 3)

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        first = self._surfaces[0].name
        plain = [
            ActionEvent(1, "observe", "read", first, {"path": "one.md"}, "# One", 1.0),
            ActionEvent(2, "act", "write", first, {"path": "two.md", "content": "# Two"}, "", 2.0),
            ActionEvent(3, "reflect", text="Done."),
        ]
        odd = [
            ActionEvent(1, "", "", "no-such-surface", {}, ""),
            ActionEvent(
                10**9, "act", "bash", None, {"command": None, "deep": [[{"a": [1.5, None, True]}]]}, "\x00\x1b[2J"
            ),
            ActionEvent(10**9, "no-such-phase", "write", first, {"path": 5, "": ""}, "x" * 100_000, -1.0),
            ActionEvent(10**9, "act", None, None, {}, "\u202e\U0001f9ea"),
        ]
        return {1: plain, 2: [], 3: odd}[episode]


_PLAIN: Mapping[str, bytes] = {"one.md": b"# One\n\nText.\n", "two.py": b"def two():\n    return 2\n"}
_ODD: Mapping[str, bytes] = {
    "broken.py": b"def broken(:\n",
    "bytes.md": b"\xff\xfe\x00#\n",
    "empty.md": b"",
    "long.md": b"# " + b"x" * 200_000,
    "three.json": b"{",
}


def _write(place: Path, surface: Surface, name: str, data: bytes) -> None:
    """One file of a surface that is a folder; for one that is a file, its content."""
    if place.suffix and not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return
    folder = place / Path(name).stem if surface.unit == "directory" else place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def check_evaluator(spec: EvaluatorSpec, adapter: HarnessAdapter) -> list[Check]:
    """Check an evaluator over three made-up episodes, twice.

    Args:
        spec: the evaluator.
        adapter: the harness whose surfaces and seeded tree the episodes have; it runs nothing.
    """
    held = replace(spec, run=_held_to_json(spec.run), timeout=EVALUATOR_SECONDS)
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        first, second = (_results(held, adapter, Path(folder) / place / "run") for place in ("a", "elsewhere"))
    details = [_error(result) for result in (*first, *second)]
    special = (_CHANGED, _LATE, _NOT_JSON)
    found = []
    for name, detail in zip(_EPISODES, details[: len(first)], strict=True):
        failed = detail and not detail.startswith(special)
        found.append(Check(name, f"make it give a score there instead of failing: {detail}" if failed else ""))
    late = next((detail for detail in details if detail.startswith(_LATE)), "")
    found.append(Check("it is bounded", late and f"{late} over a few files: bound what it reads and waits for"))
    wrote = next((detail for detail in details if detail.startswith(_CHANGED)), "")
    found.append(
        Check("it only reads the harness", f"{wrote}: write below a temporary folder instead" if wrote else "")
    )
    odd = next((detail for detail in details if detail.startswith(_NOT_JSON)), "").removeprefix(_NOT_JSON)
    found.append(Check("its result is plain data", odd and f"{odd}: keep texts, finite numbers, lists and mappings"))
    return [*found, Check("it says the same twice", _difference(first, second))]


def _error(result: Mapping[str, Any]) -> str:
    """Why there is no score; empty when there is one."""
    return str(result["detail"]).removeprefix("evaluator error: ") if result["error"] else ""


def _held_to_json(run: Callable[..., Any]) -> Callable[..., Any]:
    def held(trace: Any, ctx: Any) -> Any:
        result = run(trace, ctx)
        data = getattr(result, "data", None)
        try:
            json.dumps(data, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotPlain(f"its data cannot be written as JSON ({error})") from None
        return result

    return held


def _results(spec: EvaluatorSpec, adapter: HarnessAdapter, root: Path) -> list[dict[str, Any]]:
    from pytest_proteus.core.episode import run

    root.parent.mkdir()
    made_up: Any = _Episodes(adapter)
    config = RunConfig(
        name="check",
        adapter=made_up,
        disposition=NEUTRAL,
        goal=GoalConfig.of("", [spec]),
        root=root,
        model="",
        episodes=len(_EPISODES),
    )
    result = run(config)
    if result.state != "complete":
        raise ConfigurationError(f"the episodes that the evaluator was to score did not take place: {result.error}")
    return [record["results"][0] for record in result.eval_history]


def _difference(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> str:
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        for name in ("score", "passed", "detail", "data"):
            if one.get(name) != other.get(name) and not one["error"]:
                return (
                    f"episode {number} has {name} {one.get(name)!r} and, in a copy elsewhere, {other.get(name)!r}: "
                    f"leave out clocks, chance, absolute paths and the order of sets and listings"
                )
    return ""


# --- statistics -------------------------------------------------------------------------------------------------------


#: A sweep that is whole, one with failed and unfinished runs, one whose harness does nothing, one with odd artifacts.
_SUITE = """
import importlib
from pathlib import Path

import pytest
from pytest_proteus import NEUTRAL, ActionEvent, review, statistic
from pytest_proteus.harnesses.minimal import MinimalHarness


class Odd(MinimalHarness):
    name = "odd"

    def run_episode(self, spec):
        result = super().run_episode(spec)
        (spec.harness_root / "tools").mkdir(exist_ok=True)
        (spec.harness_root / "tools" / "broken.py").write_text("def broken(:\\n")
        (spec.harness_root / "notes").mkdir(exist_ok=True)
        (spec.harness_root / "notes" / "bytes.md").write_bytes(b"\\xff\\xfe\\x00")
        return result

    def read_trace(self, root, episode):
        odd = ActionEvent(1, "", "", "no-such-surface", {{"path": 5}}, "")
        return [odd, ActionEvent(10**9, "act", text="x" * 10**5)]


HARNESS = {{
    "whole": MinimalHarness(),
    "missing": MinimalHarness(fail_at=[(0, 1), (1, 2)]),
    "idle": MinimalHarness(lambda *_: []),
    "odd": Odd(),
}}[{kind!r}]
pytestmark = pytest.mark.sweep(
    name={kind!r}, episodes=2, harness=[HARNESS], arm=[NEUTRAL, review("notes")], seed=range(4)
)
found = getattr(importlib.import_module({module!r}), {name!r})
if not hasattr(found, "_get_wrapped_function"):
    found = statistic(direction="neutral", scale="whatever it is")(found)
{name} = found


def test_it({name}):
    pass
"""

_KINDS = {
    "whole": "it has a value for a whole sweep",
    "missing": "it survives runs that failed and runs that are not complete",
    "idle": "it survives runs without surfaces and without actions",
    "odd": "it survives broken source and odd events",
}

#: Why a statistic of a user is none → the check that this fails, and what to change.
_FAILURES = {
    "changed_artifacts": ("it only reads the artifacts", "write below a temporary folder instead"),
    "not_json": ("its value is plain data", "give None or Unavailable where there is no number"),
    "not_deterministic": ("it says the same twice", "leave out clocks and chance, or fix the seed"),
}


def check_statistic(path: str) -> list[Check]:
    """Check a statistic over four small sweeps.

    Args:
        path: ``package.module:function``, a function of ``sweep``, decorated with ``pytest_proteus.statistic`` or not.

    Raises:
        ConfigurationError: there is no such function.
    """
    module, name = _function(path)
    with tempfile.TemporaryDirectory(prefix="check-") as made:
        folder = Path(made)
        for kind in _KINDS:
            text = _SUITE.format(kind=kind, module=module, name=name)
            (folder / f"checked_{kind}.py").write_text(text, encoding="utf-8")
        late, said = _run_suite(folder)
        entries = {kind: _entries(folder / "out" / kind, name) for kind in _KINDS}
    bounded = f"it took longer than {STATISTIC_SECONDS:g} s over four small sweeps: bound what it does" if late else ""
    if not late and not any(entries.values()):
        raise ConfigurationError(f"statistic {path!r} could not be computed: {said}")
    found = []
    broken: dict[str, str] = {}
    for kind, check in _KINDS.items():
        advice = "" if entries[kind] or late else f"it was not computed there: {said}"
        for entry in entries[kind]:
            why = entry.get("unavailable") or {}
            reason, detail = str(why.get("reason", "")), str(why.get("detail", ""))
            if reason == "failed":
                advice = f"return Unavailable, or leave the run out, instead of raising {detail}"
            elif reason in _FAILURES:
                broken.setdefault(reason, detail)
            elif reason and kind == "whole":
                advice = f"it gives none ({reason}: {detail}): there are two arms of four complete runs"
        found.append(Check(check, advice))
    found += [
        Check(check, f"{broken[reason]}: {fix}" if reason in broken else "")
        for reason, (check, fix) in _FAILURES.items()
    ]
    return [*found, Check("it is bounded", bounded)]


def _function(path: str) -> tuple[str, str]:
    module, _, name = path.partition(":")
    if not module or not name.isidentifier():
        raise ConfigurationError(f"statistic {path!r}: write package.module:function")
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise ConfigurationError(
            f"statistic {path!r}: module {module} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not hasattr(found, name):
        raise ConfigurationError(f"statistic {path!r}: {module} has no {name!r}")
    return module, name


def _run_suite(folder: Path) -> tuple[bool, str]:
    """Whether the suite took too long, and the end of what it printed."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search = os.pathsep.join(str(Path(place).absolute()) for place in ("", *filter(None, given)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "proteus", "-p", "no:cacheprovider", "--proteus-out=out"]
    try:
        done = subprocess.run(
            [*command, "--proteus-max-missing=100%", f"--rootdir={folder}", *(f"checked_{kind}.py" for kind in _KINDS)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": search, "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=STATISTIC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, ""
    return False, " ".join(f"{done.stdout}\n{done.stderr}".split())[-400:]


def _entries(out: Path, name: str) -> list[Mapping[str, Any]]:
    report = read_json(out / "report.json") or {}
    return [entry for sweep in report.get("sweeps") or () for entry in sweep["statistics"] if entry["name"] == name]
