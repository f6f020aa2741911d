"""The store of experiments is made of artifacts alone, answers across sweeps, and an operator's word counts in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_proteus.cli import main
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.measure.ranking import rank, task_hash
from pytest_proteus.sweep.experiments import STORE, Store, index

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review
from pytest_proteus.core.goal import EvalResult


def passes(trace, ctx):
    return EvalResult("", 1.0, passed=True)


def judged(trace, ctx):
    return EvalResult("", 0.5)


pytestmark = [
    pytest.mark.evaluator(passes, name="tests", kind="gate", timeout=None),
    pytest.mark.evaluator(judged, name="judge", kind="judge", timeout=None),
]


@pytest.mark.sweep(name="one", episodes=1, goal="Keep notes.", arm=[NEUTRAL, review("notes")], seed=[0])
class TestOne:
    def test_run(self, run):
        pass


@pytest.mark.sweep(name="two", episodes=1, goal="Keep notes.", arm=[NEUTRAL], seed=[7])
class TestTwo:
    def test_run(self, run):
        pass
"""


def test_the_store_answers_across_sweeps_and_an_override_counts(suite, monkeypatch, capsys):
    suite.write(SUITE)
    suite.run().assert_outcomes(passed=3)
    base = suite.folder / ".proteus"
    monkeypatch.chdir(suite.folder)
    assert main(["rank", "0" * 12]) == 2
    assert "make it with: proteus index .proteus" in capsys.readouterr().err

    assert main(["index", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 3
    task = task_hash("Keep notes.")
    assert main(["rank", task[:12], "--rank-by", "score", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rankings"]
    assert {one["variant"]: one["runs"] for one in found["ranked"]} == {"minimal/neutral": 2, "minimal/review_notes": 1}
    assert found == rank(Store(base).attempts(task), task, rank_by="score").to_json()

    (noted,) = Store(base).runs(variant="minimal/review_notes")
    assert (noted["gate"], noted["state"], noted["task_hash"]) == ("passed", "complete", task)
    override = ["override", noted["out"], noted["run_id"], "--score", "0.1", "--author", "me", "--reason", "no notes"]
    assert main(override) == 0
    with pytest.raises(SystemExit):
        main([*override[:4], "2", *override[5:]])
    capsys.readouterr()
    assert main(["rank", noted["out"], "--rank-by", "score", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rankings"]
    assert {one["variant"]: one["value"] for one in found["ranked"]} == {
        "minimal/neutral": 0.5,
        "minimal/review_notes": 0.1,
    }
    index(base)
    (score,) = Store(base).scores(run_id=noted["run_id"], kind="judge")
    assert (score["judged"], score["override"], score["effective"]) == (0.5, 0.1, 0.1)
    assert (score["author"], score["reason"]) == ("me", "no notes")

    (base / "one" / "0001" / "manifest.json").write_text("{")
    assert main(["index"]) == 1
    assert "1 runs of 1 sweeps" in capsys.readouterr().out


def test_a_store_that_is_none_says_how_to_make_one(tmp_path):
    for text in (b"no database", b""):
        (tmp_path / STORE).write_bytes(text)
        with pytest.raises(ConfigurationError, match="proteus index"):
            Store(tmp_path)
    with pytest.raises(ConfigurationError, match="is no folder"):
        index(tmp_path / "nowhere")
    assert index(tmp_path).runs == 0
    assert Store(tmp_path).runs() == []
    with pytest.raises(ConfigurationError, match="is not asked by 'luck'"):
        Store(tmp_path).runs(luck="1")
    with pytest.raises(ConfigurationError, match="is not asked by 'evaluator'; write one of run_id, task_hash"):
        Store(tmp_path).runs(evaluator="judge")
    with pytest.raises(ConfigurationError, match="is not asked by 'sweep'; write one of run_id, evaluator"):
        Store(tmp_path).scores(sweep="one")
    assert [path.name for path in Path(tmp_path).iterdir()] == [STORE]
