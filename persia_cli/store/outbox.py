"""The gradients of rows of a rank's last steps, in a memory file: a later process of the rank sends them again."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.wire.message import Array

ENTRY_BYTES = 1 << 30
"""Address space of a step's gradients, which is the largest message that can carry them; memory comes with its use."""
MOST_GROUPS = 4096
STEP, GROUPS, REDUCTIONS = range(3)
"""Words of an entry's head: 1 + the step if the entry is whole, 0 otherwise; number of feature groups; how often
evaluations had reduced the learning rate of rows before the step."""
SHAPES_AT = 3


class KeptGradients(NamedTuple):
    """The gradients of one step."""

    step: int
    gradients: list[Array]
    """Encoded, one block uint8[rows, bytes] per feature group."""
    reductions: int
    """How often evaluations had reduced the learning rate of rows before the step."""


class Outbox:
    """The encoded gradients of the last `steps` steps, one block uint8[rows, bytes] per feature group."""

    def __init__(self, array: Callable[[int, DTypeLike], NDArray[Any]], steps: int) -> None:
        """`array` returns arrays of the memory file."""
        self._heads: NDArray[np.uint64] = array(steps * (SHAPES_AT + 2 * MOST_GROUPS), np.uint64).reshape(steps, -1)
        self._bytes: NDArray[np.uint8] = array(steps * ENTRY_BYTES, np.uint8).reshape(steps, -1)

    @staticmethod
    def nbytes(steps: int) -> int:
        """Return the address space of an outbox of so many steps."""
        return steps * (ENTRY_BYTES + 8 * (SHAPES_AT + 2 * MOST_GROUPS))

    def put(self, step: int, gradients: Sequence[Array], reductions: int = 0) -> None:
        """Copy a step's gradients in the place of those of the step that was so many steps before.

        Raises MemoryError if they are too large.
        """
        head, room = self._heads[step % len(self._heads)], self._bytes[step % len(self._heads)]
        head[STEP] = 0
        if sum(each.nbytes for each in gradients) > room.size or len(gradients) > MOST_GROUPS:
            raise MemoryError(f"the gradients of step {step} have more than {room.size:,} bytes")
        shapes = [size for each in gradients for size in each.shape]
        head[REDUCTIONS] = reductions
        head[GROUPS], head[SHAPES_AT : SHAPES_AT + len(shapes)] = len(gradients), shapes
        end = 0
        for each in gradients:
            room[end : end + each.nbytes] = each.reshape(-1)
            end += each.nbytes
        head[STEP] = step + 1

    def before(self, step: int) -> list["KeptGradients"]:
        """Return copies of the gradients of all steps before this one that are here, in the order of steps."""
        kept = sorted(
            (int(head[STEP]) - 1, place) for place, head in enumerate(self._heads) if 0 < int(head[STEP]) <= step
        )
        return [
            KeptGradients(number, self._gradients(place), int(self._heads[place][REDUCTIONS])) for number, place in kept
        ]

    def _gradients(self, place: int) -> list[Array]:
        head, end = self._heads[place], 0
        found: list[Array] = []
        for group in range(int(head[GROUPS])):
            rows, width = (int(size) for size in head[SHAPES_AT + 2 * group : SHAPES_AT + 2 * group + 2])
            found.append(self._bytes[place, end : end + rows * width].reshape(rows, width).copy())
            end += rows * width
        return found
