"""Memory that the processes of a server share: their counters, and the state that they need of each other.

Each process writes only its own part, and reads all. The memory is of no file system, so no full or cleaned disk
touches it; it ends with the last process. A part outlives its process, and the next one counts on in it.
"""

import logging
import mmap
import os
from collections.abc import Iterator
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

PART = 2**17
"""64-bit words of a part. Pages that are not written take no memory."""
USED, BEATS, OPEN, ENDING = range(4)
"""Indices of 64-bit words of a part: words in use, beats of the process, its connections + 1, if the server ends."""
FIRST = 8
"""First word of the counters: each has a word with the sizes of its name and values, then these."""


class ServerMemory:
    """The parts of all processes; the first is of the parent."""

    def __init__(self, parts: int, file: int | None = None) -> None:
        """Create the memory, or attach that of another process by its file."""
        if file is None:
            file = os.memfd_create("persia-serve", os.MFD_CLOEXEC)
            os.ftruncate(file, 8 * PART * parts)
        self._file, self.parts = file, parts
        self._words = np.frombuffer(mmap.mmap(file, 8 * PART * parts), np.int64).reshape(parts, PART)

    def __reduce__(self) -> Any:
        """Pass it to a process that is being spawned."""
        return _attached, (self.parts, DupFd(self._file))

    def close(self) -> None:
        """Close the file; the memory stays until the object ends."""
        os.close(self._file)

    @property
    def is_ending(self) -> bool:
        """True once the server is to end."""
        return bool(self._words[0, ENDING])

    def set_ending(self) -> None:
        """Note that the server is to end."""
        self._words[0, ENDING] = 1

    def beat(self, part: int) -> None:
        """Note that a process works."""
        self._words[part, BEATS] += 1

    def beats(self, part: int) -> int:
        """Return a number that grows while a process works."""
        return int(self._words[part, BEATS])

    def set_open(self, part: int, connections: int | None) -> None:
        """Note how many connections a process has; None if it accepts none."""
        self._words[part, OPEN] = 0 if connections is None else connections + 1

    def least_open(self) -> int:
        """Return the connections of the process that accepts connections and has the fewest."""
        found = self._words[1:, OPEN]
        return int(found[found > 0].min(initial=2**31)) - 1

    def counter(self, part: int, name: str, width: int = 1) -> NDArray[np.float64]:
        """Return the values of a counter in a part, where it is created unless it exists.

        One thread at a time may call this. A counter for which there is no space counts, and no other process sees it.
        """
        for known, values in self._counters(part):
            if known == name:
                return values
        words, text = self._words[part], name.encode()
        begin = int(words[USED]) or FIRST
        middle = begin + 1 + -(-len(text) // 8)
        if middle + width > PART:
            log.warning("there is no space to count %s", name)
            return np.zeros(width)
        words[begin] = len(text) << 32 | width
        words[begin + 1 : middle].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
        words[USED] = middle + width  # at last, since others read on
        new: NDArray[np.float64] = words[middle : middle + width].view(np.float64)
        return new

    def sums(self) -> dict[str, NDArray[np.float64]]:
        """Return the counters by name, summed over all parts."""
        found: dict[str, NDArray[np.float64]] = {}
        for part in range(self.parts):
            for name, values in self._counters(part):
                found[name] = found[name] + values if name in found else values.copy()
        return found

    def _counters(self, part: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
        words, begin = self._words[part], FIRST
        end = int(words[USED])
        while begin < end:
            size, width = divmod(int(words[begin]), 2**32)
            middle = begin + 1 + -(-size // 8)
            name = words[begin + 1 : middle].view(np.uint8)[:size].tobytes().decode()
            yield name, words[middle : middle + width].view(np.float64)
            begin = middle + width


def _attached(parts: int, file: Any) -> ServerMemory:
    return ServerMemory(parts, file.detach())
