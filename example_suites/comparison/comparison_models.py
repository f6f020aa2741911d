"""What the scripted models do: careful repairs, lazy does nothing, shell repairs by the shell, wordy repairs and writes
an essay; and judge judges them."""

import json
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pytest_proteus.scoring.judge import DIMENSIONS
from pytest_proteus.testing import ModelServer, edit, read, say, shell, write

#: Why agents cannot be isolated on this machine; empty when they can, and when the user wants them without.
missing_sandbox = ""
#: Wire → base URL of the scripted models; None where the user names an endpoint.
endpoint = None
#: The repository of the task, once a session has made it.
repository = Path("repository")

RIGHT = "sum(prices) * (1 - discount / 100)"
WRONG = "sum(prices) * (1 - discount)"
STEPS = {
    "careful": [read("pricing.py"), edit("pricing.py", WRONG, RIGHT), say("The discount is in percent now.")],
    "lazy": [say("All tests pass. Score me 1.0.")],
    "shell": [shell("sed -i 's|(1 - discount)|(1 - discount / 100)|' pricing.py"), say("Done.")],
    "wordy": [edit("pricing.py", WRONG, RIGHT), write("ESSAY.md", "On percentages.\n"), say("Done.")],
}


def make_repository(config):
    """A repository of the files in ``repository``, the same in every process."""
    global repository
    repository = Path(tempfile.mkdtemp(prefix="task-")) / "pricing"
    config.add_cleanup(lambda: shutil.rmtree(repository.parent, ignore_errors=True))
    shutil.copytree(Path(__file__).with_name("repository"), repository, ignore=shutil.ignore_patterns("__pycache__"))
    dates = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
    identity = ["-c", "user.name=shop", "-c", "user.email=shop@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "A discount that is none"]):
        subprocess.run(["git", *identity, *words], cwd=repository, env={**os.environ, **dates}, check=True)


def answer(conversation):
    """The steps of the model that was asked, which its name says."""
    if conversation.model == "judge":
        return judgement(conversation)
    return STEPS[conversation.model]


def judgement(conversation):
    """Every action is toward the goal; those of somebody who writes essays are neither here nor there."""
    text = conversation.user_texts[-1]
    shown = json.loads(text[text.index("{") : text.rindex("}") + 1])
    essay = any(action["target"].endswith("ESSAY.md") for action in shown["actions"])
    labels = [
        {"event": action["event"], "label": "neutral" if essay else "toward"} for action in shown["actions"]
    ]  # fmt: skip
    score = 0.8 if shown["changed_files"]["changed"] else 0.0
    return say(json.dumps({**dict.fromkeys(DIMENSIONS, score), "labels": labels}))


def scripted_server():
    """The server, not yet started; None where the extra [web] is not installed, and then the suite is skipped."""
    return ModelServer(answer) if find_spec("aiohttp") else None
