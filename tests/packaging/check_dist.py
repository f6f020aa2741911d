"""Checks built distributions: what is in them, and that the wheel alone runs a sweep. `tox -e package` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_WHEEL = {"pytest_proteus/py.typed", "pytest_proteus/plugin.py", "pytest_proteus/report/schema-v1.json"}
IN_SDIST = {"LICENSE", "README.md", "CHANGELOG.md", "tox.ini", "conftest.py", "pyproject.toml"}
FOLDERS_IN_SDIST = {"pytest_proteus", "tests", "example_suites", "docs"}


def check_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= IN_WHEEL, f"the wheel lacks {sorted(IN_WHEEL - names)}"
    tops = {name.split("/")[0] for name in names}
    strange = {top for top in tops if top != "pytest_proteus" and not top.endswith(".dist-info")}
    assert not strange, f"the wheel installs {sorted(strange)} beside the package"


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.split("/")[0] for name in names}
    missing = (IN_SDIST | FOLDERS_IN_SDIST) - tops
    assert not missing, f"the source distribution lacks {sorted(missing)}"


def check_alone(wheel: Path) -> None:
    """The quickstart suite passes outside of the repository, with the wheel and what it depends on."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "env", with_pip=True)
        python = str(Path(folder) / "env" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        suite = Path(folder) / "suite"
        shutil.copytree(ROOT / "example_suites" / "quickstart", suite, ignore=shutil.ignore_patterns("__pycache__"))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [python, "-I", "-m", "pytest", "-p", "proteus", "-n", "2", "--json-report", str(suite)]
        subprocess.run(command, cwd=suite, env=environment, check=True)
        subprocess.run([str(Path(python).parent / "proteus"), "verdict", ".report.json"], cwd=suite, check=True)


def main() -> None:
    built = Path(sys.argv[1])
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    check_alone(wheel)


if __name__ == "__main__":
    main()
