"""Deep interest network: Zhou et al., arXiv 1706.06978."""

from collections.abc import Sequence

import torch
from torch import nn

from persia_cli.config.schema import Din
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import LayerStyle, fully_connected, style_of
from persia_cli.model.requirements import Pair, attended_pairs
from persia_cli.model.shape import InputShape


class Attention(nn.Module):
    """The weighted sum of a sequence, each element weighed by a network that sees it beside the target.

    This is the local activation unit of section 4.3 of the paper. Weights are not normalised by a softmax, so their sum
    expresses the strength of an interest. The unit reads element, target, their difference and their product.
    """

    def __init__(self, dim: int, hidden: Sequence[int], style: LayerStyle) -> None:
        super().__init__()
        self.unit = fully_connected(4 * dim, hidden, 1, style)

    def forward(self, target: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [n, dim] of a target [n, dim] and a sequence [n, length, dim], its mask bool [n, length]."""
        wanted = target.unsqueeze(1).expand_as(values)
        weights = self.unit(torch.cat([values, wanted, values - wanted, values * wanted], dim=2))
        weighed: torch.Tensor = weights.masked_fill(~mask.unsqueeze(2), 0.0) * values
        return weighed.sum(1)


class DeepInterest(nn.Module):
    """Dense features, pooled embeddings and attended sequences side by side, through a multi-layer perceptron."""

    def __init__(self, shape: InputShape, pairs: Sequence[Pair], settings: Din) -> None:
        super().__init__()
        self.inputs = SideBySide(shape, settings)
        self.pairs = [(target.name, sequence.name) for target, sequence in pairs]
        unit = LayerStyle(settings.attention_activation)
        self.attention = nn.ModuleList(Attention(target.dim, settings.attention, unit) for target, _ in pairs)
        width = self.inputs.width + sum(target.dim for target, _ in pairs)
        self.network = fully_connected(width, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        interests = [
            attention(batch.pooled[target], *batch.sequences[sequence])
            for attention, (target, sequence) in zip(self.attention, self.pairs, strict=True)
        ]
        inputs = torch.cat([self.inputs(batch), *interests], dim=1)
        return self.network(inputs)


def build(model: Din, shape: InputShape) -> nn.Module:
    """Build the network; raises ConfigError for targets and sequences that do not fit each other."""
    return DeepInterest(shape, attended_pairs(model.attend, shape), model)
