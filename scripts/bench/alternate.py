"""Timing of several functions, alternating in one process, and the sizes of such measurements."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import thread_time

from persia_cli.bench.result import Result, Side, with_ratios
from persia_cli.bench.rounds import alternating

Clock = Callable[[], float]


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
    quick: bool = False
    """True if results have no meaning, as everything is small."""


FULL = Scale(rounds=9, at_least=0.05, rows=(10_000_000, 1_000_000), dims=(16, 64, 128), batch=4096)
QUICK = Scale(rounds=2, at_least=0.001, rows=(60_000, 20_000), dims=(16,), batch=256, quick=True)

Case = Callable[[Scale], Iterator[Result]]
"""A measurement that yields its results as they come."""


@dataclass(frozen=True)
class Turn:
    """A function to time."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None
    """Runs before each turn, and is not timed."""
    loops: int | None = None
    """Calls of one turn; None: as many as fill the wanted time."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call over all rounds."""

    median: float
    least: float
    most: float
    loops: int
    """Calls of one round."""


def alternate(
    turns: Mapping[str, Turn | Callable[[], object]],
    rounds: int = 7,
    at_least: float = 0.05,
    clock: Clock = thread_time,
) -> dict[str, Timing]:
    """Time every turn `rounds` times, in an order that is reversed each round; return seconds per call by name.

    A turn is called until `at_least` seconds have passed, by the time of a second call; the first call is discarded, as
    it pays for compiling and cold memory. The clock is this thread's processor time, to which other processes do not
    add; pass `perf_counter` for work of several threads. Raises ValueError for no rounds.
    """
    if rounds < 1:
        raise ValueError("there must be at least one round")
    plan = {name: turn if isinstance(turn, Turn) else Turn(turn) for name, turn in turns.items()}
    loops = {name: turn.loops or _loops(turn, at_least, clock) for name, turn in plan.items()}
    seconds: dict[str, list[float]] = {name: [] for name in plan}
    for _, name in alternating(plan, rounds):
        seconds[name].append(_seconds(plan[name], loops[name], clock))
    return {name: Timing(median(all_), min(all_), max(all_), loops[name]) for name, all_ in seconds.items()}


def _loops(turn: Turn, at_least: float, clock: Clock) -> int:
    _seconds(turn, 1, clock)
    return max(1, round(at_least / max(_seconds(turn, 1, clock), 1e-9)))


def _seconds(turn: Turn, loops: int, clock: Clock) -> float:
    """Return the seconds per call of one turn."""
    if turn.prepare is not None:
        turn.prepare()
    call = turn.call
    start = clock()
    for _ in range(loops):
        call()
    return (clock() - start) / loops


def compared(name: str, timed: Mapping[str, Timing], units: float, unit: str, note: str = "") -> Result:
    """Return the result of timings of calls that each process `units` of something; the first is ours."""
    sides = [Side(who, units / each.median, units / each.most, units / each.least) for who, each in timed.items()]
    return Result("", name, unit, with_ratios(sides), note=note)


def single(name: str, unit: str, figures: Mapping[str, float], note: str = "") -> Result:
    """Return the result of numbers that were measured once; the first is ours."""
    sides = [Side(who, figure, figure, figure) for who, figure in figures.items()]
    return Result("", name, unit, with_ratios(sides), note=note)
