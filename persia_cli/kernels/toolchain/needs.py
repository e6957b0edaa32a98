"""The needs of roles: the kernels of a need are compiled before the role is ready.

A kernel names its needs where it is defined: `@kernel(signature, for_=SERVER)`. Without one it is compiled at its first
call. This module does not import numba, so that a driver can quickly check if a job's kernels are compiled.
"""

from collections.abc import Iterable

SERVER = "server"
"""An embedding server in every job."""
TRAINING = "training"
"""An embedding server that trains; the updates of its optimizers (`update_need`) come in addition."""
TAKE_OVER = "take-over"
"""A process that takes over the shard of another; it must not wait for compilation."""
COLD_ROWS = "cold-rows"
"""An embedding server whose rows may leave memory for a disk."""
SAVING = "saving"
"""Saves of rows during training. Compilation takes many seconds, in which training would stop at its first checkpoint.

Loading from the cache is quick, so that is left to the first call."""
SCORING = "scoring"
"""An NN worker in every job."""
WORKER = "worker"
"""An embedding worker in every job."""
POOLING, SINGLE, BAGS, SEQUENCES = "pooling", "pooling-single", "pooling-bags", "pooling-sequences"
"""An NN worker that pools features on the CPU: always; with one id per sample; with several; with `pooling: none`."""


def update_need(optimizer: str) -> str:
    """Return the need of the update by this kind of optimizer."""
    return f"update-{optimizer}"


def training_needs(optimizers: Iterable[str], is_recoverable: bool) -> list[str]:
    """Return the needs of an embedding server that trains rows with these optimizers, in a memory file or not."""
    updates = [update_need(kind) for kind in dict.fromkeys(optimizers)]
    return [TRAINING, *updates, *([TAKE_OVER] if is_recoverable else [])]


def pooling_needs(poolings: Iterable[str]) -> list[str]:
    """Return the needs of an NN worker that pools features in these ways on the CPU."""
    # If all poolings are `sum`, the default, features most likely have one id per sample.
    kinds = set(poolings)
    return [POOLING, SINGLE if kinds <= {"sum"} else BAGS, *([SEQUENCES] if "none" in kinds else [])]
