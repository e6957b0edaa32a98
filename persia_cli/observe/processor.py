"""The processor of this machine: its name, and the features that matter for the speed of persia."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
