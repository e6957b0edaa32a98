"""The copy of a rank's part of a step to the device of the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.data.read.masked_labels import without_unknown
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.training.device import Copier
from persia_cli.training.inputs import GroupShape, Samples, cut_ids, cut_samples
from persia_cli.training.pooling import DevicePooling, GroupPooling, Pooling, StagedRows
from persia_cli.wire.messages import GroupRows


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

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The unique rows of each group, float32 [U, dim]."""
        return [group.leaf for group in self.rows]


class Staging:
    """The path of batches to the device and of gradients back."""

    def __init__(
        self, groups: Sequence[GroupShape], device: torch.device, by_kernels: bool, empty: Empty = np.empty
    ) -> None:
        """Pool `groups` by kernels, if requested and if the device is the CPU, else by torch's operations.

        `empty` allocates gradients of rows that are sent without conversion.
        """
        self._copier = Copier(device)
        self._features = [len(group.features) for group in groups]
        by_kernels = by_kernels and device.type == "cpu"
        self.poolings: list[Pooling] = [
            GroupPooling(group, self._copier, empty) if by_kernels else DevicePooling(group, self._copier)
            for group in groups
        ]

    def stage(self, samples: Samples, groups: Sequence[GroupRows]) -> Staged:
        """Copy a batch to the device; later work of the device waits for it."""
        staged = self._staged(samples, groups, self._leaves(groups))
        self._copier.join()
        return staged

    def stage_parts(self, samples: Samples, groups: Sequence[GroupRows], cuts: Sequence[slice]) -> list[Staged]:
        """Copy a batch to the device, divided into parts, whose leaves are the same tensors."""
        if len(cuts) == 1:
            return [self.stage(samples, groups)]
        leaves, size = self._leaves(groups), len(samples.labels)
        ids = [cut_ids(group, count, size, cuts) for group, count in zip(groups, self._features, strict=True)]
        parts = [
            self._staged(cut_samples(samples, cut), [group[number] for group in ids], leaves)
            for number, cut in enumerate(cuts)
        ]
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
        return self.stage(Samples(empty, empty[:, :0], None, ()), [rows] * len(self.poolings))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
        """Return float32 tensors of the device as C-contiguous arrays."""
        return self._copier.fetch(tensors)
