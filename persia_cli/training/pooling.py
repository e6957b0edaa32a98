"""The path of batches to the device of the network, and of gradients back: copies, and the pooling of rows.

`GroupPooling` pools on the CPU by kernels, `DevicePooling` on any device by torch's own operations, with equal results.
Gradients pass through autograd.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from persia_cli.config.schema import SampledSoftmax
from persia_cli.data.read.masked_labels import without_unknown
from persia_cli.kernels.batch.bags import check_bags
from persia_cli.kernels.batch.pool import (
    MEAN,
    MODES,
    NONE,
    SQRTN,
    SUM,
    pool_backward,
    pool_forward,
    sequence_backward,
    sequence_forward,
)
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.model.inputs import ModelBatch
from persia_cli.store.wire_rows import decode_into, decode_rows
from persia_cli.training.device import Copier
from persia_cli.training.inputs import GroupShape, Samples, cut_ids, cut_samples, entries_of
from persia_cli.training.next_item import NextItems, NextItemStaging
from persia_cli.wire.messages import GroupRows

Sequences = dict[str, tuple[torch.Tensor, torch.Tensor]]


class Pooling:
    """The pooling of one feature group, prepared once for all batches."""

    def __init__(self, shape: GroupShape, copier: Copier) -> None:
        self.dim, self._wire, self._copier = shape.dim, shape.wire, copier
        self.rounds = np.array(shape.rounds or [1] * len(shape.features), np.int64)
        self.modes = np.array([MODES[feature.pooling] for feature in shape.features], np.uint8)
        self.pooled = tuple(
            feature.name for feature, mode in zip(shape.features, self.modes, strict=True) if mode != NONE
        )
        """Names of the pooled features."""
        self.sequences = tuple(
            (position, feature.name, feature.max_length or 0)
            for position, feature in enumerate(shape.features)
            if feature.pooling == "none"
        )
        """Position, name and length of each sequence feature."""

    def leaf(self, group: GroupRows) -> torch.Tensor:
        """Decode the servers' rows to a float32 [U, dim] tensor on the device of the network; nothing writes to it."""
        if self._copier.device.type == "cpu" and self._wire == "float32" and len(group.rows) == 1:
            (block,) = group.rows
            if block.flags.writeable:  # torch has no tensors that are not
                return torch.from_numpy(decode_rows(block, self.dim, self._wire))
        leaf = self._copier.buffer((sum(map(len, group.rows)), self.dim), torch.float32)
        decode_into(group.rows, self.dim, self._wire, leaf.numpy())
        return self._copier.send(leaf)

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> "StagedRows":
        """Copy the ids of a batch, or of a part of it, to the device; `leaf` has its rows."""
        raise NotImplementedError


class GroupPooling(Pooling):
    """Pooling of one feature group on the CPU, by kernels; `empty` allocates gradients that are sent unchanged."""

    def __init__(self, shape: GroupShape, copier: Copier, empty: Empty = np.empty) -> None:
        super().__init__(shape, copier)
        self.empty = empty if shape.wire == "float32" else np.empty

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> "HostRows":
        """Return the ids with their rows."""
        return HostRows(self, leaf, group)


@dataclass(frozen=True, slots=True)
class HostRows:
    """One batch of a feature group on the CPU."""

    pooling: GroupPooling
    leaf: torch.Tensor
    group: GroupRows

    def pool(self, size: int) -> tuple[torch.Tensor, Sequences]:
        """Return float32 [size, F, dim] of the pooled features, and (values, mask) of each sequence feature."""
        group, names = self.group, [name for _, name, _ in self.pooling.sequences]
        pooled, *rest = _Pool.apply(self.leaf, self.pooling, group.inverse, group.offsets, size)  # type: ignore[no-untyped-call]
        return pooled, dict(zip(names, zip(rest[0::2], rest[1::2], strict=True), strict=True))


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
            pool_backward(outer[0].numpy(), ctx.inverse, ctx.offsets, pooling.modes, pooling.rounds, gradients)
        for (feature, _, _), gradient in zip(pooling.sequences, outer[1::2], strict=True):
            if gradient is not None:
                ids = _ids_of(feature, len(gradient), ctx.inverse, ctx.offsets)
                sequence_backward(gradient.contiguous().numpy(), *ids, int(pooling.rounds[feature]), gradients)
        return torch.from_numpy(gradients), None, None, None, None


Offsets = NDArray[np.int64]


class DevicePooling(Pooling):
    """The pooling of one feature group on a device, by torch's operations."""

    def __init__(self, shape: GroupShape, copier: Copier) -> None:
        super().__init__(shape, copier)
        self.columns = np.flatnonzero(self.modes != NONE)
        self.divided = bool(np.isin(self.modes, (MEAN, SQRTN)).any())
        device = copier.device
        self.mean = torch.from_numpy(self.modes[self.columns] == MEAN).to(device).unsqueeze(1)
        self.sum = torch.from_numpy(self.modes[self.columns] == SUM).to(device).unsqueeze(1)
        self.per_id = torch.from_numpy(self.rounds[self.columns]).to(device).unsqueeze(1)

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> "DeviceRows":
        """Send the rows of each bag to the device, where `leaf` is; raises ValueError for entries without a row."""
        bags, send = self.bags(group, len(leaf)), self._copier.copy
        offsets = None if bags.offsets is None else send(bags.offsets)
        sequences = [(send(entries), send(bounds)) for entries, bounds in bags.sequences]
        return DeviceRows(self, leaf, send(bags.entries), offsets, sequences)

    def bags(self, group: GroupRows, rows: int) -> "Bags":
        """Return the rows of each bag of a batch of `rows` unique rows; raises ValueError for entries without a row."""
        inverse = group.inverse
        size = (inverse.size if group.offsets is None else group.offsets.size - 1) // self.modes.size
        check_bags(inverse, group.offsets, self.modes.size * size, rows, self.rounds)
        if group.offsets is None and not self.sequences:
            return Bags(inverse, None, [])
        pooled = [entries_of(group, feature, size) for feature in self.columns.tolist()]
        bounds = None if group.offsets is None else [part[1] for part in pooled]
        entries, offsets = _joined([part[0] for part in pooled], bounds)
        return Bags(entries, offsets, [entries_of(group, feature, size) for feature, _, _ in self.sequences])


@dataclass(frozen=True, slots=True)
class Bags:
    """The rows of each bag of a batch, on the host; arrays as in `DeviceRows`."""

    entries: NDArray[np.int32]
    offsets: Offsets | None
    sequences: list[tuple[NDArray[np.int32], Offsets]]


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """One batch of a feature group on a device. In a graph, entries beyond the last bag fill up a fixed size."""

    pooling: DevicePooling
    leaf: torch.Tensor
    """The unique rows, float32 [U, dim]; gradients reach it if it requires them."""
    entries: torch.Tensor
    """Row of each entry of the pooled features, feature-major, int32."""
    offsets: torch.Tensor | None
    """Begin of each bag of the pooled features, int64 [C * n + 1]; None if each bag is one entry.

    Entries beyond the last bag are in further bags."""
    sequences: list[tuple[torch.Tensor, torch.Tensor]]
    """Entries int32 and offsets int64 [n + 1] of each sequence feature."""

    def pool(self, size: int) -> tuple[torch.Tensor, Sequences]:
        """Return float32 [size, C, dim] of the pooled features, and (values, mask) of each sequence feature."""
        rows = zip(self.pooling.sequences, self.sequences, strict=True)
        spread = {name: self._spread(position, length, *sequence) for (position, name, length), sequence in rows}
        return self._pooled(size), spread

    def _pooled(self, size: int) -> torch.Tensor:
        pooling = self.pooling
        columns = len(pooling.columns)
        if self.offsets is None:
            # Its backward adds in a fixed order without a wait for the device, and that of index_select is slower.
            vectors = functional.embedding(self.entries, self.leaf)
        else:
            vectors = functional.embedding_bag(
                self.entries.long(), self.leaf, self.offsets, mode="sum", include_last_offset=True
            )[: columns * size]
        vectors = vectors.view(columns, size, pooling.dim)
        if self.offsets is not None and pooling.divided:
            lengths = self.offsets[: columns * size + 1].diff().view(columns, size)
            ids = (lengths // pooling.per_id).clamp(min=1).float()
            divisor = torch.where(pooling.sum, 1.0, torch.where(pooling.mean, ids, ids.sqrt()))
            vectors = vectors / divisor.unsqueeze(2)
        return vectors.transpose(0, 1).contiguous()

    def _spread(
        self, position: int, length: int, entries: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values float32 [n, length, dim] and mask bool [n, length] of the last ids of each sample."""
        per_id, device = int(self.pooling.rounds[position]), self.leaf.device
        stops = offsets[1:]
        starts = torch.maximum(offsets[:-1], stops - length * per_id)
        positions = torch.arange(length, device=device)
        mask = positions < ((stops - starts) // per_id).unsqueeze(1)
        if not len(entries):
            return self.leaf.new_zeros(*mask.shape, self.pooling.dim), mask
        # Positions beyond a sample's ids read some row too; those values are masked, so no gradient flows back. They
        # read different rows, since a GPU adds up the gradients of one row one after another.
        some = torch.arange(mask.numel(), device=device).view_as(mask) % (len(entries) // per_id) * per_id
        at = torch.where(mask, starts.unsqueeze(1) + positions * per_id, some)
        at = at.unsqueeze(2) + torch.arange(per_id, device=device)
        vectors = functional.embedding(entries.long()[at], self.leaf).sum(2)
        return torch.where(mask.unsqueeze(2), vectors, 0.0), mask


def _joined(
    entries: list[NDArray[np.int32]], offsets: list[Offsets] | None
) -> tuple[NDArray[np.int32], Offsets | None]:
    """Concatenate features."""
    whole = np.concatenate([np.empty(0, np.int32), *entries])
    if offsets is None:
        return whole, None
    starts = np.cumsum([0, *map(len, entries)])
    parts = [of_feature[:-1] + start for of_feature, start in zip(offsets, starts, strict=False)]
    return whole, np.concatenate([*parts, starts[-1:]])


StagedRows = HostRows | DeviceRows
"""One batch of a feature group on the device of the network."""


def model_batch(poolings: Sequence[Pooling], rows: Sequence[StagedRows], dense: torch.Tensor) -> ModelBatch:
    """Pool all groups and return the network's input; gradients reach the leaves that require them."""
    pooled: list[torch.Tensor] = []
    sequences: Sequences = {}
    for group in rows:
        values, more = group.pool(int(dense.shape[0]))
        pooled.append(values)
        sequences.update(more)
    return ModelBatch(dense, pooled, [pooling.pooled for pooling in poolings], sequences)


@dataclass(frozen=True, slots=True)
class Staged:
    """Samples and rows of one step as tensors on the device; shapes as in `inputs.Samples`.

    Unknown labels are 0 here; weights are then [n, T], 0 for these labels.
    """

    dense: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor | None
    queries: torch.Tensor | None
    """int64 [n], the bits of `query_ids`."""
    items: torch.Tensor | None
    """int64 [n], the bits of `item_keys`."""
    rows: list[StagedRows]
    """One batch of each feature group."""
    next_items: NextItems | None = None
    """The positions of sequences, if the loss is of their next elements."""

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The unique rows of each group, float32 [U, dim]."""
        return [group.leaf for group in self.rows]


class Staging:
    """The path of batches to the device and of gradients back."""

    def __init__(
        self,
        groups: Sequence[GroupShape],
        device: torch.device,
        by_kernels: bool,
        empty: Empty = np.empty,
        next_item: SampledSoftmax | None = None,
    ) -> None:
        """Pool `groups` by kernels, if requested and if the device is the CPU, else by torch's operations.

        `empty` allocates gradients of rows that are sent without conversion. `next_item` is the loss if it is of next
        elements, whose positions are staged then.
        """
        self._copier = Copier(device)
        self._features = [len(group.features) for group in groups]
        by_kernels = by_kernels and device.type == "cpu"
        self.poolings: list[Pooling] = [
            GroupPooling(group, self._copier, empty) if by_kernels else DevicePooling(group, self._copier)
            for group in groups
        ]
        self._next_items = None if next_item is None else NextItemStaging(next_item, groups)

    def stage(self, samples: Samples, groups: Sequence[GroupRows]) -> Staged:
        """Copy a batch to the device; later work of the device waits for it."""
        staged = self._staged(samples, groups, self._leaves(groups))
        self._copier.join()
        return staged

    def stage_parts(
        self, samples: Samples, groups: Sequence[GroupRows], cuts: Sequence[slice], seed: int | None = None
    ) -> list[Staged]:
        """Copy a batch to the device, divided into parts, whose leaves are the same tensors.

        `seed` is that of a training step; None in evaluations.
        """
        leaves, size = self._leaves(groups), len(samples.labels)
        ids = [[group] for group in groups]
        if len(cuts) > 1:
            ids = [cut_ids(group, count, size, cuts) for group, count in zip(groups, self._features, strict=True)]
        parts = [
            self._staged(
                samples if len(cuts) == 1 else cut_samples(samples, cut), [group[number] for group in ids], leaves
            )
            for number, cut in enumerate(cuts)
        ]
        if self._next_items is not None:
            positions = self._next_items.positions(samples, groups, seed)
            staged = [self._next_items.stage(positions, cut, self._copier.copy) for cut in cuts]
            parts = [replace(part, next_items=own) for part, own in zip(parts, staged, strict=True)]
        self._copier.join()
        return parts

    def _leaves(self, groups: Sequence[GroupRows]) -> list[torch.Tensor]:
        return [pooling.leaf(group) for pooling, group in zip(self.poolings, groups, strict=True)]

    def _staged(self, samples: Samples, groups: Sequence[GroupRows], leaves: Sequence[torch.Tensor]) -> Staged:
        copy = self._copier.copy
        labels, weights = without_unknown(samples.labels, samples.weights)
        return Staged(
            copy(samples.dense),
            copy(labels),
            None if weights is None else copy(weights),
            None if samples.query_ids is None else copy(samples.query_ids.view(np.int64)),
            None if samples.item_keys is None else copy(samples.item_keys.view(np.int64)),
            [pooling.stage(group, leaf) for pooling, group, leaf in zip(self.poolings, groups, leaves, strict=True)],
        )

    def none(self, dense: int) -> Staged:
        """Stage a batch without samples, of `dense` dense features."""
        empty = np.empty((0, dense), np.float32)
        rows = GroupRows([], np.empty(0, np.int32), np.zeros(1, np.uint32))
        labels = np.empty((0, 1), np.float32)
        return self.stage_parts(Samples(empty, labels, None, ()), [rows] * len(self.poolings), [slice(0, 0)])[0]

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
        """Return float32 tensors of the device as C-contiguous arrays."""
        return self._copier.fetch(tensors)
