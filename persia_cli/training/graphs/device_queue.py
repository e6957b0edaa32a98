"""The queue of a device: copies on separate streams, and graphs, which the host enqueues without a wait.

A step makes all calls of the CUDA runtime and all copies of memory without the GIL. Each operation of torch and each
large copy of numpy releases the GIL and must wait for it again, up to the switch interval if another thread runs
Python. With ten of them a step, the waits take longer than the operations. So numba functions call the library by its
addresses, which is possible only after torch has loaded it.
"""

import ctypes
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from persia_cli.errors import UserError
from persia_cli.observe.trace import Span, Trace

CAPTURE = "thread_local"
"""Calls of other threads of the process do not end a capture."""
WARM_UP = 3
"""Steps before a capture, in which libraries allocate what they keep."""
LANES = ("device: copy in", "device: graph", "device: copy out")
"""Lanes of a device in traces: copies overlap with graphs of other steps, so each of the three has its own."""

HANDLES = 15
(
    EAGER, TO_DEVICE, COMPUTE, TO_HOST,  # streams
    BEFORE, BEGUN, ARRIVED, COMPUTED, DONE,  # events
    HOST_IN, DEVICE_IN, BLOCK_IN, BLOCK_OUT, DEVICE_OUT, HOST_OUT,  # addresses
) = range(HANDLES)  # fmt: skip
"""Positions in the array of handles of a slot, uint64 [HANDLES]."""
ANY_DIRECTION = 4
"""cudaMemcpyDefault: the runtime finds the direction from the addresses."""

Handles = NDArray[np.uint64]
Copies = NDArray[np.uint64]
"""Copies within the memory of the host: target, source and bytes of each, uint64 [n, 3]."""


class Moments(NamedTuple):
    """The times of a step's work on a device, in nanoseconds of CLOCK_MONOTONIC."""

    started: int
    """Begin of the copy to the device."""
    arrived: int
    """End of that copy."""
    computed: int
    """End of the graph."""
    done: int
    """End of the copy to the host."""


class DeviceLanes:
    """The lanes of one device in a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._before = Moments(0, 0, 0, 0)

    def add(self, step: int, moments: Moments) -> None:
        """Add the work of a step; each kind of work is in the order of steps."""
        before, self._before = self._before, moments
        begins = moments.started, max(moments.arrived, before.computed), max(moments.computed, before.done)
        for lane, begin, end in zip(LANES, begins, moments[1:], strict=True):
            self._trace.add(Span(lane, lane.partition(": ")[2], step, None, begin, end))


class Slot(Protocol):
    """The memory of one step in progress, on the host and on the device."""

    given: NDArray[np.uint8]
    """Pinned memory of the host, which `DeviceQueue.submit` copies to the device."""
    result: NDArray[np.uint8]
    """Pinned memory of the host, valid once a step has ended."""


class DeviceQueue(Protocol):
    """A device that copies and replays graphs in the order of calls, without a wait of the host."""

    device: torch.device

    def capture(self, body: Callable[[], None], warm_up: Callable[[], None]) -> object:
        """Return a graph of the operations of `body`; `warm_up` runs first, on the same stream."""

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> Slot:
        """Return a slot for a graph that reads the block `given` and writes the block `result`, uint8."""

    def submit(
        self, slot: Any, graph: Any, copies: Copies, bytes_in: int, bytes_out: int, seed: Callable[[], int]
    ) -> None:
        """Enqueue a step: the copies, the first `bytes_in` of the slot to the device, the graph, `bytes_out` back.

        A graph that draws random numbers draws those of `seed()`.
        """

    def fetch(self, slot: Any, copies: Copies) -> None:
        """Wait for the end of the slot's step, then make the copies."""

    def moments(self, slot: Any) -> Moments:
        """Return the times of the slot's step, which has ended."""


class Calls:
    """The functions of the runtime library that this process has loaded; raises UserError if there is none."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_loaded("libcudart"))
        word, number = ctypes.c_uint64, ctypes.c_int

        def function(name: str, *arguments: Any) -> Any:
            call = getattr(library, name)
            call.argtypes, call.restype = arguments, number
            return call

        move_all = mover()
        copy = function("cudaMemcpyAsync", word, word, word, number, word)
        launch = function("cudaGraphLaunch", word, word)
        record = function("cudaEventRecord", word, word)
        wait_event = function("cudaStreamWaitEvent", word, word, ctypes.c_uint)
        synchronize = function("cudaEventSynchronize", word)

        @njit(nogil=True)
        def arrive(h: Any, copies: Any, nbytes: Any) -> Any:
            move_all(copies)
            # Operations without a graph may still change weights: the host does not wait for them.
            error = record(h[BEFORE], h[EAGER])
            error = error or wait_event(h[COMPUTE], h[BEFORE], 0)
            error = error or record(h[BEGUN], h[TO_DEVICE])
            error = error or copy(h[DEVICE_IN], h[HOST_IN], nbytes, ANY_DIRECTION, h[TO_DEVICE])
            error = error or record(h[ARRIVED], h[TO_DEVICE])
            error = error or wait_event(h[COMPUTE], h[ARRIVED], 0)
            return error or copy(h[BLOCK_IN], h[DEVICE_IN], nbytes, ANY_DIRECTION, h[COMPUTE])

        @njit(nogil=True)
        def leave(h: Any, nbytes: Any) -> Any:
            error = copy(h[DEVICE_OUT], h[BLOCK_OUT], nbytes, ANY_DIRECTION, h[COMPUTE])
            error = error or record(h[COMPUTED], h[COMPUTE])
            error = error or wait_event(h[TO_HOST], h[COMPUTED], 0)
            error = error or copy(h[HOST_OUT], h[DEVICE_OUT], nbytes, ANY_DIRECTION, h[TO_HOST])
            return error or record(h[DONE], h[TO_HOST])

        @njit(nogil=True)
        def submit(h: Any, copies: Any, graph: Any, bytes_in: Any, bytes_out: Any) -> Any:
            error = arrive(h, copies, bytes_in)
            error = error or launch(graph, h[COMPUTE])
            return error or leave(h, bytes_out)

        @njit(nogil=True)
        def fetch(event: Any, copies: Any) -> Any:
            error = synchronize(event)
            if not error:
                move_all(copies)
            return error

        self._submit, self._arrive, self._leave, self._fetch = submit, arrive, leave, fetch

    def submit(self, handles: Handles, copies: Copies, graph: int, bytes_in: int, bytes_out: int) -> None:
        """Enqueue a step: `arrive`, the executable graph and `leave`."""
        _check(self._submit(handles, copies, np.uint64(graph), np.uint64(bytes_in), np.uint64(bytes_out)))

    def arrive(self, handles: Handles, copies: Copies, nbytes: int) -> None:
        """Copy within the host, and enqueue the copy of so many bytes to the block that a graph reads.

        The graph runs after all eager operations.
        """
        _check(self._arrive(handles, copies, np.uint64(nbytes)))

    def leave(self, handles: Handles, nbytes: int) -> None:
        """Enqueue the copy of so many bytes from the block that a graph writes to the host."""
        _check(self._leave(handles, np.uint64(nbytes)))

    def fetch(self, handles: Handles, copies: Copies) -> None:
        """Wait for the end of a step, then copy within the host."""
        _check(self._fetch(handles[DONE], copies))


@cache
def mover() -> Callable[[Copies], None]:
    """Return a function that makes copies, for compiled functions too."""
    move, word = ctypes.CDLL(None).memcpy, ctypes.c_uint64
    move.argtypes, move.restype = (word, word, word), word

    @njit(nogil=True)
    def move_all(copies: Any) -> Any:
        for i in range(len(copies)):
            move(copies[i, 0], copies[i, 1], copies[i, 2])

    return move_all


def copies_of(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Copies:
    """Return the copies of the second array of each pair to the beginning of the first; all are contiguous.

    The caller keeps the arrays until the copies are made.
    """
    return np.array([(_address(to), _address(source), source.nbytes) for to, source in pairs], np.uint64).reshape(-1, 3)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _check(error: int) -> None:
    if error:
        raise UserError(f"the GPU reports error {error} of the CUDA runtime; see its log (dmesg), or train on the CPU")


def _loaded(name: str) -> str:
    """Return the path of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            return line.split()[-1]
    raise UserError(f"torch has not loaded {name}")


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
        host_in, host_out, device_in, device_out, block_in, block_out = (block.data_ptr() for block in self._memory)
        self.handles: NDArray[np.uint64] = np.array(
            [*streams, *events, host_in, device_in, block_in, block_out, device_out, host_out], np.uint64
        )


class CudaQueue:
    """A `DeviceQueue` of a GPU. Steps are enqueued by one thread, and awaited by another."""

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
        slot = CudaSlot(given, result, [stream.cuda_stream for stream in self._streams], self._timed)
        torch.cuda.synchronize(self.device)
        return slot

    def submit(
        self, slot: CudaSlot, graph: CudaGraph, copies: Copies, bytes_in: int, bytes_out: int, seed: Callable[[], int]
    ) -> None:
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
        return Moments(*(at_ns + int(event.elapsed_time(later) * 1e6) for later in slot.events[1:]))


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
