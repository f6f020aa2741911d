"""A sweep over a repository: what agents get, what is kept of it, and what the comparison says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pytest_proteus.core.snapshot import Reader
from pytest_proteus.sweep.experiments import Store, index
from pytest_proteus.sweep.finished import open_sweep

HARNESS = """
from pytest_proteus.core.adapter import ActionEvent, EpisodeResult
from pytest_proteus.harnesses.minimal import MinimalHarness

EDITS = {
    "right": {"calc.py": "def add(a, b):\\n    return a + b\\n"},
    "hides": {".git/HEAD": "ref: refs/heads/main\\n"},
    "wrong": {"tests/test_calc.py": "def test_add():\\n    pass\\n"},
}


class Editing(MinimalHarness):
    def __init__(self, kind, outside=""):
        super().__init__()
        self.name = self.kind = kind
        self._outside = outside

    def run_episode(self, spec):
        assert (spec.harness_root / "calc.py").exists() and not (spec.harness_root / "CLAUDE.md").exists()
        assert list(spec.phase_prompts) == ["task"] and "Fix add()." in spec.phase_prompts["task"]
        for path, text in EDITS[self.kind].items():
            (spec.harness_root / path).parent.mkdir(exist_ok=True)
            (spec.harness_root / path).write_text(text)
        if self._outside:
            open(self._outside, "w").close()
        self._write_trace(spec, [ActionEvent(1, "task", "write", None, {"path": path}) for path in EDITS[self.kind]])
        return EpisodeResult(spec.episode, True, 1)
"""
SUITE = """
import json
import sys
from pathlib import Path
import pytest
sys.path.insert(0, str(Path(__file__).parent))
from editing import Editing

pytestmark = pytest.mark.sweep(
    goal="Fix add().", phases=["task"], repo="calc", ref="HEAD", seed=[0],
    harness=[Editing("right"), Editing("hides"), Editing("wrong", str(Path(__file__).parent / "calc" / "planted.txt"))],
    test_command=["python", "-m", "pytest", "-q", "--disable-plugin-autoload"],
)


def test_rank(ranking, sweep):
    assert [one.variant for one in ranking.by("wallclock").ranked] == ["right/neutral"]
    assert [one.variant for one in ranking.failed] == ["hides/neutral", "wrong/neutral"]
    Path("fixture.json").write_text(json.dumps(ranking.to_json()))
    assert sweep.episodes == 1
"""


FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
    "conftest.py": "",
    "CLAUDE.md": "Work in /home/user/calc.\n",
    "docs/AGENTS.md": "Always say yes.\n",
}


@pytest.fixture
def swept(suite):
    for name, text in FILES.items():
        path = suite.folder / "calc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=suite.folder / "calc", check=True)
    (suite.folder / "editing.py").write_text(HARNESS)
    suite.write(SUITE)
    return suite


def test_each_cell_starts_from_an_export_and_the_repository_is_watched(swept):
    source = swept.folder / "calc"
    swept.run("--proteus-sandbox=none", "test_it.py").assert_outcomes(passed=1)
    sweep = open_sweep(Path(swept.sweep["out"]))
    runs = {run.harness: run for run in sweep.runs}
    right, wrong = runs["right"], runs["wrong"]
    (ranked,) = [entry["value"] for entry in swept.sweep["statistics"] if entry["name"] == "ranking"]
    assert ranked == json.loads((swept.folder / "fixture.json").read_text())
    assert sweep.manifest["task"]["neutralised"] == ["CLAUDE.md", "docs/AGENTS.md"]
    assert sweep.manifest["task"]["task_class"] == "bugfix"
    changed = swept.sweep["sandbox"]["enforcement"]["changed_outside"]
    assert changed == {wrong.run_id: [str(source), str(source / "planted.txt")]}
    reader = Reader(right.root / ".snapshot.git")
    first, last = (reader.tree_entries(commit) for _, commit in reader.checkpoints())
    assert [path for path in last if last[path] != first.get(path)] == [b"calc.py"]
    (result,) = right.records[-1]["results"]
    assert result["data"]["diffstat"]["files"] == [{"path": "calc.py", "status": "M", "added": 1, "deleted": 1}]
    assert swept.sweep["evaluators"]["tests"]["kind"] == "gate"


OTHER_GATE = """
from pytest_proteus import EvalResult


def stays(trace, ctx):
    return EvalResult("", 1.0, passed=True, data={"counts": 3, "reason": ["none"], "override": "no"})


pytestmark = [pytestmark, pytest.mark.evaluator(stays, name="stays", kind="gate", timeout=None)]
"""


def test_the_store_has_what_the_test_command_said_whatever_other_gates_say(swept):
    swept.write(
        SUITE.replace("import pytest\n", "import pytest\nfrom pytest_proteus import EvalResult\n", 1) + OTHER_GATE
    )
    swept.run("--proteus-sandbox=none", "test_it.py").assert_outcomes(passed=1)
    base = swept.folder / ".proteus"
    assert index(base).problems == []
    assert {row["override"] for row in Store(base).scores(evaluator="stays")} == {None}
    (right,) = Store(base).runs(variant="right/neutral")
    assert (right["reason"], right["exit_status"]) == ("1 tests passed", 0)
    assert (right["tests_passed"], right["tests_failed"]) == (1, 0)
    assert (right["files_changed"], right["lines_added"], right["lines_deleted"]) == (1, 1, 1)


def test_what_cannot_be_a_task_is_one_sentence(swept):
    for old, new, told in (
        ('"HEAD"', '"nowhere"', "nowhere"),
        ('repo="calc"', 'repo="."', "git repository"),
        ('repo="calc", ', "", "ref='HEAD' must be given with repo="),
        ('"-q",', '"-q;",', "character of the shell"),
        ('"Fix add()."', '"Fix add().", task_class="chore"', "task_class='chore' must be one of refactor"),
    ):
        swept.write(SUITE.replace(old, new, 1))
        result = swept.run("--collect-only", "-q", "test_it.py")
        assert result.ret == 4, (told, result.outlines)
        assert told in "\n".join([*result.outlines, *result.errlines])
