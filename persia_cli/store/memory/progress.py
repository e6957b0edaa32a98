"""The record of a server's present request, so that a later process can continue it at the same position."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import MemoryFileError, PoisonError
from persia_cli.store.memory.memory_file import LOAD

IDLE, LOOK_UP, UPDATE = 0, 1, 2
"""Kinds of requests; IDLE if there is none."""
KIND, STEP, DEATHS, AT_WORK = range(4)
"""Words of the record: kind and step of the request, number of processes that died at it, and 1 during work on it."""


class BatchRequest(NamedTuple):
    """A look-up of training, or an update of one rank or of several whose gradients were summed."""

    kind: int
    step: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = f"rank{'' if len(self.ranks) == 1 else 's'} {', '.join(map(str, self.ranks))}"
        return f"the {'look-up' if self.kind == LOOK_UP else 'update'} of step {self.step} of {ranks}"


class ProgressRecord:
    """One request in a memory file, and the counters before it; `array` returns arrays of the file.

    The request itself is not stored: its senders repeat it. `counters` are those that a request changes in passing.
    """

    def __init__(
        self,
        array: Callable[[int, DTypeLike], NDArray[Any]],
        ranks: int,
        groups: int,
        counters: Sequence[NDArray[np.int64]],
    ) -> None:
        self._head: NDArray[np.uint64] = array(8, np.uint64)
        self._ranks: NDArray[np.uint8] = array(ranks, np.uint8)
        self._sums: NDArray[np.uint64] = array(2 * groups, np.uint64)
        self._counters = counters
        self._before: list[NDArray[np.int64]] = [array(each.size, np.int64) for each in counters]

    @property
    def request(self) -> BatchRequest | None:
        """The unfinished request; None if there is none."""
        if self._head[KIND] == IDLE:
            return None
        return BatchRequest(int(self._head[KIND]), int(self._head[STEP]), tuple(np.flatnonzero(self._ranks).tolist()))

    def begin(self, request: BatchRequest, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Record a new request, given its keys of each group."""
        self._head[STEP], self._head[DEATHS], self._head[AT_WORK] = request.step, 0, 1
        # KIND is IDLE here, so a kill between these stores leaves no half a request.
        self._ranks[:] = 0
        self._ranks[list(request.ranks)] = 1
        self._sums[:] = _sums(keys)
        for own, before in zip(self._counters, self._before, strict=True):
            before[:] = own
        # Last, since a kill before this store leaves no request, and one after it leaves a complete record.
        self._head[KIND] = request.kind

    def go_on(self, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Reset the counters, for the repeated request; raise MemoryFileError if it has other keys."""
        # Each position is counted again when the request continues, so the counters restart from before it.
        if (self._sums != _sums(keys)).any():
            raise MemoryFileError(f"{self.request} was repeated with other keys: {LOAD}")
        for own, before in zip(self._counters, self._before, strict=True):
            own[:] = before
        self._head[AT_WORK] = 1

    def before(self, counter: NDArray[np.int64]) -> int:
        """Return one of the counters before the request; it must have one element."""
        [at] = [number for number, each in enumerate(self._counters) if each is counter]
        return int(self._before[at][0])

    def end(self) -> None:
        """Record that the request is done."""
        self._head[KIND] = IDLE

    def count_death(self, max_deaths: int | None) -> None:
        """Count the process that died at the request; raise PoisonError if these are more than `max_deaths`."""
        request = self.request
        if request is None:
            return
        # Only a death during work counts: a process that died while it waited for the repeat is not to blame.
        self._head[DEATHS] += self._head[AT_WORK]
        self._head[AT_WORK] = 0
        deaths = int(self._head[DEATHS])
        if max_deaths is not None and deaths > max_deaths:
            raise PoisonError(
                f"{deaths} processes have died at the same request, {request}: that batch is poison, so the job ends"
            )


def _sums(keys: Iterable[NDArray[np.uint64]]) -> list[int]:
    """Return number and exclusive or of the keys of each group."""
    return [int(value) for each in keys for value in (each.size, np.bitwise_xor.reduce(each) if each.size else 0)]
