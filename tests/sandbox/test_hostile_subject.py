"""What a hostile subject tries in a box: each is blocked or recorded, nothing survives, nothing outside changes."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from boxes import ENVIRONMENT, PRELUDE, PYTHON, marked, needs_bwrap, needs_python, shown, subject

from pytest_proteus.core.adapter import EpisodeResult
from pytest_proteus.core.config import RunConfig
from pytest_proteus.core.disposition import NEUTRAL
from pytest_proteus.core.episode import run
from pytest_proteus.core.goal import GoalConfig
from pytest_proteus.core.records import private_record_dir, read_jsonl
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.sandbox import BwrapSandbox, Limits

pytestmark = [needs_bwrap, needs_python]

SMALL = Limits(memory=256 << 20, disk=64 << 20, file=32 << 20, scratch=8 << 20, processes=40)


def outside(world: Path) -> dict[str, tuple[int, ...]]:
    """Everything beside the run, as far as the system tells of it without reading."""
    found = {}
    for path in sorted(world.rglob("*")):
        if "run" not in path.relative_to(world).parts[:1]:
            state = path.lstat()
            found[str(path)] = (state.st_ino, state.st_size, state.st_mode, state.st_mtime_ns, state.st_ctime_ns)
    return found


@pytest.fixture(autouse=True)
def unchanged(world):
    """Nothing outside of the run may change, whatever the subject does."""
    before = outside(world)
    yield
    assert outside(world) == before


def test_what_it_must_not_see_is_not_there(world, harness):
    code = """
places = ["records/scores.json", "sibling/harness/AGENTS.md", "repo/.git/config", "home/key"]
show([tried(read, f"{sys.argv[1]}/{place}") for place in places] + [os.listdir(sys.argv[1])])
"""
    assert shown(subject(code, world, cwd=harness)) == ["ENOENT"] * 4 + [["run"]]


def test_the_users_home_and_this_framework_are_not_there(harness):
    import pytest_proteus

    code = "show([tried(os.listdir, path) for path in sys.argv[1:]])"
    places = [Path.home(), Path(pytest_proteus.__file__).parent, "/root", "/home", "/run", "/sys", "/etc/shadow"]
    places = [place for place in places if not harness.is_relative_to(place)]
    assert shown(subject(code, *places, cwd=harness)) == ["ENOENT"] * len(places)


def test_the_framework_is_not_there_where_it_lies_below_what_a_box_holds(world, harness):
    (world / "tools" / "framework").mkdir(parents=True)
    (world / "tools" / "framework" / "secret").touch()
    (world / "tools" / "program").touch()
    code = """
inner = sys.argv[1] + "/framework"
show([sorted(os.listdir(sys.argv[1])), os.listdir(inner), tried(write, inner + "/x")])
"""
    command = [str(PYTHON), "-c", PRELUDE + code, str(world / "tools")]
    box = BwrapSandbox([world / "tools" / "framework"])
    outcome = box.launch(command, env=ENVIRONMENT, cwd=harness, readable=[world / "tools"])
    assert shown(outcome) == [["framework", "program"], [], "EROFS"]
    shutil.rmtree(world / "tools")


def test_nothing_but_its_own_can_be_written(world, harness):
    code = """
outside = [f"{sys.argv[1]}/{place}" for place in ("repo/.git/hooks/pre-commit", "records/new", "new", "run/new")]
system = ["/new", "/etc/passwd", "/usr/new", "/usr/bin/env", "/dev/new"]
system += ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
show([[tried(write, path) for path in outside], [tried(write, path) for path in system], tried(write, "own")])
"""
    first, system, own = shown(subject(code, world, cwd=harness))
    # what lies above its folders is the box's own temporary file system, and gone with it
    assert first[:2] == ["ENOENT", "ENOENT"]
    assert set(system) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert own == "did it"
    assert not (world / "new").exists()
    assert not (world / "run" / "new").exists()


def test_what_it_may_only_read_it_cannot_write(world, harness):
    code = """
path = f"{sys.argv[1]}/AGENTS.md"
steps = [(write, path), (os.remove, path), (os.chmod, path, 0o777), (os.rename, path, "mine"), (os.link, path, "mine")]
show([tried(read, path), *(tried(*step) for step in steps)])
"""
    active = world / "run" / "active"
    outcome = subject(code, active, cwd=harness, writable=[harness], readable=[active])
    assert shown(outcome) == ["did it", "EROFS", "EROFS", "EROFS", "EXDEV", "EXDEV"]
    assert (active / "AGENTS.md").read_text() == "# Active\n"


def test_no_socket_leads_anywhere(world, harness):
    code = """
kinds = {"vsock": (40, 1), "packet": (17, 3), "xdp": (44, 3), "alg": (38, 5), "bluetooth": (31, 3)}
kinds |= {"raw": (2, 3), "raw6": (10, 3)}
def connect(family, address):
    with socket.socket(family) as one:
        one.settimeout(5)
        one.connect(address)
found = {name: tried(socket.socket, *kind) for name, kind in kinds.items()}
found["machine"] = tried(connect, socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))
found["network"] = tried(connect, socket.AF_INET, ("192.0.2.1", 80))
found["pathname"] = tried(connect, socket.AF_UNIX, sys.argv[2])
found["abstract"] = tried(connect, socket.AF_UNIX, "\\0" + sys.argv[3])
show(found)
"""
    token = uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{token}")
        abstract.listen()
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(str(world / "run" / "door"))
            named.listen()
            found = shown(subject(code, server.getsockname()[1], world / "run" / "door", token, cwd=harness))
    assert {found.pop(name) for name in ("vsock", "packet", "xdp", "alg", "bluetooth")} == {"EAFNOSUPPORT"}
    assert found == {
        "raw": "EPERM",
        "raw6": "EPERM",
        "machine": "ECONNREFUSED",
        "network": "ENETUNREACH",
        "pathname": "ENOENT",
        "abstract": "ECONNREFUSED",
    }


def test_calls_that_lead_out_of_namespaces_or_into_the_kernel_are_refused(harness):
    code = """
null = None
calls = {
    "unshare": (0x10000000,), "setns": (0, 0), "mount": (b"none", b"/tmp", b"tmpfs", 0, null), "umount2": (b"/tmp", 0),
    "chroot": (b"/tmp",), "ptrace": (0, 0, 0, 0), "process_vm_readv": (1, null, 0, null, 0, 0),
    "sethostname": (b"x", 1),
    "open_by_handle_at": (0, null, 0), "reboot": (0,), "swapon": (b"x", 0), "acct": (b"x",),
}
found = {name: tried(libc, name, *arguments) for name, arguments in calls.items()}
numbers = {"bpf": 321, "userfaultfd": 323, "keyctl": 250, "io_uring_setup": 425, "perf_event_open": 298, "fsopen": 430}
if os.uname().machine == "x86_64":
    found |= {name: tried(libc, "syscall", number, 0, 0, 0, 0, 0) for name, number in numbers.items()}
    found["clone"] = tried(libc, "syscall", 56, 0x10000000 | 17, 0, 0, 0, 0)
    found["x32"] = tried(libc, "syscall", 0x40000000 | 39)
found["clone3"] = tried(libc, "syscall", 435, 0, 0)
show(found)
"""
    found = shown(subject(code, cwd=harness))
    assert (found.pop("clone3"), found.pop("x32", "ENOSYS")) == ("ENOSYS", "ENOSYS")
    assert set(found.values()) == {"EPERM"}


def test_it_sees_no_process_of_the_machine(harness):
    code = """
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
show([len(pids), tried(os.kill, 1, 0), tried(os.kill, int(sys.argv[1]), 9), open("/proc/1/environ").read()])
"""
    count, _, killed, environ = shown(subject(code, os.getpid(), cwd=harness))
    assert count < 6
    assert (killed, environ) == ("ESRCH", "")


HIDES = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
            signal.signal(number, signal.SIG_IGN)
        for descriptor in range(3):
            os.close(descriptor)
        while True:
            time.sleep(600)
    os._exit(0)
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.kill(-1, 9)", "time.sleep(600)"])
def test_what_hides_is_dead_when_the_phase_ends(harness, end):
    token = uuid.uuid4().hex
    outcome = subject(HIDES + end, token, cwd=harness, timeout=3.0, grace=0.2)
    assert not marked(token)
    assert outcome.timed_out == (end == "time.sleep(600)")


def test_a_chain_of_forks_is_dead_too(harness):
    token = uuid.uuid4().hex
    code = "while True:\n    if os.fork():\n        os._exit(0)"
    subject(f"if os.fork() == 0:\n    os.setsid()\n    exec({code!r})\ntime.sleep(0.3)", token, cwd=harness)
    assert not marked(token)


def test_a_fork_bomb_stays_within_its_number_of_processes(harness):
    token = uuid.uuid4().hex
    code = """
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except OSError as error:
    show([count, errno.errorcode[error.errno]])
"""
    roomy = replace(SMALL, memory=8 << 30)  # copies of an interpreter must not meet that limit first
    count, error = shown(subject(code, token, cwd=harness, limits=roomy))
    assert error == "EAGAIN"
    assert count < SMALL.processes
    assert not marked(token)


def test_memory_is_bounded_over_all_processes(harness):
    code = "os.fork()\nkept = bytearray(200 << 20)\ntime.sleep(600)"
    outcome = subject(code, cwd=harness, limits=SMALL)
    assert outcome.exceeded == "it used more memory than the 256 MiB that it may"
    assert not outcome.timed_out


def test_the_disk_is_bounded_over_all_files(harness):
    code = """
for number in range(10_000):
    with open(str(number), "wb") as file:
        file.write(bytes(1 << 20))
    time.sleep(0.005)
time.sleep(600)
"""
    outcome = subject(code, cwd=harness, limits=SMALL)
    assert outcome.exceeded == "it used more disk than the 64 MiB that it may"


def test_a_large_tree_is_no_offence(harness):
    (harness / "large").write_bytes(bytes(80 << 20))
    assert subject("time.sleep(1)", cwd=harness, limits=SMALL).exceeded == ""


def test_one_file_and_temporary_files_are_bounded(harness):
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(path):
    with open(path, "wb") as file:
        while True:
            file.write(bytes(1 << 20))
show([tried(fill, path) for path in ("own", "/tmp/scratch", "/dev/shm/shared")])
"""
    assert shown(subject(code, cwd=harness, limits=SMALL)) == ["EFBIG", "ENOSPC", "ENOSPC"]


def test_a_flood_of_output_is_cut_and_no_harm(harness):
    outcome = subject("for _ in range(200): sys.stdout.write('x' * (1 << 20))", cwd=harness, stdout_limit=1000)
    assert outcome.returncode == 0
    assert outcome.stdout_truncated
    assert len(outcome.stdout) < 1100


def test_characters_cannot_be_pushed_into_a_terminal(harness):
    code = "import fcntl\nmain, other = os.openpty()\nshow(tried(fcntl.ioctl, other, 0x5412, b'x'))"
    assert shown(subject(code, cwd=harness)) == "EPERM"


# --- what it leaves in its tree ---------------------------------------------------------------------------------------

PLANTS = {
    "fifo": "os.mkfifo('notes/pipe')",
    "link": "os.symlink('/etc/passwd', 'notes/out.md')",
    "link_to_records": "os.symlink('../../../records/scores.json', 'notes/scores.md')",
    "hard_link": "write('notes/a.md'); os.link('notes/a.md', 'notes/b.md')",
    "socket": "socket.socket(socket.AF_UNIX).bind('notes/door')",
    "nested_repository": "os.makedirs('notes/.git/hooks'); write('notes/.git/hooks/post-checkout')",
    "set_user_id": "write('tools/run'); os.chmod('tools/run', 0o4755)",
    "shut_folder": "os.mkdir('notes/shut'); os.chmod('notes/shut', 0)",
    "sparse": "open('notes/big', 'wb').truncate(1 << 29)",
    "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]",
    "odd_name": "write(b'notes/\\xff\\x1b[2J')",
}


class Boxed(MinimalHarness):
    """A harness whose first episode is one hostile program, run in a box."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def run_episode(self, spec):
        code = self._code if spec.episode == 1 else "write('notes/good.md')"
        outcome = subject(
            "[os.makedirs(name, exist_ok=True) for name in ('notes', 'tools')]\n" + code, cwd=spec.harness_root
        )
        assert outcome.returncode == 0, outcome
        return EpisodeResult(spec.episode, True, 1)

    def read_trace(self, root, episode):
        return []


@pytest.mark.parametrize("plant", PLANTS)
def test_what_it_plants_is_recorded_and_the_run_goes_on(world, plant):
    root = world / "artifacts" / "runs" / "run-a"
    result = run(RunConfig(
        name="x", model="", adapter=Boxed(PLANTS[plant]), disposition=NEUTRAL, goal=GoalConfig.of("", []), root=root,
        episodes=2, live_root=world / "run" / "live", progress_path=world / "artifacts" / "progress.jsonl",
    ))  # fmt: skip
    try:
        assert (result.state, result.episodes_complete, result.error) == ("complete", 2, "")
        first, second = read_jsonl(private_record_dir(root) / "episodes.jsonl")
        assert first["violations"]
        assert not first["accepted"]
        assert (second["violations"], second["accepted"]) == ([], True)
    finally:
        shutil.rmtree(world / "artifacts")


def test_a_subject_that_talks_to_the_door_only_reaches_the_endpoint(harness):
    seen = []

    def serve(server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                seen.append(client.recv(4096).split(b"\r\n")[0].decode())
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    code = """
import http.client
def ask(method, path):
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=20)
    connection.request(method, path, body=b"x")
    return connection.getresponse().status
paths = ["/base/v1", "/base"]
paths += ["/other", "/base/../other", "/base%2f..%2fother", "/base/%2e%2e/x", "http://192.0.2.1/base", "/basement"]
show([ask("POST", path) for path in paths] + [ask("CONNECT", "192.0.2.1:80")])
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/base"
        outcome = subject(code, cwd=harness, endpoint=url)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    statuses = shown(outcome)
    assert statuses[:2] == [200, 200]
    assert set(statuses[2:8]) == {403}
    assert statuses[8] == 501
    assert seen == ["POST /base/v1 HTTP/1.1", "POST /base HTTP/1.1"]
    assert (outcome.calls, outcome.refused) == (2, 6)
