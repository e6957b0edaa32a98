"""What a measurement says, and how large it is made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from persia_cli.bench.alternate import Timing


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    at_least: float
    """Seconds of one timing."""
    rows: tuple[int, int]
    """Rows of the large and of the small table."""
    dims: tuple[int, ...]
    batch: int
    """Samples of a batch."""
    judged: bool
    """Whether figures are held against their bars."""


FULL = Scale(rounds=9, at_least=0.05, rows=(10_000_000, 1_000_000), dims=(16, 64, 128), batch=4096, judged=True)
QUICK = Scale(rounds=2, at_least=0.001, rows=(60_000, 20_000), dims=(16,), batch=256, judged=False)


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    name: str
    rival: str
    """What it is held against."""
    ours: float
    theirs: float
    unit: str
    ratio: float
    """How many times better we are, where more is better; ours divided by the rival's, where the bar is a limit."""
    bar: float | None
    """What `ratio` must reach, or must not exceed; None: for information."""
    bar_is: Literal["at least", "at most"] = "at least"
    passed: bool | None = None
    """None: not judged."""
    note: str = ""
    busy_cores: float = 0.0
    """Cores that others used meanwhile."""
    case: str = ""
    """The measurement it belongs to."""


Case = Callable[[Scale], Iterator[Result]]
"""A measurement that yields its results as they come."""


def faster(
    name: str,
    rival: str,
    ours: Timing,
    theirs: Timing,
    units: float,
    unit: str,
    bar: float | None = None,
    note: str = "",
) -> Result:
    """Return the result of two timings of calls that each get through `units` of something."""
    ratio = theirs.median / ours.median
    return Result(name, rival, units / ours.median, units / theirs.median, unit, ratio, bar, note=note)


def within(name: str, limit: str, ours: float, most: float, unit: str, note: str = "") -> Result:
    """Return the result of a figure that must stay below a limit."""
    return Result(name, limit, ours, most, unit, ours / most, 1.0, "at most", note=note)


def judge(result: Result) -> bool | None:
    """Whether a result meets its bar; None without one."""
    if result.bar is None:
        return None
    return result.ratio >= result.bar if result.bar_is == "at least" else result.ratio <= result.bar
