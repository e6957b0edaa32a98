"""The compilation of kernels: without the GIL, with C division, for one declared signature, and cached on disk."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import IndexDataCacheFile, NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from persia_cli.errors import DiskError
from persia_cli.kernels.toolchain.cache import cache_folder, discard, is_cached, is_whole, seal, turn

KERNELS: list["Kernel"] = []

OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Division as in C, and no reference counting, which would make passing an array slower than reading it."""
INTERNAL: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""No entry points for Python and C, which would take a third of the compile time."""


class Helper(CPUDispatcher):
    """A compiled function that can be called from kernels only."""

    def __call__(self, *arguments: Any) -> Any:
        """Raise TypeError: the function has no entry point for Python, so a call would crash the process."""
        raise TypeError(f"{self.py_func.__name__} can only be called from a kernel")


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call; like a kernel, it cannot allocate arrays."""
    return _helper(function, **OPTIONS, **INTERNAL)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function like `helper` and inline it: passing a tuple of arrays costs as much as a short function."""
    return _helper(function, forceinline=True, **OPTIONS, **INTERNAL)


def _helper(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher: Any = njit(**options)(function)
    dispatcher.__class__ = Helper
    return dispatcher


def read(dtype: types.Type) -> types.Array:
    """Return the type of a flat C-contiguous array that a kernel only reads; read-only arrays fit it too."""
    return types.Array(dtype, 1, "C", readonly=True)


def write(dtype: types.Type) -> types.Array:
    """Return the type of a flat C-contiguous array that a kernel writes."""
    return types.Array(dtype, 1, "C")


class KernelCache(NullCache):
    """The cache entry of one kernel, with the interface that numba's dispatchers expect (private `numba.core` API)."""

    # It replaces numba's own class, which checks the file of a function but not the files of functions inlined into it,
    # takes a new date of that file for a change, and fails if the disk is full or a file is damaged.

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def load_overload(self, signature: Any, target: Any) -> CompileResult | None:
        """Return the compiled kernel, or None if the cache has none for this processor and source."""
        target.refresh()
        parts = self._files().load(target.codegen().magic_tuple()) if is_whole(self._name) else None
        return None if parts is None else CompileResult._rebuild(target, *parts)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write the compiled kernel to the cache; do nothing if files cannot be written."""
        discard(self._name)
        try:
            self._files().save(compiled.target_context.codegen().magic_tuple(), compiled._reduce())
            seal(self._name)
        except (OSError, DiskError):  # a read-only file system, or a full one
            discard(self._name)

    def _files(self) -> IndexDataCacheFile:
        return IndexDataCacheFile(str(cache_folder()), self._name, _digest(self._source))


@cache
def _digest(source: str) -> str:
    return sha256(Path(source).read_bytes()).hexdigest()


class Kernel:
    """A numba function with exactly one compiled signature.

    Scalars are converted to the declared type; an array of another dtype raises TypeError.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, needs: frozenset[str]) -> None:
        # Without a declared signature, an argument of another type (such as a read-only array) would start a second
        # compilation in the middle of a run.
        module = function.__module__.rpartition(".")[2]
        self.name = f"{module}.{function.__name__.lstrip('_')}"
        self._dispatcher: Any = njit(nogil=True, **OPTIONS)(function)
        self._dispatcher._cache = KernelCache(self.name, function.__code__.co_filename)
        self._signature = signature
        self.needs = needs
        self._ready = False
        self._entry: Callable[..., Any]
        KERNELS.append(self)

    def compile(self, wait: bool = True) -> bool:
        """Load the kernel from the cache or compile it; return True if it is ready to be called.

        If another process is compiling it, wait for that and load the result; without `wait`, return False at once.
        """
        # Two threads of an embedded job may make the first call at the same time. numba's lock is reentrant.
        with global_compiler_lock:
            if self._ready:
                return True
            with nullcontext(True) if is_cached(self.name) else turn(self.name, wait) as is_turn:
                if is_turn:
                    self._dispatcher.compile(self._signature)
                    self._dispatcher.disable_compile()
                    (compiled,) = self._dispatcher.overloads.values()
                    self._entry = compiled.entry_point
                    self._ready = True
            return self._ready

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel; the first call compiles it if needed."""
        if not self._ready:
            self.compile()
        return self._dispatcher(*arguments)

    def unchecked(self, *arguments: Any) -> Any:
        """Run the kernel on arguments that have exactly the declared types.

        For calls in each step: numba takes 12 µs to identify the type of a named tuple with the arrays of a table. Here
        it checks the sizes of items alone.
        """
        if not self._ready:
            self.compile()
        return self._entry(*arguments)


def kernel(signature: Any, for_: str | tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a kernel of this signature, e.g. `types.void(read(types.float32), types.int64)`.

    `for_` are the needs for which it is compiled before a role is ready (`toolchain/needs.py`).
    """
    needs = frozenset([for_] if isinstance(for_, str) else for_)

    def register(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, signature, needs)

    return register
