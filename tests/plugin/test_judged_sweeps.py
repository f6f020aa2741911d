"""A judge in a sweep: its score ranks variants, and what is pending is scored later without running an agent again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_proteus.cli import main
from pytest_proteus.scoring.judge import DIMENSIONS
from pytest_proteus.sweep.finished import open_sweep
from pytest_proteus.testing import ModelServer, say
from pytest_proteus.testing.script import Step

SUITE = """
import json
from pathlib import Path
import pytest
from pytest_proteus import NEUTRAL, review
from pytest_proteus.core.goal import EvalResult


def passes(trace, ctx):
    return EvalResult("", 1.0, passed=True)


pytestmark = [
    pytest.mark.sweep(episodes=1, goal="Keep notes.", arm=[NEUTRAL, review("notes")], seed=[0]),
    pytest.mark.evaluator(passes, name="tests", kind="gate", timeout=None),
    pytest.mark.evaluator("judge:rubric:judge-1"),
    pytest.mark.evaluator("route:total_step_count"),
]


def test_ranking(ranking):
    Path("fixture.json").write_text(json.dumps(ranking.to_json()))
"""


def judgement(conversation):
    shown = json.loads(conversation.user_texts[-1].split("\n", 1)[1].rsplit("\n", 1)[0])
    labels = [{"event": event["event"], "label": "toward"} for event in shown["actions"]]
    return say(json.dumps({**dict.fromkeys(DIMENSIONS, 0.8), "labels": labels}))


def test_scores_that_are_pending_are_computed_by_rescoring(suite, capsys):
    wire = "anthropic"
    suite.write(SUITE)
    result = suite.run("test_it.py")
    assert result.ret == 4
    assert "judge:rubric has no endpoint for model judge-1" in "\n".join([*result.outlines, *result.errlines])

    with ModelServer([Step(error=401)]) as refusing:
        suite.run(f"--proteus-endpoint={wire}={refusing.endpoint[wire]}", "test_it.py").assert_outcomes(passed=1)
    (ranked,) = [entry["value"] for entry in suite.sweep["statistics"] if entry["name"] == "ranking"]
    assert ranked == json.loads((suite.folder / "fixture.json").read_text())
    assert {one["group"]: one["score_states"] for one in ranked["unscored"]} == {"unscored": {"pending": 1}}
    out = Path(suite.sweep["out"])

    with ModelServer(judgement) as server:
        rescore = ["rescore", str(out), "--evaluator", "judge:rubric:judge-1", "--endpoint"]
        assert main([*rescore, f"{wire}={server.endpoint[wire]}"]) == 0
        assert len(server.requests) == 2
        assert main([*rescore, f"{wire}={server.endpoint[wire]}"]) == 0
        assert len(server.requests) == 2  # what is there is not asked for again
        suite.run(f"--proteus-endpoint={wire}={server.endpoint[wire]}", "test_it.py").assert_outcomes(passed=1)
        (ranked,) = [entry["value"] for entry in suite.sweep["statistics"] if entry["name"] == "ranking"]
        assert ranked == json.loads((suite.folder / "fixture.json").read_text())
        assert ranked["unscored"][0]["metrics"]["goal_aligned_ratio"]["mean"] == 1.0
    capsys.readouterr()
    assert main(["rank", str(out), "--rank-by", "score", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rankings"]
    assert [one["value"] for one in found["ranked"]] == pytest.approx([0.8, 0.8])
    assert found["ranked"][0]["metrics"]["goal_aligned_ratio"]["mean"] == 1.0
    assert found["ranked"][0]["metrics"]["route:total_step_count"]["n"] == 1
    for run in open_sweep(out).runs:
        assert run.stored_records()[-1]["results"][1]["data"]["state"] == "pending"  # the old one is kept beside it
        assert run.last("judge:rubric") == pytest.approx(0.8)
