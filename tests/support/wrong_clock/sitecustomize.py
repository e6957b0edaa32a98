"""A wrong wall clock, imported by Python at its start if this folder is in PYTHONPATH.

Linux has no namespace for it. Libraries that call the system directly get the right time.
"""

import os
import time

AHEAD_S = float(os.environ["PERSIA_TEST_AHEAD_S"])
_seconds, _nanoseconds = time.time, time.time_ns
time.time = lambda: _seconds() + AHEAD_S
time.time_ns = lambda: _nanoseconds() + int(AHEAD_S * 1e9)
