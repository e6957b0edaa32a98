"""The conditions of a measurement: the machine, its libraries, the load by other processes, and that of a GPU."""

import os
import platform
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Self

from persia_cli.observe.machine import cpu_seconds, this_processor

LIBRARIES = ("numpy", "numba", "torch", "fbgemm-gpu-cpu", "torchrec")
BUSY = 0.15
"""Cores used by other processes from which on a timing is reported as disturbed."""
GPU_LOAD = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
EVERY_MS = 100


@dataclass(frozen=True)
class Machine:
    """The machine and the libraries of this process."""

    cpu: str
    cores: int
    memory: int
    """Bytes of RAM."""
    huge_pages: str
    """Kernel setting for huge pages: always, madvise or never; unknown if it cannot be read."""
    python: str
    libraries: dict[str, str]
    """Versions of the installed ones."""
    features: tuple[str, ...] = ()
    """Instruction sets of the processor that matter here, by their names in Linux."""

    @property
    def processor(self) -> str:
        """The processor, its cores and its features, in one line."""
        return f"{self.cpu}, {self.cores} cores, {' '.join(self.features) or 'features unknown'}"


def this_machine() -> Machine:
    """Describe this machine."""
    return Machine(
        cpu=this_processor().model,
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        huge_pages=_huge_pages(),
        python=platform.python_version(),
        libraries=_versions(),
        features=this_processor().features,
    )


def available_bytes() -> int:
    """Return the bytes of memory that are free or can be freed without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


class Neighbours:
    """Measures the cores that other processes use, from its creation on.

    `used` returns the CPU seconds so far of the processes that are measured themselves.
    """

    def __init__(self, used: Callable[[], float] = cpu_seconds) -> None:
        self._used = used
        self._start = perf_counter(), _busy_seconds(), used()

    def seconds(self) -> float:
        """Return the seconds since its creation."""
        return perf_counter() - self._start[0]

    def cores(self) -> float:
        """Return the mean number of cores that other processes, or the host of a virtual machine, used since."""
        wall, busy, used = self._start
        passed = max(perf_counter() - wall, 1e-3)
        return max(0.0, (_busy_seconds() - busy - (self._used() - used)) / passed)


class GpuUsage:
    """Samples one GPU's load by a process, which a context manager ends; the load is unknown without `nvidia-smi`."""

    def __init__(self, gpu: str, command: tuple[str, ...] = GPU_LOAD) -> None:
        """Watch the GPU with the UUID `gpu`; `command` prints its load in percent, line by line."""
        self._command = (*command, f"--id={gpu}", f"--loop-ms={EVERY_MS}")
        self._seen: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return self
        self._thread = threading.Thread(target=self._read, name="gpu-usage")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._thread.join()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def since(self, begin: float) -> float | None:
        """Return the mean fraction of the time since `begin` (perf_counter) in which a kernel ran; None if unknown."""
        fractions = [fraction for at, fraction in list(self._seen) if at >= begin]
        return fmean(fractions) if fractions else None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A GPU that does not report its load is `[N/A]`.
            if line.strip().isdigit():
                self._seen.append((perf_counter(), int(line) / 100.0))


def _busy_seconds() -> float:
    """Return the seconds that all cores together were busy, or taken by the host, since the machine started."""
    # proc(5): user nice system idle iowait irq softirq steal …, in clock ticks
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def _huge_pages() -> str:
    try:
        settings = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split()
    except OSError:
        return "unknown"
    return next((setting.strip("[]") for setting in settings if setting.startswith("[")), "unknown")


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
