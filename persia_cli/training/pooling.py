"""The pooling of feature groups' unique rows into a network's input, with gradients through autograd."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.kernels.batch.pool import MODES, pool_backward, pool_forward, sequence_backward, sequence_forward
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.model.inputs import ModelBatch
from persia_cli.store.wire_rows import decode_into
from persia_cli.training.inputs import GroupShape
from persia_cli.wire.messages import GroupRows

Sequences = dict[str, tuple[torch.Tensor, torch.Tensor]]


class StagedRows(Protocol):
    """One batch of a feature group on the device of the network."""

    @property
    def leaf(self) -> torch.Tensor:
        """The unique rows, float32 [U, dim]; gradients reach it if it requires them."""

    def pool(self, size: int) -> tuple[torch.Tensor, Sequences]:
        """Return float32 [size, F, dim] of the pooled features, and (values, mask) of each sequence feature."""


class Pooling(Protocol):
    """The pooling of one feature group, prepared once for all batches."""

    @property
    def pooled(self) -> tuple[str, ...]:
        """Names of the pooled features."""

    def leaf(self, group: GroupRows) -> torch.Tensor:
        """Decode the servers' rows into a new float32 [U, dim] tensor on the device of the network."""

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> StagedRows:
        """Copy the ids of a batch, or of a part of it, to the device; `leaf` has its rows."""


Columns = tuple[NDArray[np.int64], NDArray[np.uint8], tuple[str, ...], tuple[tuple[int, str, int], ...]]


def columns_of(shape: GroupShape) -> Columns:
    """Return a group's rounds and modes, the names of pooled features, and (position, name, length) of sequences."""
    rounds = np.array(shape.rounds or [1] * len(shape.features), np.int64)
    modes = np.array([MODES[feature.pooling] for feature in shape.features], np.uint8)
    pooled = tuple(feature.name for feature in shape.features if feature.pooling != "none")
    sequences = tuple(
        (position, feature.name, feature.max_length or 0)
        for position, feature in enumerate(shape.features)
        if feature.pooling == "none"
    )
    return rounds, modes, pooled, sequences


class GroupPooling:
    """Pooling of one feature group on the CPU, by kernels; `empty` allocates gradients that are sent unchanged."""

    def __init__(self, shape: GroupShape, empty: Empty = np.empty) -> None:
        self.dim = shape.dim
        self.wire = shape.wire
        self.empty = empty if shape.wire == "float32" else np.empty
        self.rounds, self.modes, self.pooled, self.sequences = columns_of(shape)

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> "HostRows":
        """Return the ids with their rows."""
        return HostRows(self, leaf, group)

    def leaf(self, group: GroupRows) -> torch.Tensor:
        """Decode the servers' rows into a new float32 [U, dim] tensor."""
        rows = np.empty((sum(map(len, group.rows)), self.dim), np.float32)
        decode_into(group.rows, self.dim, self.wire, rows)
        return torch.from_numpy(rows)

    def apply(self, leaf: torch.Tensor, group: GroupRows, size: int) -> tuple[torch.Tensor, Sequences]:
        """Return float32 [size, F, dim] of the pooled features, and (values, mask) of each sequence feature."""
        pooled, *rest = _Pool.apply(leaf, self, group.inverse, group.offsets, size)  # type: ignore[no-untyped-call]
        names = [name for _, name, _ in self.sequences]
        return pooled, dict(zip(names, zip(rest[0::2], rest[1::2], strict=True), strict=True))


@dataclass(frozen=True, slots=True)
class HostRows:
    """One batch of a feature group on the CPU."""

    pooling: GroupPooling
    leaf: torch.Tensor
    group: GroupRows

    def pool(self, size: int) -> tuple[torch.Tensor, Sequences]:
        """Return float32 [size, F, dim] of the pooled features, and (values, mask) of each sequence feature."""
        return self.pooling.apply(self.leaf, self.group, size)


def model_batch(poolings: Sequence[Pooling], rows: Sequence[StagedRows], dense: torch.Tensor) -> ModelBatch:
    """Pool all groups and return the network's input; gradients reach the leaves that require them."""
    pooled: list[torch.Tensor] = []
    sequences: Sequences = {}
    for group in rows:
        values, more = group.pool(int(dense.shape[0]))
        pooled.append(values)
        sequences.update(more)
    return ModelBatch(dense, pooled, [pooling.pooled for pooling in poolings], sequences)


def _ids_of(
    feature: int, size: int, inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None
) -> tuple[NDArray[np.int32], NDArray[np.uint32] | None]:
    """Return inverse and offsets of one feature, for the sequence kernels."""
    if offsets is None:
        return inverse[feature * size : (feature + 1) * size], None
    return inverse, offsets[feature * size : (feature + 1) * size + 1]


class _Pool(torch.autograd.Function):
    """One function for all features of a group, so that their gradients add up in one buffer in one fixed order."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        pooling: GroupPooling,
        inverse: NDArray[np.int32],
        offsets: NDArray[np.uint32] | None,
        size: int,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.pooling, ctx.inverse, ctx.offsets, ctx.unique = pooling, inverse, offsets, len(rows)
        values = rows.detach().numpy()
        pooled = np.empty((size, len(pooling.pooled), pooling.dim), np.float32)
        pool_forward(values, inverse, offsets, pooling.modes, pooling.rounds, pooled)
        out = [torch.from_numpy(pooled)]
        for feature, _, length in pooling.sequences:
            padded = np.empty((size, length, pooling.dim), np.float32)
            mask = np.empty((size, length), np.bool_)
            ids = _ids_of(feature, size, inverse, offsets)
            sequence_forward(values, *ids, int(pooling.rounds[feature]), padded, mask)
            out += [torch.from_numpy(padded), torch.from_numpy(mask)]
        ctx.mark_non_differentiable(*out[2::2])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        pooling: GroupPooling = ctx.pooling
        gradients: NDArray[np.float32] = pooling.empty((ctx.unique, pooling.dim), np.float32)
        gradients[...] = 0.0
        if outer[0] is not None:
            outer_pooled = outer[0].contiguous().numpy()
            pool_backward(outer_pooled, ctx.inverse, ctx.offsets, pooling.modes, pooling.rounds, gradients)
        for (feature, _, _), gradient in zip(pooling.sequences, outer[1::2], strict=True):
            if gradient is not None:
                ids = _ids_of(feature, len(gradient), ctx.inverse, ctx.offsets)
                sequence_backward(gradient.contiguous().numpy(), *ids, int(pooling.rounds[feature]), gradients)
        return torch.from_numpy(gradients), None, None, None, None
