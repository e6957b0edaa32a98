"""How kernels are compiled: without the GIL, cached on disk, C division, and for one declared signature."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit, types
from numba.core.compiler_lock import global_compiler_lock

KERNELS: list["Kernel"] = []

OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""C division; and no counting of references, without which passing arrays on would cost more than reading them."""
helper = njit(**OPTIONS)
"""Compiles a function that kernels call; like them it cannot allocate an array."""
inlined = njit(forceinline=True, **OPTIONS)
"""As `helper`, and is put into the place of the call: passing a tuple of arrays costs as much as a short function."""


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
        # Two threads of an embedded job may make the first call at once; numba's lock lets its holder in again.
        with global_compiler_lock:
            if not self._ready:
                self._dispatcher.compile(self._signature)
                self._dispatcher.disable_compile()
                self._ready = True

    def __call__(self, *arguments: Any) -> Any:
        """Run; compiles on the first call."""
        if not self._ready:
            self.compile()
        return self._dispatcher(*arguments)


@cache
def cache_folder() -> str:
    """Return where compiled kernels are kept: a folder of its own for each state of the sources.

    numba looks at the file of a function alone, and would not see that a function inlined from another file changed.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home).expanduser() / "persia")
    return str(base / f"kernels-{digest.hexdigest()[:16]}")


def _jit(function: Callable[..., Any]) -> Any:
    settings: Any = config
    before, settings.CACHE_DIR = settings.CACHE_DIR, cache_folder()
    try:
        return njit(nogil=True, cache=True, **OPTIONS)(function)
    except (RuntimeError, OSError):
        # The folder cannot be written (NUMBA_CACHE_DIR names another): each process compiles for itself.
        return njit(nogil=True, **OPTIONS)(function)
    finally:
        settings.CACHE_DIR = before


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Register a function as a kernel of this signature, e.g. `types.void(read(types.float32), types.int64)`."""

    def register(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, signature)

    return register
