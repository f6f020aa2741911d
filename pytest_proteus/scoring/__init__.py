"""What a finished attempt at a task is worth: evidence and gate, the route that led there, a judge's score.

Compares no variants; that is ``measure.ranking``. Knows nothing of pytest.
"""

from __future__ import annotations

#: Name of the evaluator that the test command of a task becomes.
TESTS = "tests"
