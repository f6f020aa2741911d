"""Which rung is used, that none is stepped down from, and the sentences for machines where bwrap cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import needs_bwrap, stand_in

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.sandbox import BwrapSandbox, LocalSandbox, Outcome, choose
from pytest_proteus.sandbox.bwrap import explain, find_bwrap
from pytest_proteus.sandbox.probe import probe
from pytest_proteus.sandbox.seccomp import program


@pytest.fixture
def nothing(tmp_path, monkeypatch) -> Path:
    """A ``PATH`` with no program on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_auto_is_bwrap_and_each_rung_has_its_name():
    assert {name: choose(name).name for name in ("auto", "bwrap", "none")} == {
        "auto": "bwrap",
        "bwrap": "bwrap",
        "none": "none",
    }


def test_other_names_are_refused():
    with pytest.raises(ConfigurationError, match="unknown sandbox 'jail'; choose one"):
        choose("jail")


def test_all_rungs_say_of_the_same_properties_what_holds():
    assert BwrapSandbox.enforcement.keys() == LocalSandbox.enforcement.keys()
    assert {*BwrapSandbox.enforcement.values(), *LocalSandbox.enforcement.values()} == {
        "enforced",
        "watchdog",
        "absent",
    }


def test_without_bubblewrap_the_sentence_says_how_to_get_it(nothing):
    with pytest.raises(ConfigurationError, match=r"apt-get install bubblewrap .*--proteus-sandbox=none"):
        find_bwrap()


@pytest.mark.parametrize(("version", "told"), [("bubblewrap 0.6.1", "is 0.6.1"), ("what", "of no known version")])
def test_an_old_bubblewrap_is_told(nothing, version, told):
    (nothing / "bwrap").write_text(f"#!/bin/sh\necho {version}\n")
    (nothing / "bwrap").chmod(0o755)
    with pytest.raises(ConfigurationError, match=f"needs bubblewrap 0.8.0 or newer, and .*{told}"):
        find_bwrap()


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "apparmor_parser -r"),
        ("bwrap: setting up uid map: Permission denied", "apparmor_parser -r"),
        ("bwrap: No permissions to create new namespace, likely because", "kernel.unprivileged_userns_clone=1"),
        ("bwrap: No permissions to creating new namespace, likely because", "kernel.unprivileged_userns_clone=1"),
        ("bwrap: Creating new namespace failed: nesting depth or (ENOSPC)", "user.max_user_namespaces"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "take the container for the sandbox"),
        ("bwrap: something\nnew", "something new; mend that"),
    ],
)
def test_what_bubblewrap_says_becomes_one_sentence_with_the_fix(said, fix):
    sentence = explain(said)
    assert fix in sentence
    assert "--proteus-sandbox=none" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor forbids user namespaces here"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "this container masks /proc"),
    ],
)
def test_a_machine_that_lets_no_box_be_built_is_told_with_what_to_do(world, monkeypatch, said, fix):
    stand_in(world, said, monkeypatch)
    code = "from pytest_proteus.sandbox import choose; print(choose('bwrap').preflight())"
    # in a process of its own, because the answer of the first time stands
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert fix in done.stdout


class Leaky:
    """A rung whose boxes hold but for one process."""

    name, image = "leaky", ""

    def launch(self, argv, *, cwd, **more):
        with (cwd / "daemon").open("wb") as file:
            self.left = subprocess.Popen(["sleep", "600"], stdout=file)
        return Outcome(0, False, "began\nwrote-own\n", "", False, False, 0.1)


def test_a_machine_on_which_a_process_outlives_its_box_is_told():
    leaky = Leaky()
    try:
        assert "sandbox leaky does not hold on this machine: a process outlived it" in probe(leaky)
    finally:
        leaky.left.kill()
        leaky.left.wait()


def test_a_filter_of_system_calls_is_never_that_of_another_machine():
    with pytest.raises(ConfigurationError, match="no filter of system calls for riscv64"):
        program("riscv64")
    assert program("x86_64") != program("aarch64")
    assert all(len(program(machine)) % 8 == 0 for machine in ("x86_64", "aarch64"))


# --- in a session -----------------------------------------------------------------------------------------------------

SUITE = """
import pytest
from pytest_proteus.core.adapter import EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness
class Runs(MinimalHarness):
    '''A harness that launches a program in the sandbox it is given.'''
    name = "runs"
    runs_code = True
    def __init__(self):
        super().__init__()
        self.sandbox = None
    def run_episode(self, spec):
        where = spec.harness_root
        outcome = self.sandbox.launch(["/bin/sh", "-c", "echo x > STATE.md"], env={}, cwd=where, writable=[where])
        return EpisodeResult(spec.episode, outcome.returncode == 0, 1, outcome.stderr)
    def read_trace(self, root, episode):
        return []
class Alone(MinimalHarness):
    name = "alone"
    runs_code = True
pytestmark = pytest.mark.sweep(name="boxed", episodes=1, harness=[HARNESS], arm=["neutral"], seed=[0])
def test_run(run):
    assert run.state == "complete"
"""


def session(folder: Path, harness: str, *words: str, path: str | None = None) -> tuple[int, str, dict]:
    """Exit code and what was said; what the manifest says of the sandbox, if there is one."""
    (folder / "test_it.py").write_text(SUITE.replace("HARNESS", harness))
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "--proteus-out=out", *words]
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    done = subprocess.run(
        [*command, "test_it.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    manifest = folder / "out" / "boxed" / "manifest.json"
    recorded = json.loads(manifest.read_text())["sandbox"] if manifest.exists() else {}
    return done.returncode, done.stdout + done.stderr, recorded


@pytest.fixture
def no_bwrap(tmp_path) -> str:
    """A ``PATH`` with git, and without bubblewrap."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("git", "sh"):
        for parent in os.environ["PATH"].split(":"):
            if (Path(parent) / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(parent) / name)
    return str(folder)


@pytest.mark.parametrize("words", [("--proteus-sandbox=bwrap",), (), ("-n", "2")])
def test_where_bwrap_is_missing_it_is_a_usage_error_before_anything_runs(tmp_path, no_bwrap, words):
    code, said, _ = session(tmp_path, "Runs()", *words, path=no_bwrap)
    assert code == 4
    assert "sandbox bwrap needs bubblewrap" in said
    assert "or write --proteus-sandbox=none" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/boxed/runs/run-*"))


def test_none_is_used_where_it_is_named_and_the_report_says_so(tmp_path, no_bwrap):
    code, said, recorded = session(tmp_path, "Runs()", "--proteus-sandbox=none", path=no_bwrap)
    assert code == 0, said
    assert (recorded["requested"], recorded["used"]) == ("none", "none")
    assert recorded["enforcement"]["hidden_reads"] == "absent"


def test_the_ini_file_names_a_rung_too(tmp_path, no_bwrap):
    (tmp_path / "pytest.ini").write_text("[pytest]\nproteus_sandbox = none\n")
    code, said, recorded = session(tmp_path, "Runs()", path=no_bwrap)
    assert code == 0, said
    assert recorded["requested"] == "none"


@needs_bwrap
def test_a_harness_that_runs_code_is_in_a_box_and_the_report_says_so(tmp_path):
    code, said, recorded = session(tmp_path, "Runs()")
    assert code == 0, said
    assert (recorded["requested"], recorded["used"]) == ("auto", "bwrap")
    assert recorded["enforcement"] == dict(BwrapSandbox.enforcement)
    report = json.loads((tmp_path / "out" / "boxed" / "report.json").read_text())
    assert report["sweeps"][0]["sandbox"] == recorded


@pytest.mark.parametrize("rung", ["auto", "bwrap"])
def test_a_harness_that_runs_nothing_needs_no_rung(tmp_path, no_bwrap, rung):
    code, said, recorded = session(tmp_path, "'minimal'", f"--proteus-sandbox={rung}", path=no_bwrap)
    assert code == 0, said
    assert recorded == {"requested": rung, "used": "none", "enforcement": None}


def test_a_harness_that_starts_its_own_processes_is_not_said_to_be_in_a_box(tmp_path, no_bwrap):
    code, said, recorded = session(tmp_path, "Alone()", path=no_bwrap)
    assert code == 0, said
    assert (recorded["requested"], recorded["used"]) == ("auto", "none")
    code, said, _ = session(tmp_path, "Alone()", "--proteus-sandbox=bwrap", path=no_bwrap)
    assert code == 4
    assert "harness 'alone' runs what it starts by itself, in sandbox none" in said


@needs_bwrap
def test_runs_of_another_rung_are_not_reused(tmp_path):
    assert session(tmp_path, "Runs()", "--proteus-sandbox=none")[0] == 0
    code, said, _ = session(tmp_path, "Runs()")
    assert code == 4
    assert "harnesses.runs.sandbox" in said


def test_pi_takes_the_sandbox_of_the_session_and_keeps_its_own():
    assert PiHarness().sandbox is None
    own = LocalSandbox()
    assert PiHarness(sandbox=own).sandbox is own


@pytest.fixture
def agent(tmp_path, monkeypatch) -> Path:
    """A program that passes for an agent, and no key in the environment."""
    program = tmp_path / "agent"
    program.touch()
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return program


def test_pi_in_a_box_reaches_the_vendor_that_its_model_names(agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a")
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    free, boxed = PiHarness(None, agent, sandbox=LocalSandbox()), PiHarness(None, agent, sandbox=BwrapSandbox())
    assert free._endpoint("openai/x") == ("", "", "openai/x")
    assert free._key("openai/x") == {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}
    assert boxed._endpoint("openai/x") == ("openai-responses", "https://api.openai.com/v1", "x")
    assert boxed._key("openai/x") == {"OPENAI_API_KEY": "o"}
    assert boxed._endpoint("anthropic/x")[1:] == ("https://api.anthropic.com", "x")


def test_pi_in_a_box_needs_an_endpoint_where_no_vendor_is_known(agent, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    assert PiHarness(None, agent, sandbox=LocalSandbox()).unconfigured("openrouter/x") == ""
    told = PiHarness(None, agent, sandbox=BwrapSandbox()).unconfigured("openrouter/x")
    assert "has no model endpoint and no key: give --proteus-endpoint=[WIRE=]URL" in told
