"""What a figure depends on besides the program: the machine, its libraries, and who else is using it."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from persia_cli.observe.usage import cpu_seconds

LIBRARIES = ("numpy", "numba", "torch", "fbgemm-gpu-cpu")
BUSY = 0.15
"""Cores in use by others from which on timings are told to be disturbed."""


@dataclass(frozen=True)
class Machine:
    """The machine and the libraries of this process."""

    cpu: str
    cores: int
    memory: int
    """Bytes of RAM."""
    huge_pages: str
    """When the kernel grants them: always, madvise or never; unknown where it does not say."""
    python: str
    libraries: dict[str, str]
    """Versions of those installed."""


def this_machine() -> Machine:
    """Describe this machine."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        huge_pages=_huge_pages(),
        python=platform.python_version(),
        libraries=_versions(),
    )


def available_bytes() -> int:
    """Memory that can be taken without pushing anything out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


class Neighbours:
    """How much of the machine others use while this process measures; counts from when it is made."""

    def __init__(self) -> None:
        self._start = perf_counter(), _busy_seconds(), cpu_seconds()

    def seconds(self) -> float:
        """Seconds since."""
        return perf_counter() - self._start[0]

    def cores(self) -> float:
        """Cores that other processes, or the host of a virtual machine, used on average since."""
        wall, busy, own = self._start
        passed = max(perf_counter() - wall, 1e-3)
        return max(0.0, (_busy_seconds() - busy - (cpu_seconds() - own)) / passed)


def _busy_seconds() -> float:
    """Seconds that all cores together were not idle, or taken by the host, since the machine started."""
    # proc(5): user nice system idle iowait irq softirq steal …, in clock ticks
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _huge_pages() -> str:
    try:
        words = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split()
    except OSError:
        return "unknown"
    return next((word.strip("[]") for word in words if word.startswith("[")), "unknown")


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
