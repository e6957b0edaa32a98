"""The request that a server works on right now, copied into its memory file, so that a later process can finish it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import MemoryFileError
from persia_cli.kernels import check
from persia_cli.kernels.memory import CACHE_LINE
from persia_cli.store.memory_file import LOAD, MemoryFile

FREE, LOOK_UP, UPDATE = 0, 1, 2
"""States of the inbox: nothing is under way, or a look-up or an update that is in it whole."""
STATE, SIZE, SUM, END = range(4)
"""Words of the head: the state, bytes of the description (0 while a request is copied), sum over the request, bytes of
its arrays."""
DESCRIPTION_BYTES = 8 << 20
ARRAY_BYTES = 16 << 30
"""Address space for the arrays of one request; memory is taken as it is written."""


class Part(msgspec.Struct, frozen=True):
    """What a request has of one feature group."""

    group: int
    keys: int
    dtype: str = ""
    """Of the gradients; empty for a look-up."""
    columns: int = 0
    """Columns of the gradients."""


class KeptRequest(msgspec.Struct, frozen=True):
    """A look-up, or an update of one rank or of several whose gradients were summed."""

    step: int
    ranks: tuple[int, ...]
    counted: bool
    """False for a repeated look-up."""
    parts: tuple[Part, ...]
    reductions: int = 0
    """Of an update: how often evaluations had reduced the learning rate before its step."""


class Before(NamedTuple):
    """Counts before the request that is under way."""

    hits: NDArray[np.int64]
    """int64[tables]."""
    gradients: NDArray[np.int64]
    """int64[2, tables]: missing and refused."""
    look_ups: NDArray[np.int64]
    """int64[groups]: numbers of the last look-ups."""


_DECODER = msgspec.json.Decoder(KeptRequest)


class Arrays(NamedTuple):
    """The arrays of one part."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    last: NDArray[Any]
    """Gradients of an update, [keys, columns]; of a look-up uint64[keys], where it writes positions of new keys."""


class Inbox:
    """One request in a memory file: a description, and its arrays one after the other."""

    def __init__(self, memory: MemoryFile) -> None:
        self._head = memory.array(8, np.uint64)
        self._description = memory.array(DESCRIPTION_BYTES, np.uint8)
        self._bytes = memory.array(ARRAY_BYTES, np.uint8)

    @property
    def state(self) -> int:
        """FREE, LOOK_UP or UPDATE."""
        return int(self._head[STATE])

    def put(
        self, request: KeptRequest, groups: Sequence[tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[Any] | None]]
    ) -> list[Arrays]:
        """Copy a request, whose arrays are keys, tables and gradients (None for a look-up) of each part; not begun yet.

        Raises MemoryError if it is larger than the inbox.
        """
        self._head[SIZE] = 0
        description = msgspec.json.encode(request)
        laid_out, end = self._arrays(request)
        if end > self._bytes.size or len(description) > DESCRIPTION_BYTES:
            raise MemoryError(f"a request of {end:,} bytes")
        self._description[: len(description)] = np.frombuffer(description, np.uint8)
        self._head[END] = end
        total = np.uint64(0)
        for arrays, (keys, tables, gradients) in zip(laid_out, groups, strict=True):
            for source, target in ((keys, arrays.keys), (tables, arrays.tables), (gradients, arrays.last)):
                if source is not None:
                    total = _copied(source, target, total)
        self._head[SUM] = total
        self._head[SIZE] = len(description)
        return laid_out

    def begin(self, state: int) -> None:
        """Say that the request is whole, and that its work begins."""
        self._head[STATE] = state

    def end(self) -> None:
        """Say that the request is done."""
        self._head[STATE] = FREE

    def under_way(self) -> tuple[KeptRequest, list[Arrays]]:
        """Return the request that an earlier process did not finish; raises MemoryFileError if its sum is not right."""
        request = _DECODER.decode(self._description[: int(self._head[SIZE])].tobytes())
        arrays, _ = self._arrays(request)
        total = np.uint64(0)
        for part in arrays:
            pieces = (part.keys, part.tables, part.last) if self.state == UPDATE else (part.keys, part.tables)
            for piece in pieces:
                total = _copied(piece, np.empty_like(piece), total)
        if total != self._head[SUM]:
            raise MemoryFileError(f"the request that the earlier process left is damaged: {LOAD}")
        return request, arrays

    def _arrays(self, request: KeptRequest) -> tuple[list[Arrays], int]:
        """Return where the arrays of a request lie, and their end."""
        end = 0

        def take(size: int, dtype: str) -> NDArray[Any]:
            nonlocal end
            start = -(-end // CACHE_LINE) * CACHE_LINE
            end = start + size * np.dtype(dtype).itemsize
            return self._bytes[start : min(end, self._bytes.size)].view(dtype)

        parts = []
        for part in request.parts:
            keys, tables = take(part.keys, "u8"), take(part.keys, "u2")
            last = take(part.keys * part.columns, part.dtype).reshape(part.keys, part.columns) if part.dtype else None
            parts.append(Arrays(keys, tables, take(part.keys, "u8") if last is None else last))
        return parts, end


def _copied(source: NDArray[Any], target: NDArray[Any], start: np.uint64) -> np.uint64:
    """Copy an array; returns `start` plus the sum over its bytes."""
    flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    out = target.reshape(-1).view(np.uint8)
    return np.uint64(check.copy_and_add(flat, out, out[: out.size // 8 * 8].view(np.uint64), start))
