"""Compiles every kernel ahead of use, so that no role does it in the middle of a run."""

from collections.abc import Callable

from persia_cli.kernels import bags, cast, dedup, hashing, index, look_up, pool, room, update
from persia_cli.kernels.compile import KERNELS

MODULES = (bags, cast, dedup, hashing, index, look_up, pool, room, update)
"""Importing a module registers its kernels."""


def warm(progress: Callable[[int, int, str], None] | None = None) -> None:
    """Compile every kernel, or load it from the cache on disk; `progress(done, total, name)` is called after each."""
    for done, each in enumerate(KERNELS, start=1):
        each.compile()
        if progress is not None:
            progress(done, len(KERNELS), each.name)
