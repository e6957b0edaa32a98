"""The usage of processes, against other sources."""

import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from persia_cli.observe.usage import cpu_seconds, cpu_seconds_of, resident_bytes, resident_bytes_of

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def test_cpu_time_grows_with_work_and_is_the_same_both_ways() -> None:
    start = cpu_seconds()
    deadline = time.monotonic() + 30.0
    while cpu_seconds() < start + 0.05:
        assert time.monotonic() < deadline
    least, found, most = cpu_seconds(), cpu_seconds_of(os.getpid()), cpu_seconds()
    assert least - 3 * TICK_S <= found <= most + TICK_S


def test_memory_is_what_is_in_ram_now() -> None:
    before = resident_bytes()
    taken = np.ones(2**26, np.uint8)
    grown = resident_bytes() - before
    assert taken.nbytes * 0.9 < grown < taken.nbytes * 2
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


def test_a_process_of_any_name_can_be_read() -> None:
    program = "open('/proc/self/comm', 'w').write('a) 1 (2 b'); sum(range(10**7)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        times = psutil.Process(child.pid).cpu_times()
        assert 0.0 < cpu_seconds_of(child.pid) == pytest.approx(times.user + times.system, abs=3 * TICK_S)
        assert resident_bytes_of(child.pid) > 2**20
        child.communicate("\n")
    assert child.returncode == 0
    assert (cpu_seconds_of(child.pid), resident_bytes_of(child.pid)) == (0.0, 0)
