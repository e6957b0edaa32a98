"""The CPU time and memory that processes use."""

import os
import time
from functools import lru_cache
from pathlib import Path

_STATUS_BYTES = 1 << 14


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, user and system, in seconds."""
    return time.process_time()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, without memory that it shares with others."""
    return _resident(os.pread(_own_status(os.getpid()), _STATUS_BYTES, 0).decode())


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a process of this machine so far, in seconds; 0 if it has ended."""
    try:
        # proc(5): after the name in parentheses come state (field 3) … utime (14) and stime (15), in clock ticks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """Return the resident memory of a process of this machine in bytes, without shared memory; 0 if it has ended."""
    try:
        return _resident(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def resident_bytes_of_file(pid: int, name: str) -> int:
    """Return the resident bytes of the anonymous file `name` in a process of this machine; 0 if it has none."""
    resident, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        # proc(5): the line of a mapping has a range of addresses first and its file last; lines of its sizes follow.
        if "-" in line.split(" ", 1)[0]:
            counts = f" /memfd:{name} " in f"{line} "
        elif counts and line.startswith("Rss:"):
            resident += int(line.split()[1]) << 10
    return resident


def _resident(status: str) -> int:
    lines = status.splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssFile:")))


@lru_cache(maxsize=1)
def _own_status(pid: int) -> int:
    """Return the file descriptor of this process's status; it stays open in case file descriptors run out later."""
    return os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
