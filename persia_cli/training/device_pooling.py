"""Pooling by torch's own operations on any device; `pooling.GroupPooling` does the same on the CPU by kernels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from persia_cli.kernels.batch.bags import check_bags
from persia_cli.kernels.batch.pool import MEAN, NONE, SQRTN, SUM
from persia_cli.store.wire_rows import decode_into
from persia_cli.training.device import Copier
from persia_cli.training.inputs import GroupShape
from persia_cli.training.pooling import Sequences, columns_of
from persia_cli.wire.messages import GroupRows

Offsets = NDArray[np.int64]


class DevicePooling:
    """The pooling of one feature group on a device, prepared once for all batches."""

    def __init__(self, shape: GroupShape, copier: Copier) -> None:
        self._copier = copier
        self._wire = shape.wire
        self.dim = shape.dim
        self.rounds, self.modes, self.pooled, self.sequences = columns_of(shape)
        self.columns = np.flatnonzero(self.modes != NONE)
        self.divided = bool(np.isin(self.modes, (MEAN, SQRTN)).any())
        device = copier.device
        self.mean = torch.from_numpy(self.modes[self.columns] == MEAN).to(device).unsqueeze(1)
        self.sum = torch.from_numpy(self.modes[self.columns] == SUM).to(device).unsqueeze(1)
        self.per_id = torch.from_numpy(self.rounds[self.columns]).to(device).unsqueeze(1)

    def leaf(self, group: GroupRows) -> torch.Tensor:
        """Send the unique rows float32 [U, dim] to the device."""
        leaf = self._copier.buffer((sum(map(len, group.rows)), self.dim), torch.float32)
        decode_into(group.rows, self.dim, self._wire, leaf.numpy())
        return self._copier.send(leaf)

    def stage(self, group: GroupRows, leaf: torch.Tensor) -> "DeviceRows":
        """Send the rows of each bag to the device, where `leaf` is; raises ValueError for entries without a row."""
        bags, send = self.bags(group, len(leaf)), self._copier.copy
        offsets = None if bags.offsets is None else send(bags.offsets)
        return DeviceRows(
            self, leaf, send(bags.entries), offsets, [(send(own), send(at)) for own, at in bags.sequences]
        )

    def bags(self, group: GroupRows, rows: int) -> "Bags":
        """Return the rows of each bag of a batch of `rows` unique rows; raises ValueError for entries without a row."""
        inverse, size = group.inverse, self._size(group)
        check_bags(inverse, group.offsets, self.modes.size * size, rows, self.rounds)
        if group.offsets is None and not self.sequences:
            return Bags(inverse, None, [])
        bounds = None if group.offsets is None else group.offsets.astype(np.int64)
        pooled = [_slice(inverse, bounds, feature, size) for feature in self.columns.tolist()]
        entries, offsets = _joined([part[0] for part in pooled], None if bounds is None else [p[1] for p in pooled])
        return Bags(entries, offsets, [_slice(inverse, bounds, feature, size) for feature, _, _ in self.sequences])

    def _size(self, group: GroupRows) -> int:
        bags = group.inverse.size if group.offsets is None else group.offsets.size - 1
        return bags // self.modes.size


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
        spread = {name: self._spread(position, length, *own) for (position, name, length), own in rows}
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
        places = torch.arange(length, device=device)
        mask = places < ((stops - starts) // per_id).unsqueeze(1)
        if not len(entries):
            return self.leaf.new_zeros(*mask.shape, self.pooling.dim), mask
        # Positions beyond a sample's ids read some row too; those values are masked, so no gradient flows back. They
        # read different rows, since a GPU adds up the gradients of one row one after another.
        some = torch.arange(mask.numel(), device=device).view_as(mask) % (len(entries) // per_id) * per_id
        at = torch.where(mask, starts.unsqueeze(1) + places * per_id, some)
        at = at.unsqueeze(2) + torch.arange(per_id, device=device)
        vectors = functional.embedding(entries.long()[at], self.leaf).sum(2)
        return torch.where(mask.unsqueeze(2), vectors, 0.0), mask


def _slice(
    inverse: NDArray[np.int32], bounds: Offsets | None, feature: int, size: int
) -> tuple[NDArray[np.int32], Offsets]:
    """Return one feature's entries and their offsets int64 [size + 1]."""
    if bounds is None:
        return inverse[feature * size : (feature + 1) * size], np.arange(size + 1, dtype=np.int64)
    own = bounds[feature * size : (feature + 1) * size + 1]
    return inverse[own[0] : own[-1]], own - own[0]


def _joined(
    entries: list[NDArray[np.int32]], offsets: list[Offsets] | None
) -> tuple[NDArray[np.int32], Offsets | None]:
    """Concatenate features."""
    whole = np.concatenate([np.empty(0, np.int32), *entries])
    if offsets is None:
        return whole, None
    starts = np.cumsum([0, *map(len, entries)])
    parts = [own[:-1] + start for own, start in zip(offsets, starts, strict=False)]
    return whole, np.concatenate([*parts, starts[-1:]])
