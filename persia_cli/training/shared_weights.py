"""Dense weights that the embedding servers store: every rank reads them with its rows and sends gradients back.

A rank has the initial weights, and the servers store the difference of each weight to them: w = initial + row. The
steps of SGD, Adagrad and Adam depend on gradients only, so this is exact up to rounding. The servers do not need the
initial weights, which all ranks draw from the same seed.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.errors import ConfigError
from persia_cli.kernels.batch.dedup import add_rows
from persia_cli.model.batch_norm import LOCAL, BatchNorm
from persia_cli.plan.dense import DIM, require_space
from persia_cli.storage.locations import Location
from persia_cli.store.wire_rows import decode_rows
from persia_cli.training.dense_state import INITIAL, TensorFile, Tensors, load_initial
from persia_cli.wire.messages import GroupRows

ALIGNED = 16
"""Alignment of each parameter in float32 values: a cache line, as in separately allocated memory."""


class SharedWeights:
    """The trainable parameters of a module as views of one flat tensor, which is `rows` rows of DIM weights.

    Between parameters, and at the end, there are zeros whose gradients are 0.
    """

    def __init__(self, module: nn.Module, ranks: int, l2: Mapping[str, float]) -> None:
        """Move the parameters of `module` to flat memory; `ranks` is the number of ranks that train it.

        `l2` times each parameter is added to its gradient here, each rank's part of it, since servers do not have the
        weights. Raise ConfigError for a model that cannot train in this way: too many weights, not float32, or a
        BatchNorm, whose statistics ranks would not share.
        """
        self._parameters = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        _require_trainable_alone(module, self._parameters, ranks)
        require_space(sum(weight.numel() for weight in self._parameters.values()))
        ends = np.cumsum([math.ceil(weight.numel() / ALIGNED) * ALIGNED for weight in self._parameters.values()])
        self.rows = math.ceil(int(ends[-1]) / DIM)
        self._l2 = [l2.get(name, 0.0) / ranks for name in self._parameters]
        self._starts = [0, *ends[:-1].tolist()]
        self._flat, self._gradient = torch.zeros(2, self.rows * DIM)
        for weight, view in zip(self._parameters.values(), self._views(self._flat), strict=True):
            view.copy_(weight.detach())
            weight.data = view
        self._gradient_views = self._views(self._gradient)
        self._initial = self._flat.clone()
        self._ids = np.arange(self.rows, dtype=np.int32)
        """Id of each row in the order of servers."""

    def set_from_rows(self, group: GroupRows) -> None:
        """Set the weights from the servers' rows; `inverse` is the position of each id's row."""
        self._ids[group.inverse] = np.arange(self.rows, dtype=np.int32)
        self._flat.copy_(self._initial)
        flat, start = self._flat.numpy(), 0
        for block in group.rows:
            ids = self._ids[start : start + len(block)]
            add_rows(decode_rows(block, DIM, "float32").reshape(-1), ids, DIM, flat)
            start += len(block)

    def gradients(self) -> NDArray[np.float32]:
        """Return the gradients of the last backward, float32 [rows, DIM] in the order of servers, in new memory."""
        for weight, view, l2 in zip(self._parameters.values(), self._gradient_views, self._l2, strict=True):
            if weight.grad is None:
                view.zero_()
            else:
                view.copy_(weight.grad)
            if l2:
                view.add_(weight.detach(), alpha=l2)
        gradients: NDArray[np.float32] = self._gradient.numpy().reshape(self.rows, DIM)
        return gradients.take(self._ids, axis=0)

    def initial_file(self) -> TensorFile:
        """Return the initial weights, to which the saved rows are differences."""
        return TensorFile(INITIAL, self._named(self._initial), {})

    def load(self, folder: Location) -> None:
        """Load the initial weights of a checkpoint whose weights the module has loaded.

        If servers did not store the dense weights of that run, the loaded weights become the initial ones.
        """
        self.restore(load_initial(folder, self._named(self._initial)) or self._named(self._flat))

    def restore(self, initial: Tensors) -> None:
        """Set the initial weights, by parameter."""
        for name, view in self._named(self._initial).items():
            view.copy_(initial[name])

    def make_present_weights_initial(self) -> None:
        """Make the module's present weights the initial ones, to which servers store the differences."""
        self._initial = self._flat.clone()

    def _named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip(self._parameters, self._views(flat), strict=True))

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [
            flat[start : start + weight.numel()].view(weight.shape)
            for start, weight in zip(self._starts, self._parameters.values(), strict=True)
        ]


def _require_trainable_alone(module: nn.Module, parameters: dict[str, nn.Parameter], ranks: int) -> None:
    """Raise ConfigError for parameters that rows cannot store, and for statistics that ranks would not share."""
    for name, weight in parameters.items():
        if weight.dtype != torch.float32:
            dtype = str(weight.dtype).removeprefix("torch.")
            raise ConfigError(
                f"the model's parameter {name} is {dtype}, but mode.kind=async stores dense weights in float32; "
                "make it float32, or choose another mode"
            )
    for name, part in module.named_modules():
        if ranks > 1 and isinstance(part, BatchNorm | nn.SyncBatchNorm | LOCAL):
            raise ConfigError(
                f"the model's layer {name or 'itself'} ({type(part).__name__}) stores statistics of the samples, but "
                "with mode.kind=async ranks share only weights; use model.norm=layer and no dice "
                "(torch.nn.LayerNorm in a custom network), or set cluster.nn_workers=1"
            )
