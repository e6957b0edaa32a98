"""Memory that the processes of a server share: their counters, and the state that they need of each other.

Each process writes only its own part, and reads all. The memory is of no file system, so no full or cleaned disk
touches it; it ends with the last process. A part outlives its process, and the next one counts on in it.
"""

import logging
import mmap
import os
import time
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

COUNTERS, NAME, VALUES = 4096, 512, 15
"""Counters of a part, bytes of a name, and values of a counter: those of a histogram."""
_PART = np.dtype(
    [
        ("beats", np.int64),
        ("open", np.int64),  # connections + 1, or 0
        ("is_ending", np.int64),
        ("prepared", np.int64),  # number of the prepared version that is served, or is to be
        ("version", np.int64),  # its version
        ("current_at", np.float64),  # monotonic time at which it was last the current one
        ("used", np.int64),  # counters
        ("names", f"S{NAME}", COUNTERS),
        ("values", np.float64, (COUNTERS, VALUES)),
    ]
)
"""Part of a process. Pages that are not written take no memory."""


class ServerMemory:
    """The parts of all processes; the first is of the parent, and the last of the follower if there is one."""

    def __init__(self, parts: int, file: int | None = None) -> None:
        """Create the memory, or attach that of another process by its file."""
        size = _PART.itemsize * parts
        if file is None:
            file = os.memfd_create("persia-serve", os.MFD_CLOEXEC)
            os.ftruncate(file, size)
        self._file, self.parts = file, parts
        self._all = np.frombuffer(mmap.mmap(file, size), _PART)
        self.beats: NDArray[np.int64] = self._all["beats"]
        """[parts]: numbers that grow while a process works."""

    def __reduce__(self) -> Any:
        """Pass it to a process that is being spawned."""
        return _attached, (self.parts, DupFd(self._file))

    def close(self) -> None:
        """Close the file; the memory stays until the object ends."""
        os.close(self._file)

    @property
    def is_ending(self) -> bool:
        """True once the server is to end."""
        return bool(self._all["is_ending"][0])

    def set_ending(self) -> None:
        """Note that the server is to end."""
        self._all["is_ending"][0] = 1

    def serve_version(self, part: int, prepared: int, version: int) -> None:
        """Note the version that a worker serves, or that the follower wants to be served."""
        self._all["version"][part] = version
        self._all["prepared"][part] = prepared  # at last, since others read on

    def wanted(self) -> int:
        """Return the number of the prepared version that workers are to serve, 0 if there is none."""
        return int(self._all["prepared"][-1])

    def prepared(self, part: int) -> int:
        """Return the number of the prepared version that a worker serves."""
        return int(self._all["prepared"][part])

    def served_version(self) -> int:
        """Return the oldest version that a worker serves, 0 if none does."""
        versions = self._all["version"][self._all["open"] > 0]
        return int(versions.min()) if versions.size else 0

    def confirm(self, part: int) -> None:
        """Note that the version to serve is the current one now."""
        self._all["current_at"][part] = time.monotonic()

    def lag_s(self) -> float | None:
        """Return for how many seconds the version to serve has not been the current one; None without a follower."""
        current_at = float(self._all["current_at"][-1])
        return max(0.0, time.monotonic() - current_at) if current_at else None

    def set_open(self, part: int, connections: int | None) -> None:
        """Note how many connections a process has; None if it accepts none."""
        self._all["open"][part] = 0 if connections is None else connections + 1

    def least_open(self) -> int:
        """Return the connections of the process that accepts connections and has the fewest."""
        open_there = self._all["open"]
        return int(open_there[open_there > 0].min(initial=2**31)) - 1

    def counter(self, part: int, name: str) -> NDArray[np.float64]:
        """Return the values [VALUES] of a counter in a part, where it is created unless it exists.

        One thread at a time may call this. A counter for which there is no space counts, and no other process sees it.
        """
        memory, text = self._all[part], name.encode()
        used, values = int(memory["used"]), memory["values"]
        [numbers] = np.nonzero(memory["names"][:used] == text)
        if not numbers.size and (used == COUNTERS or len(text) > NAME):
            log.warning("there is no space to count %s", name)
            return np.zeros(VALUES)
        if not numbers.size:
            memory["names"][used] = text
            memory["used"] = used + 1  # at last, since others read on
        number = int(numbers[0]) if numbers.size else used
        counter: NDArray[np.float64] = values[number]
        return counter

    def sums(self) -> dict[str, NDArray[np.float64]]:
        """Return the counters by name, summed over all parts."""
        sums: dict[str, NDArray[np.float64]] = {}
        for part in self._all:
            used = int(part["used"])
            for name, values in zip(part["names"][:used].tolist(), part["values"][:used], strict=True):
                sums[name.decode()] = sums.get(name.decode(), 0.0) + values
        return sums


def _attached(parts: int, file: Any) -> ServerMemory:
    return ServerMemory(parts, file.detach())
