"""The rungs ``podman`` and ``docker``: a container of an image that the user names, without any network but the door.

What holds is what the engine enforces, and it is asked for that: rootless engines without delegated control groups
accept limits and ignore them. Nothing is ever pulled. Podman serves root and everybody else; docker needs root here,
because the door is opened in the container's network from outside.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox import seccomp
from pytest_proteus.sandbox.bwrap import BwrapSandbox, Limits, accounts, sandbox_user
from pytest_proteus.sandbox.none import SupervisorLost

#: What starts the command when a line comes, and stays to bury orphans.
_GATE = ("/bin/sh", "-c", 'read -r _ && "$@"; exit $?', "sh")

#: Seconds that the engine may take to say what it is, or to remove a container.
_ENGINE_SECONDS = 60.0


class ContainerSandbox(BwrapSandbox):
    """A rung whose boxes are containers; ``launch`` is that of ``BwrapSandbox``, without the look for the command.

    Args:
        engine: ``podman`` or ``docker``.
        image: an image that is on this machine. It needs ``sh`` and ``bash``, and what agents need that are linked to
            the C library; agents themselves are given to it.
        hidden, limits: as for ``BwrapSandbox``.
    """

    def __init__(
        self, engine: str, image: str, hidden: Sequence[str | Path] = (), limits: Limits | None = None
    ) -> None:
        super().__init__(hidden, limits)
        self.name = engine
        self.image = image

    @property
    def enforcement(self) -> Mapping[str, str]:  # type: ignore[override]
        """As that of ``BwrapSandbox``; what the engine here does not enforce is watched, or absent."""
        try:
            found = self._engine()
        except ConfigurationError:
            found = _Engine(False, False, False)
        return {
            **BwrapSandbox.enforcement,
            "memory": "enforced" if found.memory else "watchdog",
            "processes": "enforced" if found.pids or found.rootless else "absent",
        }

    def _start(
        self,
        stack: contextlib.ExitStack,
        box: Mapping[str, object],
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        writable: Sequence[str],
        readable: Sequence[str],
    ) -> tuple[dict[str, object], Sequence[int]]:
        engine, user, surroundings = self._engine(), sandbox_user(), _surroundings()
        name = f"ws-{uuid.uuid4().hex}"
        remove = [self.name, "rm", "--force", *(["--time", "0"] if self.name == "podman" else []), name]
        profile, files = stack.enter_context(_files(env.get("HOME", "/"), user))
        options = self._options(engine, name, user, writable, [*readable, *files], cwd)
        options += ["--security-opt", f"seccomp={profile}", *_environment(env, surroundings)]

        def remove_what_is_left(_: object, error: BaseException | None, __: object) -> None:
            if isinstance(error, SupervisorLost):
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(remove, capture_output=True, check=False, timeout=_ENGINE_SECONDS, env=surroundings)

        stack.push(remove_what_is_left)
        return {
            "argv": [self.name, "run", *options, self.image, *_GATE, *argv],
            "env": surroundings | {word: str(env[word]) for word in env if word not in surroundings},
            "box": {
                **box,
                "user": None,  # the engine makes the command another user
                "env": surroundings,
                "remove": remove,
                "inspect": [self.name, "inspect", "--format", "{{.State.Pid}}", name],
            },
        }, []

    def _why(self, said: str) -> str:
        return f"sandbox {self.name} cannot start a container: {_short(said)}"

    def _options(
        self,
        engine: _Engine,
        name: str,
        user: tuple[int, int] | None,
        writable: Sequence[str],
        readable: Sequence[str | tuple[str, str]],
        cwd: str,
    ) -> list[str]:
        limits = self._limits
        number, group = user or (os.getuid(), os.getgid())
        words = ["--rm", "--interactive", "--name", name, "--pull", "never", "--network", "none", "--entrypoint", ""]
        words += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private"]
        words += ["--log-driver", "none", "--hostname", "box", "--user", f"{number}:{group}", "--workdir", cwd]
        words += ["--shm-size", str(16 << 20), "--tmpfs", f"/tmp:rw,nosuid,nodev,size={limits.scratch},mode=1777"]
        if self.name == "podman":
            words += ["--read-only-tmpfs=false", *(["--userns", "keep-id"] if engine.rootless else [])]
        if engine.memory:
            words += ["--memory", str(limits.memory), "--memory-swap", str(limits.memory)]
        if engine.pids:
            words += ["--pids-limit", str(limits.processes)]
        # in a user namespace of its own a container's processes are counted alone, else with all boxes of that user;
        # without a number podman asks for one that it may not have
        processes = limits.processes * (1 if engine.rootless else 32)
        for limit, value, kind in (
            ("nproc", processes, resource.RLIMIT_NPROC),
            ("nofile", limits.open_files, resource.RLIMIT_NOFILE),
            ("fsize", limits.file, resource.RLIMIT_FSIZE),
            ("core", 0, resource.RLIMIT_CORE),
        ):
            words += ["--ulimit", f"{limit}={_bounded(value, kind)}"]
        for path in writable:
            words += ["--mount", _mount(path, path)]
        for one in readable:
            source, target = (one, one) if isinstance(one, str) else one
            words += ["--mount", _mount(source, target) + ",readonly"]
            for hidden in (path for path in self._hidden if path.startswith(target + "/")):
                words += ["--tmpfs", f"{hidden}:ro,size=4096"]
        return words

    def _engine(self) -> _Engine:
        """What the engine on this machine enforces.

        Raises:
            ConfigurationError: there is none, or it does not have the image.
        """
        if shutil.which(self.name) is None:
            raise ConfigurationError(
                f"sandbox {self.name} needs {self.name}, which is not on PATH: install it, or take another rung"
            )
        return _asked(self.name, self.image)


class _Engine:
    """What an engine enforces.

    Args:
        rootless: whether containers are in a user namespace of the user who starts them.
        memory, pids: whether these limits are enforced, and not only accepted.
    """

    def __init__(self, rootless: bool, memory: bool, pids: bool) -> None:
        self.rootless, self.memory, self.pids = rootless, memory, pids


@functools.lru_cache(maxsize=4)
def _asked(engine: str, image: str) -> _Engine:
    told = _run(engine, "info", "--format", "{{json .}}")
    _run(engine, "image", "inspect", "--format", "{{.Id}}", image, missing=image)
    try:
        info = json.loads(told)
        if engine == "docker":
            if os.geteuid() != 0:
                raise ConfigurationError(
                    "sandbox docker needs root, who alone can open the door to the model in a container's network: "
                    "take podman"
                )
            return _Engine(False, bool(info.get("MemoryLimit")), bool(info.get("PidsLimit")))
        host = info["host"]
        rootless = bool(host["security"]["rootless"])
        held = host.get("cgroupControllers") or []
        # a first-version cgroup takes limits from root only, whatever else is told
        has = {name: name in held if host.get("cgroupVersion") == "v2" else not rootless for name in ("memory", "pids")}
        return _Engine(rootless, **has)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"sandbox {engine}: what `{engine} info` says cannot be read ({type(error).__name__}: {error})"
        ) from error


def _run(engine: str, *words: str, missing: str = "") -> str:
    try:
        done = subprocess.run(
            [engine, *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ENGINE_SECONDS,
            env=_surroundings(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"sandbox {engine}: `{engine} {words[0]}` failed: {error}") from error
    if done.returncode == 0:
        return done.stdout
    if missing:
        raise ConfigurationError(
            f"sandbox {engine}: there is no image {missing!r} on this machine, and none is pulled: get it with "
            f"`{engine} pull {missing}`, or make one ({_short(done.stderr)})"
        )
    raise ConfigurationError(f"sandbox {engine} cannot be used: {_short(done.stderr or done.stdout)}")


def _surroundings() -> dict[str, str]:
    """The environment of the engine's client: the user's, since where images and settings lie is said there. No
    container sees it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PROTEUS"))}


def _environment(env: Mapping[str, str], surroundings: Mapping[str, str]) -> list[str]:
    """Options for the command's environment; a value that the client has no other of is handed on unseen."""
    return [
        word
        for name in env
        for word in ("--env", name if name not in surroundings else f"{name}={env[name]}")
    ]  # fmt: skip


def _bounded(value: int, kind: int) -> str:
    """A limit that is not above our own, which needs rights to be raised."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return f"{value}:{value}"


def _mount(source: str, target: str) -> str:
    if any(mark in path for path in (source, target) for mark in ',"\n'):
        raise ConfigurationError(
            f"sandbox: the path {source!r} cannot be given to a container: it holds a comma or quote"
        )
    return f"type=bind,source={source},target={target}"


@contextlib.contextmanager
def _files(home: str, user: tuple[int, int] | None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The filter of system calls, and files of accounts, as (place, place in the container): images do not know the
    number that the command has."""
    with tempfile.TemporaryDirectory(prefix="box-") as folder:
        found = []
        Path(folder).chmod(0o755)
        for place, text in accounts(home, user[0] if user else os.getuid()).items():
            if place in ("/etc/passwd", "/etc/group"):
                file = Path(folder, Path(place).name)
                file.write_text(text, encoding="utf-8")
                file.chmod(0o644)
                found.append((str(file), place))
        profile = Path(folder, "calls.json")
        profile.write_text(json.dumps(seccomp.profile()), encoding="ascii")
        yield str(profile), found


def _short(said: str) -> str:
    return " ".join(said.split())[-300:]


def named(rung: str) -> tuple[str, str]:
    """Engine and image of ``podman:IMAGE``.

    Raises:
        ConfigurationError: no image is named.
    """
    engine, _, image = rung.partition(":")
    if not image:
        raise ConfigurationError(f"sandbox {engine} needs an image: write {engine}:IMAGE, such as {engine}:debian:12")
    return engine, image
