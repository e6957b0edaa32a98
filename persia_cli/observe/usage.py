"""What this process uses of the machine."""

import resource
from pathlib import Path


def cpu_seconds() -> float:
    """CPU time of this process so far, user and system, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    """Memory of this process that is in RAM now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
