"""A project that has fixtures of the plugin's names for other things is left alone."""

from __future__ import annotations


def test_a_fixture_called_run_that_a_suite_defines_makes_no_sweep(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def run():
            return 1

        @pytest.fixture
        def sweep(run):
            return run + 1

        def test_it(run, sweep):
            assert (run, sweep) == (1, 2)
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*proteus*cells*")
    assert not (pytester.path / ".proteus").exists()


def test_a_fixture_that_builds_on_the_plugins_run_is_part_of_the_sweep(pytester):
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.sweep(episodes=1, seed=[0, 1])

        @pytest.fixture
        def run(run):
            return run

        def test_it(run):
            assert run.episodes_complete == 1
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
