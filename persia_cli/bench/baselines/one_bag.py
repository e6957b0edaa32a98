"""The whole embedding step in torch's fastest form: all tables in one sparse `EmbeddingBag`, and torch's optimizer."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.bench.baselines.tables import table, unchecked


class OneBag:
    """Tables of some cardinalities, joined in one weight; one id per feature and sample."""

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
        unchecked()
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
