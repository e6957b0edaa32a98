"""The names of the kernels that each role needs.

These are compiled before a replica is ready. Kernels that are called rarely (to save and load rows, to add up several
ranks' gradients) are not among them; they are compiled at their first call. This module does not import numba, so that
a launcher can quickly check if they are compiled.
"""

from collections.abc import Iterable

SERVER = ("index.first_foreign", "look_up.read_rows")
"""Kernels of an embedding server in every job."""
WORKER = ("hashing.check_offsets", "dedup.number_ids", "dedup.order_by_server")
"""Kernels of an embedding worker in every job."""


def training_kernels(optimizers: Iterable[str]) -> list[str]:
    """Return the kernels that an embedding server needs, beside `SERVER`, to train with these kinds of optimizers."""
    updates = [f"update.update_{kind}" for kind in dict.fromkeys(optimizers)]
    return ["look_up.look_up", "index.still_fit", *updates]


def pooling_kernels(poolings: Iterable[str], train: bool) -> list[str]:
    """Return the kernels that an NN worker most likely needs to pool features on the CPU.

    If all poolings are `sum`, the default, features most likely have one id per sample. A faster kernel pools these.
    """
    kinds = set(poolings)
    forward, backward = ["bags.within"], []
    if kinds <= {"sum"}:
        forward, backward = [*forward, "pool.forward_single"], ["pool.backward_single"]
    else:
        forward, backward = [*forward, "pool.forward"], ["pool.backward"]
    if "none" in kinds:
        forward, backward = [*forward, "pool.spread"], [*backward, "pool.gather_back"]
    return [*forward, *backward] if train else forward
