"""torch's pooling of rows, `embedding_bag`, and two ways to compute the rows' gradients."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def forward(rows: NDArray[np.float32], index: Ints, offsets: Ints, narrow: bool) -> Callable[[], torch.Tensor]:
    """Return a function that sums bags of rows; `narrow`: indices are int32."""
    kind = torch.int32 if narrow else torch.int64
    weights = torch.from_numpy(rows)
    where, starts = torch.from_numpy(index).to(kind), torch.from_numpy(offsets).to(kind)

    def sum_bags() -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.embedding_bag(where, weights, starts, mode="sum", include_last_offset=True)

    return sum_bags


def backward(
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
