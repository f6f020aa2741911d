"""Settings for the project's tests: examples of hypothesis take as long as they take, and are the same ones in CI."""

import os
import signal
import threading

import numpy as np  # noqa: F401  (suites run inside a test share its process, and numpy loads only once in a process)
from hypothesis import settings

# A shell starts background jobs with SIGINT ignored, and what they start inherits that; tests of Ctrl-C need it.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
