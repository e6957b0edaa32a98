"""The results of checks and measurements on a GPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["PASS", "FAIL", "INFO", "LEFT OUT"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    verdict: Verdict
    figures: str

    def line(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.verdict:8}  {self.name}: {self.figures}"


@dataclass(frozen=True, slots=True)
class Speed:
    """A network measured with its tables on embedding servers, beside baselines; samples per second."""

    network: str
    dim: int
    batch: int
    precision: str
    persia: float
    torch: float | None
    """Speed with all on the GPU, the tables as one sparse EmbeddingBag; None if they do not fit."""
    dense: float
    """Speed of the dense network alone, fed from the GPU's memory."""
    gpu_busy: dict[str, float]
    """Fraction of the time in which the GPU computed, for each competitor."""
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds per step of each replica's work and waiting, while the GPU also works."""
    phases: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the parts of one rank's step, each finished before the next begins."""
    limit: str = ""

    def line(self) -> str:
        """Return the speeds as a line of text."""
        torch = "no room" if self.torch is None else f"{self.torch:,.0f}"
        busy = ", ".join(f"{name} {share:.0%}" for name, share in self.gpu_busy.items()) or "unknown"
        return (
            f"SPEED     {self.network} dim {self.dim} batch {self.batch} {self.precision}: "
            f"{self.persia:,.0f} samples/s; EmbeddingBag on the GPU {torch}; dense network alone "
            f"{self.dense:,.0f}; GPU busy: {busy}"
        )


Left = Callable[[], float]
"""A function that returns the seconds left for a part of the check."""
Findings = Iterator[Finding | Speed]


def judged(name: str, passed: bool, figures: str) -> Finding:
    """Return a finding that passes or fails."""
    return Finding(name, "PASS" if passed else "FAIL", figures)


def left_out(name: str) -> Finding:
    """Return the finding of a check that was left out for lack of time."""
    return Finding(name, "LEFT OUT", "there was no time left for it")


def failed(name: str, error: Exception) -> Finding:
    """Return the finding of a check that raised an error."""
    words = next((line for line in str(error).splitlines() if line.strip()), "")
    return Finding(name, "FAIL", f"{type(error).__name__}: {words}"[:300])
