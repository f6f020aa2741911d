"""Reading files of a ref in the user's own repository, for arms made of a pull request's changes.

The repository is the user's, hence trusted; still nothing is checked out and no filter or hook runs. Objects are read
as they are, so that in-tree attributes change no byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError


def read_ref(repo: Path, ref: str, paths: Sequence[str]) -> list[tuple[str, int, bytes]]:
    """The plain files at or below ``paths`` in ``ref``: ``(path, 0o644 or 0o755, bytes)``, sorted.

    Raises:
        ConfigurationError: no git, no repository, no such ref, or a link or submodule among the files.
    """
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
        try:
            tree = opened.commit(ref).tree
        except (git.BadName, ValueError, IndexError) as error:
            raise ConfigurationError(
                f"{ref!r} is neither a folder nor a ref of {opened.git_dir}; `git fetch` it or correct the name"
            ) from error
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
                if blob.type != "blob" or blob.mode not in (0o100644, 0o100755):
                    raise ConfigurationError(
                        f"{ref}:{blob.path} is a link or a submodule; an arm takes plain files only"
                    )
                members.append((str(blob.path), blob.mode & 0o777, blob.data_stream.read()))
        return sorted(members)
