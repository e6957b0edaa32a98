"""The result of a benchmark: competitors that were measured alternately."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

OURS = "persia"


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor and its result: median, minimum and maximum over all rounds."""

    name: str
    median: float
    least: float
    most: float
    ratios: dict[str, float] = field(default_factory=dict)
    """Ratios of its result to those of others, by their names."""
    rates: list[float] = field(default_factory=list)
    """Its result of each round."""
    cpu_ms: dict[str, float] = field(default_factory=dict)
    """CPU milliseconds per step of each of its processes."""
    busy_cores: float = 0.0
    """Most cores that other processes used during its turns."""
    gpu_busy: float | None = None
    """Fraction of its turns in which the GPU computed; None without a GPU, or if the driver does not report it."""
    staleness: float = 0.0
    """Mean staleness of its look-ups."""
    auc: float | None = None
    """Mean over its turns, where they end with an evaluation."""
    auc_spread: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of work, or of waiting, that one replica repeats in each step."""

    replica: str
    stage: str
    ms: float
    """Milliseconds per step."""
    aside: bool
    """True if it is waited for while other work is done."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The bytes that go from one role to another."""

    hop: str
    bytes_per_sample: float


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement of several competitors; ours comes first."""

    case: str
    """The part of the benchmark that it belongs to."""
    name: str
    unit: str
    sides: list[Side]
    rounds: int = 0
    steps: int = 0
    """Steps measured in a turn."""
    note: str = ""
    stages: list[Stage] = field(default_factory=list)
    """Stages of a last turn of ours, which is traced and not measured."""
    hops: list[Hop] = field(default_factory=list)
    bottleneck: str = ""

    @property
    def busy_cores(self) -> float:
        """Most cores that other processes used during any turn."""
        return max(side.busy_cores for side in self.sides)


def with_ratios(sides: Sequence[Side]) -> list[Side]:
    """Return the sides, the first with its ratios to all others."""
    ours, *others = sides
    return [replace(ours, ratios={side.name: ours.median / side.median for side in others}), *others]
