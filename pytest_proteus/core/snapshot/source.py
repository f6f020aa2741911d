"""Reading files of a ref in the user's own repository, for arms made of a pull request's changes.

The repository is the user's, hence trusted; still nothing is checked out and no filter or hook runs. Objects are read
as they are, so that in-tree attributes change no byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError

LINK = 0o120000


def resolve_ref(repo: Path, ref: str) -> tuple[str, str]:
    """The ids of the commit and of the tree that ``ref`` names.

    Raises:
        ConfigurationError: no git, no such ref, or ``repo`` is not the folder of a repository itself.
    """
    with _opened(repo, ref) as opened:
        top = opened.working_tree_dir or opened.git_dir
        if not Path(top).samefile(repo):
            raise ConfigurationError(f"{repo} lies in the repository {top} and is none itself; give its top folder")
        commit = _commit(opened, ref)
        return str(commit.hexsha), str(commit.tree.hexsha)


def read_ref(repo: Path, ref: str, paths: Sequence[str], *, links: bool = False) -> list[tuple[str, int, bytes]]:
    """The plain files at or below ``paths`` in ``ref``: ``(path, 0o644 or 0o755, bytes)``, sorted.

    Args:
        repo: a folder in the repository.
        ref: branch, tag or commit.
        paths: files and folders.
        links: whether links are members, too: ``(path, LINK, target)``.

    Raises:
        ConfigurationError: no git, no repository, no such ref, a submodule among the files, or a link where there may
            be none.
    """
    with _opened(repo, ref) as opened:
        tree = _commit(opened, ref).tree
        members = []
        for path in paths:
            try:
                node: Any = tree / path if path not in (".", "") else tree
            except KeyError:
                continue
            blobs: list[Any] = (
                [node] if node.type == "blob" else [item for item in node.traverse() if item.type != "tree"]
            )
            for blob in blobs:
                is_link = blob.type == "blob" and blob.mode == LINK
                if blob.type != "blob" or not (blob.mode in (0o100644, 0o100755) or (links and is_link)):
                    kind = "a submodule" if links else "a link or a submodule"
                    raise ConfigurationError(f"{ref}:{blob.path} is {kind}; plain files only can be taken")
                mode = LINK if is_link else blob.mode & 0o777
                members.append((str(blob.path), mode, blob.data_stream.read()))
        return sorted(members)


@contextlib.contextmanager
def _opened(repo: Path, ref: str) -> Iterator[Any]:
    try:
        import git
    except ImportError as error:
        raise ConfigurationError(f"git is not installed, and the ref {ref!r} cannot be read without it") from error
    try:
        opened = git.Repo(repo, search_parent_directories=True)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise ConfigurationError(
            f"{ref!r} is no folder below {repo}, and no git repository lies there either"
        ) from error
    with opened:
        yield opened


def _commit(opened: Any, ref: str) -> Any:
    import git

    try:
        return opened.commit(ref)
    except (git.BadName, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"{ref!r} is neither a folder nor a ref of {opened.git_dir}; `git fetch` it or correct the name"
        ) from error
