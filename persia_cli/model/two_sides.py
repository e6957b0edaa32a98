"""The common part of networks whose score is the dot product of two vectors: of the user and of the item."""

from typing import NamedTuple

import torch
from torch import nn

from persia_cli.model.inputs import ModelBatch


class Sides(NamedTuple):
    """The vectors float32 [n, width] of each sample's user (or of a sequence) and of its item."""

    user: torch.Tensor
    item: torch.Tensor


class TwoSides(nn.Module):
    """A network of vectors of users and of items; its logit is their dot product over its temperature."""

    temperature = 1.0
    gives_vectors = False
    """True if `forward` returns `Sides` instead of logits, for a loss over all items of a batch."""

    def users(self, batch: ModelBatch) -> torch.Tensor:
        """Return each sample's vector of the user, float32 [n, width], which depends on features of users alone."""
        raise NotImplementedError

    def items(self, batch: ModelBatch) -> torch.Tensor:
        """Return each sample's vector of the item, float32 [n, width], which depends on features of items alone."""
        raise NotImplementedError

    def forward(self, batch: ModelBatch) -> torch.Tensor | Sides:
        """Return logits float32 [n, 1]: the score of each sample's user and item; or their vectors."""
        sides = Sides(self.users(batch), self.items(batch))
        return sides if self.gives_vectors else self.scores(sides)

    def scores(self, sides: Sides) -> torch.Tensor:
        """Return logits float32 [n, 1]."""
        return (sides.user * sides.item).sum(1, keepdim=True) / self.temperature
