"""A queue of steps on the CPU, in place of a GPU's: a graph is replayed by running its operations again."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.train.device import CPU, drawing_from


class HostSlot:
    """Blocks that stand for those of host and device."""

    def __init__(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.given: NDArray[np.uint8] = np.full(given.numel(), 255, np.uint8)
        self.result: NDArray[np.uint8] = np.full(result.numel(), 255, np.uint8)
        self.blocks = given, result


class HostQueue:
    """A `DeviceQueue`; `captured` counts graphs, and `submitted` steps."""

    def __init__(self) -> None:
        self.device, self.captured, self.submitted = CPU, 0, 0

    def capture(self, body: Callable[[], None], warm_up: Callable[[], None]) -> Callable[[], None]:
        """Return the operations themselves."""
        warm_up()
        self.captured += 1
        return body

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> HostSlot:
        """Return a slot for a graph that reads and writes these blocks."""
        return HostSlot(given, result)

    def submit(self, slot: HostSlot, graph: Callable[[], None], bytes_in: int, bytes_out: int, seed: int) -> None:
        """Run a step at once."""
        self.submitted += 1
        given, result = slot.blocks
        given[:bytes_in].copy_(torch.from_numpy(slot.given[:bytes_in]))
        with drawing_from(seed, CPU):
            graph()
        slot.result[:bytes_out] = result[:bytes_out].numpy()

    def wait(self, slot: HostSlot) -> None:
        """Do nothing: the step has ended."""
