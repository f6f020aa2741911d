"""The errors that cross rooms, classed once: who failed decides whether to retry and whether to grade."""

from __future__ import annotations


class ProteusError(Exception):
    """Base of every error that pytest-proteus raises on purpose."""


class ConfigurationError(ProteusError, ValueError):
    """Something a user wrote cannot work: one sentence that says what, where, and what to write instead."""


class RecordError(ProteusError, ValueError):
    """Artifacts on disk contradict each other in a way that no interrupted run can leave behind."""


class ApparatusError(ProteusError):
    """The machinery failed, not the subject: retried within bounds, then ``errored``; never graded."""


class StorageError(ApparatusError):
    """The artifacts cannot be written: once there is room, or a right to write, the run goes on where it stands."""


class PhaseTimeout(ProteusError):
    """A phase of the subject ran out of its wall-clock limit: the run ends as ``timeout`` and keeps what it has."""


#: How a run may end; see the ledger.
STATES = ("complete", "timeout", "abort", "skipped", "errored", "lost", "not_run")
