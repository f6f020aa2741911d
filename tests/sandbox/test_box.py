"""The rung bwrap keeps the ways of the rung none: what a command gets, what comes back, and that all is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import psutil
import pytest
from boxes import ENVIRONMENT, marked, needs_bwrap, stand_in
from waiting import until

from pytest_proteus.core.errors import ApparatusError, ConfigurationError
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.sandbox import BwrapSandbox, Outcome

pytestmark = needs_bwrap


def shell(code: str, *arguments: str, cwd: Path, **more) -> Outcome:
    more.setdefault("env", ENVIRONMENT)
    return BwrapSandbox().launch(["bash", "-c", code, "shell", *arguments], cwd=cwd, **more)


def runs(token: str) -> bool:
    """Whether the command itself is there: a launcher that forks is for a moment two with the same command line."""
    return any((process.info["cmdline"] or [""])[0].endswith("bash") for process in marked(token))


def test_output_exit_status_and_input_come_through(harness):
    outcome = shell("cat; echo err >&2; exit 3", cwd=harness, stdin="é" * 100_000)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "é" * 100_000, "err\n")


def test_the_command_works_in_its_folder_and_what_it_writes_stays(harness):
    outcome = shell("pwd; mkdir notes; echo text > notes/a.md", cwd=harness)
    assert outcome.stdout == f"{harness}\n"
    assert (harness / "notes" / "a.md").read_text() == "text\n"


def test_the_environment_is_given_whole(harness, monkeypatch):
    monkeypatch.setenv("CANARY", "inherited")
    outcome = shell("env; tr '\\0' '\\n' < /proc/1/environ", cwd=harness, env={**ENVIRONMENT, "ONLY": "this"})
    lines = outcome.stdout.splitlines()
    assert "ONLY=this" in lines
    assert {line.partition("=")[0] for line in lines} <= {"ONLY", "PATH", "HOME", "PWD", "SHLVL", "_", "OLDPWD"}


def test_no_descriptor_is_inherited(harness):
    outcome = shell("echo /proc/self/fd/*; exec 9<&-; ls /proc/$$/fd", cwd=harness, endpoint="http://127.0.0.1:1")
    assert {word.rpartition("/")[2] for word in outcome.stdout.split()} <= {"0", "1", "2", "3", "255"}


def test_nothing_in_a_box_names_the_framework(harness):
    files = "/proc/self/mountinfo /proc/1/cmdline /proc/1/environ /proc/self/cgroup /etc/passwd /etc/hosts"
    outcome = shell(f"env; hostname; cat {files}; ls -la / /tmp /etc /home /opt", cwd=harness)
    assert "agent" in outcome.stdout
    assert "proteus" not in outcome.stdout.lower()
    assert "pytest" not in outcome.stdout.lower()


def test_the_stop_signal_reaches_the_command_itself(harness):
    outcome = shell("trap 'echo stopped; exit 5' INT; while :; do sleep 0.1; done", cwd=harness, timeout=2.0,
                    stop_signal=signal.SIGINT, grace=20)  # fmt: skip
    assert (outcome.timed_out, outcome.returncode, outcome.stdout) == (True, 5, "stopped\n")


def test_a_command_that_ignores_the_stop_signal_is_killed(harness):
    outcome = shell("trap '' TERM; while :; do sleep 1; done", cwd=harness, timeout=1.0, grace=0.1)
    assert outcome.timed_out
    assert outcome.returncode != 0


def test_a_command_that_is_not_in_the_box_is_an_error_of_the_configuration(harness):
    with pytest.raises(ConfigurationError, match="'no-such-command' is not in the box: install it below /usr"):
        BwrapSandbox().launch(["no-such-command"], env=ENVIRONMENT, cwd=harness)


def test_a_folder_that_holds_what_is_hidden_is_refused(world):
    with pytest.raises(ConfigurationError, match=r"the agent's folder .* holds .*records, which it may not see"):
        BwrapSandbox([world / "records"]).launch(["true"], env=ENVIRONMENT, cwd=world)


@pytest.mark.parametrize("folder", ["/", "/home", "/tmp", "/run"])
def test_a_folder_of_the_machine_is_never_given(folder, harness):
    with pytest.raises(ConfigurationError, match="cannot be given to a box"):
        BwrapSandbox().launch(["true"], env=ENVIRONMENT, cwd=harness, writable=[harness, folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's boxes run as somebody else")
def test_what_the_user_of_boxes_cannot_reach_is_one_sentence(harness, tmp_path):
    (tmp_path / "shut").mkdir(mode=0o700)
    (tmp_path / "shut" / "tree").mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot be reached by the user \d+ .* is closed to others"):
        BwrapSandbox().launch(["true"], env=ENVIRONMENT, cwd=tmp_path / "shut" / "tree")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's boxes run as somebody else")
def test_an_agent_that_the_user_of_boxes_cannot_reach_is_told_before_anything_runs(tmp_path):
    program = tmp_path / "shut" / "agent"
    program.parent.mkdir(mode=0o700)
    program.touch()
    harness = PiHarness({"anthropic": "http://127.0.0.1:1"}, program, sandbox=BwrapSandbox())
    assert "is closed to others: put it where everybody can get" in harness.unconfigured("x")


def test_folders_of_a_run_that_the_umask_has_shut_are_opened_for_its_box_alone(world):
    before = os.umask(0o077)
    try:
        tree = world / "run" / "shut" / "harness"
        tree.mkdir(parents=True)
    finally:
        os.umask(before)
    assert shell("echo x > file; echo $?", cwd=tree).stdout == "0\n"
    assert tree.parent.stat().st_mode & 0o007 == 0


def test_a_box_that_cannot_be_built_any_more_is_an_error_of_the_apparatus(world, harness, monkeypatch):
    # as on a machine that has run out of namespaces since the session began
    stand_in(world, "bwrap: Creating new namespace failed: No space left on device", monkeypatch)
    with pytest.raises(ApparatusError, match=r"raise the sysctl user\.max_user_namespaces"):
        shell("true", cwd=harness)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's boxes run as somebody else")
def test_a_command_of_root_runs_as_somebody_else_who_owns_the_tree(harness):
    (harness / "old.md").write_text("old\n")
    outcome = shell("id -u; echo new > old.md; touch /proc/$$/comm; sleep 600 & echo $!", cwd=harness)
    assert outcome.stdout.splitlines()[0] == "1000"
    assert (harness / "old.md").read_text() == "new\n"
    assert (harness / "old.md").stat().st_uid > 60000


def test_a_program_of_node_modules_brings_its_neighbours(world, harness):
    modules = world / "tools" / "node_modules"
    (modules / "agent").mkdir(parents=True)
    (modules / "neighbour").mkdir()
    (modules / "neighbour" / "file").write_text("here\n")
    (modules / "agent" / "cli").write_text("#!/bin/bash\ncat ${0%/*}/../neighbour/file; echo x >> $0\n")
    (modules / "agent" / "cli").chmod(0o777)
    (world / "tools" / "beside").write_text("not given\n")
    program = modules / "agent" / "cli"
    outcome = BwrapSandbox().launch([str(program)], env=ENVIRONMENT, cwd=harness, readable=[program])
    assert outcome.stdout == "here\n"
    assert "Read-only file system" in outcome.stderr
    assert "not given" not in shell(f"cat {world}/tools/beside", cwd=harness, readable=[program]).stdout


def test_a_daemon_is_dead_when_its_starter_has_ended(harness):
    token = uuid.uuid4().hex
    code = "(trap '' HUP TERM INT; setsid bash -c 'while :; do sleep 600; done' daemon \"$1\" >/dev/null 2>&1 &); :"
    outcome = shell(code, token, cwd=harness)
    assert outcome.returncode == 0
    assert not marked(token)


LAUNCH = """
import sys, threading
from pytest_proteus.sandbox import BwrapSandbox
def launch():
    code = 'setsid bash -c "while :; do sleep 600; done" x "$1" & while :; do sleep 1; done'
    BwrapSandbox().launch(["bash", "-c", code, "x", sys.argv[1]], env={"PATH": "/usr/bin:/bin"}, cwd=sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_box_is_dead_when_the_launching_process_is_killed(harness, number):
    token = uuid.uuid4().hex
    process = subprocess.Popen([sys.executable, "-c", LAUNCH + "launch()", token, harness], stderr=subprocess.DEVNULL)
    assert until(lambda: runs(token), 30)
    process.send_signal(number)
    process.wait(20)
    assert until(lambda: not marked(token), 20)


def test_a_box_is_dead_when_its_supervisor_is_killed(harness):
    token = uuid.uuid4().hex
    process = subprocess.Popen([sys.executable, "-c", LAUNCH + "launch()", token, harness], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: runs(token), 30)
        (supervisor,) = psutil.Process(process.pid).children()
        supervisor.kill()
        assert until(lambda: not marked(token), 20)
    finally:
        process.kill()
        process.wait(20)


def test_a_launching_thread_that_has_ended_does_not_end_the_box(harness):
    outcomes = []
    inner = threading.Thread(target=lambda: outcomes.append(shell("sleep 1; echo done", cwd=harness)))
    starter = threading.Thread(target=inner.start)
    starter.start()
    starter.join()
    inner.join(30)
    assert outcomes[0].stdout == "done\n"


def test_no_descriptor_or_thread_is_left(harness):
    shell("true", cwd=harness, endpoint="http://127.0.0.1:1")
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        shell("true", cwd=harness, endpoint="http://127.0.0.1:1")
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_boxes_at_once_do_not_meet(world):
    outcomes: dict[int, Outcome] = {}

    def one(number: int) -> None:
        tree = world / "run" / f"tree{number}"
        tree.mkdir()
        code = f"ls {world}/run; ls /proc | grep -c '^[0-9]'; echo $$ > mine; sleep 0.3"
        outcomes[number] = shell(code, cwd=tree)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, outcome in outcomes.items():
        assert outcome.stdout.splitlines()[0] == f"tree{number}"
        assert len(outcome.stdout.splitlines()) == 2
        assert int(outcome.stdout.splitlines()[1]) < 8
    assert len(outcomes) == 6
