"""What the subject can read spells neither the condition, nor what is hidden, nor the framework's name."""

from __future__ import annotations

import json

HIDDEN = '''
import json, os, pathlib, subprocess, sys
import pytest
from pytest_proteus import EvalResult, NEUTRAL, review
from pytest_proteus.harnesses.minimal import MinimalHarness

SEEN = pathlib.Path(__file__).with_name("seen.jsonl")
LOOK = """
import json, os, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = {str(p): p.read_text(errors="replace") for p in root.rglob("*") if p.is_file()}
around = [str(p) for parent in root.parents for p in parent.iterdir() if str(parent).count("/") > 1]
print(json.dumps({"environ": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "files": files, "around": around}))
"""


class Nosy(MinimalHarness):
    """Looks around as an agent's process would, started in the most ordinary way."""

    name = "nosy"

    def run_episode(self, spec):
        command = [sys.executable, "-c", LOOK, str(spec.root)]
        told = subprocess.run(command, cwd=spec.root, capture_output=True, text=True)
        fields = {name: str(value) for name, value in vars(spec).items()}
        with SEEN.open("a") as file:
            seen = {"told": told.stdout or told.stderr, "spec": fields, "own": dict(os.environ)}
            file.write(json.dumps(seen) + "\\n")
        return super().run_episode(spec)


def secret_measure(trace, ctx):
    return EvalResult("secret-measure", 4711.25, detail="a-detail-that-is-hidden")


pytestmark = [
    pytest.mark.sweep(episodes=3, harness=["test_it:Nosy"], seed=[0], arm=[NEUTRAL, review("notes", "arm-zebra")]),
    pytest.mark.evaluator(secret_measure, name="secret-measure"),
    pytest.mark.evaluator("units:tools@observe"),
]


def test_completes(run):
    assert run.last("secret-measure") == 4711.25
'''

SECRETS = ("arm-zebra", "arm_zebra", "secret-measure", "4711", "a-detail-that-is-hidden", "proteus", "pytest")


def test_nothing_that_the_subject_reads_tells_the_condition_or_what_is_hidden(suite):
    suite.write(HIDDEN)
    suite.run("-n", "2").assert_outcomes(passed=2)
    seen = [json.loads(line) for line in (suite.folder / "seen.jsonl").read_text().splitlines()]
    assert len(seen) == 6
    for entry in seen:
        told = json.loads(entry["told"])
        told["environ"] = {name: value for name, value in told["environ"].items() if name not in FOREIGN}
        own = {name: value for name, value in entry["own"].items() if name not in FOREIGN}
        text = json.dumps([told, entry["spec"], own]).lower()
        assert [secret for secret in SECRETS if secret in text] == []


def test_observed_results_are_what_the_next_observe_phase_reads(suite):
    suite.write(HIDDEN)
    suite.run().assert_outcomes(passed=2)
    seen = [json.loads(line) for line in (suite.folder / "seen.jsonl").read_text().splitlines()]
    prompts = [entry["spec"]["phase_prompts"] for entry in seen]
    assert ["units:tools" in prompt for prompt in prompts] == [False, True, True] * 2


#: Where this test itself was started, and what the user's shell says, is not the framework's doing.
FOREIGN = (
    "PWD",
    "OLDPWD",
    "PATH",
    "_",
    "HOME",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "TOX_ENV_DIR",
    "TOX_PACKAGE",
    "TOX_WORK_DIR",
    "USERPROFILE",
)
