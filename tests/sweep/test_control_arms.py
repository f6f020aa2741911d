"""Control arms: an identical copy, and the seeded harness at the same budget."""

from __future__ import annotations

import pytest

from pytest_proteus import NEUTRAL, Arm, review
from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sweep.arms import as_arm
from pytest_proteus.sweep.condition import arm_condition


def test_a_copy_has_the_condition_of_its_arm_and_a_label_of_its_own():
    arm = as_arm(review("notes"))
    copy = arm.aa()
    assert (copy.label, copy.control) == ("review_notes_aa", ("aa", "review_notes"))
    assert arm_condition(copy, None) == arm_condition(arm, None)


def test_a_frozen_arm_has_a_condition_of_its_own():
    frozen = Arm("base").frozen()
    assert (frozen.label, frozen.control, frozen.evolves) == ("base_frozen", ("frozen", "base"), False)
    assert arm_condition(frozen, None) != arm_condition(Arm("base"), None)


@pytest.mark.parametrize(
    ("spec", "label", "evolves"),
    [
        ("aa:neutral", "neutral_aa", True),
        ("frozen:review:notes", "review_notes_frozen", False),
        ("aa:frozen:neutral", "neutral_frozen_aa", False),
    ],
)
def test_controls_have_spellings_for_the_command_line(spec, label, evolves):
    arm = as_arm(spec)
    assert (arm.label, arm.evolves) == (label, evolves)


def test_a_control_of_nothing_is_no_arm():
    with pytest.raises(ConfigurationError, match="frozen:<arm>"):
        as_arm("frozen:")
    with pytest.raises(ConfigurationError, match="reviw"):
        as_arm("aa:reviw:notes")


def test_a_disposition_becomes_an_arm_that_has_controls():
    assert as_arm(NEUTRAL).aa().disposition == NEUTRAL
