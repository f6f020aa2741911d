"""What is installed under the project's name."""

import subprocess
import sys
from importlib import metadata
from importlib.resources import files


def test_the_package_says_that_it_is_typed():
    assert (files("pytest_proteus") / "py.typed").is_file()


def test_loading_the_package_loads_nothing_heavy():
    code = (
        "import sys, pytest_proteus\n"
        "heavy = {'numpy', 'scipy', 'git', 'pydantic', 'aiohttp', 'jinja2', 'altair'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_plugin_and_the_command_are_entry_points():
    distribution = metadata.distribution("pytest-proteus")
    declared = {(point.group, point.name, point.value) for point in distribution.entry_points}
    assert declared == {
        ("pytest11", "proteus", "pytest_proteus.plugin"),
        ("console_scripts", "proteus", "pytest_proteus.cli:main"),
    }
