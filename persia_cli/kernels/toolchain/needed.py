"""The names of the kernels that each role needs.

These are compiled before a replica is ready. Kernels that are called rarely (to load rows, to add up several ranks'
gradients) are not among them; they are compiled at their first call. This module does not import numba, so that a
driver can quickly check if they are compiled.
"""

from collections.abc import Iterable

SERVER = ("index.first_foreign", "look_up.read_rows")
"""Kernels of an embedding server in every job."""
TAKE_OVER = (
    "check.check_index",
    "index.find_and_touch",
    "look_up.finish_look_up",
    "new_keys.carry_out",
)
"""Kernels with which a process takes over the shard of another; it must not wait for their compilation."""
COLD = (
    "cold.append_rows",
    "cold.damaged_block",
    "cold.end_blocks",
    "cold.find_records",
    "cold.move_records",
    "cold.read_records",
    "cold.rebuild",
    "cold.send_records",
    "index.find_and_touch",
    "look_up.finish_look_up",
    "returned.bring_back",
)
"""Kernels of an embedding server whose rows may leave memory for a disk."""
SAVING = (
    "index.find",
    "old_rows.list_rows",
    "old_rows.take_rows",
    "old_rows.copy_before_write",
    "old_rows.count_changing",
    "row_order.order_rows",
    "frequency.count_at_last_use",
    "frequency.used_lines",
    "hashing.recover_ids",
)
"""Kernels that save rows during training.

Compiling them takes many seconds, in which training would stop at its first checkpoint. Loading them from the cache is
quick, so that is left to the first call."""
SCORING = ("counting.count_scores",)
"""Kernel of an NN worker in every job."""
WORKER = ("hashing.check_offsets", "dedup.number_ids", "dedup.order_by_server")
"""Kernels of an embedding worker in every job."""


SERVED = ("hashing.check_offsets", "hashing.rebase_offsets", "frozen_rows.read_frozen", "unpack.unpack")
"""Kernels that read the rows of an exported model."""


def training_kernels(optimizers: Iterable[str]) -> list[str]:
    """Return the kernels that an embedding server needs, in addition to `SERVER`, to train with these optimizers."""
    updates = [f"update.update_{kind}" for kind in dict.fromkeys(optimizers)]
    return ["look_up.look_up", "index.same_keys", *updates]


def recoverable_kernels(optimizers: Iterable[str]) -> list[str]:
    """Return the kernels of `training_kernels` for a shard in a memory file, and those that take such a shard over."""
    kinds = list(dict.fromkeys(optimizers))
    return ["look_up.look_up", "index.same_keys", *(f"update.update_{kind}_journaled" for kind in kinds), *TAKE_OVER]


def pooling_kernels(poolings: Iterable[str], train: bool) -> list[str]:
    """Return the kernels that an NN worker most likely needs to pool features on the CPU."""
    # If all poolings are `sum`, the default, features most likely have one id per sample, for which a faster kernel
    # exists.
    kinds = set(poolings)
    forward, backward = ["bags.within"], []
    if kinds <= {"sum"}:
        forward, backward = [*forward, "pool.forward_single"], ["pool.backward_single"]
    else:
        forward, backward = [*forward, "pool.forward"], ["pool.backward"]
    if "none" in kinds:
        forward, backward = [*forward, "pool.spread"], [*backward, "pool.gather_back"]
    return [*forward, *backward] if train else forward
