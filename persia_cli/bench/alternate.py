"""Timing of several functions in turns in one process, so that a disturbance affects all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import thread_time

Clock = Callable[[], float]


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
    order = list(plan)
    for _ in range(rounds):
        for name in order:
            seconds[name].append(_seconds(plan[name], loops[name], clock))
        order.reverse()
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
