"""The input of a dense network: one batch of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from persia_cli.model.dropout import dropped
from persia_cli.model.shape import FeatureShape


@dataclass(frozen=True)
class ModelBatch:
    """The n samples a network computes logits for.

    `dense` is float32 [n, dense]. `groups` holds float32 [n, F_g, dim_g] for each feature group (F_g may be 0) and
    `names` the features along its second axis. `sequences` maps a feature to (values float32 [n, max_length, dim],
    mask bool [n, max_length]). n may be 0: a rank without samples takes part in the step all the same.
    """

    dense: torch.Tensor
    groups: Sequence[torch.Tensor]
    names: Sequence[Sequence[str]]
    sequences: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    undropped: Mapping[str, torch.Tensor] | None = None
    """Values of the sequences before dropout, by which their elements are told apart; None without dropout."""
    pooled: Mapping[str, torch.Tensor] = field(init=False)
    """Pooled vectors float32 [n, dim] by feature, in no order to rely on: `shape.pooled` has the data set's."""

    def __post_init__(self) -> None:
        """Take the groups apart, once for all readers: later would be within what torch.compile traces."""
        found: dict[str, torch.Tensor] = {}
        for names, group in zip(self.names, self.groups, strict=True):
            # One unbind has one backward; a slice per feature would fill and add a whole group each.
            found.update(zip(names, group.unbind(1), strict=True))
        object.__setattr__(self, "pooled", found)

    def with_dropout(self, share: float) -> "ModelBatch":
        """Return the batch with each number of its vectors 0 by chance, in this share of cases, others scaled up."""
        groups = [dropped(group, share) for group in self.groups]
        sequences = {name: (dropped(values, share), mask) for name, (values, mask) in self.sequences.items()}
        undropped = {name: values for name, (values, _) in self.sequences.items()}
        return replace(self, groups=groups, sequences=sequences, undropped=undropped)

    def elements(self, sequence: str) -> torch.Tensor:
        """Return float32 [n, max_length, dim], the elements of a sequence as they are without dropout."""
        return self.sequences[sequence][0] if self.undropped is None else self.undropped[sequence]

    @property
    def size(self) -> int:
        """Number of samples."""
        return int(self.dense.shape[0])

    def concatenated(self, features: Sequence[FeatureShape]) -> torch.Tensor:
        """Pooled vectors side by side, float32 [n, sum of dims], in the order of `features` whatever the groups."""
        if self._is_whole_group(features):
            return self.groups[0].flatten(1)
        if not features:
            return self.dense.new_zeros(self.size, 0)
        return torch.cat([self.pooled[feature.name] for feature in features], dim=1)

    def stacked(self, features: Sequence[FeatureShape]) -> torch.Tensor:
        """Pooled vectors of one dim as float32 [n, features, dim], in the order of `features` whatever the groups."""
        if self._is_whole_group(features):
            return self.groups[0]
        return torch.stack([self.pooled[feature.name] for feature in features], dim=1)

    def _is_whole_group(self, features: Sequence[FeatureShape]) -> bool:
        """True if there is one group with exactly these features in this order, so that no copy is needed."""
        return len(self.groups) == 1 and [feature.name for feature in features] == list(self.names[0])


def drop_embeddings(network: nn.Module, share: float) -> None:
    """Let a network train on batches with dropout of their embeddings; in evaluation it sees all of them."""

    def before(module: nn.Module, inputs: tuple[ModelBatch]) -> tuple[ModelBatch]:
        return (inputs[0].with_dropout(share),) if module.training else inputs

    network.register_forward_pre_hook(before)
