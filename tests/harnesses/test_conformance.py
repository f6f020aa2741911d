"""The checks that tell whether an adapter keeps the contract."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, Surface
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses.conformance import check
from pytest_proteus.harnesses.minimal import MinimalHarness
from pytest_proteus.harnesses.scaffold import scaffold_adapter
from pytest_proteus.testing import check_adapter


class Good:
    """Keeps the contract, and writes its disposition into the tree."""

    name = "good"
    disposition_in_files = True
    deterministic = True

    def surfaces(self):
        return [Surface("notes", "notes")]

    def required_edit_tools(self):
        return frozenset({"write"})

    def seed(self, harness_root, rng_seed=0):
        (harness_root / "notes").mkdir()
        (harness_root / "notes" / "a.md").write_text(f"{rng_seed}\n")

    def install_disposition(self, harness_root, disposition):
        place = harness_root / "habit.txt"
        place.unlink(missing_ok=True)
        if not disposition.is_empty:
            place.write_text(disposition.prompt_suffix)

    def disposition_fingerprint(self, harness_root):
        place = harness_root / "habit.txt"
        return place.read_text() if place.exists() else ""

    def run_episode(self, spec):
        (spec.harness_root / "notes" / "b.md").write_text("b\n")
        return EpisodeResult(spec.episode, True, 1)

    def read_trace(self, root, episode):
        written = (root / "harness" / "notes" / "b.md").exists()
        return [ActionEvent(1, "act", "write", "notes")] if written else []


def change(**members) -> Good:
    """``Good`` with other members."""
    return type("Changed", (Good,), members)()


def failed(adapter, **more) -> dict[str, str]:
    return {one.name: one.advice for one in check(adapter, **more) if not one.ok}


@pytest.mark.parametrize("adapter", [Good(), MinimalHarness()])
def test_an_adapter_that_keeps_the_contract_passes_everything(adapter):
    assert failed(adapter, episode=True) == {}


def test_without_an_episode_none_is_run():
    assert failed(change(run_episode=lambda self, spec: 1 / 0)) == {}


def sometimes(self, harness_root, rng_seed=0, seen=[]):  # noqa: B006 - remembers
    seen.append(1)
    (harness_root / "a").write_text(str(len(seen)))


def link(self, harness_root, rng_seed=0):
    (harness_root / "out").symlink_to("/etc/passwd")


def astray(self, harness_root, rng_seed=0):
    (harness_root.parent / "beside").write_text("")


def homely(self, harness_root, rng_seed=0):
    (Path.home() / ".mine").write_text("")


def sticky(self, harness_root, disposition):
    with (harness_root / "log.txt").open("a") as file:
        file.write(disposition.label)


def silent(self, harness_root, disposition):
    pass


BROKEN = {
    "no surfaces": (change(surfaces=lambda self: []), "surfaces() gives none"),
    "two of a name": (
        change(surfaces=lambda self: [Surface("a", "a"), Surface("a", "b")]),
        "surfaces() has two called a: give each",
    ),
    "surfaces raise": (change(surfaces=lambda self: 1 / 0), "make this not raise ZeroDivisionError"),
    "continuity": (change(continuity_mode="magic"), "choose one of native, framework, none"),
    "no bool": (change(seeded="yes"), "seeded is 'yes': make it True or False"),
    "staged": (change(staged_activation=True), "add validate_candidate(harness_root)"),
    "tools": (change(required_edit_tools=lambda self: "write"), "make it a frozenset of tool names"),
    "trace of nothing": (change(read_trace=lambda self, root, episode: [1]), "make it give an empty list"),
    "seed beside": (change(seed=astray), "beside: write below harness_root only"),
    "seed at home": (change(seed=homely), ".mine: write below harness_root only"),
    "seed by chance": (change(seed=sometimes), "take all chance from rng_seed"),
    "seed a link": (change(seed=link), "write plain files and folders only"),
    "disposition stays": (change(install_disposition=sticky), "remove all that an earlier one wrote"),
    "nothing written": (change(install_disposition=silent), "disposition_in_files is True, but"),
    "fingerprint asleep": (
        change(disposition_fingerprint=lambda self, root: ""),
        "the tree changed and the fingerprint stayed",
    ),
    "not viable": (change(validate_candidate=lambda self, root: "no"), "validate_candidate() refuses what seed()"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_contract_is_told_with_what_to_change(name):
    adapter, advice = BROKEN[name]
    told = failed(adapter)
    assert any(advice in one for one in told.values()), told


def ran(event) -> Good:
    """An adapter whose episode leaves this event."""

    def read_trace(self, root, episode):
        return [event] if (root / "harness" / "notes" / "b.md").exists() else []

    return change(read_trace=read_trace)


@pytest.mark.parametrize(
    ("adapter", "advice"),
    [
        (ran(ActionEvent(0, "act", "write")), "count the model's turns from 1 on"),
        (ran(ActionEvent(1, "later", "write")), "phase is 'later': one of observe"),
        (ran(ActionEvent(1, "act", "write", "elsewhere")), "surface is 'elsewhere': the name of a declared surface"),
        (ran(ActionEvent(1, "act", "write", params={"a": object()})), "params cannot be written as JSON"),
        (ran(ActionEvent(1, "act", "write", text="x" * 300_000)), "has 300002 characters: cut"),
        (change(run_episode=lambda self, spec: EpisodeResult(1, False, error="no luck")), "errored: no luck"),
        (change(preflight=lambda self: "It is not installed."), "It is not installed."),
        (change(run_episode=lambda self, spec: homely(self, spec.root) or EpisodeResult(1, True)), "give the agent a"),
    ],
)
def test_what_is_wrong_with_an_episode_is_told_with_what_to_change(adapter, advice):
    told = failed(adapter, episode=True)
    assert any(advice in one for one in told.values()), told


def test_an_object_that_is_no_adapter_is_told_what_it_lacks():
    assert failed(object())["it has the adapter's name and methods"].startswith("add name, surfaces, ")


def test_the_process_is_where_it_was_afterwards(monkeypatch):
    before = Path.cwd()
    monkeypatch.delenv("PWD", raising=False)
    check(Good())
    assert Path.cwd() == before
    assert "check-" not in str(Path.home())


def test_as_a_function_it_gives_the_failures_and_prints_a_line_a_check(capsys):
    assert check_adapter(Good()) == []
    assert capsys.readouterr().out.startswith("ok    it has the adapter's name and methods\n")
    (told,) = check_adapter(object(), verbose=False)
    assert told.startswith("it has the adapter's name and methods: add name")
    assert capsys.readouterr().out == ""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    call = [str(Path(sys.executable).with_name("proteus")), "check", *words]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)


def test_the_command_checks_a_module_of_the_working_folder(tmp_path):
    (tmp_path / "mine.py").write_text("class Half:\n    name = 'half'\n")
    done = command(tmp_path, "--harness", "mine:Half")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FAIL  it has the adapter's name and methods: add surfaces, ")


def test_the_command_tells_machines_the_same(tmp_path):
    done = command(tmp_path, "--harness", "minimal", "--episode", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["ok"] for one in json.loads(done.stdout)} == {True}


def test_the_command_refuses_a_name_that_nobody_has(tmp_path):
    done = command(tmp_path, "--harness", "minimul")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("proteus check: unknown harness 'minimul'; did you mean 'minimal'?")


class Staged(Good):
    """Runs from one tree and edits another."""

    staged_activation = True

    def validate_candidate(self, harness_root):
        return ""


def staged(**members) -> Good:
    return type("Changed", (Staged,), members)()


def test_a_staged_adapter_is_held_to_its_rules():
    assert failed(staged(), episode=True) == {}


def test_a_staged_adapter_that_edits_what_it_runs_from_is_told(tmp_path):
    def run_episode(self, spec):
        spec.active_root.chmod(0o755)
        (spec.active_root / "mine").write_text("x")
        return EpisodeResult(spec.episode, True, 1)

    found = failed(staged(run_episode=run_episode), episode=True)
    assert "edit spec.harness_root" in found["it does not edit what it runs from"]


@pytest.mark.parametrize(
    ("validate", "told"),
    [
        (lambda self, root: (root / "built").write_text("x") and "", "changes the tree"),
        (lambda self, root: Path("built").write_text("x") and "", "leaves"),
        (lambda self, root: tempfile.mkdtemp() and "", "leaves"),
        (lambda self, root: uuid.uuid4().hex, "leave out chance and clocks"),
    ],
)
def test_looking_at_a_tree_leaves_nothing_and_is_no_matter_of_chance(validate, told):
    found = failed(change(validate_candidate=validate))
    assert told in found["it looks at a tree without changing anything"]


def test_an_adapter_that_takes_more_turns_than_it_has_is_told():
    greedy = change(run_episode=lambda self, spec: EpisodeResult(spec.episode, True, 1000))
    assert "spec.turns_of" in failed(greedy, episode=True)["it keeps to its turns"]


def test_under_framework_continuity_a_note_has_to_come_back():
    assert "Handoff(spec)" in failed(change(continuity_mode="framework"), episode=True)["its phases leave a note"]


def test_a_disposition_is_written_nowhere_else():
    def install(self, harness_root, disposition):
        (harness_root.parent / "elsewhere").write_text("x")

    found = failed(change(install_disposition=install, disposition_in_files=False))
    assert "elsewhere" in found["a disposition can be taken away without a trace"]


@pytest.mark.parametrize("name", ["MyAgent", "my_agent", "my-agent", "MyAgentHarness"])
def test_a_scaffolded_adapter_keeps_the_contract_unchanged(tmp_path, monkeypatch, name):
    path, spec = scaffold_adapter(name, tmp_path)
    assert (path.name, spec) == ("my_agent_harness.py", "my_agent_harness:MyAgentHarness")
    if name == "MyAgent":
        done = command(tmp_path, "--harness", spec, "--episode", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(line["ok"] for line in json.loads(done.stdout))
    assert "TemplateHarness" not in path.read_text()
    with pytest.raises(ConfigurationError, match="is there already"):
        scaffold_adapter(name, tmp_path)


@pytest.mark.parametrize("name", ["", "1st", "a b", "a/b", "Ägent"])
def test_a_name_that_makes_no_class_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="beginning with a letter"):
        scaffold_adapter(name, tmp_path)
