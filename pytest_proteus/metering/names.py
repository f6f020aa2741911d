"""Names of tasks: one id for a cell that people can read, and what is common to the cells of an experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def task_id(
    experiment: str,
    *,
    agent: str,
    model: str = "",
    framework: str = "",
    env: str = "",
    repetition: int = 0,
    salt: str = "",
) -> str:
    """``<experiment>[-<salt>]--<agent>-<model>-<framework>-<env>--r<N>``; what is empty is ``none``.

    The part before the first ``--`` is the experiment's run, so that runs of it again stay apart by their salt.
    """
    head = "-".join(filter(None, (_plain(experiment), _plain(salt) if salt else "")))
    return f"{head}--{'-'.join(map(_plain, (agent, model, framework, env)))}--r{repetition}"


def of_cell(sweep: str, folder: str, cell: Mapping[str, Any]) -> str:
    """The id of a cell of a sweep: the arm is the framework, task and further axes are the environment, the seed is the
    repetition, and the sweep's folder, where that is a number, keeps its repetitions apart.

    Args:
        sweep: its name.
        folder: name of its folder.
        cell: its entry in a manifest.
    """
    env = [cell.get("task"), *(value for _, value in sorted((cell.get("axes") or {}).items()))]
    return task_id(
        sweep,
        agent=str(cell["harness"]),
        model=str(cell.get("model") or ""),
        framework=str(cell["arm"]),
        env="+".join(str(part) for part in env if part is not None),
        repetition=cell["seed"],
        salt=folder if folder != sweep else "",
    )


def experiment_run(task: str) -> str:
    """The experiment's run that a task belongs to; empty for a task of none."""
    head, separator, _ = task.partition("--")
    return head if separator else ""


def _plain(text: str) -> str:
    """A text as a part of an id: without white space, and with no two hyphens in a row."""
    return re.sub(r"-{2,}", "-", re.sub(r"\s+", "_", text.strip())).strip("-") or "none"
