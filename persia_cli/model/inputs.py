"""The input of a dense network: one batch of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from persia_cli.model.layers import dropped
from persia_cli.model.shape import FeatureShape


@dataclass(frozen=True)
class ModelBatch:
    """The n samples of which a network computes logits.

    `dense` is float32 [n, dense]. `groups` has float32 [n, F_g, dim_g] for each feature group (F_g may be 0) and
    `names` the features along its second axis. `sequences` maps a feature to (values float32 [n, max_length, dim],
    mask bool [n, max_length]). n may be 0, since a rank without samples takes part in the step too.
    """

    dense: torch.Tensor
    groups: Sequence[torch.Tensor]
    names: Sequence[Sequence[str]]
    sequences: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    undropped: Mapping[str, torch.Tensor] | None = None
    """Values of the sequences before dropout, by which equal elements are found; None without dropout."""
    pooled: Mapping[str, torch.Tensor] = field(init=False)
    """Pooled vectors float32 [n, dim] by feature, in no fixed order: `shape.pooled` has the data set's order."""

    def __post_init__(self) -> None:
        """Split the groups once for all readers: later, torch.compile would trace it."""
        pooled: dict[str, torch.Tensor] = {}
        for names, group in zip(self.names, self.groups, strict=True):
            # One unbind has one backward; a slice per feature would fill and add a whole group each.
            pooled.update(zip(names, group.unbind(1), strict=True))
        object.__setattr__(self, "pooled", pooled)

    def with_dropout(self, share: float) -> "ModelBatch":
        """Return the batch with dropout of its vectors: this share of numbers is 0, the others are scaled up."""
        groups = [dropped(group, share) for group in self.groups]
        sequences = {name: (dropped(values, share), mask) for name, (values, mask) in self.sequences.items()}
        undropped = {name: values for name, (values, _) in self.sequences.items()}
        return replace(self, groups=groups, sequences=sequences, undropped=undropped)

    def elements(self, sequence: str) -> torch.Tensor:
        """Return float32 [n, max_length, dim], the elements of a sequence without dropout."""
        return self.sequences[sequence][0] if self.undropped is None else self.undropped[sequence]

    @property
    def size(self) -> int:
        """Number of samples."""
        return int(self.dense.shape[0])

    def concatenated(self, features: Sequence[FeatureShape]) -> torch.Tensor:
        """Pooled vectors concatenated, float32 [n, sum of dims], in the order of `features`, of any groups."""
        if self._is_whole_group(features):
            return self.groups[0].flatten(1)
        if not features:
            return self.dense.new_zeros(self.size, 0)
        return torch.cat([self.pooled[feature.name] for feature in features], dim=1)

    def stacked(self, features: Sequence[FeatureShape]) -> torch.Tensor:
        """Pooled vectors of one dim as float32 [n, features, dim], in the order of `features`, of any groups."""
        if self._is_whole_group(features):
            return self.groups[0]
        return torch.stack([self.pooled[feature.name] for feature in features], dim=1)

    def _is_whole_group(self, features: Sequence[FeatureShape]) -> bool:
        """True if there is one group with exactly these features in this order, so that no copy is needed."""
        return len(self.groups) == 1 and [feature.name for feature in features] == list(self.names[0])


def drop_embeddings(network: nn.Module, share: float) -> None:
    """Make a network drop embeddings in training; in evaluation it reads all of them."""

    def before(module: nn.Module, inputs: tuple[ModelBatch]) -> tuple[ModelBatch]:
        return (inputs[0].with_dropout(share),) if module.training else inputs

    network.register_forward_pre_hook(before)
