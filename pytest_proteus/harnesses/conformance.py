"""Whether somebody's adapter keeps the contract of ``core.adapter``: each check is one sentence, with what to change.

The checks of the tree cost nothing; an episode costs what the adapter's agent costs. What an adapter does elsewhere is
seen only in the folders that it is led into here: its home, its working folder and the run's own root.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.adapter import (
    CONTINUITY_MODES,
    PHASES,
    ActionEvent,
    EpisodeResult,
    EpisodeSpec,
    HarnessAdapter,
    Surface,
)
from pytest_proteus.core.disposition import NEUTRAL, review
from pytest_proteus.core.trees import listing
from pytest_proteus.harnesses.registry import lacking

#: Characters of one event's parameters, as JSON, and of its text, above which they count as not bounded.
EVENT_LIMIT = 200_000

#: Turns of the episode that is run.
_TURNS = 60

_SHOWN = 3
_EPISODE = "it runs an episode"

#: Folders of the scratch folder that a careless adapter is led to: home, working folder, temporary files.
_LED = ("home", "cwd", "tmp")


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        name: what is looked at.
        advice: what to change; empty when it holds.
    """

    name: str
    advice: str

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return not self.advice

    def __str__(self) -> str:
        return f"ok    {self.name}" if self.ok else f"FAIL  {self.name}: {self.advice}"


def check(adapter: Any, *, episode: bool = False, model: str = "mock") -> list[Check]:
    """Check an adapter.

    Args:
        adapter: the adapter, whatever it is.
        episode: also run one neutral episode, which may cost money.
        model: the model of that episode.

    Returns:
        The checks, in order. Those that make no sense once an earlier one fails are left out.
    """
    missing = lacking(adapter)
    advice = f"add {', '.join(missing)} to {type(adapter).__name__}" if missing else ""
    found = [Check("it has the adapter's name and methods", advice)]
    if missing:
        return found
    # before the home changes: agents are looked for there
    absent = _asked(lambda: str(getattr(adapter, "preflight", str)() or "")) if episode else ""
    with _scratch() as folder:
        checks = _Checks(adapter, folder)
        for name, one in checks.of_declaration().items():
            found.append(Check(name, _asked(one)))
        if all(one.ok for one in found):
            for name, one in checks.of_tree().items():
                found.append(Check(name, _asked(one)))
        if episode and all(one.ok for one in found):
            found += [Check(_EPISODE, absent)] if absent else checks.of_episode(model)
    return found


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder with a home and a working folder in which this process is for as long."""
    before, variables = Path.cwd(), {name: os.environ.get(name) for name in ("HOME", "PWD", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="check-") as name:
        folder = Path(name)
        for inner in _LED:
            (folder / inner).mkdir()
        os.environ |= {"HOME": str(folder / "home"), "PWD": str(folder / "cwd"), "TMPDIR": str(folder / "tmp")}
        held, tempfile.tempdir = tempfile.tempdir, str(folder / "tmp")
        os.chdir(folder / "cwd")
        try:
            yield folder
        finally:
            tempfile.tempdir = held
            os.chdir(before)
            for variable, value in variables.items():
                os.environ.pop(variable, None)
                if value is not None:
                    os.environ[variable] = value


def _asked(one: Callable[[], str]) -> str:
    """The advice of a check; what the adapter raises is advice, too."""
    try:
        return one()
    except Exception as error:
        return f"make this not raise {type(error).__name__}: {error}"


class _Checks:
    """The checks of one adapter, each a function that gives its advice."""

    def __init__(self, adapter: HarnessAdapter, folder: Path) -> None:
        self.adapter = adapter
        self.folder = folder
        self.surfaces: Sequence[Surface] = ()
        self._roots = 0

    # ------------------------------------------------------------------------------------------ what it declares

    def of_declaration(self) -> dict[str, Callable[[], str]]:
        return {
            "it declares surfaces": self._surfaces,
            "its optional attributes have values that are known": self._attributes,
            "it names the tools that edit": self._edit_tools,
            "an episode that never ran has an empty trace": self._no_trace,
        }

    def _surfaces(self) -> str:
        self.surfaces = list(self.adapter.surfaces())
        names = [surface.name for surface in self.surfaces]
        if not names:
            return "surfaces() gives none: declare at least one part of the tree that the agent may change"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return f"surfaces() has two called {', '.join(twice)}: give each a name of its own"
        if list(self.adapter.surfaces()) != self.surfaces:
            return "surfaces() gives something else at its second call: make it always the same"
        return ""

    def _attributes(self) -> str:
        mode = getattr(self.adapter, "continuity_mode", "native")
        if mode not in CONTINUITY_MODES:
            return f"continuity_mode is {mode!r}: choose one of {', '.join(CONTINUITY_MODES)}"
        for name in ("staged_activation", "disposition_in_files", "deterministic", "seeded"):
            value = getattr(self.adapter, name, False)
            if not isinstance(value, bool):
                return f"{name} is {value!r}: make it True or False"
        if getattr(self.adapter, "staged_activation", False) and not hasattr(self.adapter, "validate_candidate"):
            return "staged_activation is True: add validate_candidate(harness_root), which says whether a tree can work"
        return ""

    def _edit_tools(self) -> str:
        tools = self.adapter.required_edit_tools()
        fits = isinstance(tools, (set, frozenset)) and all(isinstance(tool, str) for tool in tools)
        return "" if fits else f"required_edit_tools() gives {tools!r}: make it a frozenset of tool names"

    def _no_trace(self) -> str:
        trace = self.adapter.read_trace(self._root(), 1)
        return (
            "" if list(trace) == [] else "read_trace() of a root without logs gives events: make it give an empty list"
        )

    # ------------------------------------------------------------------------------------------ what it does to a tree

    def of_tree(self) -> dict[str, Callable[[], str]]:
        return {
            "it seeds a tree, and writes nowhere else": self._seed,
            "its seeded tree can be kept as a snapshot": self._snapshot,
            "the same seed gives the same tree": self._same_seed,
            "a disposition can be taken away without a trace": self._disposition,
            "its seeded tree is viable": self._viable,
            "it looks at a tree without changing anything": self._looks,
        }

    def _root(self) -> Path:
        self._roots += 1
        root = self.folder / f"root-{self._roots}"
        (root / "harness").mkdir(parents=True)
        return root

    def _seeded(self, rng_seed: int = 0) -> Path:
        root = self._root()
        self.adapter.seed(root / "harness", rng_seed)
        return root

    def _outside(self, root: Path, allowed: Sequence[str]) -> str:
        """What lies where nothing should, named; empty when nothing does."""
        beside = [path for path in root.iterdir() if path.name not in allowed]
        led = [path for name in _LED for path in (self.folder / name).iterdir()]
        return _named([*beside, *led])

    def _seed(self) -> str:
        root = self._seeded()
        outside = self._outside(root, ["harness"])
        return f"seed() wrote {outside}: write below harness_root only" if outside else ""

    def _snapshot(self) -> str:
        root = self._seeded()
        violations = self._scan(root)[1]
        told = "; ".join(f"{one.path}: {one.detail}" for one in violations[:_SHOWN])
        return f"seed() left what no snapshot can hold ({told}): write plain files and folders only" if told else ""

    def _scan(self, root: Path) -> tuple[str, Sequence[Any]]:
        """Digest of a tree, and what of it cannot be kept."""
        from pytest_proteus.core.snapshot import SnapshotStore

        store = SnapshotStore.create_or_open(root / "harness", root / ".snapshot.git")
        try:
            scan = store.scan()
            return scan.tree, scan.violations
        finally:
            store.close()

    def _same_seed(self) -> str:
        trees = {self._scan(self._seeded(7))[0] for _ in range(2)}
        stays = len(trees) == 1 or not getattr(self.adapter, "deterministic", False)
        return (
            ""
            if stays
            else "deterministic is True, but seed() gave two trees for one seed: take all chance from rng_seed"
        )

    def _disposition(self) -> str:
        root = self._seeded()
        tree = root / "harness"
        self.adapter.install_disposition(tree, NEUTRAL)
        before, print_before = self._scan(root)[0], self._fingerprint(tree)
        self.adapter.install_disposition(tree, review(self.surfaces[0].name))
        during, print_during = self._scan(root)[0], self._fingerprint(tree)
        self.adapter.install_disposition(tree, NEUTRAL)
        after, print_after = self._scan(root)[0], self._fingerprint(tree)
        outside = self._outside(root, ["harness", ".snapshot.git"])
        if outside:
            return f"install_disposition() wrote {outside}: write below harness_root only"
        if after != before:
            return "install_disposition(…, NEUTRAL) leaves the tree changed: remove all that an earlier one wrote"
        if print_after != print_before:
            return (
                "disposition_fingerprint() does not come back with NEUTRAL: compute it from the installed files alone"
            )
        if (during != before) != (print_during != print_before):
            return (
                "disposition_fingerprint() must change exactly when install_disposition() changes the tree: the tree "
                f"{'changed' if during != before else 'stayed'} and the fingerprint "
                f"{'changed' if print_during != print_before else 'stayed'}"
            )
        if getattr(self.adapter, "disposition_in_files", False) and during == before:
            return "disposition_in_files is True, but install_disposition() wrote nothing: write it, or say False"
        return ""

    def _fingerprint(self, tree: Path) -> str:
        value = self.adapter.disposition_fingerprint(tree)
        if not isinstance(value, str):
            raise TypeError(f"disposition_fingerprint() gave {value!r}, which is no text")
        return value

    def _viable(self) -> str:
        validate = getattr(self.adapter, "validate_candidate", None)
        told = validate(self._seeded() / "harness") if callable(validate) else ""
        return f"validate_candidate() refuses what seed() wrote: {told}" if told else ""

    def _looks(self) -> str:
        validate = getattr(self.adapter, "validate_candidate", None)
        if not callable(validate):
            return ""
        root = self._seeded()
        before = self._scan(root)[0]
        first, second = (validate(root / "harness") for _ in range(2))
        outside = self._outside(root, ["harness", ".snapshot.git"])
        if self._scan(root)[0] != before:
            return "validate_candidate() changes the tree: build and boot a copy of it, or with the tree only readable"
        if outside:
            return f"validate_candidate() leaves {outside}: remove what it made"
        if first != second:
            return f"validate_candidate() says {first!r} and then {second!r} of one tree: leave out chance and clocks"
        return ""

    # ------------------------------------------------------------------------------------------ an episode

    def of_episode(self, model: str) -> list[Check]:
        root = self.folder / "run"
        watched: Any = _Watched(self.adapter)
        advice = _asked(lambda: self._run(watched, root, model))
        found = [Check(_EPISODE, advice)]
        if advice:
            return found
        found.append(Check("it keeps to its turns", watched.turns()))
        if getattr(self.adapter, "staged_activation", False):
            found.append(Check("it does not edit what it runs from", watched.edited))
        if getattr(self.adapter, "continuity_mode", "native") == "framework":
            found.append(Check("its phases leave a note", watched.notes()))
        found.append(Check("its trace has the events' form", _asked(lambda: self._trace(root))))
        wanted = "its episode writes nowhere but into the run"
        led = _asked(lambda: self._outside(root, [path.name for path in root.iterdir()]))
        found.append(
            Check(wanted, f"the episode wrote {led}: give the agent a home and a folder below root" if led else "")
        )
        return found

    def _run(self, watched: Any, root: Path, model: str) -> str:
        from pytest_proteus.core.config import RunConfig
        from pytest_proteus.core.episode import run
        from pytest_proteus.core.goal import GoalConfig

        config = RunConfig(
            name="check",
            adapter=watched,
            disposition=NEUTRAL,
            goal=GoalConfig(),
            root=root,
            model=model,
            episodes=1,
            max_turns=_TURNS,
        )
        result = run(config)
        return "" if result.state == "complete" else f"the episode ended as {result.state}: {result.error}"

    def _trace(self, root: Path) -> str:
        trace = list(self.adapter.read_trace(root, 1))
        names = {surface.name for surface in self.surfaces}
        turn = 0
        for number, event in enumerate(trace):
            wrong = _wrong(event, names, turn)
            if wrong:
                return f"event {number} of read_trace(): {wrong}"
            turn = event.turn
        return ""


class _Watched:
    """An adapter, and what of its episode shows from outside."""

    def __init__(self, adapter: HarnessAdapter) -> None:
        self._adapter = adapter
        self._result: EpisodeResult | None = None
        self.edited = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        active = spec.active_root
        before = listing(active) if active else {}
        self._result = self._adapter.run_episode(spec)
        if active and listing(active) != before:
            self.edited = "run_episode() changed spec.active_root: run from there, and edit spec.harness_root"
        return self._result

    def turns(self) -> str:
        turns = getattr(self._result, "turns", None)
        if isinstance(turns, bool) or not isinstance(turns, int) or turns < 0:
            return f"EpisodeResult.turns is {turns!r}: give the number of the model's answers"
        if turns > _TURNS:
            return (
                f"it used {turns} turns of {_TURNS}: give each phase what spec.turns_of(phase, used) says, and no more"
            )
        return ""

    def notes(self) -> str:
        notes = getattr(self._result, "handoffs", None)
        if isinstance(notes, Mapping) and notes:
            return ""
        return "continuity_mode is 'framework': open a Handoff(spec), finish() it after each phase, return its phases"


def _wrong(event: Any, surfaces: set[str], turn: int) -> str:
    """What is wrong with an event; empty when nothing is."""
    if not isinstance(event, ActionEvent):
        return f"is a {type(event).__name__}: make it an ActionEvent"
    if not isinstance(event.turn, int) or event.turn < max(turn, 1):
        return f"turn is {event.turn!r} after {turn}: count the model's turns from 1 on, over all phases"
    if event.phase not in PHASES:
        return f"phase is {event.phase!r}: one of {', '.join(PHASES)}, as in spec.phase_prompts"
    if event.surface is not None and event.surface not in surfaces:
        return f"surface is {event.surface!r}: the name of a declared surface, or None"
    try:
        size = len(json.dumps(dict(event.params), allow_nan=False)) + len(event.text)
    except (TypeError, ValueError) as error:
        return f"params cannot be written as JSON ({error}): keep texts, numbers, lists and mappings"
    return f"has {size} characters: cut long params and text" if size > EVENT_LIMIT else ""


def _named(paths: Sequence[Path]) -> str:
    shown = ", ".join(str(path) for path in sorted(paths)[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
