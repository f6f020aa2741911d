"""Writes a new adapter from the commented template, under a name of the user's. The template is a module that works."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_proteus.core.errors import ConfigurationError


def scaffold_adapter(name: str, folder: Path) -> tuple[Path, str]:
    """Write an adapter to ``folder``.

    Args:
        name: what the harness is called, such as ``my_agent`` or ``MyAgent``.
        folder: where the module goes.

    Returns:
        The module's path, and its ``module:Class``.

    Raises:
        ConfigurationError: a name that makes no class, or a file that is there already.
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    if not words or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ConfigurationError(f"adapter name {name!r}: letters, digits, - and _, beginning with a letter")
    if len(words) > 1 and words[-1].lower() == "harness":
        words.pop()
    short = "_".join(word.lower() for word in words)
    made = "".join(word[0].upper() + word[1:] for word in words) + "Harness"
    path = folder / f"{short}_harness.py"
    template = Path(__file__).with_name("template.py").read_text(encoding="utf-8")
    text = template.replace("THIS_MODULE:TemplateHarness", f"{path.stem}:{made}").replace("TemplateHarness", made)
    text = text.replace('name = "template"', f'name = "{short.replace("_", "-")}"')
    text = text.replace("A harness adapter to begin from", f"The harness adapter {short.replace('_', '-')}", 1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already; choose another name, or remove it") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    return path, f"{path.stem}:{made}"
