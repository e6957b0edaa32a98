"""Torch's counterparts of the parts of a store: rows by number, sparse steps of its optimizers, pooling, casts.

torch's tables get the same memory as ours: aligned to cache lines and in huge pages. By default it has neither, and is
slower.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.kernels.toolchain.memory import zeros

Ints = NDArray[np.int64]
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def one_thread() -> None:
    """Limit torch to one thread, as for all measurements here."""
    torch.set_num_threads(1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def unchecked() -> None:
    """Turn off the checks of sparse tensors explicitly: that is the default, but torch warns until it is set."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]


def table(rows: int, dim: int) -> torch.Tensor:
    """Return float32[rows, dim] of small values, in aligned huge pages."""
    memory = zeros(rows * dim, np.float32)
    memory.fill(0.01)
    return torch.from_numpy(memory).view(rows, dim)


def index_select(weights: torch.Tensor, most: int) -> Callable[[torch.Tensor], object]:
    """Return a function that reads rows of a table, at most `most` at once, into memory allocated before."""
    out = table(most, weights.shape[1])

    def read(rows: torch.Tensor) -> object:
        return torch.index_select(weights, 0, rows, out=out[: len(rows)])

    return read


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    return torch.from_numpy(array)


class SparseStep:
    """A step of torch's Adagrad or SparseAdam with a coalesced sparse gradient."""

    def __init__(self, kind: Literal["adagrad", "adam"], rows: int, dim: int) -> None:
        unchecked()
        self._weights = torch.nn.Parameter(table(rows, dim))
        self._optimizer: torch.optim.Optimizer
        if kind == "adagrad":
            self._optimizer = torch.optim.Adagrad([self._weights], lr=0.01, eps=1e-8)
            self._optimizer.state[self._weights]["sum"] = table(rows, dim)
        else:
            self._optimizer = torch.optim.SparseAdam([self._weights], lr=0.01)
            states = {"exp_avg": table(rows, dim), "exp_avg_sq": table(rows, dim)}
            self._optimizer.state[self._weights] = {"step": 0, **states}

    def gradient(self, rows: Ints, values: NDArray[np.float32]) -> torch.Tensor:
        """Return the sparse gradient of distinct rows, sorted as autograd would leave it."""
        place = np.argsort(rows)
        indices = torch.from_numpy(rows[place]).view(1, -1)
        shape = tuple(self._weights.shape)
        return torch.sparse_coo_tensor(
            indices, torch.from_numpy(values), shape, is_coalesced=True, check_invariants=False
        )

    def steps(self, gradients: Sequence[torch.Tensor]) -> None:
        """Take a step for each gradient."""
        for gradient in gradients:
            self._weights.grad = gradient
            self._optimizer.step()


def pool_forward(rows: NDArray[np.float32], index: Ints, offsets: Ints, narrow: bool) -> Callable[[], torch.Tensor]:
    """Return a function that sums bags of rows; `narrow`: indices are int32."""
    kind = torch.int32 if narrow else torch.int64
    weights = torch.from_numpy(rows)
    where, starts = torch.from_numpy(index).to(kind), torch.from_numpy(offsets).to(kind)

    def sum_bags() -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.embedding_bag(where, weights, starts, mode="sum", include_last_offset=True)

    return sum_bags


def pool_backward(
    rows: NDArray[np.float32], index: Ints, offsets: Ints, gradient: NDArray[np.float32]
) -> Callable[[], torch.Tensor]:
    """Return a function that computes the gradient of the rows of `embedding_bag` by autograd."""
    weights = torch.from_numpy(rows).requires_grad_()
    where, starts = torch.from_numpy(index), torch.from_numpy(offsets)
    pooled = torch.nn.functional.embedding_bag(where, weights, starts, mode="sum", include_last_offset=True)
    outer = torch.from_numpy(gradient)

    def differentiate() -> torch.Tensor:
        (result,) = torch.autograd.grad(pooled, weights, outer, retain_graph=True)
        return result

    return differentiate


def index_add(unique: int, index: Ints, offsets: Ints, gradient: NDArray[np.float32]) -> Callable[[], torch.Tensor]:
    """Return a function that sums the same gradients by `index_add_`, from a prepared gradient per id."""
    lengths = torch.from_numpy(np.diff(offsets))
    each = torch.from_numpy(gradient).repeat_interleave(lengths, 0)
    where = torch.from_numpy(index)
    out = torch.zeros(unique, gradient.shape[1])

    def add() -> torch.Tensor:
        return out.zero_().index_add_(0, where, each)

    return add


def there_and_back(
    values: NDArray[np.float32], half: Literal["float16", "bfloat16"]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a function that encodes values and one that decodes them."""
    wide = torch.from_numpy(values)
    narrow = torch.empty(wide.shape, dtype=HALVES[half])
    back = torch.empty_like(wide)
    return lambda: narrow.copy_(wide), lambda: back.copy_(narrow)
