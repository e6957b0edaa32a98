"""The processor of this machine, and the CPU time and memory that processes use."""

import os
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

_STATUS_BYTES = 1 << 14


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, user and system, in seconds."""
    return time.process_time()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, without memory that it shares with others."""
    return _resident(os.pread(_status_file(os.getpid()), _STATUS_BYTES, 0).decode())


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
def _status_file(pid: int) -> int:
    """Return the file descriptor of this process's status; it stays open in case file descriptors run out later."""
    return os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)


FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Linux names of instruction sets, of x86-64 and of ARM, that persia or torch use."""
BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Features that multiply bfloat16 directly; without any of them it takes several times as long as float32."""
ARM = "0x41"
CORES = {
    "0xd08": "Cortex-A72 (Graviton)",
    "0xd0c": "Neoverse N1 (Graviton2)",
    "0xd40": "Neoverse V1 (Graviton3)",
    "0xd49": "Neoverse N2",
    "0xd4f": "Neoverse V2 (Graviton4)",
}
"""Names of ARM cores by "CPU part", since Linux shows only their numbers."""
UNKNOWN = "unknown processor"


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor; `features` is the subset of FEATURES that it has."""

    model: str
    features: tuple[str, ...]

    @property
    def has_bfloat16(self) -> bool:
        """True if it computes with bfloat16 directly, or if its features are not known."""
        return not self.features or not BFLOAT16.isdisjoint(self.features)

    def slow_precision(self, precision: str) -> str | None:
        """Return a sentence if the arithmetic of a network is slower in this `train.precision` than in float32."""
        if precision == "bfloat16" and not self.has_bfloat16:
            return (
                f"train.precision=bfloat16 is 2 to 3 times slower than float32 on {self.model}, which has no bfloat16 "
                "instructions: use float32"
            )
        return None


def read_processor(cpuinfo: str) -> Processor:
    """Return the processor described by the text of /proc/cpuinfo, the first if there are several kinds."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name", "")
    if not model and fields.get("CPU implementer") == ARM:
        part = fields.get("CPU part", "")
        model = f"ARM {CORES.get(part, f'core {part}')}"
    flags = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    return Processor(model or UNKNOWN, tuple(name for name in FEATURES if name in flags))


@cache
def this_processor() -> Processor:
    """Return the processor of this machine."""
    try:
        return read_processor(Path("/proc/cpuinfo").read_text())
    except OSError:
        return Processor(UNKNOWN, ())
