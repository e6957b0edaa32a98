"""Set torch up for one NN worker; what is set here holds for the whole process."""

import torch
from torch.utils import deterministic


def prepare_torch(threads: int) -> None:
    """Use `threads` threads within an operation and the reproducible form of every operation that has one.

    Sums depend on the number of threads, so two runs agree to the bit only under the same one.
    """
    torch.set_num_threads(threads)
    # torch.use_deterministic_algorithms does the same but takes seconds to import the compiler.
    torch.set_deterministic_debug_mode("warn")
    # Otherwise every new tensor is filled once more; nothing here reads memory that was never written.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
