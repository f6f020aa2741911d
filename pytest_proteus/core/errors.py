"""The errors that cross rooms, classed once: who failed decides whether to retry and whether to grade."""

from __future__ import annotations

import errno


class ProteusError(Exception):
    """Base of every error that pytest-proteus raises on purpose."""


class ConfigurationError(ProteusError, ValueError):
    """Something a user wrote cannot work: one sentence that says what, where, and what to write instead."""


class RecordError(ProteusError, ValueError):
    """Artifacts on disk contradict each other in a way that no interrupted run can leave behind."""


class ApparatusError(ProteusError):
    """The machinery failed, not the subject: retried within bounds, then ``errored``; never graded."""


class StorageError(ApparatusError):
    """The run's files cannot be written: once there is room, or a right to write, the run goes on where it stands."""


class PhaseTimeout(ProteusError):
    """A phase of the subject ran out of its wall-clock limit: the run ends as ``timeout`` and keeps what it has."""


def disk_error(error: BaseException | None) -> OSError | None:
    """The error of a disk that is full, over quota or read-only among an exception and what it was raised from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


#: How a run may end; see the ledger.
STATES = ("complete", "timeout", "abort", "skipped", "errored", "lost", "not_run")
#: States whose records count: the subject was measured, whatever became of it.
GRADED = ("complete", "timeout", "abort")
