"""Scores of evaluators that a finished run did not have, or had in another version, from its checkpoints and traces.

No agent runs, and nothing that was written before is changed: new results are lines of ``rescores.jsonl`` beside the
run's records, each with the version of its evaluator. Which evaluators may be scored afterwards is decided elsewhere:
those that nobody saw and that selected nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core import snapshot
from pytest_proteus.core.adapter import ActionEvent, Surface
from pytest_proteus.core.errors import RecordError
from pytest_proteus.core.evaluation import EvaluatorRunner
from pytest_proteus.core.evaluators import is_built_in
from pytest_proteus.core.goal import EvalResult, EvaluatorSpec, GoalContext
from pytest_proteus.core.records import RESCORES, append_jsonl, has_result, private_record_dir, read_rescores
from pytest_proteus.core.trees import remove
from pytest_proteus.core.units import UnitTables

#: Built-in forms that read tables of units or the trace, and no file.
_WITHOUT_TREE = ("units", "tool-calls", "step", "route")


@dataclass
class Rescored:
    """What was done for one run.

    Args:
        computed: results that were computed now.
        errors: how many of them are evaluator errors.
        stored: results that were there.
        complete: False when it was stopped before all were computed.
    """

    computed: int = 0
    errors: int = 0
    stored: int = 0
    complete: bool = True


def rescore(
    root: Path,
    specs: Sequence[EvaluatorSpec],
    surfaces: Sequence[Surface],
    records: Sequence[Mapping[str, Any]],
    trace: Callable[[int], Sequence[ActionEvent]],
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Rescored:
    """Compute what the run at ``root`` lacks of ``specs``; each has a ``version``.

    An evaluator sees what it would have seen: the tree as the episode left it, its trace, the units before. It runs in
    a copy of the tree, and one that changes the copy, fails or takes too long costs its own result only. Episodes
    whose tree was refused have no results, now as then.

    Args:
        root: folder of the run.
        specs: the evaluators.
        surfaces: declared surfaces of the run's harness.
        records: its records, as they were written.
        trace: gives the actions of an episode.
        should_stop: asked before each episode.

    Raises:
        RecordError: a checkpoint or a trace cannot be read.
    """
    done = Rescored()
    stored = read_rescores(root)
    missing: dict[int, list[EvaluatorSpec]] = {}
    for record in records:
        if not record.get("failure_kind"):
            wanted = [spec for spec in specs if not has_result(record, stored, spec.name, spec.version)]
            done.stored += len(specs) - len(wanted)
            if wanted:
                missing[int(record["episode"])] = wanted
    if missing:
        try:
            with contextlib.closing(_Scorer(root, surfaces)) as scorer:
                _score(scorer, records, missing, trace, should_stop, done)
        except snapshot.SnapshotError as error:
            raise RecordError(f"{root} cannot be scored anew: {error}") from error
    return done


def _score(
    scorer: _Scorer,
    records: Sequence[Mapping[str, Any]],
    missing: Mapping[int, Sequence[EvaluatorSpec]],
    trace: Callable[[int], Sequence[ActionEvent]],
    should_stop: Callable[[], bool],
    done: Rescored,
) -> None:
    path = private_record_dir(scorer.root) / RESCORES
    scorer.accept(0)
    for record in records:
        episode = int(record["episode"])
        if episode in missing:
            if should_stop():
                done.complete = False
                return
            specs = missing[episode]
            results = scorer.results(record, trace(episode), specs)
            pairs = zip(specs, results, strict=True)
            lines = [{**result.to_record(), "version": spec.version} for spec, result in pairs]
            append_jsonl(path, {"episode": episode, "ts": time.time(), "results": lines})
            done.computed += len(results)
            done.errors += sum(result.error for result in results)
        scorer.accept(episode)


class _Scorer:
    """One run's checkpoints as evaluators see them, in the order of episodes."""

    def __init__(self, root: Path, surfaces: Sequence[Surface]) -> None:
        self.root = Path(root)
        self._reader = snapshot.Reader(snapshot.git_dir_of(self.root / "harness"))
        self._commits = dict(self._reader.checkpoints())
        self._tables = UnitTables(surfaces, self._reader.read_blob)
        self._runners: dict[tuple[str, ...], EvaluatorRunner] = {}
        self._closing = contextlib.ExitStack()
        self._scratch: Path | None = None
        self._before: Mapping[str, Mapping[str, str]] = {}

    def accept(self, episode: int) -> None:
        """Go on from the state that an episode ended with."""
        self._before = self._tables.move_to(self._reader.node_of(self._commits.get(episode, "")))

    def results(
        self, record: Mapping[str, Any], trace: Sequence[ActionEvent], specs: Sequence[EvaluatorSpec]
    ) -> list[EvalResult]:
        """What ``specs`` say about an episode."""
        episode = int(record["episode"])
        commit = str(record.get("candidate_commit") or self._commits.get(episode, ""))
        units = self._tables.move_to(self._reader.node_of(commit))
        runner = self._runner(specs)
        if not any(_needs_tree(spec) for spec in specs):
            ctx = GoalContext("", episode, units=units, previous_units=self._before)
            return runner.run(trace, ctx, list)
        with self._tree(commit) as (tree, revert):
            ctx = GoalContext(str(tree), episode, units=units, previous_units=self._before)
            return runner.run(trace, ctx, revert)

    def _runner(self, specs: Sequence[EvaluatorSpec]) -> EvaluatorRunner:
        names = tuple(spec.name for spec in specs)
        if names not in self._runners:
            runner = self._runners[names] = EvaluatorRunner(specs)
            self._closing.callback(runner.close)
        return self._runners[names]

    @contextlib.contextmanager
    def _tree(self, commit: str) -> Iterator[tuple[Path, Callable[[], Sequence[str]]]]:
        """A copy of a commit's files, and what puts it back after an evaluator that changed it."""
        if self._scratch is None:
            folder = tempfile.TemporaryDirectory(prefix="scoring-", ignore_cleanup_errors=True)
            self._scratch = Path(self._closing.enter_context(folder))
        tree = self._scratch / "harness"
        remove(tree)
        self._reader.materialize(commit, tree)
        store = snapshot.SnapshotStore.create_or_open(tree, self._scratch / ".snapshot.git")
        with contextlib.closing(store):
            scan = store.scan()
            yield tree, lambda: store.revert(scan)

    def close(self) -> None:
        """End the evaluators' processes and remove the copy."""
        if self._scratch is not None:
            remove(self._scratch / "harness")
        self._closing.close()
        self._reader.close()


def _needs_tree(spec: EvaluatorSpec) -> bool:
    return not (is_built_in(spec.run) and spec.spec.partition(":")[0] in _WITHOUT_TREE)
