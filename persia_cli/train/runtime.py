"""The settings of torch for one NN worker, which hold for the whole process."""

import os

import torch
from torch.utils import deterministic


def prepare_torch(threads: int) -> None:
    """Use `threads` threads within an operation and the reproducible form of every operation that has one.

    Sums depend on the number of threads, so two runs are equal to the bit only with the same number.
    """
    torch.set_num_threads(threads)
    # cuBLAS reads this at its first product; without it sums may differ between runs, and torch warns of it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # torch.use_deterministic_algorithms does the same but takes seconds to import the compiler.
    torch.set_deterministic_debug_mode("warn")
    # Otherwise torch fills every new tensor, which is not needed: nothing here reads memory before writing it.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
