"""A cell is run again when what shapes it has changed, also where other axes than its own shape its harness or task."""

from __future__ import annotations

HARNESSES = """
import pytest
from pytest_proteus.harnesses.minimal import MinimalHarness

class Temp(MinimalHarness):
    name = "temp"
    def __init__(self, n):
        super().__init__()
        self.n = n
    def run_episode(self, spec):
        result = super().run_episode(spec)
        for number in range(self.n):
            (spec.root / "harness" / "notes" / f"more-{number}.md").write_text("x")
        return result

pytestmark = [pytest.mark.sweep(episodes=1, seed=[0], axes=["temp"]), pytest.mark.evaluator("units:notes")]

@pytest.fixture(scope="session", params=["cold", "hot"])
def temp(request): return request.param

@pytest.fixture(scope="session", params=["h"])
def harness(request, temp): return Temp({"cold": 1, "hot": %d}[temp])

def test_it(run): print(run.axes["temp"], run.last("units:notes"))
"""


def notes(suite) -> dict[str, float]:
    return {
        run["axes"]["temp"]: run["evaluators"]["units:notes"]["scores"][-1]
        for run in suite.proteus["sweeps"][0]["runs"]
    }


def test_a_harness_that_another_axis_shapes_is_part_of_each_cells_own_condition(suite):
    suite.write(HARNESSES % 3)
    suite.run().assert_outcomes(passed=2)
    before = notes(suite)
    assert before["hot"] == before["cold"] + 2
    suite.write(HARNESSES % 7)
    suite.run().assert_outcomes(passed=2)
    assert notes(suite) == {"cold": before["cold"], "hot": before["cold"] + 6}


def test_harnesses_of_one_label_have_one_set_of_surfaces(suite):
    suite.write(
        (HARNESSES % 3)
        .replace(
            "pytestmark",
            "class Other(Temp):\n    def surfaces(self): return super().surfaces()[:1]\n\npytestmark",
        )
        .replace('return Temp({"cold": 1, "hot": 3}[temp])', 'return (Temp if temp == "cold" else Other)(1)')
    )
    result = suite.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*harnesses with different surfaces are called 'temp'*"])
