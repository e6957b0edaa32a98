"""How kernels are compiled: without the GIL, cached on disk, C division, and for one declared signature."""

from collections.abc import Callable
from typing import Any

from numba import njit, types

KERNELS: list["Kernel"] = []


def read(dtype: types.Type) -> types.Array:
    """A flat C-contiguous array that a kernel only reads; takes read-only and writable arrays."""
    return types.Array(dtype, 1, "C", readonly=True)


def write(dtype: types.Type) -> types.Array:
    """A flat C-contiguous array that a kernel writes."""
    return types.Array(dtype, 1, "C")


class Kernel:
    """A numba function that has exactly one compiled form.

    Without this, an argument of another type (a read-only frame, a Python float) would compile a second form in the
    middle of a run. Scalars are converted to the declared type; an array of another dtype raises TypeError.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__.lstrip('_')}"
        self._dispatcher = _jit(function)
        self._signature = signature
        self._ready = False
        KERNELS.append(self)

    def compile(self) -> None:
        """Compile, or load from the cache on disk."""
        if not self._ready:
            self._dispatcher.compile(self._signature)
            self._dispatcher.disable_compile()
            self._ready = True

    def __call__(self, *arguments: Any) -> Any:
        """Run; compiles on the first call."""
        if not self._ready:
            self.compile()
        return self._dispatcher(*arguments)


def _jit(function: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        # No folder for numba's cache can be written (NUMBA_CACHE_DIR names one): each process compiles for itself.
        return njit(nogil=True, error_model="numpy")(function)


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Register a function as a kernel of this signature, e.g. `types.void(read(types.float32), types.int64)`."""

    def register(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, signature)

    return register
