"""The result of a measurement, and the sizes of measurements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from persia_cli.bench.alternate import Timing


@dataclass(frozen=True)
class Scale:
    """The sizes of a measurement."""

    rounds: int
    at_least: float
    """Seconds of one timing."""
    rows: tuple[int, int]
    """Rows of the large and of the small table."""
    dims: tuple[int, ...]
    batch: int
    """Samples of a batch."""
    judged: bool
    """True if figures are compared with their targets."""


FULL = Scale(rounds=9, at_least=0.05, rows=(10_000_000, 1_000_000), dims=(16, 64, 128), batch=4096, judged=True)
QUICK = Scale(rounds=2, at_least=0.001, rows=(60_000, 20_000), dims=(16,), batch=256, judged=False)


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    name: str
    baseline: str
    """The name of what ours is compared with."""
    ours: float
    theirs: float
    unit: str
    ratio: float
    """Where more is better, our speed over the baseline's; where the target is an upper limit, our figure over it."""
    target: float | None
    """The value that `ratio` must reach, or must not exceed; None if the result is for information only."""
    target_is: Literal["at least", "at most"] = "at least"
    passed: bool | None = None
    """None if it was not compared with a target."""
    note: str = ""
    busy_cores: float = 0.0
    """Cores that other processes used during the measurement."""
    case: str = ""
    """The measurement it belongs to."""


Case = Callable[[Scale], Iterator[Result]]
"""A measurement that yields its results as they come."""


def faster(
    name: str,
    baseline: str,
    ours: Timing,
    theirs: Timing,
    units: float,
    unit: str,
    target: float | None = None,
    note: str = "",
) -> Result:
    """Return the result of two timings of calls that each process `units` of something."""
    ratio = theirs.median / ours.median
    return Result(name, baseline, units / ours.median, units / theirs.median, unit, ratio, target, note=note)


def within(name: str, limit: str, ours: float, most: float, unit: str, note: str = "") -> Result:
    """Return the result of a figure that must stay below a limit."""
    return Result(name, limit, ours, most, unit, ours / most, 1.0, "at most", note=note)


def judge(result: Result) -> bool | None:
    """Return True if a result meets its target; None without a target."""
    if result.target is None:
        return None
    return result.ratio >= result.target if result.target_is == "at least" else result.ratio <= result.target
