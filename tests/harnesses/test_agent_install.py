from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.harnesses import install as module
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.harnesses.install import PACKAGES, agents_folder, find_agent, install, listed

#: Stands in for npm: makes the tree that the real one would, and logs how it was called.
NPM = """#!/bin/sh
echo "$PATH | $@" >> "$NPM_LOG"
for last in "$@"; do :; done
case "$last" in
  node-*) d="$3/node_modules/${last%@*}/bin"; mkdir -p "$d"
     printf '#!/bin/sh\\necho v22.23.3\\n' > "$d/node"
     chmod +x "$d/node" ;;
  *) d="$3/node_modules/${last%@*}"
     mkdir -p "$d/dist"; : > "$d/dist/cli.js"
     printf '{"name": "%s", "version": "%s"}' "${last%@*}" "${last##*@}" > "$d/package.json" ;;
esac
exit ${NPM_EXIT:-0}
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a pretended npm, the few commands that it needs, and nothing else on ``PATH``; its bin folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir", "chmod"):
        (folder / name).symlink_to(f"/bin/{name}")
    script(folder / "npm", NPM)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("NPM_LOG", str(tmp_path / "npm.log"))
    monkeypatch.setenv("PYTEST_PROTEUS_AGENTS", str(tmp_path / "agents"))
    return folder


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_an_agent_and_its_node_are_installed_at_their_pinned_versions(machine, tmp_path):
    rows = install(["pi"], say=lambda line: None)
    assert [(row["name"], row["version"], row["source"]) for row in rows] == [("pi", "1.6.0", "installed")]
    node, agent = (tmp_path / "npm.log").read_text().splitlines()
    assert node.endswith("@22.23.3")
    assert agent.endswith("@earendil-works/pi-coding-agent@1.6.0")
    assert sorted(os.listdir(tmp_path / "agents")) == ["node-22.23.3", "pi-1.6.0"]


def test_npm_runs_under_the_installed_node_when_it_installs_the_agent(machine, tmp_path):
    install(["pi"], say=lambda line: None)
    path = (tmp_path / "npm.log").read_text().splitlines()[1].split(" | ")[0]
    assert path.startswith(str(tmp_path / "agents" / "node-22.23.3"))


def test_installing_twice_calls_npm_once(machine, tmp_path):
    said: list[str] = []
    install(["pi"], say=said.append)
    install(["pi"], say=said.append)
    assert len((tmp_path / "npm.log").read_text().splitlines()) == 2
    assert said[-1].startswith("@earendil-works/pi-coding-agent@1.6.0: is in ")


def test_progress_goes_to_standard_error(machine, capsys):
    install(["pi"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pi-coding-agent@1.6.0: done" in captured.err


def test_a_failed_installation_leaves_nothing(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("NPM_EXIT", "1")
    with pytest.raises(ConfigurationError, match=r"npm install node-linux-.* failed"):
        install(["pi"], say=lambda line: None)
    assert os.listdir(tmp_path / "agents") == []


def test_an_installation_that_another_process_finished_first_is_kept(machine, tmp_path, monkeypatch):
    def finished_meanwhile(target, spec):
        folder = tmp_path / "agents" / ("pi-1.6.0" if "pi" in spec else "node-22.23.3")
        folder.mkdir()
        (folder / "theirs").touch()

    monkeypatch.setattr(module, "_run_npm", finished_meanwhile)
    install(["pi"], say=lambda line: None)
    assert (tmp_path / "agents" / "pi-1.6.0" / "theirs").is_file()


def test_without_npm_the_error_says_what_to_install(machine):
    (machine / "npm").unlink()
    with pytest.raises(ConfigurationError, match=r"needs the command npm: install Node\.js"):
        install(["pi"], say=lambda line: None)


def test_a_folder_that_cannot_be_written_names_the_variable(machine, monkeypatch):
    monkeypatch.setenv("PYTEST_PROTEUS_AGENTS", "/proc/agents")
    with pytest.raises(ConfigurationError, match="set PYTEST_PROTEUS_AGENTS to a folder that can be written"):
        install(["pi"], say=lambda line: None)


@pytest.mark.parametrize("call", [lambda: install(["pie"]), lambda: find_agent("pie")])
def test_an_unknown_agent_is_refused_with_the_known_ones(call):
    with pytest.raises(ConfigurationError, match=r"unknown agent 'pie'; known: .*, pi"):
        call()


def test_an_agent_that_is_missing_names_the_command_that_installs_it(machine):
    with pytest.raises(ConfigurationError, match="install it with: proteus agents install pi"):
        find_agent("pi")
    assert {(row["name"], row["version"], row["path"]) for row in listed()} >= {("codex", "", ""), ("pi", "", "")}


def test_an_agent_on_the_path_is_found_with_its_version(machine, tmp_path):
    package = tmp_path / "lib" / "pi-coding-agent"
    (package / "dist").mkdir(parents=True)
    (package / "dist" / "cli.js").touch()
    (package / "package.json").write_text(json.dumps({"name": "@earendil-works/pi-coding-agent", "version": "1.5.0"}))
    script(package / "dist" / "cli.js", "#!/usr/bin/env node\n")
    (machine / "pi").symlink_to(package / "dist" / "cli.js")
    script(machine / "node", "#!/bin/sh\necho v24.1.0\n")
    found = find_agent("pi")
    assert found.argv == (str(machine / "node"), str(package / "dist" / "cli.js"))
    assert (found.version, found.source) == ("1.5.0", "path")


def test_an_agent_that_is_no_script_is_its_own_binary_with_the_version_of_its_package(machine, tmp_path):
    package = PACKAGES["codex"]
    modules = tmp_path / "agents" / f"codex-{package.version}" / "node_modules"
    names = {"x86_64": ("x64", "x86_64"), "aarch64": ("arm64", "aarch64")}
    node, cpu = names[platform.machine()]
    binary = modules / package.entry.format(machine=node, cpu=cpu)
    binary.parent.mkdir(parents=True)
    script(binary, "#!/bin/sh\n")
    (modules / package.package).mkdir()
    (modules / package.package / "package.json").write_text(
        json.dumps({"name": package.package, "version": package.version})
    )
    found = find_agent("codex")
    assert (found.argv, found.version, found.source) == ((str(binary),), package.version, "installed")


def test_an_agent_in_python_is_run_by_the_python_of_its_own_environment(machine, tmp_path):
    package = PACKAGES["mini-swe-agent"]
    folder = tmp_path / "agents" / f"mini-swe-agent-{package.version}"
    (folder / "bin").mkdir(parents=True)
    script(folder / "bin" / "python", "#!/bin/sh\n")
    (folder / "lib" / "python3.11" / "site-packages" / "mini_swe_agent-2.4.6.dist-info").mkdir(parents=True)
    found = find_agent("mini-swe-agent")
    assert found.argv == (str(folder / "bin" / "python"), "-m", "minisweagent.run.mini")
    assert (found.version, found.source) == ("2.4.6", "installed")
    (row,) = [row for row in listed() if row["name"] == "mini-swe-agent"]
    assert row["path"] == str(folder / "bin" / "python")


def test_a_version_whose_log_is_not_known_is_refused_before_anything_runs(machine, tmp_path):
    (tmp_path / "package.json").write_text(json.dumps({"name": "@openai/codex", "version": "0.9.0"}))
    missing = CodexHarness({"openai-responses": "http://127.0.0.1:1"}, script(tmp_path / "codex", "")).preflight()
    assert "is version 0.9.0, and only the log of 0.171.x can be read" in missing
    assert missing.endswith("proteus agents install codex")


def test_a_node_that_is_too_old_is_refused(machine, tmp_path):
    script(machine / "node", "#!/bin/sh\necho v20.20.2\n")
    (tmp_path / "cli.js").touch()
    with pytest.raises(ConfigurationError, match=r"needs Node 22\.19 or newer, and .*node is v20\.20\.2"):
        find_agent("pi", tmp_path / "cli.js")


def test_what_root_installed_is_found_by_everybody(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SHARED_FOLDER", tmp_path / "agents")
    install(["pi"], say=lambda line: None)
    monkeypatch.delenv("PYTEST_PROTEUS_AGENTS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "mine"))
    found = find_agent("pi")
    assert all(part.startswith(str(tmp_path / "agents")) for part in found.argv)


def test_an_explicit_executable_is_used_as_it_is(machine, tmp_path):
    found = find_agent("pi", script(tmp_path / "wrapper", "#!/bin/sh\n"))
    assert (found.argv, found.version, found.source) == ((str(tmp_path / "wrapper"),), "", "given")


def test_an_explicit_path_must_exist(machine, tmp_path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        find_agent("pi", tmp_path / "nothing")


def test_the_folder_of_the_agents_does_not_name_the_framework(monkeypatch):
    # the agents tell their model where their own documentation lies
    monkeypatch.delenv("PYTEST_PROTEUS_AGENTS", raising=False)
    for data in (None, "/data"):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        if data:
            monkeypatch.setenv("XDG_DATA_HOME", data)
        assert "proteus" not in str(agents_folder())
        assert "pytest" not in str(agents_folder())
