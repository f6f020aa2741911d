"""A run's history as a plain git repository, for people who want to look at it with git's own tools.

The one place that starts ``git`` on purpose, on the bare repository alone and with nobody's configuration: the files
that it checks out are an agent's, and a filter that a user has configured must not run on them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_proteus.core.errors import ConfigurationError


def export(run_root: Path, dest: Path) -> str:
    """Clone the history of the run at ``run_root`` into the new folder ``dest``; gives the id of its last commit.

    The clone shares no file with the run and knows no remote. Candidates of failed episodes stay behind.

    Raises:
        ConfigurationError: no history there, a ``dest`` that holds something, no git, or a git that fails.
    """
    run_root, dest = Path(run_root).absolute(), Path(dest).absolute()
    history = run_root / ".snapshot.git"
    if not (history / "HEAD").is_file():
        raise ConfigurationError(f"{run_root} holds no history; give the folder of one run, such as OUT/runs/<run-id>")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ConfigurationError(f"{dest} exists already; name a folder that does not exist")
    try:
        import git
    except ImportError as error:
        raise ConfigurationError("exporting needs the command git, which is not on PATH: install git") from error
    with _no_git_variables():
        try:
            # commands alone: GitPython's Repo reads configuration files, whose paths may be no Unicode
            outside, inside = git.Git(), git.Git(str(dest))
            for place in (outside, inside):
                place.update_environment(**_CONFIGURATION)
            outside.clone("--no-hardlinks", "--quiet", "--", str(history), str(dest))
            inside.remote("remove", "origin")
            commit = str(inside.rev_parse("HEAD"))
        except (git.GitError, OSError, ValueError) as error:
            said = str(getattr(error, "stderr", "") or error).strip()
            raise ConfigurationError(f"{history} cannot be exported: {' '.join(said.split())[-300:]}") from error
    return commit


#: Nobody's configuration, and no question to a terminal.
_CONFIGURATION = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


@contextlib.contextmanager
def _no_git_variables() -> Iterator[None]:
    """Hide variables such as ``GIT_DIR``, which a git hook sets for everything that it starts."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("GIT_")}
    try:
        yield
    finally:
        os.environ.update(hidden)
