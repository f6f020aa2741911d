"""A process that ends at once when the process that started it does: a worker of pytest-xdist with its controller.

Otherwise it would go on for many seconds, its agent with it, and hold the sweep's folder against the next session.
"""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks.
INTERVAL = 0.25


def end_with_parent() -> None:
    """From now on, have this process killed soon after its parent has gone; supervised agents follow it.

    A thread looks, rather than the kernel's parent-death signal: that one fires when the parent's thread ends that
    forked us, and nobody promises that this is its main one.
    """
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os._exit(1)
