"""The embedding step of others, torch's fastest and FBGEMM's, on tables of fixed size with row numbers for ids.

FBGEMM is in the group `compare` (`pip install --group compare`); 1.8.0 is the release that loads with torch 2.13.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.kernels.toolchain.memory import zeros

Kind = Literal["sgd", "adagrad", "rowwise_adagrad"]
OPTIMIZERS = {"sgd": "EXACT_SGD", "adagrad": "EXACT_ADAGRAD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


def table(rows: int, dim: int) -> torch.Tensor:
    """Return float32[rows, dim] of small values, in memory like ours: aligned to cache lines, in huge pages.

    By default torch's tables have neither, and are slower.
    """
    memory = zeros(rows * dim, np.float32)
    memory.fill(0.01)
    return torch.from_numpy(memory).view(rows, dim)


def has_fbgemm() -> bool:
    """Return True if FBGEMM is installed."""
    return find_spec("fbgemm_gpu") is not None


class OneBag:
    """All tables in one sparse `EmbeddingBag`, and torch's optimizer; one id per feature and sample."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        kind: Literal["sgd", "adagrad"],
        samples: int,
        lr: float,
        eps: float,
        huge_pages: bool = False,
    ) -> None:
        """Make the tables; with `huge_pages`, weights and states are in aligned huge pages, unlike torch's default."""
        # The checks are off by default, but torch warns until that is explicit.
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        rows = sum(cardinalities)
        weights = table(rows, dim) if huge_pages else torch.full((rows, dim), 0.01)
        self._bag = torch.nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
        self._optimizer: torch.optim.Optimizer
        if kind == "sgd":
            self._optimizer = torch.optim.SGD([self._bag.weight], lr=lr)
        else:
            self._optimizer = torch.optim.Adagrad([self._bag.weight], lr=lr, eps=eps)
            if huge_pages:
                self._optimizer.state[self._bag.weight]["sum"] = table(rows, dim).zero_()
        self._starts = np.concatenate([[0], np.cumsum(cardinalities)[:-1]]).reshape(-1, 1)
        self._offsets = torch.arange(samples * len(cardinalities))
        self._shape = (samples, len(cardinalities), dim)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Return float32[rows of all tables, dim], without a copy."""
        return self._bag.weight.detach().numpy()

    def ready(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the input of `step` for ids int64[features, samples]; this is not timed."""
        return torch.from_numpy(np.ascontiguousarray((ids + self._starts).T).reshape(-1))

    def step(self, ids: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Run forward, backward with a gradient float32[samples, features, dim], and optimizer; return pooled rows."""
        pooled: torch.Tensor = self._bag(ids, self._offsets).view(self._shape)
        pooled.backward(gradient)  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return pooled


class Fbgemm:
    """`SplitTableBatchedEmbeddingBags` on the CPU, backward and optimizer in one; one id per feature and sample."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        kind: Kind,
        samples: int,
        lr: float,
        eps: float,
        huge_pages: bool = False,
    ) -> None:
        """Make the tables; with `huge_pages`, weights and states are in aligned huge pages, unlike FBGEMM's default."""
        training = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        configs = import_module("fbgemm_gpu.split_embedding_configs")
        host, cpu = training.EmbeddingLocation.HOST, training.ComputeDevice.CPU
        self._tables: Any = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, host, cpu) for rows in cardinalities],
            optimizer=getattr(configs.EmbOptimType, OPTIMIZERS[kind]),
            learning_rate=lr,
            eps=eps,
        )
        if huge_pages:
            for name in ("weights_host", "momentum1_host"):
                _move(getattr(self._tables, name, None))
        for weights in self.weights():
            weights.fill_(0.01)
        self._offsets = torch.arange(samples * len(cardinalities) + 1)
        self._shape = (samples, len(cardinalities), dim)

    def weights(self) -> list[torch.Tensor]:
        """Return float32[rows, dim] of each table, without a copy."""
        return list(self._tables.split_embedding_weights())

    def ready(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the input of `step` for ids int64[features, samples]; this is not timed."""
        return torch.from_numpy(np.ascontiguousarray(ids).reshape(-1))

    def step(self, ids: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Run forward, then backward with a gradient float32[samples, features, dim], which also updates the rows."""
        pooled: torch.Tensor = self._tables(ids, self._offsets).view(self._shape)
        pooled.backward(gradient)  # type: ignore[no-untyped-call]
        return pooled


def _move(memory: torch.Tensor | None) -> None:
    """Move the memory of a tensor to aligned huge pages."""
    if memory is not None and memory.numel():
        place = torch.from_numpy(zeros(memory.numel(), np.float32))
        place.copy_(memory.detach())
        memory.data = place
