"""How fast a save goes on beside training: at a small share of the processors' time while requests come."""

import os
import time
from collections.abc import Callable

from persia_cli.config.schema import Cluster

SHARE = 0.06
"""Fraction of the time of all processors that the saves of all embedding servers take together from training."""
WHOLE = 2.5
"""Processor time of rows from memory to disk, as a multiple of the time of taking them; an estimate."""
QUIET_S = 0.5
"""Seconds without a request after which nobody trains, and a save goes as fast as it can."""


def servers_beside(cluster: Cluster, index: int) -> int:
    """Return how many embedding servers share the processors of one: all, or those that are pinned to the same."""
    pins = [cluster.pin.of("embedding-server", each) for each in range(cluster.embedding_servers)]
    return pins.count(pins[index])


class SavePace:
    """Says when the next rows of a save are due; for the thread that takes them."""

    def __init__(self, servers: int, awaited: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a save; `servers` share the processors, and one that is `awaited` goes as fast as it can."""
        self._share = SHARE * len(os.sched_getaffinity(0)) / servers
        self._awaited, self._clock = awaited, clock
        self._served = self._next = clock()

    def hurry(self) -> None:
        """Take note that somebody waits for the save after all."""
        self._awaited = True

    def note_request(self) -> None:
        """Note that training goes on."""
        self._served = self._clock()

    def note_taken(self, processor_s: float) -> None:
        """Note that rows were taken, and the processor time of that."""
        self._next = self._clock() + processor_s * WHOLE / self._share

    def due_in_s(self) -> float:
        """Return the seconds until the next rows are due, if nothing else happens."""
        if self._awaited:
            return 0.0
        return max(0.0, min(self._next, self._served + QUIET_S) - self._clock())
