"""The rungs podman and docker; those that start a container are skipped where there is no podman with an image.

The image is the one that ``PROTEUS_TEST_IMAGE`` names, else any that podman has here; nothing is pulled.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from boxes import marked
from test_choice_of_rung import session
from waiting import until

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox import BwrapSandbox, ContainerSandbox, Limits, Outcome, choose

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}


def _image() -> str:
    if named := os.environ.get("PROTEUS_TEST_IMAGE"):
        return named
    if not shutil.which("podman"):
        return ""
    command = ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}"]
    names = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return next((name for name in names if "<none>" not in name), "")


IMAGE = _image()
MISSING = choose(f"podman:{IMAGE}").preflight() if IMAGE else "there is no podman with an image on this machine"
needs_podman = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")


def shell(code: str, *arguments: str, cwd: Path, limits: Limits | None = None, **more) -> Outcome:
    box = ContainerSandbox("podman", IMAGE, limits=limits)
    more.setdefault("env", ENVIRONMENT)
    return box.launch(["bash", "-c", code, "shell", *arguments], cwd=cwd, **more)


def containers() -> str:
    """The commands of all containers."""
    command = ["podman", "ps", "--all", "--no-trunc", "--format", "{{.Command}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- what is said where there is no engine ----------------------------------------------------------------------------


def engine(folder: Path, monkeypatch, name: str, info: object, *, images: bool = True) -> None:
    """A program that passes for an engine of which ``info`` is told."""
    folder.mkdir(exist_ok=True)
    (folder / "info").write_text(json.dumps(info))
    script = f"#!/bin/sh\ncase $1 in info) cat {folder}/info;; image) exit {0 if images else 1};; *) exit 9;; esac\n"
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def podman_info(rootless: bool, version: str, *controllers: str) -> dict:
    return {"host": {"security": {"rootless": rootless}, "cgroupVersion": version, "cgroupControllers": controllers}}


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_an_engine_needs_its_image(name):
    with pytest.raises(ConfigurationError, match=f"needs an image: write {name}:IMAGE"):
        choose(name)


def test_an_engine_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sandbox podman needs podman, which is not on PATH" in choose("podman:x").preflight()
    assert choose("podman:x").enforcement["memory"] == "watchdog"


def test_an_image_that_is_not_there_is_told_and_not_pulled(tmp_path, monkeypatch):
    engine(tmp_path / "bin", monkeypatch, "podman", podman_info(True, "v2"), images=False)
    assert "there is no image 'name/a:1' on this machine, and none is pulled" in choose("podman:name/a:1").preflight()


@pytest.mark.parametrize(
    ("info", "memory", "processes"),
    [
        (podman_info(True, "v1"), "watchdog", "enforced"),  # it accepts the limit, and ignores it
        (podman_info(True, "v2", "pids"), "watchdog", "enforced"),
        (podman_info(True, "v2", "memory", "pids"), "enforced", "enforced"),
        (podman_info(False, "v1"), "enforced", "enforced"),
        (podman_info(False, "v2", "cpu"), "watchdog", "absent"),
    ],
)
def test_what_is_enforced_is_what_the_engine_says(tmp_path, monkeypatch, info, memory, processes):
    engine(tmp_path / "bin", monkeypatch, "podman", info)
    found = choose(f"podman:{uuid.uuid4().hex}").enforcement  # an engine is asked once for each image
    assert (found["memory"], found["processes"]) == (memory, processes)
    assert found.keys() == BwrapSandbox.enforcement.keys()


def test_docker_without_its_daemon_is_told(tmp_path, monkeypatch):
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "sandbox docker cannot be used: Cannot connect to the Docker daemon" in choose("docker:x").preflight()


def test_a_session_is_a_usage_error_before_anything_runs(tmp_path):
    code, said, _ = session(tmp_path, "Runs()", "--proteus-sandbox=podman")
    assert (code, "write one of auto, bwrap, none, podman:IMAGE, docker:IMAGE" in said) == (4, True)
    code, said, _ = session(tmp_path, "Runs()", "--proteus-sandbox=podman:no/such:image")
    assert (code, "sandbox podman" in said, "Traceback" in said) == (4, True, False)


# --- in a container ---------------------------------------------------------------------------------------------------


@needs_podman
def test_what_goes_in_and_what_comes_out(harness):
    code = "cat; pwd; whoami; echo $KEY; echo err >&2; echo text > new; exit 3"
    outcome = shell(code, cwd=harness, stdin="é" * 100_000, env={**ENVIRONMENT, "KEY": "one\ntwo", "PWD": "/x"})
    assert outcome.returncode == 3
    assert outcome.stdout.endswith(f"é{harness}\nagent\none two\n")
    assert (outcome.stderr, (harness / "new").read_text()) == ("err\n", "text\n")


@needs_podman
def test_nothing_but_its_own_can_be_read_or_written(world, harness):
    code = """
for path in {0}/records/scores.json {0}/repo/.git/config {0}/home/key {1}; do [ -e $path ] && echo sees $path; done
for path in /new /etc/new /usr/new /proc/sys/kernel/core_pattern {0}/run/active/AGENTS.md; do
    (: >> $path) 2>/dev/null && echo wrote $path
done
cat {0}/run/active/AGENTS.md; env; cat /proc/mounts /proc/1/cmdline /proc/1/environ
""".format(world, Path.home() / ".ssh")
    outcome = shell(code, cwd=harness, readable=[world / "run" / "active"])
    assert outcome.stdout.startswith("# Active\n")
    assert "proteus" not in outcome.stdout.lower()
    assert "pytest" not in outcome.stdout.lower()


@needs_podman
def test_it_reaches_the_endpoint_and_nothing_else(harness):
    # the look before the first episode is of that, and this is of the numbers
    outcome = shell("exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /x HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3",
                    cwd=harness, endpoint="http://127.0.0.1:1/base")  # fmt: skip
    assert "403" in outcome.stdout
    assert (outcome.calls, outcome.refused) == (0, 1)


@needs_podman
@pytest.mark.parametrize("end", ["exit 0", "while :; do sleep 1; done"])
def test_what_hides_is_dead_when_the_phase_ends_and_no_container_is_left(harness, end):
    token = uuid.uuid4().hex
    code = f'trap "" TERM; setsid bash -c "while :; do sleep 600; done" x $1 >/dev/null 2>&1 & {end}'
    outcome = shell(code, token, cwd=harness, timeout=5.0, grace=0.2)
    assert outcome.timed_out == (end != "exit 0")
    assert not marked(token)
    assert token not in containers()


#: Numbers of x86-64; perl is in the smallest of images.
CALLS = """
my %sockets = (vsock => 40, packet => 17, xdp => 44, alg => 38, bluetooth => 31, odd => 40 + 2**32);
for (sort keys %sockets) { print "$_ ", (socket(S, $sockets{$_}, 1, 0) ? "open" : "shut"), "\n" }
my %calls = (unshare => [272, 0x10000000], bpf => [321, 0], keyctl => [250, 0], io_uring => [425, 1],
    clone => [56, 0x10000011], ptrace => [101, 0], setns => [308, 0], mount => [165, 0]);
for (sort keys %calls) { print "$_ ", (syscall($calls{$_}[0], $calls{$_}[1], 0, 0, 0) == -1 ? $! + 0 : "did"), "\n" }
print "inet ", (socket(S, 2, 1, 0) ? "open" : "shut"), "\n";
"""


@needs_podman
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
def test_calls_and_sockets_that_a_box_refuses_are_refused(harness):
    outcome = ContainerSandbox("podman", IMAGE).launch(["perl", "-e", CALLS], env=ENVIRONMENT, cwd=harness)
    found = dict(line.split() for line in outcome.stdout.splitlines())
    if not found:
        pytest.skip("the image has no perl")
    assert found.pop("inet") == "open"
    assert set(found.values()) == {"shut", "1"}, found


@needs_podman
def test_processes_and_files_are_bounded(harness):
    small = Limits(processes=40, file=1 << 20)
    outcome = shell("head -c 3M /dev/zero > big; for _ in $(seq 100); do sleep 600 & done", cwd=harness, limits=small)
    assert (harness / "big").stat().st_size == 1 << 20
    assert "Resource temporarily unavailable" in outcome.stderr


LAUNCH = """
import sys
from pytest_proteus.sandbox import ContainerSandbox
code = 'setsid bash -c "while :; do sleep 600; done" x "$1" & while :; do sleep 1; done'
ContainerSandbox("podman", sys.argv[3]).launch(
    ["bash", "-c", code, "x", sys.argv[1]], env={"PATH": "/usr/bin:/bin"}, cwd=sys.argv[2])
"""


@needs_podman
@pytest.mark.parametrize("whom", ["launcher", "client"])
def test_a_killed_launcher_or_client_leaves_no_container(harness, whom):
    token = uuid.uuid4().hex
    quiet = {"stderr": subprocess.DEVNULL}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, token, harness, IMAGE], **quiet)
    try:
        assert until(lambda: len(marked(token)) > 3)  # launcher, client, gate and the command's own
        if whom == "client":
            below = psutil.Process(launcher.pid).children(recursive=True)
            next(one for one in below if one.name() == "podman").kill()
        else:
            launcher.send_signal(signal.SIGKILL)
        assert until(lambda: not marked(token), 20)
        assert until(lambda: token not in containers(), 20)
    finally:
        launcher.kill()
        launcher.wait(20)


@needs_podman
def test_a_session_runs_in_containers_and_the_report_names_the_image(tmp_path):
    code, said, recorded = session(tmp_path, "Runs()", f"--proteus-sandbox=podman:{IMAGE}")
    assert code == 0, said
    assert recorded["requested"] == recorded["used"] == f"podman:{IMAGE}"
    assert recorded["enforcement"]["hidden_reads"] == "enforced"
