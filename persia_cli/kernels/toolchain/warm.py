"""The compilation of kernels ahead of use, so that no role compiles them in the middle of a run."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from persia_cli.kernels.toolchain.cache import is_cached, mark_ready
from persia_cli.kernels.toolchain.compile import KERNELS, Kernel

FOLDERS = ("batch", "rows", "table", "serving")


def kernels_for(needs: Iterable[str] | None = None) -> list[Kernel]:
    """Return the kernels of these needs, in the order of their modules; None: all kernels."""
    for folder in FOLDERS:  # importing a module registers its kernels
        for path in sorted((Path(__file__).parents[1] / folder).glob("[a-z]*.py")):
            import_module(f"persia_cli.kernels.{folder}.{path.stem}")
    return list(KERNELS) if needs is None else [kernel for kernel in KERNELS if not kernel.needs.isdisjoint(needs)]


def warm(needs: Iterable[str] | None = None, on_kernel: Callable[[], object] = lambda: None) -> None:
    """Compile the kernels of these needs (None: all), or load them from the cache on disk."""
    needs = None if needs is None else set(needs)
    kernels, left = kernels_for(needs), []
    # Kernels that other processes are compiling come last, so that processes that start together share the work.
    for kernel in kernels:
        if not kernel.compile(wait=False):
            left.append(kernel)
        on_kernel()
    for kernel in left:
        kernel.compile()
        on_kernel()
    for need in needs or ():
        # The disk may have been full, or the folder removed meanwhile.
        if all(is_cached(kernel.name) for kernel in kernels if need in kernel.needs):
            mark_ready(need)
