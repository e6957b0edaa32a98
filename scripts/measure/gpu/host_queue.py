"""A queue of steps on the CPU, in place of a GPU's: a graph is replayed by running its operations again."""

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.training.device import CPU, drawing_from
from persia_cli.training.graphs.device_queue import Copies, Moments, mover


class HostSlot:
    """Blocks that stand for those of host and device."""

    def __init__(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.given: NDArray[np.uint8] = np.full(given.numel(), 255, np.uint8)
        self.result: NDArray[np.uint8] = np.full(result.numel(), 255, np.uint8)
        self.blocks = given, result
        self.moments = Moments(0, 0, 0, 0)


class HostQueue:
    """A `DeviceQueue`; `captured` counts graphs, and `submitted` steps."""

    def __init__(self) -> None:
        self.device, self.captured, self.submitted = CPU, 0, 0
        self.move = mover()

    def capture(self, body: Callable[[], None], warm_up: Callable[[], None]) -> Callable[[], None]:
        """Return the operations themselves."""
        warm_up()
        self.captured += 1
        return body

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> HostSlot:
        """Return a slot for a graph that reads and writes these blocks."""
        return HostSlot(given, result)

    def submit(
        self,
        slot: HostSlot,
        graph: Callable[[], None],
        copies: Copies,
        bytes_in: int,
        bytes_out: int,
        seed: Callable[[], int],
    ) -> None:
        """Run a step at once."""
        self.submitted += 1
        self.move(copies)
        given, result = slot.blocks
        begun = time.monotonic_ns()
        given[:bytes_in].copy_(torch.from_numpy(slot.given[:bytes_in]))
        arrived = time.monotonic_ns()
        with drawing_from(seed(), CPU):
            graph()
        computed = time.monotonic_ns()
        slot.result[:bytes_out] = result[:bytes_out].numpy()
        slot.moments = Moments(begun, arrived, computed, time.monotonic_ns())

    def fetch(self, slot: HostSlot, copies: Copies) -> None:
        """Make the copies: the step has ended."""
        self.move(copies)

    def moments(self, slot: HostSlot) -> Moments:
        """Return the times of the slot's step."""
        return slot.moments
