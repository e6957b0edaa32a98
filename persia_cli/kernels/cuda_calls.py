"""Calls of the CUDA runtime in groups, without the GIL.

An operation of torch releases the GIL and must wait for it again, up to the switch interval if another thread runs
Python. With ten operations a step, the waits take longer than the operations. So numba functions call the library by
its addresses, which is possible only after torch has loaded it.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from persia_cli.errors import UserError

HANDLES = 15
(
    EAGER, TO_DEVICE, COMPUTE, TO_HOST,  # streams
    BEFORE, BEGUN, ARRIVED, COMPUTED, DONE,  # events
    HOST_IN, DEVICE_IN, BLOCK_IN, BLOCK_OUT, DEVICE_OUT, HOST_OUT,  # addresses
) = range(HANDLES)  # fmt: skip
"""Places in the array of handles of a slot, uint64 [HANDLES]."""
ANY_DIRECTION = 4
"""cudaMemcpyDefault: the runtime finds the direction from the addresses."""

Handles = NDArray[np.uint64]


class Calls:
    """The functions of the runtime library that this process has loaded; raises UserError if there is none."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_loaded("libcudart"))
        word, number = ctypes.c_uint64, ctypes.c_int

        def function(name: str, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, number
            return found

        copy = function("cudaMemcpyAsync", word, word, word, number, word)
        record = function("cudaEventRecord", word, word)
        wait_event = function("cudaStreamWaitEvent", word, word, ctypes.c_uint)
        synchronize = function("cudaEventSynchronize", word)

        @njit(nogil=True)
        def arrive(h: Any, nbytes: Any) -> Any:
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

        self._arrive, self._leave, self._synchronize = arrive, leave, synchronize

    def arrive(self, handles: Handles, nbytes: int) -> None:
        """Enqueue the copy of so many bytes to the block that a graph reads, which runs after all eager operations."""
        _check(self._arrive(handles, nbytes))

    def leave(self, handles: Handles, nbytes: int) -> None:
        """Enqueue the copy of so many bytes from the block that a graph writes to the host."""
        _check(self._leave(handles, nbytes))

    def wait(self, event: int) -> None:
        """Wait for an event; ctypes releases the GIL."""
        _check(self._synchronize(event))


def _check(error: int) -> None:
    if error:
        raise UserError(f"the GPU reports error {error} of the CUDA runtime; see its log (dmesg), or train on the CPU")


def _loaded(name: str) -> str:
    """Return the path of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            return line.split()[-1]
    raise UserError(f"torch has not loaded {name}")
