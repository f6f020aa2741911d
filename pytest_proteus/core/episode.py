"""The episode transaction: prompts, harness, trace, viability, evaluators, selection, snapshot, record, progress line.

An episode counts once its snapshot and its record are both on disk; a kill at any instant leaves a run that goes on
from the last episode that counts. Nothing here knows of sweeps or pytest, and nothing here judges an agent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_proteus.core.adapter import PHASES, ActionEvent, EpisodeResult, EpisodeSpec
from pytest_proteus.core.budget import budget_of
from pytest_proteus.core.config import RunConfig, RunResult
from pytest_proteus.core.continuity import HANDOFF_LIMIT, handoff_path, last_note
from pytest_proteus.core.errors import (
    ApparatusError,
    ConfigurationError,
    PhaseTimeout,
    ProteusError,
    StorageError,
    disk_error,
)
from pytest_proteus.core.evaluation import EvaluatorRunner, mean_score
from pytest_proteus.core.goal import EvalResult, GoalContext
from pytest_proteus.core.ledger import read_json
from pytest_proteus.core.prompts import (
    BASE_PROMPTS,
    OPEN_BASE_PROMPTS,
    handoff_text,
    phase_prompts,
    refusal_notice,
    rejection_notice,
)
from pytest_proteus.core.records import (
    ACTION_LIMIT,
    EpisodeLog,
    ProgressLog,
    add_counters,
    completed_episodes_in,
    eval_history_path,
    fingerprint_path,
    history_entry,
    pending_candidate_path,
    plain,
    private_record_dir,
    settle,
    write_json_atomic,
)
from pytest_proteus.core.trees import listing, mirror, own_folder, remove

if TYPE_CHECKING:
    from pytest_proteus.core.snapshot import Scan, SnapshotStore

__all__ = [
    "BASE_PROMPTS",
    "OPEN_BASE_PROMPTS",
    "PHASES",
    "RunConfig",
    "RunResult",
    "completed_episodes",
    "eval_history_path",
    "pending_candidate_path",
    "private_record_dir",
    "run",
]

PENDING_CANDIDATE_VERSION = 1

#: How a run ends when an episode did not complete, by ``EpisodeResult.error_class``.
_STATES = {
    "apparatus": "errored",
    "configuration": "errored",
    "timeout": "timeout",
    "abort": "abort",
    "budget": "abort",
}
_SHOWN_VIOLATIONS = 5

#: Changes to the tree that an agent runs from that are told.
_MOST_CHANGED = 100

#: How often the logs below a live root are copied to the artifacts while the run goes on; at its end they are anyway.
MIRROR_SECONDS = 1.0


def completed_episodes(cfg: RunConfig) -> int:
    """How many episodes of the run count: where ``run`` goes on. 0 when there is none yet; writes nothing."""
    return completed_episodes_in(cfg.root)


def run(cfg: RunConfig, start: int = 0, *, resume: bool = False) -> RunResult:
    """Run episodes until ``cfg.episodes`` of them count, or one does not complete.

    Args:
        cfg: the run.
        start: episodes that the caller takes for complete; 0 leaves it to the artifacts.
        resume: go on with what lies in ``cfg.root``; implied by a ``start`` above 0. Nothing there is a new run.

    Returns:
        How it ended. A harness that fails, runs out of time or is stopped ends the run as ``errored``, ``timeout`` or
        ``abort`` with the episodes that count; calling again with ``resume=True`` tries the failed one again.

    Raises:
        ConfigurationError: ``cfg.root`` holds a run and ``resume`` is not asked for; or it is run elsewhere; or
            ``start`` is not where it stands; or ``episodes`` is no number; or two surfaces have one name.
        RecordError: the artifacts contradict each other, or are damaged.
        ApparatusError: the harness cannot be asked for its surfaces, or cannot be seeded.
        StorageError: the artifacts or the live trees cannot be written at all.
    """
    _check(cfg)
    resume = resume or start > 0
    if not resume:
        _refuse_existing(cfg)
    try:
        transaction = _Run(cfg)
    except OSError as error:
        raise StorageError(_cannot_write(cfg, error)) from error
    with transaction:
        return transaction.go(start)


def _check(cfg: RunConfig) -> None:
    """Refuse what cannot be run, before anything is written."""
    if not isinstance(cfg.episodes, int) or isinstance(cfg.episodes, bool) or cfg.episodes < 0:
        raise ConfigurationError(f"episodes={cfg.episodes!r} of run {cfg.name!r} must be a whole number, 0 or larger")
    _check_budget(cfg)
    with _asking(cfg, "asked for its surfaces"):
        names = [surface.name for surface in cfg.adapter.surfaces()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"harness {cfg.adapter.name!r} declares two surfaces called {name!r}; give one of them another name"
            )


def _check_budget(cfg: RunConfig) -> None:
    try:
        problem = budget_of(cfg).problem(cfg.phases)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(f"run {cfg.name!r} cannot keep its turn budget: {problem}")


@contextlib.contextmanager
def _asking(cfg: RunConfig, what: str) -> Iterator[None]:
    """What a harness raises outside of an episode is a failure of the apparatus that names the harness."""
    try:
        yield
    except Exception as error:
        if full := disk_error(error):
            raise StorageError(_cannot_write(cfg, full)) from error
        if isinstance(error, ProteusError):
            raise
        reason = error if isinstance(error, OSError) else _failure(error).error
        raise ApparatusError(f"harness {cfg.adapter.name!r} cannot be {what}: {reason}") from error


def _refuse_existing(cfg: RunConfig) -> None:
    from pytest_proteus.core import snapshot

    if snapshot.head(Path(cfg.root) / "harness"):
        raise ConfigurationError(
            f"{cfg.root} already holds a run; pass resume=True to go on with it, or give another folder"
        )


def _cannot_write(cfg: RunConfig, error: OSError) -> str:
    live = "" if cfg.live_root is None else f" or its live trees under {cfg.live_root}"
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"the artifacts of the run under {cfg.root}{live} cannot be written{where}: {error.strerror or error}"


@dataclass(frozen=True)
class _Failure:
    """Why an episode did not complete."""

    error_class: str
    error: str


@dataclass
class _Standing:
    """What one episode hands to the next; computed from the records alone, so that a resumed run stands the same."""

    fingerprint: str
    results: Sequence[EvalResult] = ()
    accepted: bool = True
    refused: str = ""
    candidate: str = ""
    accepted_mean: float | None = None

    def after(self, record: Mapping[str, Any]) -> _Standing:
        results = [EvalResult(**item) for item in record["results"]]
        kept = record["accepted"] and bool(results)
        return _Standing(
            fingerprint=record["disposition_fingerprint"],
            results=results,
            accepted=record["accepted"],
            refused=record["error"] if record["failure_kind"] else "",
            candidate=record["candidate_commit"],
            accepted_mean=mean_score(results) if kept else self.accepted_mean,
        )


class _Run:
    """One run while this process runs it. Use as a context manager: it holds locks, files and maybe a child."""

    def __init__(self, cfg: RunConfig) -> None:
        self.cfg = cfg
        self.root = Path(cfg.root)
        self.live = self.root if cfg.live_root is None else Path(cfg.live_root)
        self.harness = self.live / "harness"
        self.adapter = cfg.adapter
        self.staged = bool(getattr(cfg.adapter, "staged_activation", False))
        self.continuity = getattr(cfg.adapter, "continuity_mode", "native")
        self.handoff = ""
        self.activated: dict[str, object] = {}
        self.opened = False
        self.mirrored = time.monotonic()
        self.records: list[dict[str, Any]] = []
        self.counters: dict[str, Any] = {}
        self.evaluators = EvaluatorRunner(cfg.goal.specs())
        self.store: SnapshotStore
        with contextlib.ExitStack() as stack:
            stack.callback(self.evaluators.close)
            self.root.mkdir(parents=True, exist_ok=True)
            self.log = EpisodeLog(self.root, handoffs=self.continuity == "framework")
            stack.callback(self.log.close)
            self.progress = ProgressLog(cfg.progress_path, name=cfg.name, seed=cfg.seed, episodes_target=cfg.episodes)
            stack.callback(self.progress.close)
            self._closing = stack.pop_all()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._closing:
            if kind is not None:  # an orderly end has put everything in place already
                with contextlib.suppress(Exception):
                    self._settle_artifacts(interrupted=True)

    # ------------------------------------------------------------------------------------------ start and end

    def go(self, start: int) -> RunResult:
        """Open or seed, then run what is missing."""
        try:
            self._open()
        except (OSError, ProteusError) as error:
            full = error if isinstance(error, OSError) else disk_error(error)
            if full is None or isinstance(error, StorageError):
                raise
            raise StorageError(_cannot_write(self.cfg, full)) from error
        self._check_start(start)
        failure = None
        for step in (self._episodes, self._settle_artifacts):
            try:
                failure = step() or failure
            except OSError as error:
                failure = failure or _Failure("storage", _cannot_write(self.cfg, error))
            except ProteusError as error:
                failure = failure or self._failure(error)
        return RunResult(
            name=self.cfg.name,
            episodes_complete=len(self.records),
            root=str(self.cfg.root),
            error=failure.error if failure else "",
            eval_history=[history_entry(record) for record in self.records],
            counters=self.counters,
            state=_STATES.get(failure.error_class, "errored") if failure else "complete",
            error_class=failure.error_class if failure else "",
        )

    def _open(self) -> None:
        """Bring tree, history and records to the last episode that counts, whatever a killed process left."""
        from pytest_proteus.core.snapshot import SnapshotStore
        from pytest_proteus.core.units import UnitTables

        git_dir = self.root / ".snapshot.git"
        if self.live != self.root:
            self._mirror()  # what a killed process logged and could not keep
            remove(self.live)
            self.live.mkdir(parents=True)
        for folder in (self.harness, self.live / "traces"):
            own_folder(folder)
        self.store = self._closing.enter_context(
            contextlib.closing(SnapshotStore.create_or_open(self.harness, git_dir))
        )
        checkpoints = dict(self.store.checkpoints())
        self.records, publish = settle(self.root, self.log.lines, checkpoints, self.store.has_commit)
        self.log.keep(len(self.records))
        for phases in self.log.handoffs():
            self._hand_on(phases)
        if publish:
            self.log.flush()
            self.store.publish_by_id(publish)
        self.opened = True
        if not checkpoints:
            self._seed()
        else:
            self._set_up_task()
            self._put_back(self.store.scan())
        self.tables = UnitTables(self.adapter.surfaces(), self.store.read_blob)
        self.units: Mapping[str, Mapping[str, str]] = self.tables.move_to(self.store.accepted)
        self.standing = _Standing(self.log_fingerprint())
        self.first_fingerprint = self.standing.fingerprint
        for record in self.records:
            self._stand_after(record)
            add_counters(self.counters, record["counters"])
        self._hand_back()

    def _stand_after(self, record: Mapping[str, Any]) -> None:
        """What the next episode starts from; where nothing evolves, it is always the first one."""
        if self.cfg.evolves:
            self.standing = self.standing.after(record)

    def _hand_on(self, phases: Mapping[str, Any]) -> None:
        """The note that the next episode finds; where nothing evolves, there is none."""
        if self.cfg.evolves:
            self.handoff = last_note(phases) or self.handoff

    def log_fingerprint(self) -> str:
        """The digest of the disposition as it was installed."""
        value = read_json(fingerprint_path(self.root)) or {}
        return str(value.get("fingerprint", ""))

    def _seed(self) -> None:
        """The initial tree and disposition as episode 0."""
        if not self.log.new:  # a killed process has seeded it, perhaps by half
            remove(self.harness)
            self.harness.mkdir()
        with _asking(self.cfg, "seeded"):
            self.adapter.seed(self.harness, self.cfg.seed)
            self.adapter.install_disposition(self.harness, self.cfg.disposition)
            fingerprint = plain(self.adapter.disposition_fingerprint(self.harness))
        write_json_atomic(fingerprint_path(self.root), {"fingerprint": fingerprint})
        self._set_up_task()
        scan = self.store.scan()
        if scan.violations:
            raise ConfigurationError(f"the initial tree of harness {self.adapter.name!r} is refused: {_summary(scan)}")
        self.store.publish(self.store.prepare(scan, 0, label="seeded harness"))

    def _mirror(self) -> None:
        """Keep the harness's own logs with the artifacts."""
        mirror(self.live / "traces", self.root / "traces")
        self.mirrored = time.monotonic()

    def _put_back(self, scan: Scan) -> None:
        """Make the work tree the last accepted state again."""
        own_folder(self.harness)
        self.store.rollback(scan)

    def _set_up_task(self) -> None:
        folder = self.live / "task"
        if self.cfg.task is not None and not folder.exists():
            folder.mkdir()
            self.cfg.task.setup(folder)

    def _check_start(self, start: int) -> None:
        if start and start != len(self.records):
            raise ConfigurationError(
                f"cannot resume {self.root} at episode {start}: {len(self.records)} episodes are complete; resume "
                f"there, or leave start out"
            )

    def _settle_artifacts(self, *, interrupted: bool = False) -> None:
        """What lies in the run's folder once nobody runs it: history, last accepted state, no live trees."""
        if self.opened:
            write_json_atomic(eval_history_path(self.root), [history_entry(record) for record in self.records])
            remove(handoff_path(self.live).parent)
        if self.live != self.root:
            if self.opened:
                self._mirror()
            if self.opened and self.store.head():
                finished = self.root / ".harness.new"
                remove(finished)
                self.store.materialize(self.store.head(), finished)
                remove(self.root / "harness")
                finished.rename(self.root / "harness")
            remove(self.live)
        elif self.opened and (self.staged or interrupted) and self.store.head():
            remove(self.live / "active")
            self._put_back(self.store.scan())

    # ------------------------------------------------------------------------------------------- the episodes

    def _episodes(self) -> _Failure | None:
        self.progress.catch_up(self.records)
        for number in range(len(self.records) + 1, self.cfg.episodes + 1):
            if self.cfg.should_stop is not None and self.cfg.should_stop():
                return _Failure("abort", f"stopped before episode {number}")
            failure = self._episode(number)
            if failure is not None:
                return failure
        return None

    def _episode(self, number: int) -> _Failure | None:
        started = time.monotonic()
        attempt = self._attempt(number)
        scan = self.store.scan()
        refused = attempt if isinstance(attempt, _Failure) else self._refusal(scan)
        if isinstance(attempt, _Failure) or isinstance(refused, _Failure):
            self.store.keep_failed(scan, number, label=self.root.name)
            self._put_back(scan)
            return refused if isinstance(refused, _Failure) else None
        outcome, trace = attempt
        record = self._judge(number, outcome, trace, scan, refused)
        self._commit(number, record, trace, outcome.handoffs, scan, started)
        return None

    def _attempt(self, number: int) -> tuple[EpisodeResult, Sequence[ActionEvent]] | _Failure:
        outcome = self._act(number)
        if isinstance(outcome, _Failure):
            return outcome
        trace = self._trace(number)
        return trace if isinstance(trace, _Failure) else (outcome, trace)

    def _act(self, number: int) -> EpisodeResult | _Failure:
        """Let the harness run one episode; its failures are classed here and nowhere else."""
        try:
            outcome: object = self.adapter.run_episode(self._spec(number))
        except Exception as error:
            return self._failure(error)
        if not isinstance(outcome, EpisodeResult):
            return _Failure("apparatus", f"run_episode returned {type(outcome).__name__}, not an EpisodeResult")
        if not outcome.ok:
            error_class = outcome.error_class if outcome.error_class in _STATES else "apparatus"
            return _Failure(error_class, str(plain(outcome.error)) or f"episode {number} did not complete")
        return outcome

    def _failure(self, error: Exception) -> _Failure:
        """What an exception means; a full disk is one wherever it shows: the episode can be run again with room."""
        full = disk_error(error)
        return _Failure("storage", _cannot_write(self.cfg, full)) if full else _failure(error)

    def _spec(self, number: int) -> EpisodeSpec:
        cfg, standing = self.cfg, self.standing
        notice = ""
        if standing.refused:
            notice = refusal_notice(standing.refused, handed_back=self.staged)
        elif not standing.accepted:
            notice = rejection_notice()
        prompts = phase_prompts(
            cfg.phases,
            goal_text=cfg.goal.goal_text(),
            disposition=cfg.disposition,
            task_text=str(getattr(cfg.task, "prompt", "") or ""),
            notice=notice,
            feedback=cfg.goal.observe_feedback({result.name: result for result in standing.results}),
            handoff=handoff_text(str(handoff_path(self.live)), HANDOFF_LIMIT) if self.continuity == "framework" else "",
        )
        return EpisodeSpec(
            root=self.live,
            episode=number,
            model=cfg.model,
            phase_prompts=prompts,
            max_turns=cfg.max_turns,
            min_turns_per_phase=cfg.min_turns_per_phase,
            phase_turns=cfg.phase_turns,
            hard_max_turns=cfg.hard_max_turns,
            checkpoint_turns=cfg.checkpoint_turns,
            announce_budget=cfg.announce_budget,
            seed=cfg.seed,
            extra_env=cfg.extra_env,
            continuity_mode=self.continuity,
            active_root=self._activate() if self.staged else None,
            phase_timeout=cfg.phase_timeout,
            handoff=self.handoff,
            meter=cfg.meter,
        )

    def _trace(self, number: int) -> Sequence[ActionEvent] | _Failure:
        try:
            trace: list[Any] = list(self.adapter.read_trace(self.live, number))
        except Exception as error:
            reason = self._failure(error)
            if reason.error_class == "storage":
                return reason
            return _Failure("apparatus", f"the trace of episode {number} cannot be read: {reason.error}")
        for event in trace:
            if not isinstance(event, ActionEvent):
                found = type(event).__name__
                return _Failure("apparatus", f"the trace of episode {number} has a {found}, not an ActionEvent")
        return trace

    # ---------------------------------------------------------------------------------------------- judgement

    def _judge(
        self, number: int, outcome: EpisodeResult, trace: Sequence[ActionEvent], scan: Scan, refused: str
    ) -> dict[str, Any]:
        """The record of a completed episode, but for its commits and clocks. ``refused``: why its tree is not kept."""
        results: list[EvalResult] = []
        accepted = not refused
        fingerprint, units = self.standing.fingerprint, self.units
        candidate_fingerprint = "" if scan.violations else self._fingerprint()
        if not refused:
            candidate_units = self.tables.update(scan)
            results = self._evaluate(number, trace, scan, candidate_units)
            accepted = self._selected(results)
            if accepted:
                fingerprint, units = candidate_fingerprint, candidate_units
        self.units = units
        return {
            "episode": number,
            "accepted": accepted,
            "results": [result.to_record() for result in results],
            "versions": {spec.name: spec.version for spec in self.cfg.goal.specs() if spec.version},
            "counters": plain(outcome.counters),
            "turns": _whole(outcome.turns),
            "tool_calls": sum(1 for event in trace if event.tool),
            "ok": not refused,
            "commit": "",
            "candidate_commit": "",
            "candidate_fingerprint": candidate_fingerprint,
            "disposition_fingerprint": fingerprint,
            "disposition_drift": fingerprint != self.first_fingerprint,
            "violations": self._violations(scan),
            "units": {name: len(table) for name, table in units.items()},
            "failure_kind": "viability" if refused else "",
            "error": refused,
        }

    def _refusal(self, scan: Scan) -> str | _Failure:
        """Why the candidate cannot be put to use; empty when it can, a failure when the harness cannot tell."""
        if scan.violations:
            return _summary(scan)
        validate = getattr(self.adapter, "validate_candidate", None)
        if validate is None:
            return ""
        try:
            problem = validate(self.harness)
        except Exception as error:
            failure = self._failure(error)
            return _Failure(failure.error_class, f"validate_candidate of {self.adapter.name!r} failed: {failure.error}")
        finally:
            self.store.revert(scan)
        if problem is None or isinstance(problem, str):
            return str(plain(problem or ""))
        found = type(problem).__name__
        return _Failure("apparatus", f"validate_candidate of {self.adapter.name!r} returned {found}, not a sentence")

    def _fingerprint(self) -> str:
        """Digest of the disposition in the candidate; empty when the subject made it unreadable."""
        try:
            return str(plain(self.adapter.disposition_fingerprint(self.harness)))
        except Exception:
            return ""

    def _evaluate(
        self, number: int, trace: Sequence[ActionEvent], scan: Scan, units: Mapping[str, Mapping[str, str]]
    ) -> list[EvalResult]:
        ctx = GoalContext(
            harness_root=str(self.harness),
            episode=number,
            grader_sandbox=self.cfg.grader_sandbox,
            units=units,
            previous_units=self.units,
        )
        return self.evaluators.run(trace, ctx, lambda: self.store.revert(scan))

    def _selected(self, results: Sequence[EvalResult]) -> bool:
        """Whether the candidate is kept: always without selection, else when its mean does not fall."""
        if not self.cfg.evolves:
            return False
        mean, before = mean_score(results), self.standing.accepted_mean
        return self.cfg.goal.selection == "none" or mean is None or before is None or mean >= before

    # ------------------------------------------------------------------------------------------------- commit

    def _commit(
        self,
        number: int,
        record: dict[str, Any],
        trace: Sequence[ActionEvent],
        handoffs: Mapping[str, Any],
        scan: Scan,
        started: float,
    ) -> None:
        """Objects, record line, one flush, branch: from then on the episode counts."""
        pending = self.store.prepare(scan, number, label=self.root.name, accepted=record["accepted"])
        record["commit"], record["candidate_commit"] = pending.commit, pending.candidate_commit
        record["ts"], record["seconds"] = time.time(), time.monotonic() - started
        notes = plain(handoffs, limit=ACTION_LIMIT) if isinstance(handoffs, Mapping) else {}
        self.log.append(record, trace, notes)
        self.store.publish(pending, flush=self.log.fds)
        self.records.append(record)
        self._stand_after(record)
        self._hand_on(notes)
        add_counters(self.counters, record["counters"])
        if not record["accepted"]:
            self._put_back(scan)
        if not self.cfg.evolves:
            remove(self.live / "task")
            self._set_up_task()
        self.progress.append(record)
        if self.staged:
            self._hand_back()
        if self.live != self.root and time.monotonic() - self.mirrored > MIRROR_SECONDS:
            self._mirror()

    # --------------------------------------------------------------------------------------- staged activation

    def _activate(self) -> Path:
        """A read-only copy of the last accepted state, for a harness that runs from one tree and edits another."""
        active = self.live / "active"
        remove(active)
        self.store.materialize(self.store.head(), active)
        for folder, _, files in os.walk(active, topdown=False):
            for name in files:
                path = Path(folder) / name
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode & ~0o222)
            Path(folder).chmod(0o555)
        self.activated = listing(active)
        return active

    def _violations(self, scan: Scan) -> list[dict[str, str]]:
        """What the agent did that it must not: in the tree that it edits, and to the one that it runs from, which its
        modes do not keep from everybody."""
        found = [{"path": v.path, "kind": v.kind, "detail": v.detail} for v in scan.violations]
        now = listing(self.live / "active") if self.staged else {}
        changed = sorted(
            path for path in now.keys() | self.activated.keys() if now.get(path) != self.activated.get(path)
        )
        told = "changed in the tree that the agent runs from"
        return [
            *found,
            *({"path": f"active/{path}", "kind": "active", "detail": told} for path in changed[:_MOST_CHANGED]),
        ]

    def _hand_back(self) -> None:
        """Put a refused candidate back into the work tree of a staged harness, for it to repair."""
        path = pending_candidate_path(self.root)
        if not (self.staged and self.standing.refused):
            path.unlink(missing_ok=True)
            return
        self.store.restore(self.standing.candidate)
        write_json_atomic(
            path,
            {
                "version": PENDING_CANDIDATE_VERSION,
                "commit": self.standing.candidate,
                "resume_episode": len(self.records) + 1,
                "reason": "viability",
                "error": self.standing.refused,
            },
        )


def _whole(value: Any) -> int | None:
    """A count as a harness gave it; None when it is no whole number."""
    value = plain(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _failure(error: Exception) -> _Failure:
    """What an exception of an adapter means."""
    text = str(error) if isinstance(error, ProteusError) and str(error) else f"{type(error).__name__}: {error}"
    if isinstance(error, PhaseTimeout):
        return _Failure("timeout", text)
    if isinstance(error, ConfigurationError):
        return _Failure("configuration", text)
    return _Failure("apparatus", text)


def _summary(scan: Scan) -> str:
    """The violations of a tree in one sentence."""
    shown = [f"{v.path or '.'}: {v.detail or v.kind}" for v in scan.violations[:_SHOWN_VIOLATIONS]]
    more = len(scan.violations) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
