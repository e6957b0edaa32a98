"""What processes use of the machine."""

import os
import resource
from pathlib import Path


def cpu_seconds() -> float:
    """CPU time of this process so far, user and system, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    """Memory of this process that is in RAM now, in bytes; what it shares with others is not counted."""
    return resident_bytes_of(os.getpid())


def cpu_seconds_of(pid: int) -> float:
    """CPU time of a process of this machine so far, in seconds; 0 if it has ended."""
    try:
        # proc(5): after the name in parentheses come state (field 3) … utime (14) and stime (15), in clock ticks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """Memory of a process of this machine that is in RAM now and its own, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssFile:")))
