"""The record of the request that a server carries out, so that a later process goes on with it where it was left."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import MemoryFileError, PoisonError
from persia_cli.store.memory.memory_file import LOAD

IDLE, LOOK_UP, UPDATE = 0, 1, 2
"""Kinds of requests; IDLE if none is carried out."""
KIND, STEP, DEATHS, AT_WORK = range(4)
"""Words of the record: kind and step of the request, how many processes have died at it, and 1 while one works at it.
"""


class BatchRequest(NamedTuple):
    """A look-up of training, or an update of one rank or of several whose gradients were summed."""

    kind: int
    step: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = f"rank{'' if len(self.ranks) == 1 else 's'} {', '.join(map(str, self.ranks))}"
        return f"the {'look-up' if self.kind == LOOK_UP else 'update'} of step {self.step} of {ranks}"


class ProgressRecord:
    """One request in a memory file, and the counters as they were before it; `array` returns arrays of the file.

    The request itself is not here: its senders repeat it. `counters` are those that a request changes in passing;
    they are set back before it continues, and each position is counted again.
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
        """The request that is not finished; None if there is none."""
        if self._head[KIND] == IDLE:
            return None
        return BatchRequest(int(self._head[KIND]), int(self._head[STEP]), tuple(np.flatnonzero(self._ranks).tolist()))

    def begin(self, request: BatchRequest, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Note a new request, given its keys of each group."""
        self._head[STEP], self._head[DEATHS], self._head[AT_WORK] = request.step, 0, 1
        self._ranks[:] = 0
        self._ranks[list(request.ranks)] = 1
        self._sums[:] = _sums(keys)
        for own, before in zip(self._counters, self._before, strict=True):
            before[:] = own
        self._head[KIND] = request.kind

    def go_on(self, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Set the counters back, for the request that has come again; raises MemoryFileError if it has other keys."""
        if (self._sums != _sums(keys)).any():
            raise MemoryFileError(f"{self.request} has come again with other keys: {LOAD}")
        for own, before in zip(self._counters, self._before, strict=True):
            own[:] = before
        self._head[AT_WORK] = 1

    def before(self, counter: NDArray[np.int64]) -> int:
        """Return what one of the counters was before the request; it must have one element."""
        [at] = [number for number, each in enumerate(self._counters) if each is counter]
        return int(self._before[at][0])

    def end(self) -> None:
        """Note that the request is done."""
        self._head[KIND] = IDLE

    def count_death(self, most: int | None) -> None:
        """Count the process that has died at the request; raises PoisonError if these are more than `most`."""
        request = self.request
        if request is None:
            return
        self._head[DEATHS] += self._head[AT_WORK]
        self._head[AT_WORK] = 0
        deaths = int(self._head[DEATHS])
        if most is not None and deaths > most:
            raise PoisonError(
                f"{deaths} processes have died at the same request, {request}: that batch is poison, so the job does "
                "not go on"
            )


def _sums(keys: Iterable[NDArray[np.uint64]]) -> list[int]:
    """Return number and exclusive or of the keys of each group."""
    return [int(value) for each in keys for value in (each.size, np.bitwise_xor.reduce(each) if each.size else 0)]
