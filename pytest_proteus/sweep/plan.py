"""From a declaration and its grid to a plan: checked cells with run ids, evaluators per harness, and the manifest.

Everything that a user can have declared wrongly is found here, before anything runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_proteus import sandbox
from pytest_proteus.core.adapter import HarnessAdapter, Surface
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import EvaluatorSpec, GoalConfig
from pytest_proteus.core.records import plain
from pytest_proteus.harnesses import registry
from pytest_proteus.scoring.evidence import TestCommand
from pytest_proteus.scoring.judge import Judge
from pytest_proteus.scoring.repository import TaskRepository, open_repository
from pytest_proteus.sweep import condition as conditions
from pytest_proteus.sweep.arms import Arm, ArmedHarness, Member, files_digest, read_files, reviewed_surface
from pytest_proteus.sweep.declare import AXES, Attached, Declaration, EvaluatorMark, attach, nearest
from pytest_proteus.sweep.grid import Cell, seed_blocks
from pytest_proteus.sweep.task import TaskHarness, task_class

MANIFEST_VERSION = 3

#: Episodes of a run where nobody says how many.
DEFAULT_EPISODES = 8


@dataclass(frozen=True)
class Setting:
    """What the command line and the environment add to a declaration.

    Args:
        root: the session's root folder, where refs and relative folders of arms are looked for.
        episodes: episodes of a run, in place of the declared number.
        sandbox: the rung on which agents run, or ``auto``.
        hidden: folders that no agent may see.
        own: folders that the session itself writes.
        endpoints: wire protocol → base URL.
        agents: agent name → path of its executable.
        harnesses: names that plugins registered.
    """

    root: Path
    episodes: int | None = None
    sandbox: str = "auto"
    hidden: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    harnesses: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Plan:
    """A sweep that can be run.

    Args:
        declaration: what was declared.
        setting: what the session adds.
        cells: the grid, in the order of its axes.
        attached: evaluators by name, with thresholds.
        specs: harness label → the evaluators resolved against its surfaces.
        surfaces: harness label → declared surfaces.
        members: (harness label, arm label) → files that the arm brings.
        digests: cell → hash of its condition.
        run_ids: cell → opaque id of its run.
        condition: the condition by parts: ``sweep``, ``harnesses``, ``arms``, ``tasks``.
        rungs: harness label → where its processes run; empty for one that starts none.
        repository: what a task's agents are given; None for sweeps without one.
    """

    declaration: Declaration
    setting: Setting
    cells: list[Cell]
    attached: dict[str, Attached]
    specs: dict[str, list[EvaluatorSpec]]
    surfaces: dict[str, list[Surface]]
    members: dict[tuple[str, str], list[Member]]
    digests: dict[Cell, str]
    run_ids: dict[Cell, str]
    condition: dict[str, Any]
    rungs: dict[str, str]
    repository: TaskRepository | None = None

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.declaration.name

    @property
    def episodes(self) -> int:
        """Episodes of a run."""
        usual = DEFAULT_EPISODES if self.repository is None else 1
        return self.setting.episodes or self.declaration.episodes or usual

    @property
    def probe_episode(self) -> int | None:
        """The episode whose checkpoint each complete run's probe starts from; None without probes."""
        probes = self.declaration.probes
        return self.episodes if probes == "last" else None if probes is None else int(probes)

    def probe_id(self, cell: Cell) -> str:
        """An id of the cell's probe, which tells nothing either."""
        return "run-" + conditions.digest([self.run_ids[cell], "probe", self.probe_episode])[:12]

    def in_order(self) -> list[Cell]:
        """The cells in the order in which they are started."""
        return seed_blocks(self.cells)

    def goal(self, cell: Cell) -> GoalConfig:
        """Objective, evaluators and selection of a cell."""
        declared = self.declaration
        return GoalConfig.of(declared.goal, self.specs[cell.harness], selection=declared.selection)

    def adapter(self, cell: Cell) -> HarnessAdapter:
        """A harness for one run of a cell, with the arm's files where it has any."""
        adapter = make_adapter(cell.values["harness"], self.setting)
        arm = cell.arm_value
        files = arm.files
        if self.repository is not None:
            given: Any = TaskHarness(adapter, self.repository)
            adapter = given
            # the repository's own folders may be called like a surface: nothing of it is an arm's to delete
            files = replace(files, mode="overlay") if files is not None else None
        if files is None:
            return adapter
        armed: Any = ArmedHarness(adapter, files, self.members[cell.harness, arm.label])
        return armed  # type: ignore[no-any-return]

    def harnesses_that_are(self, trait: str) -> list[str]:
        """Labels of the harnesses whose adapters say so of themselves: ``seeded`` or ``deterministic``."""
        firsts = {cell.harness: cell for cell in reversed(self.cells)}
        return [label for label in firsts if getattr(self.adapter(firsts[label]), trait, False)]

    def evaluator_entries(self) -> dict[str, dict[str, Any]]:
        """The evaluators as the manifest has them."""
        return {name: _evaluator_entry(item) for name, item in self.attached.items()}

    def controls(self) -> dict[str, tuple[str, str]]:
        """Each control arm → its kind, and the label of the arm that it is one of."""
        arms = (cell.arm_value for cell in self.cells)
        return {arm.label: arm.control for arm in arms if arm.control is not None}

    @property
    def measurement(self) -> str:
        """Hash of what is measured."""
        return conditions.measurement_digest({name: item.spec for name, item in self.attached.items()})

    def manifest(self) -> dict[str, Any]:
        """The manifest of the sweep's folder."""
        return {
            "format_version": MANIFEST_VERSION,
            "name": self.name,
            "episodes": self.episodes,
            "goal": self.declaration.goal,
            "selection": self.declaration.selection,
            "model": ", ".join(sorted({cell.model for cell in self.cells if cell.model})) or None,
            "harnesses": list(dict.fromkeys(cell.harness for cell in self.cells)),
            "deterministic": sorted(self.harnesses_that_are("deterministic")),
            "arms": list(dict.fromkeys(cell.arm for cell in self.cells)),
            "controls": {label: {"kind": kind, "of": of} for label, (kind, of) in self.controls().items()},
            "seeds": sorted({cell.seed for cell in self.cells}),
            "surfaces": {
                label: [plain(asdict(surface)) for surface in surfaces] for label, surfaces in self.surfaces.items()
            },
            "seeded": self.harnesses_that_are("seeded"),
            "evaluators": self.evaluator_entries(),
            "sandbox": {"requested": self.setting.sandbox, **_sandbox_entry(self.rungs)},
            "condition": self.condition,
            "condition_sha256": conditions.digest(self.condition),
            "measurement_sha256": self.measurement,
            "runs": [self._run_entry(cell) for cell in self.cells],
            "probes": self.probes(),
            "task": self.task_entry(),
            "plan": {"cells": len(self.cells)},
            "created_at": time.time(),
        }

    def probes(self) -> dict[str, Any] | None:
        """``episode`` and ``runs`` (run id → id of its probe); None without probes."""
        if self.probe_episode is None:
            return None
        return {
            "episode": self.probe_episode,
            "runs": {self.run_ids[cell]: self.probe_id(cell) for cell in self.cells},
        }

    def task_entry(self) -> dict[str, Any] | None:
        """What the manifest says of a task: commit, files that were left out, class, command; None without one."""
        declared, repository = self.declaration, self.repository
        if repository is None:
            return None
        return {
            "commit": repository.commit,
            "tree": repository.tree,
            "repository": str(repository.path),
            "neutralised": repository.neutralised,
            "task_class": declared.task_class or task_class(declared.goal),
            "test_command": list(declared.test_command),
        }

    def _run_entry(self, cell: Cell) -> dict[str, Any]:
        return {
            "id": self.run_ids[cell],
            "harness": cell.harness,
            "arm": cell.arm,
            "seed": cell.seed,
            "model": cell.model,
            "task": cell.task,
            "axes": dict(cell.axes),
            "condition_sha256": self.digests[cell],
        }


def _evaluator_entry(item: Attached) -> dict[str, Any]:
    entry = conditions.evaluator_condition(item.spec)
    entry["version"] = conditions.digest(entry)
    entry.pop("name")
    bounds = item.spec.bounds
    return {
        **entry,
        "direction": item.spec.direction,
        "bounds": list(bounds) if bounds else None,
        "thresholds": [asdict(threshold) for threshold in item.thresholds],
        **({"checks": item.checks} if item.checks else {}),
    }


def _sandbox_entry(rungs: Mapping[str, str]) -> dict[str, Any]:
    """What a manifest says of the rungs that are used; with several of them, whose each is."""
    used = {label: rung for label, rung in rungs.items() if rung}
    found = {rung: dict(sandbox.enforcement_of(rung)) for rung in used.values()}
    if len(found) > 1:
        return {"used": ", ".join(f"{rung} for {label}" for label, rung in used.items()), "enforcement": found}
    return {"used": next(iter(found), "none"), "enforcement": next(iter(found.values()), None)}


def make_adapter(value: Any, setting: Setting) -> HarnessAdapter:
    """A harness from a value of its axis, with the session's sandbox unless it has been made with one of its own."""
    adapter = registry.resolve(
        value, extra=setting.harnesses, endpoint=dict(setting.endpoints) or None, agents=dict(setting.agents) or None
    )
    if getattr(adapter, "sandbox", "") is None:
        rung = setting.sandbox if getattr(adapter, "runs_code", True) else "none"
        adapter.sandbox = sandbox.choose(rung, setting.hidden)  # type: ignore[attr-defined]
    return adapter


def _rung(adapter: Any, label: str, asked: str) -> str:
    """Where the processes of a harness run; empty when it starts none.

    Raises:
        ConfigurationError: not on the rung that was asked for by name.
    """
    if not getattr(adapter, "runs_code", True):
        return ""
    place = getattr(adapter, "sandbox", None)
    used = getattr(place, "name", "none")
    if image := getattr(place, "image", ""):
        used = f"{used}:{image}"
    if asked not in ("auto", used):
        raise ConfigurationError(
            f"--proteus-sandbox={asked}: harness {label!r} runs what it starts by itself, in sandbox {used}; leave the "
            f"option out, or give its class an attribute sandbox = None and launch through it (docs/adapters.md)"
        )
    return str(used)


def make_plan(
    declaration: Declaration, cells: Sequence[Cell], marks: Sequence[EvaluatorMark], setting: Setting
) -> Plan:
    """A plan for the cells of a grid.

    Args:
        declaration: what was declared.
        cells: every cell that the axes span.
        marks: evaluators of the declaration and of conftests.
        setting: what the session adds.

    Raises:
        ConfigurationError: no cell is left, an unknown harness, surface or evaluator, or labels that are used twice.
    """
    kept = _kept(declaration, cells)
    where = declaration.where
    repository = None
    if declaration.repo is not None:
        repository = open_repository(setting.root / declaration.repo, declaration.ref)
        command = _test_command(declaration, repository, setting)
        marks = [*marks, *([EvaluatorMark(command, {}, (), where)] if command else [])]
    made = _Made(setting, where)
    arms: dict[str, Arm] = {}
    for cell in kept:
        made.add(cell)
        if arms.setdefault(cell.arm, cell.arm_value) != cell.arm_value:
            raise ConfigurationError(f"{where}: two different arms are called {cell.arm!r}; give one another label")
    adapters, surfaces = made.first, made.surfaces
    for arm in arms.values():
        _check_disposition(arm, surfaces, where)
    attached_by = {label: attach(marks, found) for label, found in surfaces.items()}
    attached = next(iter(attached_by.values()))
    for label, found in attached_by.items():
        if list(found) != list(attached):
            raise ConfigurationError(
                f"{where}: harness {label!r} names its evaluators {', '.join(found)}, another one "
                f"{', '.join(attached)}; name them with name='…'"
            )
    for found in attached_by.values():
        for item in found.values():
            if isinstance(item.spec.run, Judge):
                cache = setting.own[0] / "judge" if setting.own else None
                item.spec.run.configure(declaration.goal, setting.endpoints, repository, cache)
    members = {
        (label, arm.label): read_files(arm.files, surfaces[label], setting.root)
        for label in adapters
        for arm in arms.values()
        if arm.files is not None
    }
    tasks = {cell: conditions.described(cell.values.get("task")) for cell in kept if cell.task is not None}
    condition = {
        "sweep": conditions.sweep_condition(
            declaration,
            {name: item.spec for name, item in attached.items()},
            repository.tree if repository is not None else None,
        ),
        "harnesses": _by_label((cell.harness, made.condition(cell)) for cell in kept),
        "arms": {arm.label: _arm_entry(arm, members) for arm in arms.values()},
        "tasks": _by_label((str(cell.task), task) for cell, task in tasks.items()),
    }
    digests = {cell: _cell_digest(condition, cell, made.condition(cell), tasks.get(cell)) for cell in kept}
    plan = Plan(
        declaration=declaration,
        setting=setting,
        cells=kept,
        attached=attached,
        specs={
            label: [conditions.versioned(item.spec) for item in found.values()] for label, found in attached_by.items()
        },
        surfaces=surfaces,
        members=members,
        digests=digests,
        run_ids={cell: _run_id(declaration.name, cell, digests[cell]) for cell in kept},
        condition=condition,
        rungs=made.rungs,
        repository=repository,
    )
    if (plan.probe_episode or 0) > plan.episodes:
        raise ConfigurationError(
            f"{where}: sweep marker: probes={plan.probe_episode} is beyond the {plan.episodes} episodes of a run; "
            f"write probes='last'"
        )
    return plan


def _test_command(declaration: Declaration, repository: TaskRepository, setting: Setting) -> EvaluatorSpec | None:
    """The evaluator that the test command of a task is; None without a command."""
    if not declaration.test_command:
        return None
    held_out = read_files(declaration.held_out, (), setting.root) if declaration.held_out is not None else []
    command = TestCommand(
        repository, declaration.test_command, sandbox.choose(setting.sandbox, setting.hidden), held_out=held_out
    )
    return command.spec(files_digest(held_out))


def _arm_entry(arm: Arm, members: Mapping[tuple[str, str], list[Member]]) -> dict[str, Any]:
    digests = {label: files_digest(found) for (label, name), found in sorted(members.items()) if name == arm.label}
    return conditions.arm_condition(arm, conditions.digest(digests) if digests else None)


def _kept(declaration: Declaration, cells: Sequence[Cell]) -> list[Cell]:
    exclude = declaration.exclude
    if exclude is None:
        kept = list(cells)
    else:
        try:
            kept = [cell for cell in cells if not exclude(cell)]
        except Exception as error:
            raise ConfigurationError(
                f"{declaration.where}: sweep marker: exclude= failed ({type(error).__name__}: {error}); it is given a "
                f"cell with harness, arm, seed, model, task and axes"
            ) from error
    if not kept:
        raise ConfigurationError(f"{declaration.where}: the sweep {declaration.name!r} has no cell left to run")
    return kept


def _check_disposition(arm: Arm, surfaces: Mapping[str, Sequence[Surface]], where: str) -> None:
    about = reviewed_surface(arm)
    if about is None:
        return
    for label, found in surfaces.items():
        names = [surface.name for surface in found]
        if about not in names:
            raise ConfigurationError(
                f"{where}: arm {arm.label!r} is about the surface {about!r}, which harness {label!r} does not have; "
                f"{nearest(about, names)}"
            )


class _Made:
    """The adapters of a grid, each made once; the cells of one label have several where other axes shape their harness.

    Args:
        setting: what the session adds.
        where: the declaration, for messages.
    """

    def __init__(self, setting: Setting, where: str) -> None:
        self._setting, self._where = setting, where
        self._conditions: dict[Any, dict[str, Any]] = {}
        self.first: dict[str, HarnessAdapter] = {}
        self.surfaces: dict[str, list[Surface]] = {}
        self.rungs: dict[str, str] = {}

    def add(self, cell: Cell) -> None:
        """Make a cell's adapter, unless another cell has the same.

        Raises:
            ConfigurationError: it has other surfaces than an earlier one of its label.
        """
        key = self._key(cell)
        if key in self._conditions:
            return
        adapter = make_adapter(cell.values["harness"], self._setting)
        surfaces = list(adapter.surfaces())
        if self.surfaces.setdefault(cell.harness, surfaces) != surfaces:
            raise ConfigurationError(
                f"{self._where}: harnesses with different surfaces are called {cell.harness!r}; give one another label"
            )
        self.first.setdefault(cell.harness, adapter)
        rung = _rung(adapter, cell.harness, self._setting.sandbox)
        self.rungs.setdefault(cell.harness, rung)
        self._conditions[key] = {**conditions.adapter_condition(adapter, cell.harness), "sandbox": rung}

    def condition(self, cell: Cell) -> dict[str, Any]:
        """What of a cell's harness shapes its trajectory."""
        return self._conditions[self._key(cell)]

    @staticmethod
    def _key(cell: Cell) -> Any:
        value = cell.values["harness"]
        return cell.harness, value if isinstance(value, str) else id(value)


def _by_label(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What is found under each label; ``each`` of them where other axes make it several."""
    several: dict[str, list[Any]] = {}
    for label, item in found:
        if item not in several.setdefault(label, []):
            several[label].append(item)
    return {label: items[0] if len(items) == 1 else {"each": items} for label, items in several.items()}


def _cell_digest(condition: Mapping[str, Any], cell: Cell, harness: Mapping[str, Any], task: Any) -> str:
    return conditions.digest(
        {
            "sweep": condition["sweep"],
            "harness": harness,
            "arm": condition["arms"][cell.arm],
            "seed": cell.seed,
            "model": cell.model,
            "task": task,
            "axes": dict(cell.axes),
        }
    )


def _run_id(name: str, cell: Cell, digest: str) -> str:
    """An id that tells nothing to whoever does not know the whole condition already."""
    return "run-" + conditions.digest([name, str(cell), digest])[:12]


# --- a plan for readers ---------------------------------------------------------------------------------------------


def plan_lines(plan: Plan) -> list[str]:
    """A plan for readers: the axes, the evaluators, and the order in which cells start."""
    declared = plan.declaration
    lines = [
        f"sweep {plan.name} ({declared.where})",
        f"  {len(plan.cells)} cells × {plan.episodes} episodes = {len(plan.cells) * plan.episodes} episodes",
    ]
    if plan.probe_episode is not None:
        lines.append(f"  {len(plan.cells)} probes of one episode, from episode {plan.probe_episode} of each run")
    for axis in (*AXES, *declared.axes):
        labels = list(dict.fromkeys(str(_label(cell, axis)) for cell in plan.cells if _label(cell, axis) is not None))
        if labels:
            lines.append(f"  {axis:<10} {len(labels):>4}  {', '.join(labels)}")
    for name, item in plan.attached.items():
        bounds = ", ".join(f"{bound.op} {bound.bound:g} ({bound.when})" for bound in item.thresholds)
        lines.append(f"  evaluator  {name} ({item.spec.visibility.value})" + (f": {bounds}" if bounds else ""))
    lines.append(
        "  order      " + " ".join(str(cell) for cell in plan.in_order()[:12]) + (" …" if len(plan.cells) > 12 else "")
    )
    return lines


def _label(cell: Cell, axis: str) -> Any:
    return getattr(cell, axis) if axis in AXES else dict(cell.axes)[axis]


def plan_entry(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "name": plan.name,
        "episodes": plan.episodes,
        "evaluators": list(plan.attached),
        "cells": [
            {
                "harness": cell.harness,
                "arm": cell.arm,
                "seed": cell.seed,
                "model": cell.model,
                "task": cell.task,
                "axes": dict(cell.axes),
            }
            for cell in plan.in_order()
        ],
    }
