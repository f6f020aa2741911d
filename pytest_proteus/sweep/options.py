"""The command line and ini options of the plugin, and what they say. Light: every pytest session loads this."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

ON_EXISTING = ("resume", "fresh", "refuse", "overwrite")
RETRY = ("errored", "lost", "skipped", "timeout")
WIRES = ("anthropic", "openai-chat", "openai-responses", "gemini")
SANDBOXES = ("auto", "bwrap", "none")
ENGINES = ("podman", "docker")
UNDECIDED = ("fail", "pass", "skip")

#: Where the session lies when it is given the sweep's folder itself, and so has no other place of its own.
OWN_SESSION = ".session"

#: option → (ini type, default, help). The ini twin of ``--proteus-seeds`` is ``proteus_seeds``.
_VALUES = {
    "seeds": (
        "string",
        "",
        "N|auto:MIN..MAX",
        "run seeds 0 … N-1, whatever the seed fixture lists (default: 6); with auto, MIN of them and further ones "
        "until every declared gate (markers, --proteus-compare-fail) is decided, MAX at most",
    ),
    "episodes": ("string", "", "N", "episodes of each run, in place of the declared number"),
    "sandbox": (
        "string",
        "auto",
        "RUNG",
        "where agents' processes run: bwrap, podman:IMAGE, docker:IMAGE (isolated) or none (supervised, kept from "
        "nothing); auto (default) is the harness's own, else bwrap",
    ),
    "out": ("string", "", "DIR", "write to DIR/<sweep>/ in place of .proteus/<sweep>/<number>/"),
    "on-existing": (
        "string",
        "resume",
        "POLICY",
        f"what to do with earlier data: {', '.join(ON_EXISTING)} (default: resume)",
    ),
    "retry": (
        "string",
        "",
        "STATES",
        f"run cells again that ended as one of these, comma-separated: {', '.join(RETRY)}",
    ),
    "undecided": (
        "string",
        "fail",
        "WHAT",
        "what a gate on an estimate does to its test while the data cannot decide it: fail, pass or skip",
    ),
    "max-missing": (
        "string",
        "0",
        "N",
        "cells that may be missing, as a number or a percentage such as 5%% (default: 0)",
    ),
    "max-tokens": ("string", "", "N", "tokens that the session may spend, of all kinds; see docs/metering.md"),
    "max-usd": ("string", "", "USD", "US dollars that the session may spend, by list prices; see docs/metering.md"),
    "prices": ("string", "", "FILE", "prices of models over the package's own; see docs/metering.md"),
    "save": ("string", "", "NAME", "save what this session measures as the baseline NAME"),
    "compare": ("string", "", "NAME|PATH", "hold this session against a saved baseline"),
}
_LISTS = {
    "harness": ("LABEL", "narrow the harness axis to this label, or set it where the suite declares none; repeatable"),
    "arm": ("LABEL", "narrow the arm axis to this label, or set it where the suite declares none; repeatable"),
    "model": ("LABEL", "narrow the model axis to this label, or set it where the suite declares none; repeatable"),
    "endpoint": ("[WIRE=]URL", f"base URL of the model endpoint; WIRE is one of {', '.join(WIRES)}; repeatable"),
    "agent": ("NAME=PATH", "path of an agent's executable; repeatable"),
    "compare-fail": (
        "EXPR",
        "fail when METRIC is worse than the baseline by more than MARGIN: METRIC:MARGIN or METRIC[arm=LABEL]:MARGIN, "
        "such as tool-calls:10%% or units:notes:2; repeatable",
    ),
    "compare-allow": ("KEY", "compare although this key of the condition differs from the baseline's; repeatable"),
}


def refuse(sentence: str) -> NoReturn:
    """Say what is wrong with an option."""
    from pytest_proteus.core.errors import ConfigurationError

    raise ConfigurationError(sentence)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("proteus", "proteus: sweeps of coding-agent harnesses")
    for name, (kind, _, metavar, text) in _VALUES.items():
        group.addoption(f"--proteus-{name}", default=None, metavar=metavar, help=text)
        parser.addini(_ini(name), f"ini twin of --proteus-{name}", type=kind, default="")  # type: ignore[arg-type]
    for name, (metavar, text) in _LISTS.items():
        group.addoption(f"--proteus-{name}", action="append", default=None, metavar=metavar, help=text)
        parser.addini(_ini(name), f"ini twin of --proteus-{name}", type="linelist", default=[])
    group.addoption(
        "--proteus-no-run", action="store_true", default=None, help="begin nothing: report on what is there"
    )
    parser.addini("proteus_no_run", "ini twin of --proteus-no-run", type="bool", default=False)
    group.addoption(
        "--proteus-plan", nargs="?", const="-", default=None, metavar="FILE",
        help="print the grid (or write it to FILE as JSON; give it as --proteus-plan=FILE) and stop",
    )  # fmt: skip
    parser.addini("proteus_plan", "ini twin of --proteus-plan", default="")
    group.addoption("--proteus-sweep-dir", default=None, help=pytest_suppress())


def pytest_suppress() -> str:
    """What argparse takes for a hidden option's help."""
    import argparse

    return argparse.SUPPRESS


def _ini(name: str) -> str:
    return f"proteus_{name.replace('-', '_')}"


def text(config: pytest.Config, name: str) -> str:
    """An option's text: the command line's, else the ini file's, else the default."""
    given = config.getoption(_ini(name))
    return str(given if given is not None else config.getini(_ini(name)) or _VALUES[name][1])


def flag(config: pytest.Config, name: str) -> bool:
    """Whether a switch is on."""
    given = config.getoption(_ini(name))
    return bool(given if given is not None else config.getini(_ini(name)))


def listed(config: pytest.Config, name: str) -> list[str]:
    """The values of a repeatable option."""
    given = config.getoption(_ini(name))
    return list(given if given is not None else config.getini(_ini(name)))


def number(config: pytest.Config, name: str) -> int | None:
    """A whole number of 1 or more, or None where nobody says one.

    Raises:
        ConfigurationError: anything else; one sentence.
    """
    given = text(config, name)
    if not given:
        return None
    if not re.fullmatch(r"[0-9]+", given) or int(given) < 1:
        refuse(f"--proteus-{name}={given}: write a whole number of 1 or more")
    return int(given)


def dollars(config: pytest.Config, name: str) -> float | None:
    """An amount of more than 0, or None where nobody says one.

    Raises:
        ConfigurationError: anything else; one sentence.
    """
    given = text(config, name)
    if not given:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?|\.[0-9]+", given) or not float(given):
        refuse(f"--proteus-{name}={given}: write US dollars as a number of more than 0, such as 2.50")
    return float(given)


def seeds(config: pytest.Config) -> tuple[int | None, int | None]:
    """How many seeds are planned, None where nobody says, and after how many one may stop, None where one may not.

    Raises:
        ConfigurationError: neither a number nor ``auto:MIN..MAX``.
    """
    given = text(config, "seeds")
    if not given.startswith("auto"):
        return number(config, "seeds"), None
    found = re.fullmatch(r"auto:([0-9]+)\.\.([0-9]+)", given)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        refuse(f"--proteus-seeds={given}: write auto:MIN..MAX, such as auto:6..20")
    return int(found[2]), int(found[1])


def one_of(config: pytest.Config, name: str, known: tuple[str, ...]) -> str:
    """An option that takes one of a few words.

    Raises:
        ConfigurationError: another word; one sentence.
    """
    given = text(config, name)
    if given not in known:
        refuse(f"--proteus-{name}={given}: write one of {', '.join(known)}")
    return given


def sandbox(config: pytest.Config) -> str:
    """The rung that is asked for.

    Raises:
        ConfigurationError: there is none of that name, or it lacks its image; one sentence.
    """
    given = text(config, "sandbox")
    engine, _, image = given.partition(":")
    if given not in SANDBOXES and not (image and engine in ENGINES):
        known = [*SANDBOXES, *(f"{one}:IMAGE" for one in ENGINES)]
        refuse(f"--proteus-sandbox={given}: write one of {', '.join(known)}")
    return given


def retry(config: pytest.Config) -> list[str]:
    """The states whose cells are run again.

    Raises:
        ConfigurationError: an unknown state.
    """
    states = [state.strip() for state in text(config, "retry").split(",") if state.strip()]
    for state in states:
        if state not in RETRY:
            refuse(f"--proteus-retry={state}: write one or more of {', '.join(RETRY)}, comma-separated")
    return states


def max_missing(config: pytest.Config) -> str:
    """How many cells may be missing: a number, or a percentage with its sign.

    Raises:
        ConfigurationError: anything else.
    """
    given = text(config, "max-missing")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?%|[0-9]+", given):
        refuse(f"--proteus-max-missing={given}: write a number such as 2 or a percentage such as 5%")
    return given


def endpoints(config: pytest.Config) -> dict[str, str]:
    """Wire protocol → base URL; one URL without a wire serves all of them.

    Raises:
        ConfigurationError: an unknown wire, or what is no URL.
    """
    return parse_endpoints(listed(config, "endpoint"))


def parse_endpoints(items: Iterable[str]) -> dict[str, str]:
    """As ``endpoints``, of the option's values."""
    found: dict[str, str] = {}
    for item in items:
        wire, separator, url = item.partition("=")
        if not separator or "://" in wire:
            wire, url = "", item
        if wire and wire not in WIRES:
            refuse(f"--proteus-endpoint={item}: the wire is one of {', '.join(WIRES)}")
        if not re.match(r"https?://[^/\s]+", url):
            refuse(f"--proteus-endpoint={item}: write [WIRE=]URL, such as anthropic=http://127.0.0.1:8080")
        found.update(dict.fromkeys([wire] if wire else WIRES, url.rstrip("/")))
    return found


def agents(config: pytest.Config) -> dict[str, str]:
    """Agent name → path of its executable.

    Raises:
        ConfigurationError: not NAME=PATH.
    """
    found = {}
    for item in listed(config, "agent"):
        name, separator, path = item.partition("=")
        if not separator or not name or not path:
            refuse(f"--proteus-agent={item}: write NAME=PATH, such as pi=/opt/pi/bin/pi")
        found[name] = path
    return found


def sweep_folder(config: pytest.Config) -> Path | None:
    """The folder of the only sweep itself, where ``proteus run`` names it."""
    exactly = config.getoption("proteus_sweep_dir")
    return Path(config.invocation_params.dir, exactly) if exactly else None


def unmet(config: pytest.Config, exitstatus: int) -> str:
    """What the command line asked of a session that ran no sweep and so cannot do it; empty when nothing."""
    shown = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test", "proteus_plan")
    worker = hasattr(config, "workerinput")
    if worker or exitstatus != pytest.ExitCode.OK or any(getattr(config.option, name, None) for name in shown):
        return ""
    for name in ("save", "compare", "compare-fail"):
        if config.getoption(_ini(name)):
            return f"proteus: --proteus-{name} was given, and no test of a sweep was run"
    return ""


def base_folder(config: pytest.Config) -> Path:
    """Where sweeps and sessions lie: ``--proteus-out``, or ``.proteus`` below the root folder."""
    exactly = sweep_folder(config)
    if exactly:
        return exactly / OWN_SESSION
    given = text(config, "out")
    return Path(config.invocation_params.dir, given) if given else config.rootpath / ".proteus"


def own_folders(config: pytest.Config) -> tuple[Path, ...]:
    """Folders that pytest and this plugin write while cells run."""
    temporary = config.getoption("basetemp", None)
    return base_folder(config), *([Path(config.invocation_params.dir, temporary)] if temporary else [])
