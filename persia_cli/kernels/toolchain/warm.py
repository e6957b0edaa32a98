"""The compilation of kernels ahead of use, so that no role compiles them in the middle of a run."""

from collections.abc import Callable, Iterable

from persia_cli.kernels.batch import bags, counting, dedup, pool
from persia_cli.kernels.rows import cast, hashing
from persia_cli.kernels.serving import frozen_index, frozen_rows, unpack
from persia_cli.kernels.table import (
    check,
    cold,
    frequency,
    index,
    look_up,
    new_keys,
    old_rows,
    returned,
    row_order,
    slots,
    update,
)
from persia_cli.kernels.toolchain.compile import KERNELS

MODULES = (
    bags,
    cast,
    check,
    cold,
    counting,
    dedup,
    frozen_index,
    frozen_rows,
    hashing,
    index,
    look_up,
    new_keys,
    old_rows,
    pool,
    returned,
    slots,
    row_order,
    frequency,
    unpack,
    update,
)
"""Importing a module registers its kernels."""


def warm(names: Iterable[str] | None = None, after_each: Callable[[], object] = lambda: None) -> None:
    """Compile the kernels of these names (None: all), or load them from the cache on disk."""
    kernels = {kernel.name: kernel for kernel in KERNELS}
    wanted = [kernels[name] for name in (kernels if names is None else names)]
    left = []
    # Kernels that other processes are compiling come last, so that processes that start together share the work.
    for kernel in wanted:
        if not kernel.compile(wait=False):
            left.append(kernel)
        after_each()
    for kernel in left:
        kernel.compile()
        after_each()
