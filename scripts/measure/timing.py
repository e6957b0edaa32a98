"""Timing of functions that alternate in one process, and the results of such measurements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time
from typing import NamedTuple

from persia_cli.bench.result import Result, Side, with_ratios
from persia_cli.bench.rounds import alternating

Clock = Callable[[], float]


@dataclass(frozen=True)
class Turn:
    """A function to time."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None
    """Runs before each turn, and is not timed."""
    loops: int | None = None
    """Calls of one turn; None: as many as fill the wanted time."""


class Timing(NamedTuple):
    """Seconds per call over all rounds."""

    median: float
    least: float
    most: float


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
    return {name: Timing(median(each), min(each), max(each)) for name, each in seconds.items()}


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
    sides = [Side(side, units / each.median, units / each.most, units / each.least) for side, each in timed.items()]
    return Result("", name, unit, with_ratios(sides), note=note)


def measured(name: str, unit: str, values: Mapping[str, Sequence[float]], note: str = "") -> Result:
    """Return the result of values by side, one for each round; the first side is ours."""
    sides = [Side(side, median(each), min(each), max(each), rates=[*each]) for side, each in values.items()]
    return Result("", name, unit, with_ratios(sides), note=note)
