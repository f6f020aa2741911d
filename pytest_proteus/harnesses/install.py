"""Putting the real agents on this machine at pinned versions, and finding them again.

An agent and the Node it needs come from the npm registry through the ``npm`` command, one in Python from PyPI through
``pip``. They lie in a data folder of their own, whose path names no framework: the agents tell their model where they
live. Nothing here runs an agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError

#: Environment variable that moves the data folder.
FOLDER_VARIABLE = "PYTEST_PROTEUS_AGENTS"

#: The Node that runs the agents which need one, and npm while it installs them.
NODE_VERSION = "22.23.3"

#: Where root installs, and where everybody looks after the folder of their own.
_SHARED_FOLDER = Path("/opt/coding-agents")

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_CPUS = {"x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Package:
    """An agent as the npm registry, or PyPI, has it.

    Args:
        package: name in the registry.
        version: the pinned version.
        entry: the agent's program, below ``node_modules``, where ``{machine}`` and ``{cpu}`` stand for the processor
            as Node and as compilers call it: of the agents that are no scripts the binary itself, so that no
            installation script and no launcher is needed.
        command: what the agent is called on ``PATH``.
        node: oldest Node that runs it, as (major, minor); None for one that needs none.
        module: of an agent in Python, which comes from PyPI, the module that is run; empty for those from npm.
    """

    package: str
    version: str
    entry: str
    command: str
    node: tuple[int, int] | None = None
    module: str = ""


PACKAGES = {
    "claude": Package(
        "@anthropic-ai/claude-code", "2.1.332", "@anthropic-ai/claude-code-linux-{machine}/claude", "claude"
    ),
    "codex": Package(
        "@openai/codex",
        "0.171.0",
        "@openai/codex-linux-{machine}/vendor/{cpu}-unknown-linux-musl/bin/codex",
        "codex",
    ),
    "copilot": Package("@github/copilot", "1.0.102", "@github/copilot-linux-{machine}/copilot", "copilot"),
    "gemini": Package("@google/gemini-cli", "0.61.0", "@google/gemini-cli/bundle/gemini.js", "gemini", (20, 0)),
    "mini-swe-agent": Package("mini-swe-agent", "2.4.6", "", "mini", module="minisweagent.run.mini"),
    "opencode": Package("opencode-ai", "1.18.33", "opencode-linux-{machine}/bin/opencode", "opencode"),
    "pi": Package(
        "@earendil-works/pi-coding-agent", "1.6.0", "@earendil-works/pi-coding-agent/dist/cli.js", "pi", (22, 19)
    ),
    "qwen": Package("@qwen-code/qwen-code", "0.24.4", "@qwen-code/qwen-code/cli.js", "qwen", (22, 0)),
}


@dataclass(frozen=True)
class FoundAgent:
    """An agent that is on this machine.

    Args:
        argv: how its command line begins.
        version: its version; empty when it cannot be told.
        source: ``installed`` (in the data folder), ``given`` (an explicit path) or ``path`` (on ``PATH``).
        folder: the environment that an agent in Python lies in, which has to be readable, too; empty for others.
    """

    argv: tuple[str, ...]
    version: str
    source: str
    folder: str = ""

    @property
    def readable(self) -> tuple[str, ...]:
        """Files and folders that have to be readable where it runs."""
        return (self.folder,) if self.folder else self.argv


def agents_folder() -> Path:
    """Where agents are installed: ``$PYTEST_PROTEUS_AGENTS``, else a data folder that other users can reach, too, if
    root installs."""
    moved = os.environ.get(FOLDER_VARIABLE)
    if moved:
        return Path(moved).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    if data:
        return Path(data) / "coding-agents"
    if os.geteuid() == 0:
        return _SHARED_FOLDER
    return Path.home() / ".local" / "share" / "coding-agents"


def install(names: Sequence[str], say: Callable[[str], None] | None = None) -> list[dict[str, str]]:
    """Install agents at their pinned versions, with the Node they need; what is there already is left alone.

    Args:
        names: names in ``PACKAGES``.
        say: takes a line of progress; by default it goes to standard error.

    Returns:
        The rows of ``listed`` for these names.

    Raises:
        ConfigurationError: an unknown name, no ``npm``, or an installation that fails.
    """
    tell = say or (lambda line: print(line, file=sys.stderr, flush=True))
    for name in names:
        _package(name)
    for name in names:
        package = PACKAGES[name]
        if package.module:
            _install_once(_agent_folder(name), f"{package.package}=={package.version}", tell, _run_pip)
            continue
        # npm runs under it, too
        _install_once(_node_folder(), f"{_node_package()}@{NODE_VERSION}", tell, _run_npm)
        _install_once(_agent_folder(name), f"{package.package}@{package.version}", tell, _run_npm)
    return [row for row in listed() if row["name"] in names]


def listed() -> list[dict[str, str]]:
    """One row an agent: ``name``, ``version`` (found, or empty), ``pinned``, ``source`` (see ``FoundAgent``) and
    ``path``; sorted by name."""
    rows = []
    for name, package in sorted(PACKAGES.items()):
        row = {"name": name, "version": "", "pinned": package.version, "source": "", "path": ""}
        with contextlib.suppress(ConfigurationError):
            found = find_agent(name)
            path = found.argv[0] if package.module else found.argv[-1]
            row |= {"version": found.version, "source": found.source, "path": path}
        rows.append(row)
    return rows


def find_agent(name: str, explicit: str | Path | None = None) -> FoundAgent:
    """Where an agent is: at ``explicit`` if given, else in the data folder, else on ``PATH``.

    Args:
        name: a name in ``PACKAGES``.
        explicit: the agent's executable or script.

    Folders in which agents are looked for: that of ``agents_folder``, then the one that root installs into, unless
    ``$PYTEST_PROTEUS_AGENTS`` names the only one.

    Raises:
        ConfigurationError: an unknown name, no agent there, or a Node that is too old for it.
    """
    package = _package(name)
    if explicit is not None:
        path = Path(explicit).expanduser().absolute()
        if not path.is_file():
            raise ConfigurationError(f"agent {name}: there is no file {path}; give the path of its executable")
        return _found(name, path, "given")
    for folder in _lookup_folders():
        if package.module:
            place = folder / _agent_folder(name).name
            python = place / "bin" / "python"
            if python.is_file():
                version = _version_in_environment(place, package.package)
                return FoundAgent((str(python), "-m", package.module), version, "installed", str(place))
            continue
        modules = folder / _agent_folder(name).name / "node_modules"
        program = modules / package.entry.format(machine=_machine(), cpu=_CPUS.get(_machine(), ""))
        if program.is_file():
            version = _version_in(modules / package.package, package.package)
            return _found(name, program, "installed", version)
    on_path = shutil.which(package.command)
    if on_path:
        return _found(name, Path(on_path), "path")
    raise ConfigurationError(f"agent {name} is not on this machine; install it with: proteus agents install {name}")


def _package(name: str) -> Package:
    if name not in PACKAGES:
        raise ConfigurationError(f"unknown agent {name!r}; known: {', '.join(sorted(PACKAGES))}")
    return PACKAGES[name]


def _agent_folder(name: str) -> Path:
    return agents_folder() / f"{name}-{PACKAGES[name].version}"


def _node_folder() -> Path:
    return agents_folder() / f"node-{NODE_VERSION}"


def _machine() -> str:
    """The processor as Node calls it; empty for one that no agent is made for."""
    return _MACHINES.get(platform.machine().lower(), "")


def _node_package() -> str:
    """The registry's package with the bare binary: unlike ``node`` itself it needs no installation script."""
    machine = _machine()
    if not machine or not sys.platform.startswith("linux"):
        raise ConfigurationError(
            f"no Node {NODE_VERSION} is known for {sys.platform} on {platform.machine()}; install the agent yourself "
            f"and put it on PATH"
        )
    return f"node-linux-{machine}"


def _lookup_folders() -> list[Path]:
    if os.environ.get(FOLDER_VARIABLE):
        return [agents_folder()]
    return list(dict.fromkeys((agents_folder(), _SHARED_FOLDER)))


def _installed_node() -> Path | None:
    for folder in _lookup_folders():
        found = sorted((folder / _node_folder().name / "node_modules").glob("node-*/bin/node"))
        if found:
            return found[0]
    return None


def _install_once(folder: Path, spec: str, say: Callable[[str], None], run: Callable[[Path, str], None]) -> None:
    """``spec`` in ``folder``, whole or not at all, whoever else is installing the same."""
    if folder.is_dir():
        say(f"{spec}: is in {folder}")
        return
    say(f"{spec}: installing into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".installing-", dir=folder.parent) as scratch:
            target = Path(scratch) / "tree"
            target.mkdir()
            run(target, spec)
            # another process may have finished first: then its tree stays
            with contextlib.suppress(FileExistsError):
                _rename_new(target, folder)
    except OSError as error:
        raise ConfigurationError(
            f"{spec} cannot be installed into {folder}: {error.strerror or error}; set {FOLDER_VARIABLE} to a folder "
            f"that can be written"
        ) from error
    say(f"{spec}: done")


def _rename_new(source: Path, target: Path) -> None:
    if target.is_dir():
        raise FileExistsError(target)
    source.rename(target)


def _run_npm(target: Path, spec: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigurationError(f"installing {spec} needs the command npm: install Node.js (https://nodejs.org) first")
    environment = dict(os.environ)
    node = _installed_node()
    if node is not None:
        # npm takes an older release without a word where the newest does not allow the Node that runs npm
        environment["PATH"] = f"{node.parent}{os.pathsep}{environment.get('PATH', '')}"
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--loglevel=error", "--save-exact"]
    done = subprocess.run(
        [npm, "install", "--prefix", str(target), *options, spec],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise ConfigurationError(f"npm install {spec} failed: {(done.stderr or done.stdout).strip()[-800:]}")


def _run_pip(target: Path, spec: str) -> None:
    """``spec`` in an environment of its own, of the system's Python where it can: sandboxed users reach that one."""
    makes = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))"
    candidates = ["/usr/bin/python3", sys.executable]
    python = next((one for one in candidates if not _status([one, "-c", makes])), None)
    if python is None:
        raise ConfigurationError(f"installing {spec} needs a Python 3.10 or newer that has venv and ensurepip")
    for command in (
        [python, "-m", "venv", str(target)],
        [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", spec],
    ):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise ConfigurationError(f"pip install {spec} failed: {(done.stderr or done.stdout).strip()[-800:]}")


def _status(command: Sequence[str]) -> int:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
    except OSError:
        return 1


def _found(name: str, path: Path, source: str, version: str = "") -> FoundAgent:
    script = path.resolve()
    version = version or _version_beside(script, PACKAGES[name].package)
    if script.suffix not in (".js", ".mjs", ".cjs"):
        return FoundAgent((str(path),), version, source)
    return FoundAgent((str(_node_for(name)), str(script)), version, source)


def _node_for(name: str) -> Path:
    """A Node that is new enough: the installed one, else that on ``PATH``."""
    node = _installed_node()
    if node is not None:
        return node
    on_path = shutil.which("node")
    oldest = PACKAGES[name].node or (16, 0)  # the launchers of those that are no scripts run on any
    wanted = f"agent {name} needs Node {oldest[0]}.{oldest[1]} or newer"
    if on_path is None:
        raise ConfigurationError(f"{wanted}, and there is none; install both with: proteus agents install {name}")
    told = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    numbers = tuple(int(part) for part in told.lstrip("v").split(".")[:2] if part.isdigit())
    if numbers < oldest:
        raise ConfigurationError(
            f"{wanted}, and {on_path} is {told or 'of no known version'}; install both with: "
            f"proteus agents install {name}"
        )
    return Path(on_path)


def _version_beside(script: Path, package: str) -> str:
    """The version in the ``package.json`` of the package that a script belongs to; empty when there is none."""
    found = (_version_in(folder, package) for folder in script.parents)
    return next(filter(None, found), "")


def _version_in(folder: Path, package: str) -> str:
    """The version in a folder's ``package.json``; empty when there is none, or it is another package's."""
    try:
        value: Any = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(value.get("version", "")) if isinstance(value, dict) and value.get("name") == package else ""


def _version_in_environment(folder: Path, package: str) -> str:
    """The version of a package in a Python environment; empty when it is not there."""
    stem = package.replace("-", "_")
    found = sorted(folder.glob(f"lib/python*/site-packages/{stem}-*.dist-info"))
    return found[-1].name[len(stem) + 1 : -len(".dist-info")] if found else ""
