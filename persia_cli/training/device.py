"""The device of the dense network: its choice, arithmetic and random numbers, copies, and torch's settings."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import deterministic

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.errors import ConfigError, UserError

Precision = Literal["float32", "tf32", "bfloat16"]
CPU = torch.device("cpu")
CPU_IS_FULL = "DefaultCPUAllocator: can't allocate memory"
"""Text of the RuntimeError that torch raises if the memory of the host is full; it has no other type."""


def choose_device(name: str, rank: int) -> torch.device:
    """Return the device that `train.device` names for a rank: auto, cpu, cuda or cuda:N.

    `auto` is cuda if torch finds a device, else cpu; of several devices, rank r takes number r modulo their count.
    Raise ConfigError for a device that does not exist.
    """
    if name == "cpu":
        return CPU
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and not count:
        return CPU
    number = int(name.removeprefix("cuda:")) if ":" in name else None
    if not count or (number is not None and number >= count):
        seen = f"torch sees {count} CUDA devices, numbered from 0" if count else "torch sees no CUDA device here"
        raise ConfigError(f"train.device={name}: {seen}; use train.device=auto or cpu")
    return torch.device("cuda", rank % count if number is None else number)


def device_of(run: Run, rank: int) -> torch.device:
    """Return the device of a rank's network; weights that servers store are read and written in the host's memory."""
    device = choose_device("cpu" if isinstance(run.mode, AsyncMode) else run.train.device, rank)
    if run.train.precision == "tf32" and device.type == "cpu":
        raise ConfigError("train.precision=tf32 is arithmetic of NVIDIA GPUs, and there is none here; use float32")
    return device


def have_exclusive_gpus(name: str, ranks: int) -> bool:
    """Return True if `choose_device` gives each of so many ranks a separate GPU, which NCCL needs."""
    return name in ("auto", "cuda") and torch.cuda.is_available() and ranks <= torch.cuda.device_count()


@contextmanager
def explained_full_memory(device: torch.device, batch_size: int, dim: int) -> Iterator[None]:
    """Turn torch's error about a full memory, of a GPU or of the host, into a UserError with remedies."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and CPU_IS_FULL not in str(error):
            raise
        sentences = str(error).split(". ")[:2]
        where = device if isinstance(error, torch.OutOfMemoryError) else "this machine"
        raise UserError(
            f"the memory of {where} is full at train.batch_size={batch_size} and dim {dim}: use train.accumulate, "
            "smaller batches, a smaller model.dim or network, train.precision=bfloat16, or a device without other "
            f"users ({'. '.join(sentences).rstrip('.')})"
        ) from error


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that torch has allocated on a GPU so far; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers, on the host and on `device`, for the block; then restore their former state."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


class Copier:
    """The copies between arrays and a device; used by one thread.

    For a GPU, arrays are copied through pinned memory on their own stream, while the GPU computes; its work waits for
    them at `join`. Torch reuses pinned memory for the next copies once these are done. For the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._sent: list[torch.Tensor] = []

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory to fill and then `send` once."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self._stream is not None)

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device; on a GPU, only work after `join` may use it."""
        if self._stream is None:
            return host
        with torch.cuda.stream(self._stream):
            there = host.to(self.device, non_blocking=True)
        self._sent.append(there)
        return there

    def copy(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Send a copy of an array, which may be read-only."""
        if self._stream is None:
            return torch.tensor(array)
        host = self.buffer(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        host.numpy()[...] = array
        return self.send(host)

    def join(self) -> None:
        """Make later work of the device wait for the copies so far; the host does not wait."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        for tensor in self._sent:
            tensor.record_stream(current)
        self._sent.clear()

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
        """Return float32 tensors as C-contiguous arrays, all copied at once; the CPU's share their memory."""
        if self._stream is None:
            return [np.ascontiguousarray(tensor.detach().numpy()) for tensor in tensors]
        hosts = [self.buffer(tensor.shape, tensor.dtype) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor.detach(), non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        return [host.numpy() for host in hosts]


def prepare_torch(threads: int, precision: str = "float32") -> None:
    """Use `threads` threads within an operation and the reproducible variant of every operation that has one.

    Sums depend on the number of threads, so two runs are equal to the bit only with the same number. With `tf32`, a GPU
    rounds the factors of products to 10 bits of mantissa; autocast does the other precisions.
    """
    # The newer fp32_precision must not be used: torch.export still reads this setting, and torch refuses to mix both.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.set_num_threads(threads)
    # Large tensors of the host lie in huge pages then: a step of a network that memory limits takes a sixth less. Torch
    # reads this when it first allocates memory.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # cuBLAS reads this at its first product; without it sums may differ between runs, and torch warns of it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # torch.use_deterministic_algorithms does the same but takes seconds to import the compiler.
    torch.set_deterministic_debug_mode("warn")
    # Otherwise torch fills every new tensor, although nothing here reads memory before writing it.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of the forward pass; torch decides per operation what is safe in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
