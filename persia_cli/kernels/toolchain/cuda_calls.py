"""All calls of the CUDA runtime and copies of memory of a step, without the GIL.

Each operation of torch and each large copy of numpy releases the GIL and must wait for it again, up to the switch
interval if another thread runs Python. With ten of them a step, the waits take longer than the operations. So numba
functions call the library by its addresses, which is possible only after torch has loaded it.
"""

import ctypes
from collections.abc import Sequence
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
Copies = NDArray[np.uint64]
"""Copies within the memory of the host: target, source and bytes of each, uint64 [n, 3]."""


class Calls:
    """The functions of the runtime library that this process has loaded; raises UserError if there is none."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_loaded("libcudart"))
        word, number = ctypes.c_uint64, ctypes.c_int

        def function(name: str, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, number
            return found

        move = ctypes.CDLL(None).memcpy
        move.argtypes, move.restype = (word, word, word), word
        copy = function("cudaMemcpyAsync", word, word, word, number, word)
        launch = function("cudaGraphLaunch", word, word)
        record = function("cudaEventRecord", word, word)
        wait_event = function("cudaStreamWaitEvent", word, word, ctypes.c_uint)
        synchronize = function("cudaEventSynchronize", word)

        @njit(nogil=True)
        def move_all(copies: Any) -> Any:
            for i in range(len(copies)):
                move(copies[i, 0], copies[i, 1], copies[i, 2])

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
