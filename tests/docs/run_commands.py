"""Runs what README.md and docs/ tell a reader to type, in a fresh copy of the project; `tox -e docs` runs it.

In the pages, a ``console`` block holds commands (lines that begin with ``$ ``) that run here, in order, and must
succeed or end with the exit code of a trailing ``# exit N``. A ``python`` block whose first line is
``# <file name>.py`` is written to that file first. Blocks of other languages are not run: they need a model, or they
are what runs this.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\s+# exit (\d+)$")
FILE = re.compile(r"# ([\w/]+\.py)\n")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def steps(text: str) -> Iterator[tuple[str, str]]:
    """("file", content) and ("command", line) of one page, in order."""
    for language, body in BLOCK.findall(text):
        if language == "python" and FILE.match(body):
            yield "file", body
        if language == "console":
            yield from (("command", line[2:]) for line in body.splitlines() if line.startswith("$ "))


def run(command: str, folder: Path) -> bool:
    wanted = EXIT.search(command)
    done = subprocess.run(
        ["bash", "-c", EXIT.sub("", command)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    held = done.returncode == (int(wanted[1]) if wanted else 0)
    print(f"{'ok  ' if held else 'FAIL'} $ {command}", flush=True)
    if not held:
        print(f"{done.stdout}\nexit code {done.returncode}", flush=True)
    return held


def copy_of_project(folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> int:
    held: list[bool] = []
    with tempfile.TemporaryDirectory() as scratch:
        copy_of_project(Path(scratch))
        for page in pages():
            print(f"-- {page.relative_to(ROOT)}", flush=True)
            for kind, text in steps(page.read_text(encoding="utf-8")):
                if kind == "file":
                    match = FILE.match(text)
                    assert match
                    target = Path(scratch) / match[1]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text, encoding="utf-8")
                else:
                    held.append(run(text, Path(scratch)))
    print(f"{held.count(True)} passed, {held.count(False)} failed")
    return 0 if held and all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
