"""Imported by Python at its start where this folder is in PYTHONPATH: a clock of the day that is wrong.

Linux has no namespace for it. What libraries ask the system for by themselves is right.
"""

import os
import time

AHEAD_S = float(os.environ["PERSIA_TEST_AHEAD_S"])
_seconds, _nanoseconds = time.time, time.time_ns
time.time = lambda: _seconds() + AHEAD_S
time.time_ns = lambda: _nanoseconds() + int(AHEAD_S * 1e9)
