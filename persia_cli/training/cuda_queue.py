"""The queue of a CUDA device: copies on separate streams, and graphs, which the host enqueues without a wait."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.kernels.toolchain.cuda_calls import COMPUTE, Calls, Copies
from persia_cli.training.device_lanes import Moments

CAPTURE = "thread_local"
"""Calls of other threads of the process do not end a capture."""
WARM_UP = 3
"""Steps before a capture, in which libraries allocate what they keep."""


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A graph that has been captured."""

    graph: torch.cuda.CUDAGraph
    executable: int
    """Its address for the CUDA runtime."""
    draws: bool
    """True if it draws random numbers."""


class CudaSlot:
    """Pinned blocks of the host, blocks of the device and the events between them."""

    def __init__(self, given: torch.Tensor, result: torch.Tensor, streams: list[int], timed: bool) -> None:
        pinned = [torch.zeros(block.numel(), dtype=torch.uint8, pin_memory=True) for block in (given, result)]
        self._memory = [*pinned, torch.zeros_like(given), torch.zeros_like(result), given, result]
        self.given, self.result = pinned[0].numpy(), pinned[1].numpy()
        # The thread that waits for results sleeps: that is no slower, and leaves the processor to the others.
        self.events = [
            torch.cuda.Event(timed, blocking)  # type: ignore[no-untyped-call]
            for blocking in (False, False, False, False, True)
        ]
        for event in self.events:
            event.record()  # it has a handle from now on
        events = [event.cuda_event for event in self.events]
        host_in, host_out, device_in, device_out, block_in, block_out = (each.data_ptr() for each in self._memory)
        self.handles: NDArray[np.uint64] = np.array(
            [*streams, *events, host_in, device_in, block_in, block_out, device_out, host_out], np.uint64
        )


class CudaQueue:
    """A `graphed_step.DeviceQueue` of a GPU. Steps are enqueued by one thread, and awaited by another."""

    def __init__(self, device: torch.device, timed: bool = False) -> None:
        """Enqueue on `device`; `timed` is needed for `moments`."""
        self.device, self._timed = device, timed
        self._origin: tuple[torch.cuda.Event, int] | None = None
        """A moment on the clocks of the device and of the host."""
        self._calls = Calls()
        # Steps without a graph run on the first one.
        self._streams = [torch.cuda.default_stream(device), *(torch.cuda.Stream(device) for _ in range(3))]  # type: ignore[no-untyped-call]
        self._compute = self._streams[COMPUTE]
        self._generator = torch.cuda.default_generators[device.index or 0]

    def capture(self, body: Callable[[], None], warm_up: Callable[[], None]) -> CudaGraph:
        """Return a graph of the operations of `body`; `warm_up` runs first, on the same stream."""
        self._compute.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self._compute):
                for _ in range(WARM_UP):
                    warm_up()
                drawn = self._generator.get_offset()
                with _without_waits():
                    warm_up()
                draws = self._generator.get_offset() != drawn
        finally:
            self._compute.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A new memory pool each time: the pool of a graph that has been freed cannot be used again.
        with torch.cuda.graph(graph, stream=self._compute, capture_error_mode=CAPTURE):
            body()
        self._compute.synchronize()
        return CudaGraph(graph, graph.raw_cuda_graph_exec(), draws)

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> CudaSlot:
        """Return a slot for a graph that reads the block `given` and writes the block `result`, uint8."""
        slot = CudaSlot(given, result, [stream.cuda_stream for stream in self._streams], self._timed)
        torch.cuda.synchronize(self.device)
        return slot

    def submit(
        self, slot: CudaSlot, graph: CudaGraph, copies: Copies, bytes_in: int, bytes_out: int, seed: Callable[[], int]
    ) -> None:
        """Enqueue a step: the copies, the first `bytes_in` of the slot to the device, the graph, `bytes_out` back."""
        if not graph.draws:
            self._calls.submit(slot.handles, copies, graph.executable, bytes_in, bytes_out)
            return
        self._calls.arrive(slot.handles, copies, bytes_in)
        # The graph reads seed and offset of random numbers from the device; `replay` writes them there.
        self._generator.manual_seed(seed())
        with torch.cuda.stream(self._compute):
            graph.graph.replay()
        self._calls.leave(slot.handles, bytes_out)

    def fetch(self, slot: CudaSlot, copies: Copies) -> None:
        """Wait for the end of the slot's step, then make the copies."""
        torch.cuda.set_device(self.device)  # of this thread, which otherwise would use the first GPU too
        self._calls.fetch(slot.handles, copies)

    def moments(self, slot: CudaSlot) -> Moments:
        """Return the times of the slot's step, which has ended; the device and the host differ by some microseconds."""
        if self._origin is None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
            event.synchronize()
            self._origin = event, time.monotonic_ns()
        event, at_ns = self._origin
        return Moments(*(at_ns + int(event.elapsed_time(each) * 1e6) for each in slot.events[1:]))


@contextmanager
def _without_waits() -> Iterator[None]:
    """Raise RuntimeError for an operation that waits for the device, which a graph cannot contain.

    Found out within a capture, it would leave torch's allocator and random numbers unusable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not find all such operations
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
