"""What a run leaves on disk beside its snapshots: private records, normalized traces, progress lines.

An episode counts when its line in ``episodes.jsonl`` is whole and its commit is in the run's history. This module
decides that for writers and readers alike, and it is the one place that writes JSON atomically. It runs no episode
and judges no result.

Private files of a run (``private_record_dir``), outside of what its subject is shown::

    episodes.jsonl                one record an episode, in order; the truth
    actions.jsonl                 the normalized trace of each episode
    handoffs.jsonl                under framework continuity, the notes that each episode's phases left
    rescores.jsonl                results of evaluators that came, or changed, after the episode; ``core.rescore``
    eval_history.json             the records as one list without clocks, written when the run stops
    disposition_fingerprint.json  digest of the disposition as it was installed
    pending_candidate.json        only while a candidate that was refused awaits its repair
    lock                          held by the process that runs the run
"""

from __future__ import annotations

import enum
import fcntl
import functools
import json
import math
import numbers
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from pytest_proteus.core.adapter import ActionEvent
from pytest_proteus.core.errors import ConfigurationError, RecordError

RECORDS_FOLDER = ".proteus-records"
EPISODES, ACTIONS, HANDOFFS, RESCORES = "episodes.jsonl", "actions.jsonl", "handoffs.jsonl", "rescores.jsonl"

#: Fields of a record that tell the time; everything else is equal between equal runs.
CLOCKS = ("ts", "seconds")

#: Longest text or parameter kept of one action, in characters.
ACTION_LIMIT = 65_536

#: Seconds that a run waits for its lock.
LOCK_SECONDS = 1.0
_DEPTH, _REPR, _INT_BITS = 40, 500, 1024
_ESCAPED_BYTE = re.compile(r"\\u(dc[89a-f][0-9a-f])")
_EPISODE = re.compile(rb'\{"episode": (\d+),')


def private_record_dir(root: Path) -> Path:
    """Where the records of the run at ``root`` lie: beside it, out of its subject's sight."""
    root = Path(root)
    return root.parent / RECORDS_FOLDER / root.name


def eval_history_path(root: Path) -> Path:
    """The list of a run's records as one JSON file."""
    return private_record_dir(root) / "eval_history.json"


def pending_candidate_path(root: Path) -> Path:
    """The file that is there only while a refused candidate of a staged harness awaits its repair."""
    return private_record_dir(root) / "pending_candidate.json"


def fingerprint_path(root: Path) -> Path:
    """The file with the digest of the disposition as it was installed."""
    return private_record_dir(root) / "disposition_fingerprint.json"


# ---------------------------------------------------------------------------------------------- plain data


def plain(value: Any, *, limit: int = 0) -> Any:
    """``value`` as data that JSON can hold and any reader gets back alike; never raises.

    NaN and infinities become None, numpy scalars numbers, arrays and tuples lists, sets sorted lists, paths and
    other keys strings, bytes and lone surrogates escaped text, enums their values, dataclasses mappings; anything else
    a bounded ``repr``.

    Args:
        limit: longest string kept, in characters; 0 for no limit.
    """
    return _plain(value, limit, 0)


def as_path(text: str) -> Path:
    """The path that ``plain`` made a text of: bytes of a name that is no Unicode, escaped there, are bytes again.

    A path that really is spelled with such an escape is found as it is, unless both of them exist.
    """
    path = Path(_ESCAPED_BYTE.sub(lambda found: chr(int(found[1], 16)), text))
    return path if os.path.lexists(path) else Path(text)


def _text(value: str, limit: int) -> str:
    if limit and len(value) > limit:
        value = f"{value[:limit]}… ({len(value) - limit} more characters)"
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _plain(value: Any, limit: int, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, limit)
    if kind is int:
        return value if value.bit_length() <= _INT_BITS else None
    if kind is float:
        return value if math.isfinite(value) else None
    if depth >= _DEPTH:
        return "…"
    try:
        return _plain_other(value, limit, depth + 1)
    except Exception:
        return f"<{kind.__name__}>"


def _plain_other(value: Any, limit: int, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, limit, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, limit, depth) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, limit, depth) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, enum.Enum):
        return _plain(value.value, limit, depth)
    if isinstance(value, str):
        return _text(str.__str__(value), limit)
    if isinstance(value, PurePath):
        return _text(str(value), limit)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text(bytes(value).decode("utf-8", "backslashreplace"), limit)
    if isinstance(value, numbers.Integral):
        return _plain(int(value), limit, depth)
    if isinstance(value, numbers.Real):
        return _plain(float(value), limit, depth)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), limit, depth) for field in fields(value)}
    if hasattr(value, "tolist"):  # numpy arrays and the numpy scalars that no number class knows
        return _plain(value.tolist(), limit, depth)
    return _text(repr(value), limit or _REPR)


def _key(key: Any) -> str:
    if type(key) is str:
        return _text(key, 0)
    plain_key = _plain(key, _REPR, 0)
    return plain_key if isinstance(plain_key, str) else json.dumps(plain_key)


def add_counters(total: dict[str, Any], counters: Mapping[str, Any]) -> None:
    """Add the numbers in ``counters`` to ``total``, in place and also inside nested mappings.

    Booleans, texts, lists and values that are no finite numbers are not summed; a name that is a number in one
    episode and a mapping in another keeps what it was first.
    """
    for name, value in counters.items():
        value = plain(value)
        name = _key(name)
        if isinstance(value, dict):
            inner = total.get(name, {})
            if isinstance(inner, dict):
                add_counters(inner, value)
                if inner:
                    total[name] = inner
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            before = total.get(name, 0)
            if not isinstance(before, dict):
                total[name] = before + value


# --------------------------------------------------------------------------------------------- JSON on disk


def write_json_atomic(path: Path, value: Any) -> None:
    """Write ``value`` (made ``plain``) as JSON to ``path``: after a kill or power cut it is the old or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def jsonl_line(value: Any) -> bytes:
    """One line of a JSON-lines file."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def append_jsonl(path: Path, value: Any) -> None:
    """Append ``value`` (made ``plain``) to ``path`` as one durable line; a half line left by a kill is cut off.

    Safe between processes that append to one file at a time.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = _cut_half_line(fd)
        write_all(fd, jsonl_line(plain(value)), size)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path.parent)


def write_all(fd: int, data: bytes, size: int) -> None:
    """Append ``data`` to the file of ``size`` bytes behind ``fd``; when that fails the file is as it was."""
    try:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        os.ftruncate(fd, size)
        raise


def _cut_half_line(fd: int) -> int:
    """Cut what follows the last newline; gives the size."""
    size = os.fstat(fd).st_size
    end = size
    while end:
        start = max(0, end - 65_536)
        block = os.pread(fd, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)
    return end


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; [] when there is no file. A half last line is passed over.

    Raises:
        RecordError: a whole line that is no JSON object.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return parse_jsonl(data, path)


def parse_jsonl(data: bytes, path: Path) -> list[dict[str, Any]]:
    """The whole lines of ``data``, which was read from ``path``."""
    lines = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{path}:{number} is not JSON ({error}); restore it or start a new run") from error
        if not isinstance(value, dict):
            raise RecordError(f"{path}:{number} is not a JSON object; restore it or start a new run")
        lines.append(value)
    return lines


# ------------------------------------------------------------------------------------- which episodes count


def settle(
    root: Path,
    lines: Sequence[dict[str, Any]],
    checkpoints: Mapping[int, str],
    has_commit: Callable[[str], bool],
) -> tuple[list[dict[str, Any]], str]:
    """The records that count, and the commit that has yet to be published for the last of them ("" for none).

    A last record whose commit is stored but not yet in the history was written by a process that was killed between
    the two: it counts. One whose commit is not stored does not.

    Raises:
        RecordError: records and history contradict each other in a way that no kill leaves behind.
    """
    counted: list[dict[str, Any]] = []
    publish = ""
    for number, line in enumerate(lines, start=1):
        commit = str(line.get("commit", ""))
        if line.get("episode") != number:
            raise RecordError(f"cannot resume {root}: record {number} is of episode {line.get('episode')}")
        if checkpoints.get(number) == commit:
            counted.append(line)
        elif number != len(lines) or number in checkpoints:
            raise RecordError(
                f"cannot resume {root}: the record of episode {number} names commit {commit[:12]}, its history has "
                f"{checkpoints.get(number, 'none')[:12]}; refusing a desynchronised run"
            )
        elif commit in checkpoints.values():
            raise RecordError(
                f"cannot resume {root}: the record of episode {number} names commit {commit[:12]}, which is an earlier "
                f"episode's; refusing a desynchronised run"
            )
        elif has_commit(commit):
            counted.append(line)
            publish = commit
    last = max(checkpoints, default=0)
    if last > len(counted):
        raise RecordError(
            f"cannot resume {root}: its history has {last} episodes, its records have {len(counted)}; "
            f"refusing a desynchronised run"
        )
    return counted, publish


def read_records(root: Path) -> list[dict[str, Any]]:
    """The records of the episodes of the run at ``root`` that count, in order; writes nothing.

    A record has ``episode``, ``accepted``, ``results`` (``name``, ``score``, ``passed``, ``detail``, ``error``),
    ``versions`` (evaluator → version of those that have one), ``counters``, ``turns`` (None when the harness gave no
    whole number), ``tool_calls``, ``ok``, ``commit``,
    ``candidate_commit``, ``candidate_fingerprint``, ``disposition_fingerprint``, ``disposition_drift``,
    ``violations`` (``path``, ``kind``, ``detail``), ``units``
    (surface → number, of the state that goes on), ``failure_kind``, ``error``, ``ts`` (seconds since the epoch) and
    ``seconds`` (wall time of the episode).

    Raises:
        RecordError: see ``settle``.
    """
    from pytest_proteus.core import snapshot

    root = Path(root)
    lines = read_jsonl(private_record_dir(root) / EPISODES)
    work_tree = root / "harness"
    if not lines or not snapshot.head(work_tree):
        return []
    checkpoints = dict(snapshot.checkpoints(work_tree))
    counted, _ = settle(root, lines, checkpoints, lambda commit: snapshot.has_commit(work_tree, commit))
    return counted


def read_rescores(root: Path) -> list[dict[str, Any]]:
    """The results that were computed after their episodes, oldest first.

    Each has ``episode``, ``ts`` and ``results``: as in a record, each with the ``version`` of its evaluator.

    Raises:
        RecordError: a whole line that is no such object.
    """
    path = private_record_dir(root) / RESCORES
    lines = read_jsonl(path)
    for line in lines:
        if not isinstance(line.get("episode"), int) or not isinstance(line.get("results"), list):
            raise RecordError(f"{path} holds a line that is no result; restore it from a backup, or remove it")
    return lines


def write_override(root: Path, episode: int, override: Mapping[str, Any]) -> None:
    """Put an operator's word beside a result: ``evaluator``, ``score``, ``author``, ``reason``, ``at``, and what more.

    The last one counts; those before it stay on record.
    """
    line = {"episode": episode, "ts": override["at"], "results": [], "override": plain(dict(override))}
    append_jsonl(private_record_dir(root) / RESCORES, line)


def has_result(record: Mapping[str, Any], rescores: Sequence[Mapping[str, Any]], name: str, version: str) -> bool:
    """Whether an episode has a result of an evaluator in this version; one that is still pending is none."""
    found = with_versions(record, rescores, {name: version})["results"]
    return any(result["name"] == name and not _is_pending(result) for result in found)


def _is_pending(result: Mapping[str, Any]) -> bool:
    """Whether an evaluator could not get what it needs, and may another time."""
    data = result.get("data")
    return isinstance(data, Mapping) and data.get("state") == "pending"


def with_versions(
    record: Mapping[str, Any], rescores: Sequence[Mapping[str, Any]], versions: Mapping[str, str]
) -> dict[str, Any]:
    """A record with the results of evaluators in the given versions: its own, or those that were computed later.

    A result of another version is left out; one whose version nobody wrote down is taken as it is. One that was pending
    gives way to one that was computed later. An operator's override is ``data.override`` of what it is over.
    """
    results = {result["name"]: result for result in record.get("results") or ()}
    told = record.get("versions") or {}
    for name, version in versions.items():
        if told.get(name, version) != version:
            results.pop(name, None)
        if name in results and not _is_pending(results[name]):
            continue
        for line in rescores:
            if line["episode"] == record["episode"]:
                for result in line["results"]:
                    if result["name"] == name and result.get("version") == version:
                        results[name] = {key: value for key, value in result.items() if key != "version"}
    for line in rescores:
        name, override = str((line.get("override") or {}).get("evaluator")), line.get("override")
        if line["episode"] == record["episode"] and override and name in results:
            results[name] = {**results[name], "data": {**(results[name].get("data") or {}), "override": override}}
    return {**record, "results": list(results.values())}


def completed_episodes_in(root: Path) -> int:
    """How many episodes of the run at ``root`` count; 0 when there is no run."""
    return len(read_records(root))


def history_entry(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as ``eval_history.json`` has it: without clocks, so that equal runs have equal files."""
    return {key: value for key, value in record.items() if key not in CLOCKS}


# --------------------------------------------------------------------------------------------------- traces


def action_to_json(event: ActionEvent) -> dict[str, Any]:
    """One action as plain, bounded data."""
    return {
        "turn": plain(event.turn),
        "phase": plain(event.phase, limit=ACTION_LIMIT),
        "tool": plain(event.tool, limit=ACTION_LIMIT),
        "surface": plain(event.surface, limit=ACTION_LIMIT),
        "params": plain(event.params, limit=ACTION_LIMIT),
        "text": plain(event.text, limit=ACTION_LIMIT),
        "timestamp": plain(event.timestamp),
    }


def read_trace(root: Path, episode: int) -> list[ActionEvent]:
    """The normalized actions of one completed episode, as its evaluators saw them (long texts cut).

    Raises:
        RecordError: no trace of that episode is stored.
    """
    path = private_record_dir(root) / ACTIONS
    line = b""
    try:
        with path.open("rb") as stream:
            seen = os.fstat(stream.fileno())
            places = _trace_places(os.fspath(path), seen.st_ino, seen.st_size, seen.st_mtime_ns)
            start, end = places.get(episode, (0, 0))
            stream.seek(start)
            line = stream.read(end - start)
    except FileNotFoundError:
        pass
    if not line:
        raise RecordError(f"no trace of episode {episode} is stored for {root}")
    return [ActionEvent(**action) for action in json.loads(line)["actions"]]


@functools.lru_cache(maxsize=256)
def _trace_places(path: str, inode: int, size: int, changed: int) -> dict[int, tuple[int, int]]:
    """Episode → where its line begins and ends, of a file in this state; whole lines only, the last of an episode."""
    places: dict[int, tuple[int, int]] = {}
    start = 0
    with Path(path).open("rb") as stream:
        for line in stream:
            end = start + len(line)
            number = _EPISODE.match(line)
            if number is not None and line.endswith(b"\n"):
                places[int(number[1])] = (start, end)
            start = end
    return places


# -------------------------------------------------------------------------------------------------- writers


def _locked(fd: int) -> bool:
    """Lock a file; False when another process holds it for longer than a child of a killed one takes to let go."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.02)


class EpisodeLog:
    """The private records of one run, held open by the one process that may write them.

    Args:
        root: folder of the run.
        handoffs: whether its episodes leave notes.

    Attributes:
        new: whether no process has opened the records of this run before.
        lines: whole lines of ``episodes.jsonl`` when it was opened; ``settle`` says which of them count.

    Raises:
        ConfigurationError: another process runs this run at the moment.
    """

    def __init__(self, root: Path, handoffs: bool = False) -> None:
        self.root = Path(root)
        self.folder = private_record_dir(self.root)
        self.new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _locked(self._lock):
            os.close(self._lock)
            raise ConfigurationError(f"{root} is being run by another process; wait for it or use another folder")
        for leftover in self.folder.glob(".*"):  # a killed process was writing it
            leftover.unlink()
        self._fds = [self._open(name) for name in (EPISODES, ACTIONS, *([HANDOFFS] if handoffs else []))]
        self._sizes = [_cut_half_line(fd) for fd in self._fds]
        self.lines = parse_jsonl(os.pread(self._fds[0], self._sizes[0], 0), self.folder / EPISODES)
        sync_folder(self.folder)

    def _open(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors whose data must be on disk before the episode is published."""
        return tuple(self._fds)

    def keep(self, episodes: int) -> None:
        """Drop what belongs to no episode up to ``episodes``: the rest of an attempt that was killed."""
        for index in range(len(self._fds)):
            data = os.pread(self._fds[index], self._sizes[index], 0)
            end = 0
            for line in data.splitlines(keepends=True):
                number = _EPISODE.match(line)
                if number is None or int(number[1]) > episodes:
                    break
                end += len(line)
            if end < self._sizes[index]:
                os.ftruncate(self._fds[index], end)
                self._sizes[index] = end

    def flush(self) -> None:
        """Make everything appended durable."""
        for fd in self._fds:
            os.fsync(fd)

    def handoffs(self) -> list[Mapping[str, Any]]:
        """The notes of each episode that is kept, in order; phase → ``source`` and ``text``."""
        if len(self._fds) < 3:
            return []
        data = os.pread(self._fds[2], self._sizes[2], 0)
        return [
            line["phases"] if isinstance(line.get("phases"), dict) else {}
            for line in parse_jsonl(data, self.folder / HANDOFFS)
        ]

    def append(
        self, record: Mapping[str, Any], actions: Iterable[ActionEvent], handoffs: Mapping[str, Any] | None = None
    ) -> None:
        """Write the trace, the notes and then the record of one episode. Durable once ``fds`` are flushed."""
        number = record["episode"]
        trace = {"episode": number, "actions": [action_to_json(event) for event in actions]}
        notes = {"episode": number, "phases": handoffs or {}}
        for index, line in reversed(list(enumerate(map(jsonl_line, (record, trace, notes)[: len(self._fds)])))):
            write_all(self._fds[index], line, self._sizes[index])
            self._sizes[index] += len(line)

    def close(self) -> None:
        """Let go of the files and of the lock."""
        for fd in (*self._fds, self._lock):
            os.close(fd)
        self._fds = []


class ProgressLog:
    """The progress file of a run: one line an episode for people who watch; it may be shared by several runs.

    A line is computed from the episode's record alone, so that one which a kill swallowed can be written again.

    Args:
        path: the file, or None for no progress lines.
        name, seed: say which run a line is of.
        episodes_target: episodes that the run is to complete.
    """

    def __init__(self, path: Path | None, *, name: str, seed: int, episodes_target: int) -> None:
        self.path = None if path is None else Path(path)
        self._head = {"name": name, "seed": seed}
        self._target = episodes_target
        self._fd = -1
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def line(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What a watcher is told of one episode; the score of an evaluator that failed is None."""
        scores = {item["name"]: None if item["error"] else item["score"] for item in record["results"]}
        return {
            "ts": record["ts"],
            **self._head,
            "episode": record["episode"],
            "episodes_target": self._target,
            "ok": record["ok"],
            "turns": record["turns"],
            "error": record["error"],
            "tool_calls": record["tool_calls"],
            "units": record["units"],
            "accepted": record["accepted"],
            "scores": scores,
            "counters": record["counters"],
        }

    def catch_up(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the lines of ``records`` that are missing."""
        if self.path is None:
            return
        size = _cut_half_line(self._fd)
        lines = parse_jsonl(os.pread(self._fd, size, 0), self.path)
        there = {line.get("episode") for line in lines if {key: line.get(key) for key in self._head} == self._head}
        for record in records:
            if record["episode"] not in there:
                self.append(record)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line."""
        if self._fd >= 0:
            write_all(self._fd, jsonl_line(self.line(record)), os.fstat(self._fd).st_size)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
