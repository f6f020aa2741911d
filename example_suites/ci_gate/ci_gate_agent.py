"""An offline harness that works by its playbook, so that a change of the playbook changes what it does.

How often it looks around varies from run to run, as it does with a real agent.
"""

import random

from pytest_proteus.core import Surface
from pytest_proteus.harnesses.minimal import MinimalHarness

PLAYBOOK = "playbook.md"


def follow(playbook, seed):
    """A policy that takes each step of the playbook once an episode: lines `- note: …`, `- tool: …`, `- look: …`."""
    steps = [line[2:].split(":")[0] for line in playbook.splitlines() if line.startswith("- ")]

    def policy(phase, prompt, episode, rng):
        if phase != "act":
            return []
        mood = random.Random(f"{playbook}:{seed}:{episode}")
        looks = ["look"] * (mood.randint(0, 3) + mood.randint(0, 3))
        return [action(step, f"{step}_e{episode}_{number}") for number, step in enumerate(steps + looks)]

    return policy


def action(step, stem):
    surface = {"note": "notes", "tool": "tools"}.get(step)
    return (f"write_{step}" if surface else "read_state", surface, stem)


class PlaybookHarness(MinimalHarness):
    """The minimal harness with a playbook among its surfaces."""

    name = "playbook"
    deterministic = False

    def surfaces(self):
        return [*super().surfaces(), Surface("playbook", PLAYBOOK)]

    def seed(self, harness_root, rng_seed=0):
        super().seed(harness_root, rng_seed)
        (harness_root / PLAYBOOK).write_text("- look: around\n", encoding="utf-8")

    def run_episode(self, spec):
        self.policy = follow((spec.harness_root / PLAYBOOK).read_text(encoding="utf-8"), spec.seed)
        return super().run_episode(spec)
