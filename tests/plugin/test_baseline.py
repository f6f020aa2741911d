"""A session beside a saved one: saved whole or not at all, compared before it is believed, and never left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from pytest_proteus.measure.metrics import Metric
from pytest_proteus.sweep.baseline import _told_from
from pytest_proteus.sweep.expressions import Expression

AGENT = """
import os
import zlib
from pathlib import Path
from pytest_proteus import EvalResult
from pytest_proteus.harnesses.minimal import MinimalHarness

class Noisy(MinimalHarness):
    name = "noisy"
    deterministic = False

def load(trace, ctx):
    # 10 and what the environment adds, with noise that differs from session to session
    files = b"".join(path.read_bytes() for path in sorted(Path(ctx.harness_root).rglob("*.md")))
    noise = zlib.crc32(files + os.environ.get("NOISE", "").encode()) % 997 / 997
    return EvalResult("load", 10 + noise + float(os.environ.get("MORE", 0)), True, "")
"""

SUITE = """
import pytest
from pytest_proteus import NEUTRAL, review

pytestmark = [
    pytest.mark.sweep(name="demo", episodes=2, harness=["noisy_agent:Noisy"], arm=[NEUTRAL, review("notes")],
                      seed=range(6)),
    pytest.mark.evaluator("noisy_agent:load", name="load", direction="lower"),
    pytest.mark.evaluator("units:notes"),
    pytest.mark.evaluator("units:tools", direction="higher"),
]

def test_runs(run):
    assert run.episodes_complete == run.episodes
"""


@pytest.fixture
def noisy(suite):
    """A suite over a harness whose runs vary."""
    suite.write(AGENT, "noisy_agent")
    suite.write(SUITE)
    return suite


@pytest.fixture(scope="module")
def baseline_of_the_suite(tmp_path_factory):
    """The file that a session with --proteus-save=main leaves."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "noisy_agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "test_it.py").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "proteus", "-p", "no:cacheprovider", "-q", "--proteus-save=main"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "NOISE", "MORE"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".proteus" / "baselines" / "main.json"


@pytest.fixture
def saved(noisy, baseline_of_the_suite):
    """The same, with a baseline called main."""
    baseline_file(noisy).parent.mkdir(parents=True)
    shutil.copy(baseline_of_the_suite, baseline_file(noisy))
    return noisy


def compared(suite, *options, more="0", workers="0"):
    """A session of other runs, beside the baseline."""
    suite.pytester._monkeypatch.setenv("NOISE", "again")
    suite.pytester._monkeypatch.setenv("MORE", more)
    return suite.run("--proteus-compare=main", "--proteus-on-existing=fresh", "-q", "-n", workers, *options)


def baseline_file(suite):
    return suite.folder / ".proteus" / "baselines" / "main.json"


def gates(suite):
    return {gate["name"]: gate for gate in suite.proteus["gates"]}


# --- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "2"])
def test_it_keeps_what_every_seed_measured(noisy, workers):
    assert noisy.run("--proteus-save=main", "-n", workers).ret == 0
    saved = json.loads(baseline_file(noisy).read_text())
    (sweep,) = saved["sweeps"]
    assert (saved["name"], saved["version"], sweep["name"], sweep["episodes"]) == ("main", 1, "demo", 2)
    assert sweep["condition_sha256"] == noisy.sweep["condition_sha256"]
    assert len(sweep["runs"]) == 12
    for run, reported in zip(sweep["runs"], noisy.sweep["runs"], strict=True):
        assert run["scores"] == {name: found["scores"] for name, found in reported["evaluators"].items()}
        assert (run["seed"], run["counters"], run["seconds"]) == tuple(
            reported[key] for key in ("seed", "counters", "seconds")
        )


def test_a_session_with_cells_that_were_not_measured_is_not_saved_and_fails(noisy):
    result = noisy.run("--proteus-save=main", "-k", "s0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not baseline_file(noisy).exists()
    assert noisy.proteus["outcome"] == "incomplete"
    assert any("10 of the 12 cells of demo were not measured" in why for why in noisy.proteus["outcome_reasons"])


def test_a_session_without_a_sweep_does_not_pass_as_saved(suite):
    suite.write("def test_x(): pass")
    result = suite.run("--proteus-save=main")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "--proteus-save was given, and no test of a sweep was run" in result.stdout.str()


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "2"), ("-n", "2", "--dist", "loadfile")])
def test_what_is_no_worse_passes_and_what_is_worse_fails(saved, options):
    wanted = ("--proteus-compare-fail=load:20%", *options)
    assert compared(saved, *wanted).ret == 0
    assert {name: gate["verdict"] for name, gate in gates(saved).items()} == {
        "load[neutral]:20%": "pass",
        "load[review_notes]:20%": "pass",
    }
    result = compared(saved, *wanted, more="5")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert saved.proteus["outcome"] == "fail"
    gate = gates(saved)["load[neutral]:20%"]
    assert (gate["source"], gate["verdict"], gate["sweep"], gate["arm"]) == ("baseline", "fail", "demo", "neutral")
    assert (gate["against"], gate["margin"], gate["direction"]) == ("baseline main", "20%", "lower")
    assert (gate["n"], gate["n_missing"], gate["family"]) == (6, 0, "baseline main")
    assert gate["p_adjusted"] == 2 * gate["p"] == 2 / 64
    assert gate["interval"]["low"] <= gate["value"] <= gate["interval"]["high"]
    told = saved.proteus["baseline"]
    assert (told["name"], told["differs"], told["allowed"]) == ("main", {}, [])
    assert told["condition_sha256"] == saved.sweep["condition_sha256"]


def test_the_table_has_effect_interval_n_and_verdict(saved):
    result = compared(saved, "--proteus-compare-fail=load[arm=neutral]:20%", more="5")
    result.stdout.fnmatch_lines(
        [
            "baseline main",
            "metric *baseline *now *effect *interval *n *verdict",
            "load[[]neutral[]]:20% *10.*15.*5.* to * 6 *fail*",
            "load[[]review_notes[]] *10.*15.* to * 6 * -",
        ]
    )
    written = json.loads(next(saved.folder.glob(".proteus/demo/*/report.json")).read_text())
    assert [gate["name"] for gate in written["gates"]] == ["load[neutral]:20%"]
    assert written["baseline"]["name"] == "main"


def test_without_an_expression_it_shows_effects_and_fails_nothing(saved):
    result = compared(saved, more="5")
    assert result.ret == 0
    assert saved.proteus["gates"] == []
    effects = {(item["metric"], item["arm"]): item for item in saved.proteus["baseline"]["effects"]}
    assert len(effects) == 6
    load = effects["load", "neutral"]
    assert (load["n"], load["stratum"]) == (6, None)
    assert load["interval"]["low"] <= load["effect"] <= load["interval"]["high"]


def test_a_saved_value_outside_of_its_bounds_costs_its_own_metric_only(saved):
    kept = json.loads(baseline_file(saved).read_text())
    kept["sweeps"][0]["runs"][0]["scores"]["units:notes"][-1] = -3.0
    baseline_file(saved).write_text(json.dumps(kept))
    compared(saved, "--proteus-compare-fail=load[arm=neutral]:20%")
    assert gates(saved)["load[neutral]:20%"]["verdict"] == "pass"
    effects = {(item["metric"], item["arm"]): item for item in saved.proteus["baseline"]["effects"]}
    assert effects["load", "neutral"]["reason"] is None
    notes = effects["units:notes", "neutral"]
    assert (notes["effect"], notes["interval"]) == (None, None)
    assert "-3.0 (units:notes in the run of baseline main with seed 0) lies outside" in notes["reason"]


@pytest.mark.parametrize(("policy", "status"), [("fail", 1), ("pass", 0), ("skip", 0)])
def test_what_is_undecided_fails_the_session_if_the_user_says_so(saved, policy, status):
    result = compared(saved, "--proteus-compare-fail=load[arm=neutral]:0.001", f"--proteus-undecided={policy}")
    assert result.ret == status
    assert saved.proteus["outcome"] == "undecided"
    (gate,) = saved.proteus["gates"]
    assert gate["n_needed"] > 6
    assert f"n needed: {gate['n_needed']}" in gate["reason"]


def test_cells_that_were_not_measured_never_pass(saved):
    assert compared(saved, "--proteus-compare-fail=load:20%", "-k", "s0").ret == pytest.ExitCode.TESTS_FAILED
    assert {gate["verdict"] for gate in saved.proteus["gates"]} == {"undecided"}
    assert all("5 of 6 are missing" in gate["reason"] for gate in saved.proteus["gates"])


def test_seeds_are_paired_where_both_sides_have_them(saved):
    compared(saved, "--proteus-compare-fail=load[arm=neutral]:20%", "--proteus-seeds=5")
    (gate,) = saved.proteus["gates"]
    assert (gate["n"], gate["n_missing"], gate["verdict"]) == (5, 0, "pass")


def test_a_failing_test_and_a_comparison_are_both_reported(saved):
    saved.write(SUITE + "\ndef test_no(sweep):\n    assert False\n")
    result = compared(saved, "--proteus-compare-fail=load:20%")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert {gate["verdict"] for gate in saved.proteus["gates"]} == {"pass"}


# --- what is refused before anything runs -----------------------------------------------------------------------------


def refused(suite, result):
    """The complaint of a session that ran nothing."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    assert not (suite.folder / ".proteus" / "demo").exists()
    return " ".join(result.stderr.str().split())


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_baseline_says_what_saves_it_and_makes_none(noisy, workers):
    told = refused(noisy, compared(noisy, "--proteus-compare-fail=load:10%", workers=workers))
    assert told.count("--proteus-save=main") == 1
    assert not (noisy.folder / ".proteus").exists()


def test_a_misspelt_one_names_the_nearest(saved):
    result = saved.run("--proteus-compare=mian")
    assert "did you mean 'main'?" in refused(saved, result)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[:-20], "is damaged (not JSON"),
        (lambda text: "[]", "is no baseline"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "is a baseline of version 2"),
        (lambda text: text.replace('"seed": 0', '"seed": "0"', 1), "is damaged (sweeps.0.runs."),
        (lambda text: text.replace('"seed": 0', '"seed": 1', 1), "has two runs of harness"),
        (lambda text: text.replace('"selection": "none"', '"selection": "some"', 1), "not the one that its hash"),
        (lambda text: text.replace('"units:tools": [', '"units:tools": [NaN, ', 1), "NaN is no number"),
    ],
)
def test_a_damaged_one_is_refused(saved, damage, told):
    file = baseline_file(saved)
    value = json.dumps(json.loads(file.read_text()))
    assert damage(value) != value
    file.write_text(damage(value))
    assert told in refused(saved, compared(saved))


@pytest.mark.parametrize(
    ("expressions", "told"),
    [
        (["lod:10%"], "did you mean 'load'?"),
        (["load"], "write METRIC:MARGIN"),
        (["load:0"], "must be above 0"),
        (["load:-5%"], "must be above 0"),
        (["load:many"], "must be above 0"),
        (["load[arm=neutrall]:5%"], "did you mean 'neutral'?"),
        (["load[amr=neutral]:5%"], "did you mean 'arm'?"),
        (["load[neutral]:5%"], "write the selector as [arm=LABEL]"),
        (["load[seed=1]:5%"], "seeds are what is compared"),
        (["units:notes:2"], "declare direction='lower' or direction='higher'"),
        (["load:5%", "load:6%"], "keep one of them"),
        (["counters.nothing:5"], "no metric 'counters.nothing'"),
    ],
)
def test_an_expression_that_cannot_be_compared_is_refused(saved, expressions, told):
    result = compared(saved, *(f"--proteus-compare-fail={text}" for text in expressions))
    assert told in refused(saved, result)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name="demo"', 'name="renamed"', "nothing can be compared"),
        ("episodes=2", "episodes=2, goal='Other.'", "it differs in demo: goal"),
        ("episodes=2", "episodes=3", "it differs in demo: episodes"),
        ('[NEUTRAL, review("notes")]', "[NEUTRAL]", "the baseline has arm 'review_notes'"),
        ('review("notes")', 'review("tools")', "the baseline has arm 'review_notes'"),
        ('NEUTRAL, review("notes")', 'NEUTRAL, review("notes"), review("tools")', "the baseline does not have arm"),
        ('"noisy_agent:load", name="load"', '"noisy_agent:load", name="lood"', "did you mean 'lood'?"),
        ('"noisy_agent:load", name="load"', '"tool-calls", name="load"', "has another spec"),
    ],
)
def test_what_the_two_sides_do_not_share_is_refused(saved, old, new, told):
    assert old in SUITE
    saved.write(SUITE.replace(old, new))
    assert told in refused(saved, compared(saved, "--proteus-compare-fail=load:10%"))


def test_a_key_of_the_condition_may_be_allowed_to_differ(saved):
    saved.write(SUITE.replace("episodes=2", "episodes=2, goal='Other.'"))
    allow = "--proteus-compare-allow=goal"
    assert compared(saved, "--proteus-compare-fail=load:20%", allow).ret == 0
    told = saved.proteus["baseline"]
    assert (told["differs"], told["allowed"]) == ({"demo": ["goal"]}, ["goal"])


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("evaluators.laod", "did you mean 'evaluators.load'?"),
        ("gaol", "did you mean 'goal'?"),
        ("xyzzy", "write one of"),
    ],
)
def test_a_key_that_no_condition_has_is_refused(saved, key, told):
    complaint = refused(saved, compared(saved, f"--proteus-compare-allow={key}"))
    assert f"--proteus-compare-allow={key}: no condition has that key; {told}" in complaint


def test_with_other_episodes_allowed_scores_are_compared_at_the_same_episode(saved):
    saved.write(SUITE.replace("episodes=2", "episodes=3"))
    options = ("--proteus-compare-fail=load[arm=neutral]:20%", "--proteus-compare-fail=seconds[arm=neutral]:900%")
    assert compared(saved, *options, "--proteus-compare-allow=episodes").ret == pytest.ExitCode.TESTS_FAILED
    found = gates(saved)
    assert found["load[neutral]:20%"]["verdict"] == "pass"
    assert found["seconds[neutral]:900%"]["verdict"] == "unavailable"
    assert "of all 3 episodes together" in found["seconds[neutral]:900%"]["reason"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--proteus-seeds=4"], "no outcome of 4 seeds could pass for arm 'neutral'"),
        (["--proteus-seeds=5"], "no outcome of 5 seeds could fail among 2 comparisons for arm 'neutral'"),
    ],
)
def test_a_comparison_that_could_never_pass_or_never_fail_is_refused(saved, options, told):
    complaint = refused(saved, compared(saved, "--proteus-compare-fail=load:10%", *options))
    assert told in complaint
    assert "seeds on both sides, or compare less" in complaint


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--proteus-compare-fail=load:10%"], "compares with nothing; add --proteus-compare=NAME"),
        (["--proteus-save=a/b"], "write a name of letters"),
        (["--proteus-save=main", "--proteus-compare=main"], "does not replace what it is compared with"),
    ],
)
def test_options_that_contradict_each_other_are_refused(saved, options, told):
    assert told in refused(saved, saved.run(*options))


def test_a_comparison_of_a_session_without_a_sweep_does_not_pass(saved):
    saved.write("def test_x(): pass")
    assert compared(saved, "--proteus-compare-fail=load:10%").ret == pytest.ExitCode.TESTS_FAILED


def test_the_ini_file_can_say_it_too(saved):
    (saved.folder / "pytest.ini").write_text(
        "[pytest]\nproteus_compare = main\nproteus_compare_fail =\n    load[arm=neutral]:20%\n"
    )
    compared(saved)
    assert list(gates(saved)) == ["load[neutral]:20%"]


def test_the_plan_says_what_could_be_told(saved):
    result = saved.run("--proteus-plan", "--proteus-compare=main", "--proteus-compare-fail=load[arm=neutral]:20%")
    result.stdout.fnmatch_lines(
        [
            "*pairs *6 *the smallest p of a contrast is 0.0156",
            "*the smallest p of separation is 0.0*",
            "beside the baseline main, *",
            "  load[[]neutral[]]:20%  6 pairs  0.* or less",
            "after the runs of the baseline, demo takes: tokens unknown: *; cost unknown: *",
        ]
    )
    assert not (saved.folder / ".proteus" / "demo").exists()


def test_the_plan_says_of_values_that_are_all_equal_that_nothing_is_told(saved):
    kept = json.loads(baseline_file(saved).read_text())
    for run in kept["sweeps"][0]["runs"]:
        run["scores"]["units:tools"][-1] = 2.0
    baseline_file(saved).write_text(json.dumps(kept))
    asked = "--proteus-compare-fail=units:tools[arm=neutral]:10%"
    result = saved.run("--proteus-plan", "--proteus-compare=main", asked, "-q")
    result.stdout.fnmatch_lines(["  units:tools[[]neutral[]]:10%  6 pairs  cannot be told: so many values *"])


@pytest.mark.parametrize(
    ("values", "bounds", "varies", "told"),
    [
        ([1.0] * 6, None, True, None),
        ([1.0] * 6, (0, None), True, None),
        ([1.0] * 5 + [2.0], None, True, None),
        ([1.0] * 6, (0, 1), True, 0.9),
        ([1.0] * 6, None, False, 0.0),
        ([1.0, 2.0] * 3, None, True, 0.786),
    ],
)
def test_pairs_that_are_mostly_equal_tell_something_by_their_bounds_alone(values, bounds, varies, told):
    asked = Expression("", "x", (), 0.1, False)
    found = _told_from(values, 6, asked, Metric("x", "higher", bounds, True), varies=varies)
    assert isinstance(found, str) if told is None else found == pytest.approx(told, rel=0.2)


def test_the_plan_says_what_the_cells_took_in_the_baseline(saved):
    path = saved.folder / ".proteus" / "baselines" / "main.json"
    kept = json.loads(path.read_text())
    for sweep in kept["sweeps"]:
        for number, run in enumerate(sweep["runs"]):
            run["usage"] = {"total_tokens": 1000 + 100 * (number % 2), "cost_usd": 0.25}
    path.write_text(json.dumps(kept))
    result = saved.run("--proteus-plan", "--proteus-compare=main", "--proteus-compare-fail=load[arm=neutral]:20%")
    cells = len(kept["sweeps"][0]["runs"])
    result.stdout.fnmatch_lines(
        [
            f"after the runs of the baseline, demo takes: {cells * 1000:,} to {cells * 1100:,} tokens; "
            f"{cells * 0.25:.2f} to {cells * 0.25:.2f} USD"
        ]
    )
    compared(saved, "--proteus-compare-fail=load:20%")
    plan = saved.sweep["plan"]
    assert (plan["cells"], plan["tokens_low"], plan["tokens_high"]) == (cells, cells * 1000, cells * 1100)
    assert plan["usd_high"] == pytest.approx(cells * 0.25)
    assert 0 < plan["p_min"] < 0.05
    assert list(plan["mde"]) == ["load[neutral]:20%", "load[review_notes]:20%"]


# --- the fixture ------------------------------------------------------------------------------------------------------

FIXTURE = (
    SUITE
    + """
def test_load(baseline, gate):
    found = baseline("load", arm="neutral", margin="20%")
    assert found.n == 6
    gate("load", found)
    gate("effect", found, at_most=3, blocking=False)
"""
)


def test_the_fixture_gives_an_estimate_and_a_verdict(saved):
    saved.write(FIXTURE)
    assert compared(saved, workers="2").ret == 0
    found = gates(saved)
    assert (found["load"]["verdict"], found["load"]["against"]) == ("pass", "baseline main")
    assert found["effect"]["threshold"] == {"op": "at_most", "bound": 3.0}
    assert compared(saved, more="5").ret == pytest.ExitCode.TESTS_FAILED
    assert gates(saved)["load"]["verdict"] == "fail"


def test_the_fixture_skips_where_the_baseline_is_being_saved_and_fails_where_there_is_none(noisy):
    noisy.write(FIXTURE)
    noisy.run("--proteus-save=main").assert_outcomes(passed=12, skipped=1)
    result = noisy.run()
    result.assert_outcomes(passed=12, errors=1)
    assert "--proteus-save=NAME saves one" in result.stdout.str()


def test_what_the_fixture_cannot_compare_says_what_to_write(saved):
    saved.write(
        SUITE
        + """
@pytest.mark.parametrize(("metric", "options", "told"), [
    ("load", {"margin": 1}, "name one with arm="),
    ("lod", {"margin": 1, "arm": "neutral"}, "did you mean 'load'?"),
    ("load", {"margin": 1, "arm": "nutral"}, "did you mean 'neutral'?"),
    ("load", {"margin": 0, "arm": "neutral"}, "must be above 0"),
    ("units:notes", {"margin": 1, "arm": "neutral"}, "declare direction="),
])
def test_told(baseline, metric, options, told):
    with pytest.raises(ValueError) as error:
        baseline(metric, **options)
    assert told in str(error.value)
"""
    )
    saved.run("--proteus-compare=main", "-k", "test_told").assert_outcomes(passed=5)
