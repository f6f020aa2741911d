"""Settings for the project's tests: examples of hypothesis take as long as they take, and are the same ones in CI."""

import os
import signal
import threading

import numpy as np  # noqa: F401  (suites run inside a test share its process, and numpy loads only once in a process)
from hypothesis import settings

# What starts the tests may have signals ignored or blocked, as a shell does for background jobs, and what they start
# inherits that; tests of Ctrl-C, Ctrl-Z and of what a killed process leaves need them as a terminal gives them.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
if threading.current_thread() is threading.main_thread():
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, *_SIGNALS):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number in _SIGNALS else signal.default_int_handler)

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
