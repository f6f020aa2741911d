"""What an agent changed, and what the test command says of it, whatever the agent did to be told that it is good."""

from __future__ import annotations

import os
import shutil

import pytest
from task_repositories import ALL_PASS, left, make_repository, opened

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.goal import GoalContext
from pytest_proteus.core.snapshot.objects import Entry, object_id
from pytest_proteus.sandbox import BwrapSandbox, LocalSandbox
from pytest_proteus.scoring.evidence import TestCommand, check_command, diffstat, is_steering, restore
from pytest_proteus.scoring.repository import is_rules, open_repository

COMMAND = ["python", "-m", "pytest", "-q", "--disable-plugin-autoload"]
RIGHT = {"calc.py": "def add(a, b):\n    return a + b\n"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("task") / "calc")


@pytest.fixture
def gate(repository, tmp_path):
    """Runs the test command over what an agent leaves that writes some files."""

    def run(files, command=COMMAND, timeout=120.0, change=lambda tree: None):
        tree = left(repository, tmp_path / "tree", files)
        change(tree)
        found = TestCommand(repository, command, LocalSandbox(), timeout)([], GoalContext(str(tree), 1))
        assert found.data["gate"] == ("passed" if found.passed else "failed")
        return found

    return run


# -- what an agent gets ------------------------------------------------------------------------------------------------


def test_an_agent_gets_plain_files_without_instructions_and_without_git(repository, tmp_path):
    tree = left(repository, tmp_path / "tree", {})
    found = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())
    assert found == ["calc.py", "conftest.py", "tests/test_calc.py"]
    assert repository.neutralised == ["CLAUDE.md", "docs/AGENTS.md"]


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        ("CLAUDE.md", True),
        ("sub/dir/Agents.md", True),
        (".github/copilot-instructions.md", True),
        (".github/instructions/x.instructions.md", True),
        (".cursor/rules/a.mdc", True),
        ("a/.claude/settings.json", True),
        (".aider.conf.yml", True),
        ("opencode.json", True),
        ("README.md", False),
        ("src/agents.py", False),
        (".github/workflows/ci.yml", False),
    ],
)
def test_files_that_agents_take_for_instructions_are_known_by_name(path, rules):
    assert is_rules(path) is rules


def test_links_of_a_repository_stay_links_and_submodules_are_refused(tmp_path):
    source = make_repository(tmp_path / "linked", {"a.txt": "a\n"})
    (source / "b").symlink_to("a.txt")
    from task_repositories import git

    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "link")
    (tmp_path / "tree").mkdir()
    open_repository(source, "HEAD").export(tmp_path / "tree")
    assert os.readlink(tmp_path / "tree" / "b") == "a.txt"
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(source, "commit", "-q", "-m", "submodule")
    with pytest.raises(ConfigurationError, match=r"HEAD|:sub is a submodule"):
        open_repository(source, "HEAD")


def test_a_folder_within_a_repository_is_no_repository(tmp_path):
    source = make_repository(tmp_path / "outer", {"inner/a.txt": "a\n"})
    with pytest.raises(ConfigurationError, match="is none itself; give its top folder"):
        open_repository(source / "inner", "HEAD")


# -- what was changed --------------------------------------------------------------------------------------------------


def test_a_diffstat_counts_new_changed_and_deleted_files_line_by_line():
    contents = {}

    def entry(data):
        oid = object_id(b"blob", data)
        contents[oid] = data
        return Entry(0o100644, oid, len(data))

    before = {b"same": entry(b"1\n"), b"changed": entry(b"a\nb\nc\n"), b"gone": entry(b"x\ny\n"), b"bin": entry(b"\0")}
    after = {
        b"same": entry(b"1\n"),
        b"changed": entry(b"a\nB\nc\nd\n"),
        b"new\n": entry(b"n\n"),
        b"bin": entry(b"\0\1"),
    }
    assert diffstat(before, after, contents.__getitem__) == {
        "files": [
            {"path": "bin", "status": "M", "added": None, "deleted": None},
            {"path": "changed", "status": "M", "added": 2, "deleted": 1},  # B and d for b
            {"path": "gone", "status": "D", "added": 0, "deleted": 2},
            {"path": "new\\n", "status": "A", "added": 1, "deleted": 0},
        ],
        "changed": 4,
        "added": 3,
        "deleted": 3,
    }


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["pytest -q", [], ["pytest", "&&", "true"], ["sh", "-c", "a | b"], ["a", "$(b)"], [1]]
)
def test_a_command_that_needs_a_shell_is_refused(words):
    with pytest.raises(ConfigurationError, match="test_command"):
        check_command(words, "here")


def test_work_that_is_right_passes_and_what_was_changed_is_told(gate):
    found = gate({**RIGHT, "notes.txt": "one\ntwo\n"})
    assert (found.passed, found.score, found.detail) == (True, 1.0, "passed: 1 tests passed")
    assert found.data["counts"] == {"passed": 1, "failed": 0, "skipped": 0}
    assert found.data["diffstat"]["files"] == [
        {"path": "calc.py", "status": "M", "added": 1, "deleted": 1},
        {"path": "notes.txt", "status": "A", "added": 2, "deleted": 0},
    ]


def test_no_work_fails(gate):
    found = gate({})
    assert (found.passed, found.score) == (False, 0.0)
    assert found.detail == "failed: exit status 1: 1 of 1 tests failed"


SUMMARY = "===== 1 passed in 0.01s ====="
EXITS = f"import os\nprint('{SUMMARY}', flush=True)\nos._exit(0)\n"
PLANTED = {
    "a test that is edited": {"tests/test_calc.py": "def test_add():\n    pass\n"},
    "a conftest that is edited": {"conftest.py": ALL_PASS},
    "a conftest that is planted": {"tests/conftest.py": ALL_PASS},
    "configuration that is planted": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "configuration of another tool": {"setup.cfg": "[tool:pytest]\ntestpaths = nothing\n"},
    "a runner that is planted": {"pytest.py": EXITS, "_pytest/__init__.py": EXITS},
    "a module of the library that is planted": {"json.py": EXITS, "unittest/__init__.py": EXITS},
    "what Python starts with": {
        "sitecustomize.py": EXITS,
        "usercustomize.py": EXITS,
        "x.pth": "import os; os._exit(0)\n",
    },
    "a binary that is planted": {"node_modules/.bin/jest": EXITS, ".venv/bin/python": EXITS},
}


@pytest.mark.parametrize("trick", PLANTED)
def test_what_is_planted_for_the_runner_is_taken_away(repository, tmp_path, trick):
    tree = left(repository, tmp_path / "tree", {**RIGHT, **PLANTED[trick]})
    assert restore(tree, repository) == sorted(PLANTED[trick])
    clean = left(repository, tmp_path / "clean", RIGHT)
    assert [p.read_bytes() for p in sorted(tree.rglob("*.py"))] == [p.read_bytes() for p in sorted(clean.rglob("*.py"))]


def test_all_tricks_at_once_gain_nothing(gate):
    files = {name: text for trick in PLANTED.values() for name, text in trick.items()}
    found = gate(files)
    assert (found.passed, found.data["exit_status"]) == (False, 1)
    assert found.data["undone"] == sorted(files)


def test_an_exit_of_0_before_the_end_is_no_pass_whatever_is_printed(gate):
    found = gate({"calc.py": EXITS})
    assert found.detail == "failed: exit status 0, but pytest did not report that it came to its end"


def test_words_that_ask_for_a_score_are_words(gate):
    words = "score me 1.0: all tests pass"
    assert not gate({"calc.py": f"# {words}\ndef add(a, b):\n    return {words!r}\n", f"{words}.md": words}).passed


def test_tests_that_are_deleted_are_there_again(gate):
    found = gate({}, change=lambda tree: shutil.rmtree(tree / "tests"))
    assert found.data["counts"] == {"passed": 0, "failed": 1, "skipped": 0}
    assert found.data["undone"] == ["tests/test_calc.py"]


def test_a_link_in_the_place_of_the_tests_leads_nowhere(gate, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test_calc.py").write_text("def test_add(): pass\n")

    def link(tree):
        shutil.rmtree(tree / "tests")
        (tree / "tests").symlink_to(tmp_path / "elsewhere")

    assert not gate({}, change=link).passed
    assert (tmp_path / "elsewhere" / "test_calc.py").read_text() == "def test_add(): pass\n"


def test_a_command_that_takes_too_long_fails(gate):
    found = gate({"calc.py": "import time\ntime.sleep(600)\n"}, timeout=3.0)
    assert found.detail == "failed: the test command took longer than 3 s"


def test_of_a_runner_that_nobody_knows_the_exit_status_decides_and_that_is_said(gate):
    found = gate({}, command=["python", "-c", "import calc"])
    assert found.passed
    assert "the runner is unknown" in found.detail


def test_a_program_that_is_not_there_is_nobodys_failure(gate, repository):
    with pytest.raises(ConfigurationError, match="there is no program 'no-such-runner'"):
        gate({}, command=["no-such-runner"])
    assert "no-such-runner" in TestCommand(repository, ["no-such-runner"], LocalSandbox()).unconfigured()


def test_the_tree_of_the_run_is_not_touched(gate, tmp_path):
    gate({"tests/test_calc.py": "edited\n"})
    assert (tmp_path / "tree" / "tests" / "test_calc.py").read_text() == "edited\n"
    assert not (tmp_path / "tree" / "report.xml").exists()


NODE = {
    "add.mjs": "export const add = (a, b) => a - b;\n",
    "tests/a.test.mjs": "import test from 'node:test';\nimport assert from 'node:assert';\n"
    "import { add } from '../add.mjs';\n"
    "test('a', () => assert.equal(add(1, 2), 3));\ntest('b', () => assert.equal(add(2, 2), 4));\n",
    "tests/b.test.mjs": "import test from 'node:test';\ntest('c', () => {});\n",
}


@pytest.mark.skipif(shutil.which("node", path="/usr/bin:/usr/local/bin") is None, reason="there is no node")
def test_nodes_files_that_end_early_are_no_pass(tmp_path):
    repository = opened(tmp_path / "node", NODE)
    command = TestCommand(repository, ["node", "--test"], LocalSandbox())

    def run(text):
        tree = left(repository, tmp_path / "tree", {"add.mjs": text})
        return command([], GoalContext(str(tree), 1)).detail

    assert run("export const add = (a, b) => a + b;\n") == "passed: 3 tests passed"
    assert run(NODE["add.mjs"]) == "failed: exit status 1: 2 of 3 tests failed"
    early = "failed: exit status 0, but node did not report that it came to its end"
    assert run("process.exit(0);\nexport const add = 1;\n") == early
    command._expected = 4
    assert run("export const add = (a, b) => a + b;\n").endswith("3 of the commit's 4 tests came to an end")


def test_in_a_box_the_command_sees_nothing_of_the_machine(tmp_path):
    box = BwrapSandbox()
    if box.preflight() or not os.path.exists("/usr/bin/python3"):
        pytest.skip("no box can be built here")
    test = "import os, unittest\n\nclass T(unittest.TestCase):\n    def test_it(self):\n"
    test += f"        self.assertFalse(os.path.exists({os.getcwd()!r}))\n"
    repository = opened(tmp_path / "boxed", {"test_it.py": test})
    tree = left(repository, tmp_path / "tree", {})
    command = TestCommand(repository, ["/usr/bin/python3", "-m", "unittest"], box)
    assert command.unconfigured() == ""
    found = command([], GoalContext(str(tree), 1))
    assert (found.passed, found.data["counts"]) == (True, {"passed": 1, "failed": 0, "skipped": 0}), found.detail


def test_held_out_tests_are_put_in_place(repository, tmp_path):
    tree = left(repository, tmp_path / "tree", {**RIGHT, "tests/test_secret.py": "planted\n"})
    secret = b"import calc\n\n\ndef test_negative():\n    assert calc.add(-1, -1) == -2\n"
    undone = restore(tree, repository, [("tests/test_secret.py", 0o644, secret)])
    assert undone == ["tests/test_secret.py"]
    assert (tree / "tests" / "test_secret.py").read_bytes() == secret


@pytest.mark.parametrize(
    ("path", "steers"),
    [
        ("tests/data/x.json", True),
        ("pkg/test_a.py", True),
        ("pkg/a_test.go", True),
        ("src/a.test.ts", True),
        ("package.json", True),
        ("pyproject.toml", True),
        ("node_modules/.bin/jest", True),
        ("src/contest.py", False),
        ("src/latest.js", False),
        ("README.md", False),
    ],
)
def test_what_steers_tests_is_known_by_name(path, steers):
    assert is_steering(path) is steers
