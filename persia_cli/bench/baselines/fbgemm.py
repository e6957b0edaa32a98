"""FBGEMM's `SplitTableBatchedEmbeddingBags` on the CPU: forward, backward and optimizer in one, tables of fixed size.

It is in the extra `compare` (`pip install 'persia[compare]'`); 1.8.0 is the release that loads with torch 2.13.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.kernels.memory import zeros

Kind = Literal["sgd", "adagrad", "rowwise_adagrad"]
OPTIMIZERS = {"sgd": "EXACT_SGD", "adagrad": "EXACT_ADAGRAD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


def is_installed() -> bool:
    """Return True if FBGEMM is installed."""
    return find_spec("fbgemm_gpu") is not None


class Fbgemm:
    """One table per feature; one id per feature and sample."""

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
