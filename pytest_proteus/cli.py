"""The ``proteus`` command: one sub-command each for running a sweep without a suite and for reading finished artifacts.

Parses, calls the room that does the work, prints. Exit codes: 0, 1 (a test, gate or check failed), 2 (usage, in one
line on standard error); ``verdict`` has 3 and 4 as well. Rooms are imported by the sub-command that needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pytest_proteus.core.budget import TurnBudget
from pytest_proteus.core.errors import ConfigurationError, ProteusError

VERDICT_CODES = {"pass": 0, "fail": 1, "undecided": 3, "incomplete": 4}

#: Settings of the suite that ``run`` writes. Its own imports come before pytest's look at plugins: no news to a user.
_INI = "[pytest]\nfilterwarnings = ignore:Module already imported:pytest.PytestAssertRewriteWarning\n"

#: pytest's exit status → ours.
_RUN_CODES = {0: 0, 1: 1, 2: 130, 3: 1, 4: 2, 5: 2}
_INTERRUPTED, _USAGE_ERROR = 2, 4

#: File that ``sweep.command`` leaves in the scratch folder.
ENDED = "ended"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` by default) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no Unicode
    cut = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:cut])
    options.pytest_words = words[cut + 1 :]
    try:
        if options.pytest_words and options.command is not _run:
            raise ConfigurationError("only `proteus run` takes words after --; they are options of pytest")
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # whoever read the output has gone, as `| head` does; Python must not fail on flushing at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (ProteusError, OSError) as error:
        print(f"proteus {options.name}: {_one_line(error)}", file=sys.stderr)
        return 2


# --- run --------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    if options.out.exists() and not options.out.is_dir():
        raise ConfigurationError(f"--out {options.out} is a file; name a folder")
    if options.harness == "pi":
        _configure_pi(options)
    name = sweep_name(options.out)
    text = suite_text(options, name)
    if not options.json:
        print(text, flush=True)
    with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
        suite = Path(scratch) / _file_name(name)
        suite.write_text(text, encoding="utf-8")
        (Path(scratch) / "pytest.ini").write_text(_INI, encoding="utf-8")
        words = ["-p", "proteus", "-p", "pytest_proteus.sweep.command", "-p", "no:cacheprovider"]
        words += ["-c", f"{scratch}/pytest.ini", f"--rootdir={scratch}"]
        words += [f"--proteus-sweep-dir={options.out.absolute()}", f"--proteus-on-existing={options.on_existing}"]
        words += [f"--proteus-endpoint={endpoint}" for endpoint in options.endpoint]
        if options.sandbox:
            words.append(f"--proteus-sandbox={options.sandbox}")
        if options.workers != "0":
            words += ["-p", "xdist", "-n", options.workers]
        status, said = _pytest([*words, *options.pytest_words, str(suite)], to_stderr=options.json)
        ended = (Path(scratch) / ENDED).exists()
    _tidy(options.out / ".session")
    if not ended and status != _INTERRUPTED and not (status == _USAGE_ERROR and said.strip()):
        sys.stderr.write(said)
        print("proteus run: a harness or evaluator ended the process; there is no report", file=sys.stderr)
        return 1
    if status == _USAGE_ERROR:
        raise ConfigurationError(_usage_error(said, options))
    sys.stderr.write(said)
    if status in (0, 1) and (reason := _reason_for_nothing(options.out)):
        raise ConfigurationError(f"no cell ran: {reason}")
    if options.json and status in (0, 1):
        _print_json(_load(options.out))
    return _RUN_CODES.get(status, 1)


def _configure_pi(options: argparse.Namespace) -> None:
    """Take the model, and the endpoint, from the environment where no option names them.

    Raises:
        ConfigurationError: it tells none either.
    """
    from pytest_proteus.harnesses.pi import configured

    given = [*options.endpoint, *_values_of("--proteus-endpoint", options.pytest_words)]
    if options.model or _values_of("--proteus-model", options.pytest_words):
        return
    wire = None
    if given:
        wire = given[0].partition("=")[0] if re.match(r"[a-z-]+=", given[0]) else "anthropic"
    endpoint, options.model = configured(wire)
    options.endpoint += [endpoint] if endpoint else []
    if not options.model:
        raise ConfigurationError(
            "harness pi has no model to ask: give --endpoint [WIRE=]URL (or --proteus-endpoint to pytest), or set "
            "ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or name a provider's model with --model PROVIDER/NAME"
        )


def _values_of(option: str, words: Sequence[str]) -> list[str]:
    found = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return found + [after for word, after in itertools.pairwise(words) if word == option]


def _pytest(words: Sequence[str], *, to_stderr: bool) -> tuple[int, str]:
    """Run pytest in a process of its own, which an adapter may end; its status, and what it said at its end on stderr.

    The process has a group of its own, so that Ctrl-C and a signal that is meant for us reach it once: through us.
    """
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", *words]
    kept: dict[str, Any] = {"stdout": 2 if to_stderr else None, "stderr": subprocess.PIPE}
    if sys.version_info >= (3, 11):
        kept["process_group"] = 0
    else:
        kept["preexec_fn"] = os.setpgrp
    child = subprocess.Popen(command, text=True, errors="replace", **kept)
    said: list[str] = []
    relay = threading.Thread(target=_relay, args=(child.stderr, said), daemon=True)
    relay.start()
    with _forwarding(child.pid), _Terminal(child.pid) as terminal:
        while True:
            _, state = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(state):
                break
            terminal.stop_with_it()
    child.returncode = os.waitstatus_to_exitcode(state)
    relay.join(5)
    return child.returncode, "".join(said)


def _relay(source: Any, held: list[str]) -> None:
    """Pass on what pytest writes to standard error; hold back from its first error on: it may be a usage error."""
    for line in source:
        if held or line.startswith("ERROR: "):
            held.append(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()


class _Terminal:
    """Our terminal, if we have one, in the hands of a process group: for Ctrl-C, Ctrl-Z and a debugger's input."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._ours = os.getpgrp()
        self._terminal = -1

    def __enter__(self) -> _Terminal:
        if not _in_main_thread():
            return self
        with contextlib.suppress(OSError):
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
            if os.tcgetpgrp(self._terminal) == self._ours:
                self._old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                self._give(self._group)
                return self
            os.close(self._terminal)
        self._terminal = -1
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal >= 0:
            self._give(self._ours)
            os.close(self._terminal)
            signal.signal(signal.SIGTTOU, self._old)

    def stop_with_it(self) -> None:
        """The group was stopped, as by Ctrl-Z: stop as well, and go on with it later."""
        if self._terminal >= 0:
            self._give(self._ours)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._give(self._group)
            os.killpg(self._group, signal.SIGCONT)

    def _give(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._terminal, group)


@contextlib.contextmanager
def _forwarding(pid: int) -> Iterator[None]:
    """Pass on the signals that end a session."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _in_main_thread() else ()
    old = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _usage_error(said: str, options: argparse.Namespace) -> str:
    """One sentence from what pytest says of a wrong call, in the words of our own options."""
    unknown = re.search(r"unrecognized arguments: (.*)", said)
    if unknown:
        near = difflib.get_close_matches(unknown.group(1).split()[0].partition("=")[0], _pytest_options(), n=1)
        return f"pytest has no option {unknown.group(1)}{f'; did you mean {near[0]}?' if near else ''}"
    wrong = re.search(r"^\S+: error: (.*)", said, re.MULTILINE)
    sentence = wrong.group(1) if wrong else _one_line(ValueError(said)).removeprefix("ERROR: ")
    sentence = sentence.removeprefix(f"{_file_name(sweep_name(options.out))}: ")
    for arm in options.arm:
        sentence = sentence.replace(f"arm '{arm.replace(':', '_')}'", f"--arm {arm}")
    for spec in options.evaluator:
        named = f"evaluator {spec!r}"
        sentence = sentence.replace(f"{named}: {named}", named).replace(named, f"--evaluator {spec}")
    sentence = sentence.replace("--proteus-sweep-dir", "--out").replace("--proteus-out=", "--out ")
    sentence = re.sub(r"--proteus-(out|on-existing|endpoint|model|sandbox)\b", r"--\1", sentence)
    return re.sub(r"^(unknown )?harness ", r"--harness: \g<0>", sentence)


def _pytest_options() -> list[str]:
    words = [sys.executable, "-m", "pytest", "-p", "proteus", "--help"]
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", subprocess.run(words, capture_output=True, text=True).stdout, re.M)


def _reason_for_nothing(out: Path) -> str:
    """Why every cell was skipped; empty when one was not."""
    runs = [run for sweep in _load(out)["sweeps"] for run in sweep["runs"]]
    reasons = dict.fromkeys(run["state"].partition(":")[2] for run in runs)
    is_nothing = bool(runs) and all(run["state"].startswith("skipped") for run in runs)
    return "; ".join(reasons) if is_nothing else ""


def _tidy(base: Path) -> None:
    """Remove the place where the session lay, unless another session is there as well."""
    with contextlib.suppress(OSError):
        (base / ".sessions").rmdir()
        shutil.rmtree(base)


def sweep_name(out: Path) -> str:
    """The name of the sweep that is written to the folder ``out``."""
    return out.absolute().name.lstrip(".") or "sweep"


def _file_name(name: str) -> str:
    return f"test_{re.sub(r'[^0-9A-Za-z]+', '_', name).strip('_').lower() or 'sweep'}.py"


def suite_text(options: argparse.Namespace, name: str) -> str:
    """The module that does what the options of ``proteus run`` say."""
    budget = _budget(options)
    keywords = {
        "name": _literal(name),
        "episodes": options.episodes,
        "goal": None if options.goal in ("", "none") else _literal(options.goal),
        "harness": f"[{_literal(options.harness)}]",
        "arm": f"[{', '.join(_literal(arm) for arm in options.arm)}]" if options.arm else None,
        "seed": None if options.seeds is None else f"range({options.seeds})",
        "model": f"[{_literal(options.model)}]" if options.model else None,
        "budget": f"TurnBudget({budget})" if budget else None,
        "phase_timeout": options.phase_timeout,
    }
    sweep = "".join(f"        {key}={value},\n" for key, value in keywords.items() if value is not None)
    marks = "".join(f"    pytest.mark.evaluator({_literal(spec)}),\n" for spec in options.evaluator)
    file = _file_name(name)
    return (
        f'"""A sweep as a suite. Save it as {file} and run it with: pytest -p proteus {file} -n auto"""\n\n'
        f"import pytest\n"
        + ("\nfrom pytest_proteus import TurnBudget\n" if budget else "")
        + f"\npytestmark = [\n    pytest.mark.sweep(\n{sweep}    ),\n{marks}]\n\n\n"
        f"def test_run_completes(run):\n    assert run.episodes_complete == run.episodes\n"
    )


def _budget(options: argparse.Namespace) -> str:
    """Arguments of the ``TurnBudget`` that the options ask for; empty for the default one."""
    given = {
        "max_turns": options.max_turns,
        "min_turns_per_phase": options.min_turns_per_phase,
        "phase_turns": options.phase_turns,
        "hard_max_turns": options.hard_max_turns,
        "checkpoint_turns": options.checkpoint_turns,
        "announce": options.announce_budget or None,
    }
    given = {key: value for key, value in given.items() if value is not None}
    try:
        TurnBudget(**given)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return ", ".join(f"{key}={_literal(value)}" for key, value in given.items())


def _literal(value: Any) -> str:
    """Python source of a text, a number, or a mapping of them, with double quotes."""
    return repr(value) if isinstance(value, bool) else json.dumps(value)


# --- readers of reports -----------------------------------------------------------------------------------------------


def _load(path: Path) -> Mapping[str, Any]:
    from pytest_proteus.report.models import load_report

    return load_report(path)


def _verdict(options: argparse.Namespace) -> int:
    from pytest_proteus.report.tables import printable

    report = _load(options.file)
    if options.json:
        _print_json({"outcome": report["outcome"], "outcome_reasons": report["outcome_reasons"]})
    else:
        print(report["outcome"])
        for reason in report["outcome_reasons"]:
            print(f"- {printable(reason)}")
    return VERDICT_CODES[report["outcome"]]


def _report(options: argparse.Namespace) -> int:
    report = _load(options.file)
    if options.json:
        _print_json(report)
    elif options.format == "md":
        from pytest_proteus.report.markdown import markdown

        print(markdown(report), end="")
    else:
        from pytest_proteus.report.terminal import summary_lines

        print("\n".join(summary_lines(report, shutil.get_terminal_size().columns)))
    return 0


# --- readers of sweeps ------------------------------------------------------------------------------------------------


def _reader(module: str, name: str, options: argparse.Namespace) -> int:
    code: int = getattr(import_module(f"pytest_proteus.readers.{module}"), name)(options)
    return code


# --- metering ---------------------------------------------------------------------------------------------------------


def _tap(options: argparse.Namespace) -> int:
    from pytest_proteus.metering.serve import serve
    from pytest_proteus.sweep.options import parse_endpoints

    tap, store = serve(options.dir, parse_endpoints(options.upstream), options.port)
    url = f"http://127.0.0.1:{tap.port}"
    print(json.dumps({"url": url, "store": str(store.path)}) if options.json else f"{url} → {store.path}", flush=True)
    try:
        with _sigterm_is_interrupt():
            tap.wait()
    except KeyboardInterrupt:
        tap.close()
        store.close()
    return 0


@contextlib.contextmanager
def _sigterm_is_interrupt() -> Iterator[None]:
    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measurement_start(options: argparse.Namespace) -> int:
    from pytest_proteus.metering import slots

    slot = slots.start(options.dir, options.task_id, agent=options.agent, model=options.model, goal=options.goal)
    told = {"task_id": slot.task_id, "path": f"/t/{slot.token}", "agent": slot.agent, "task_hash": slot.task_hash}
    if options.json:
        print(json.dumps(told))
    else:
        print(f"{slot.task_id} is being measured; an address of its own, below that of `proteus tap`: {told['path']}")
    return 0


def _measurement_stop(options: argparse.Namespace) -> int:
    from pytest_proteus.metering import slots

    slot, usage = slots.stop(options.dir, options.agent, options.state)
    if options.json:
        print(json.dumps({"task_id": slot.task_id, "state": options.state, "usage": usage.entry()}))
    else:
        print(f"{slot.task_id}: {_usage_text(usage.entry())}")
    return 0


def _measurement_status(options: argparse.Namespace) -> int:
    from pytest_proteus.metering import slots
    from pytest_proteus.metering.totals import usage_of

    found = list(slots.open_slots(options.dir))
    used = usage_of(options.dir, [slot.task_id for slot in found])
    told: list[dict[str, Any]] = [
        {
            "task_id": slot.task_id,
            "agent": slot.agent,
            "owner": slot.owner,
            "opened_at": slot.opened_at,
            "usage": used[slot.task_id].entry() if slot.task_id in used else None,
        }
        for slot in found
    ]
    if options.json:
        print(json.dumps(told))
    for slot in () if options.json else told:
        print(f"{slot['task_id']}{' (' + slot['agent'] + ')' if slot['agent'] else ''}: {_usage_text(slot['usage'])}")
    if not told and not options.json:
        print(f"nothing is being measured in {options.dir}")
    return 0


def _backfill(options: argparse.Namespace) -> int:
    from pytest_proteus.metering.backfill import backfill

    found = backfill(options.dir, options.task, options.log)
    if options.json:
        told = {"told": found.told, "filled": found.filled, "added": found.added, "usage": found.usage.entry()}
        print(json.dumps(told))
    else:
        print(f"{found.told} replies in the log: {found.filled} filled in, {found.added} added")
        print(f"{options.task}: {_usage_text(found.usage.entry())}")
    return 0


def _reconcile(options: argparse.Namespace) -> int:
    from pytest_proteus.metering import always_on

    if options.reset:
        cleared = always_on.reset(options.dir)
        print(json.dumps(cleared) if options.json else f"{len(cleared)} measurements cleared")
        return 0
    with _sigterm_is_interrupt():
        while True:
            for text in always_on.tick(options.dir):
                print(json.dumps(text) if options.json else text, flush=True)
            if options.once:
                return 0
            time.sleep(always_on.settings(options.dir).poll)


def _usage_text(usage: Mapping[str, Any] | None) -> str:
    """What was used, for people."""
    if usage is None or usage["total_tokens"] is None:
        reason = (usage or {}).get("discrepancy", {}).get("reason") or "nothing was metered"
        return f"unmeasured: {reason}"
    cost = "" if usage["cost_usd"] is None else f", {usage['cost_usd']:.4f} US dollars"
    return f"{usage['total_tokens']:,} tokens in {usage['requests']:,} calls{cost}"


def _timeline(options: argparse.Namespace) -> int:
    from pytest_proteus.metering.timeline import timeline
    from pytest_proteus.report.tables import align, number, printable

    found = timeline(options.dir, options.task)
    if options.json:
        print(json.dumps(found))
        return 0
    print(printable(f"{found['task_id']}: {_usage_text(found['usage'])}"))
    header = ["turn", "role", "process", "model", "status", "input", "output", "cached", "seconds", "tools"]
    rows = [
        [
            "ambient" if row["ambient"] else number(row["turn"]),
            *(str(row[name] or "-") for name in ("role", "process", "model")),
            str(row["status"] or row["state"]),
            *(number(row[f"{kind}_tokens"]) for kind in ("input", "output", "cache_read")),
            "-" if row["seconds"] is None else f"{row['seconds']:.2f}",
            " ".join(row["tools"]) or "-",
        ]
        for row in found["rows"]
    ]
    print("\n".join(align([header, *rows])))
    if found["largest"]:
        parts = ", ".join(f"{size:,} {part.replace('_', ' ')}" for part, size in found["largest"]["bytes"].items())
        print(f"bytes of the largest context: {parts}")
    return 0


# --- runs and agents --------------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    from pytest_proteus.core.snapshot.export import export

    commit = export(options.run_root, options.dest)
    if options.json:
        _print_json({"dest": str(options.dest.absolute()), "commit": commit})
    else:
        print(f"{options.dest}: the history up to {commit}; look at it with: git -C {options.dest} log --stat")
    return 0


def _check(options: argparse.Namespace) -> int:
    if not (options.harness or options.evaluator or options.statistic):
        raise ConfigurationError("name what to check: --harness, --evaluator or --statistic")
    if options.statistic and (options.harness or options.evaluator):
        raise ConfigurationError("--statistic is checked by itself: leave --harness and --evaluator out")
    sys.path.insert(0, str(Path.cwd()))  # where a module of one's own lies, as for python -m
    found: Sequence[Any]
    if options.statistic:
        from pytest_proteus.sweep.conformance import check_statistic

        found = check_statistic(options.statistic)
    elif options.evaluator:
        found = _check_evaluator(options)
    else:
        from pytest_proteus.harnesses import registry
        from pytest_proteus.harnesses.conformance import check
        from pytest_proteus.sweep.options import parse_endpoints

        adapter = registry.make(options.harness, endpoint=parse_endpoints(options.endpoint) or None)
        found = check(adapter, episode=options.episode, model=options.model)
    if options.json:
        _print_json([{"check": one.name, "ok": one.ok, "advice": one.advice} for one in found])
    else:
        for one in found:
            print(one)
    return 0 if all(one.ok for one in found) else 1


def _check_evaluator(options: argparse.Namespace) -> Any:
    from pytest_proteus.core.evaluators import parse_evaluator
    from pytest_proteus.harnesses import registry
    from pytest_proteus.sweep.conformance import check_evaluator
    from pytest_proteus.sweep.declare import FORMS

    adapter = registry.resolve(options.harness or "minimal")
    return check_evaluator(parse_evaluator(options.evaluator, adapter.surfaces(), FORMS), adapter)


def _scaffold(options: argparse.Namespace) -> int:
    from pytest_proteus.harnesses.scaffold import scaffold_adapter

    path, spec = scaffold_adapter(options.adapter, Path.cwd())
    if options.json:
        _print_json({"path": str(path), "harness": spec})
    else:
        print(f"{path.name}: replace what stands in for your agent, and try it with:")
        print(f"proteus check --harness {spec} --episode")
    return 0


def _agents_list(options: argparse.Namespace) -> int:
    from pytest_proteus.harnesses.install import listed

    return _print_agents(listed(), options)


def _agents_install(options: argparse.Namespace) -> int:
    from pytest_proteus.harnesses.install import install

    return _print_agents(install(options.agent), options)


def _print_agents(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> int:
    if options.json:
        _print_json(rows)
        return 0
    table = [["agent", "version", "pinned", "where"]]
    table += [[row["name"], row["version"] or "-", row["pinned"], row["path"] or "not on this machine"] for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


# --- the command line -------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(ValueError(message))}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="proteus",
        description="Run a sweep without writing a suite, and read what sweeps leave behind.",
        epilog="Each command has an example: proteus run --help",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    verdict = _command(
        commands,
        "verdict",
        _verdict,
        "say how a session ended, for a script: exit 0 pass, 1 fail, 3 undecided, 4 incomplete",
        "proteus verdict .report.json || echo 'do not merge'",
    )
    verdict.add_argument("file", type=Path, metavar="FILE", help="a file of --json-report, or a sweep's folder")
    report = _command(
        commands,
        "report",
        _report,
        "show a report to people",
        'proteus report .report.json --format md >> "$GITHUB_STEP_SUMMARY"',
    )
    report.add_argument("file", type=Path, metavar="FILE", help="a file of --json-report, or a sweep's folder")
    report.add_argument("--format", choices=["text", "md"], default="text", help="text (default) or Markdown")
    _add_readers(commands)
    export = _command(
        commands,
        "export",
        _export,
        "write a run's history as a plain git repository, one commit an episode",
        "proteus export .proteus/navigation/0001/runs/run-0a1b2c3d4e5f history && git -C history log --stat",
    )
    export.add_argument("run_root", type=Path, metavar="RUN_ROOT", help="folder of one run: OUT/runs/<run-id>")
    export.add_argument("dest", type=Path, metavar="DEST", help="folder to write; it must not exist yet")
    _add_agents(commands)
    _add_metering(commands)
    check = _command(
        commands,
        "check",
        _check,
        "say whether a harness adapter keeps the contract, or a measurement can be trusted, and what to change",
        "proteus check --harness my_package.my_module:MyHarness --episode",
    )
    check.add_argument("--harness", metavar="HARNESS", help="name, or package.module:Class")
    check.add_argument(
        "--evaluator",
        metavar="SPEC",
        help="check this evaluator, over made-up episodes of --harness (default: minimal)",
    )
    check.add_argument("--statistic", metavar="MODULE:FUNCTION", help="check this function of a sweep")
    check.add_argument("--episode", action="store_true", help="run one neutral episode, too; it may cost money")
    check.add_argument("--model", default="mock", metavar="MODEL", help="model of that episode")
    check.add_argument(
        "--endpoint", action="append", default=[], metavar="[WIRE=]URL", help="its model endpoint; repeatable"
    )
    scaffold = _command(
        commands,
        "scaffold",
        _scaffold,
        "write a commented harness adapter to begin from, into the working folder",
        "proteus scaffold adapter my_agent",
    )
    scaffold.add_argument("kind", choices=["adapter"], help="what to write")
    scaffold.add_argument("adapter", metavar="NAME", help="what the harness is called")
    return parser


def _command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str, example: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command, name=parser.prog.partition(" ")[2])
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    return parser


def _add_readers(commands: Any) -> None:
    measure = _command(
        commands,
        "measure",
        partial(_reader, "statistics", "measure"),
        "measure a finished sweep: units built, path lengths, and whether arms differ",
        "proteus measure .proteus/navigation/0001 --travel",
    )
    measure.add_argument("--travel", action="store_true", help="path length over all episodes, too")
    reliability = _command(
        commands,
        "reliability",
        partial(_reader, "statistics", "reliability"),
        "say whether each arm of a finished sweep reproduces itself",
        "proteus reliability .proteus/navigation/0001 --level order",
    )
    reliability.add_argument(
        "--level",
        choices=["freq", "order", "procedure"],
        default="freq",
        help="compare how often tools are called (default), which follows which, or whole procedures",
    )
    audit = _command(
        commands,
        "audit",
        partial(_reader, "statistics", "audit"),
        "quote what the runs of a finished sweep wrote and said that points outside or speaks of being tested",
        "proteus audit .proteus/navigation/0001",
    )
    rank = _command(
        commands,
        "rank",
        partial(_reader, "comparison", "rank"),
        "rank the variants (harness, arm, model, further axes) of a finished sweep whose runs have a gate",
        "proteus rank .proteus/repair/0001 --rank-by cost_per_success",
    )
    rank.add_argument(
        "--rank-by",
        choices=["composite", "tokens", "wallclock", "score", "cost_per_success"],
        default="composite",
        help="composite (default) is total tokens / goal-aligned ratio of successful runs; cost_per_success counts "
        "what all attempts cost",
    )
    rank.add_argument(
        "--base",
        type=Path,
        default=Path(".proteus"),
        metavar="DIR",
        help="folder of sweeps whose store is asked for a task's hash (default: .proteus)",
    )
    rank.add_argument("--csv", action="store_true", help="print CSV, a row a variant")
    rescore = _command(
        commands,
        "rescore",
        partial(_reader, "rescore", "rescore"),
        "score a finished sweep with further evaluators, from its checkpoints and traces; no agent runs",
        "proteus rescore .proteus/navigation/0001 --evaluator units:notes --evaluator mine.measures:headings",
    )
    rescore.add_argument(
        "--evaluator",
        action="append",
        required=True,
        metavar="SPEC",
        help="units:SURFACE, tool-calls, step, contains:PATH:TEXT, route:NAME, judge:rubric:MODEL or "
        "package.module:function; repeatable",
    )
    rescore.add_argument(
        "--endpoint", action="append", default=[], metavar="[WIRE=]URL", help="where a judge's model is; repeatable"
    )
    override = _command(
        commands,
        "override",
        partial(_reader, "comparison", "override"),
        "put a score of your own beside a judge's; it counts in comparisons, and both stay on record",
        'proteus override .proteus/repair/0001 run-0a1b2c3d4e5f --score 0.2 --author me --reason "deleted the tests"',
    )
    override.add_argument("--score", type=_share, required=True, metavar="S", help="0 to 1; 1 is best")
    override.add_argument("--ratio", type=_share, metavar="R", help="goal-aligned ratio, 0 to 1 (default: the judge's)")
    override.add_argument("--author", required=True, metavar="WHO", help="who says so")
    override.add_argument("--reason", required=True, metavar="WHY", help="and why")
    index = _command(
        commands,
        "index",
        partial(_reader, "comparison", "index"),
        "make the store of experiments anew from the artifacts of all sweeps in a folder",
        "proteus index && proteus rank 9ba5c9ba",
    )
    index.add_argument(
        "dir",
        type=Path,
        nargs="?",
        default=Path(".proteus"),
        metavar="DIR",
        help="folder of sweeps (default: .proteus)",
    )
    for parser in (measure, reliability, audit, rescore, override):
        parser.add_argument("dir", type=Path, metavar="DIR", help="folder of a finished sweep")
    override.add_argument("run_id", metavar="RUN_ID", help="id of a run of it")
    rank.add_argument(
        "dir",
        type=Path,
        metavar="DIR|TASK_HASH",
        help="folder of a finished sweep, or how the hash of a task begins: then all runs of it in the store count",
    )


def _add_agents(commands: Any) -> None:
    text = "put real agents on this machine, and see which are there"
    agents = commands.add_parser(
        "agents",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="example:\n  proteus agents install pi",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = agents.add_subparsers(title="commands", metavar="COMMAND", required=True)
    install = _command(
        actions,
        "install",
        _agents_install,
        "install agents at their pinned versions, with the Node they need",
        "proteus agents install pi",
    )
    install.add_argument("agent", nargs="+", metavar="NAME", help="name of an agent: see `proteus agents list`")
    _command(actions, "list", _agents_list, "list the known agents and where they are", "proteus agents list")


def _add_metering(commands: Any) -> None:
    tap = _command(
        commands,
        "tap",
        _tap,
        "meter the calls of agents that you run by hand: a proxy on this machine, until it is interrupted",
        "proteus tap --upstream anthropic=https://api.anthropic.com --port 8790",
    )
    tap.add_argument("--upstream", action="append", default=[], metavar="[WIRE=]URL", help="the model; repeatable")
    tap.add_argument("--port", type=int, default=0, metavar="PORT", help="port on 127.0.0.1 (default: a free one)")
    text = "say by hand which task the calls of a tap belong to"
    measurement = commands.add_parser(
        "measurement",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="example:\n  proteus measurement start --task-id review-of-monday",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = measurement.add_subparsers(title="commands", metavar="COMMAND", required=True)
    start = _command(
        actions,
        "start",
        _measurement_start,
        "begin a measurement: calls that name no task belong to it from here on",
        "proteus measurement start --task-id review-of-monday --agent claude",
    )
    start.add_argument("--task-id", required=True, metavar="ID", help="name of the task")
    start.add_argument("--goal", default="", metavar="TEXT", help="what is to be done; its hash is kept")
    start.add_argument("--model", default="", metavar="NAME", help="the model that is used")
    stop = _command(
        actions, "stop", _measurement_stop, "end a measurement, and say what it used", "proteus measurement stop"
    )
    stop.add_argument("--state", choices=["complete", "timeout", "abort"], default="complete", help="how it ended")
    status = _command(
        actions, "status", _measurement_status, "say what is being measured", "proteus measurement status --json"
    )
    for parser in (start, stop):
        parser.add_argument("--agent", default="", metavar="NAME", help="of this agent's calls alone, such as claude")
    reconcile = _command(
        commands,
        "reconcile",
        _reconcile,
        "keep a measurement open for the live session of each agent, until it is interrupted",
        "proteus reconcile --once",
    )
    reconcile.add_argument("--once", action="store_true", help="look once, and end")
    reconcile.add_argument("--reset", action="store_true", help="clear the measurements that it opened, and end")
    backfill = _command(
        commands,
        "backfill",
        _backfill,
        "fill in what the wire did not tell of a task's usage, from the session log of claude, codex or pi",
        "proteus backfill review-of-monday ~/.claude/projects/-home-me/SESSION.jsonl",
    )
    backfill.add_argument("task", metavar="TASK_ID", help="id of a task, or of a run with --dir")
    backfill.add_argument("log", type=Path, metavar="LOG", help="the agent's session log")
    timeline = _command(
        commands,
        "timeline",
        _timeline,
        "list the calls of a task or run, in order",
        "proteus timeline review-of-monday",
    )
    timeline.add_argument("task", metavar="TASK_ID", help="id of a task, or of a run with --dir")
    for parser in (tap, start, stop, status, reconcile, backfill, timeline):
        parser.add_argument(
            "--dir", type=Path, default=Path(".proteus", "metering"), metavar="DIR",
            help="folder of the store (default: .proteus/metering); of a sweep for its runs",
        )  # fmt: skip


def _add_run(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        _run,
        "run a sweep without writing a suite; prints the suite that would do the same",
        'proteus run --harness minimal --goal "Make your durable knowledge easier to navigate." \\\n'
        "      --evaluator units:notes@observe --evaluator step --evaluator tool-calls \\\n"
        "      --arm neutral --seeds 2 --episodes 10 --out runs/navigation\n\n"
        "Words after -- are options of pytest: proteus run … -- --proteus-agent=pi=/opt/pi/bin/pi -x",
    )
    run.add_argument(
        "--harness", default="minimal", help="a registered name or package.module:Class (default: minimal)"
    )
    run.add_argument(
        "--arm",
        type=_arm,
        action="append",
        default=[],
        help="neutral, review:SURFACE or record:SURFACE; repeatable (default: neutral)",
    )
    run.add_argument("--goal", default="", help="objective that the agent is told; 'none' or nothing for no goal")
    run.add_argument(
        "--evaluator",
        action="append",
        default=[],
        metavar="SPEC",
        help="units:SURFACE, tool-calls, step, contains:PATH:TEXT or package.module:function, each with @hidden "
        "(default) or @observe; repeatable",
    )
    run.add_argument("--seeds", type=_count, metavar="N", help="seeds 0 to N-1 (default: 6)")
    run.add_argument("--episodes", type=_count, metavar="N", help="episodes of each run (default: 8)")
    run.add_argument("--model", default="", help="model name handed to the harness (default: the harness's own)")
    run.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="[WIRE=]URL",
        help="where the model is, such as anthropic=http://127.0.0.1:8080; repeatable",
    )
    run.add_argument(
        "--sandbox",
        default="",
        metavar="RUNG",
        help="where agents' processes run: bwrap, podman:IMAGE, docker:IMAGE, none or auto (default: auto, the "
        "harness's own, else bwrap)",
    )
    run.add_argument("--max-turns", type=_count, metavar="N", help="model turns of an episode (default: 100)")
    run.add_argument("--min-turns-per-phase", type=_amount, metavar="N", help="turns kept for each phase")
    run.add_argument(
        "--phase-turns",
        type=_phase_turns,
        metavar="PLAN",
        help="turns planned for each phase, such as observe=40,propose=25,act=200,reflect=35; sums to --max-turns",
    )
    run.add_argument("--hard-max-turns", type=_amount, metavar="N", help="ceiling that act may borrow up to")
    run.add_argument("--checkpoint-turns", type=_amount, metavar="N", help="last turns of each phase, kept for notes")
    run.add_argument("--announce-budget", action="store_true", help="tell the agent what is left of its turns")
    run.add_argument("--phase-timeout", type=_seconds, metavar="S", help="wall-clock limit of a phase (default: 1800)")
    run.add_argument(
        "--on-existing",
        choices=["resume", "refuse", "overwrite"],
        default="resume",
        help="what to do when --out holds runs: continue them (default), refuse, or discard them",
    )
    run.add_argument("-n", dest="workers", type=_workers, default="0", metavar="N", help="worker processes, or auto")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the sweep's artifacts")


def _arm(text: str) -> str:
    kind, _, surface = text.partition(":")
    if text == "neutral" or (kind in ("review", "record") and surface):
        return text
    near = difflib.get_close_matches(kind, ["neutral", "review:SURFACE", "record:SURFACE"], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "write neutral, review:SURFACE or record:SURFACE"
    raise argparse.ArgumentTypeError(f"unknown arm {text!r}; {hint}")


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _amount(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return share


def _workers(text: str) -> str:
    if not re.fullmatch(r"[0-9]+|auto|logical", text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of processes nor auto")
    return text


def _phase_turns(text: str) -> dict[str, int]:
    plan: dict[str, int] = {}
    for part in text.split(","):
        phase, separator, turns = part.strip().partition("=")
        if not phase or not separator or not re.fullmatch(r"[0-9]+", turns) or phase in plan:
            raise argparse.ArgumentTypeError(f"{part!r} is not PHASE=TURNS, such as act=200")
        plan[phase] = int(turns)
    return plan


if __name__ == "__main__":
    sys.exit(main())
