"""AutoInt: Song et al., arXiv 1810.11921."""

import torch
from torch import nn

from persia_cli.config.schema import AutoInt
from persia_cli.model.fields import Fields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear, fully_connected, style_of
from persia_cli.model.shape import InputShape


class Interacting(nn.Module):
    """A multi-head self-attention over fields with a residual, the paper's interacting layer.

    Products of query and key are not scaled, and no projection has a bias.
    """

    def __init__(self, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        # Query, key, value and residual at once: one matrix product instead of four.
        self.project = JoinedLinear(inputs, heads * width, parts=4, bias=False)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Return [n, fields, heads * width] of [n, fields, inputs]."""
        *projected, residual = self.project(fields).chunk(4, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in projected)
        # Torch's own attention has no reproducible gradient on every device.
        attended = (query @ key.transpose(2, 3)).softmax(3) @ value
        return torch.relu(attended.transpose(1, 2).flatten(2) + residual)


class AutomaticInteractions(nn.Module):
    """Layers of self-attention over fields, then one linear layer; with a parallel perceptron it is AutoInt+.

    The perceptron reads the fields' vectors and is left out where it has no hidden layer. Dense features are fields
    too: a learned vector times the value.
    """

    def __init__(self, shape: InputShape, settings: AutoInt) -> None:
        super().__init__()
        dim, heads, width = settings.dim, settings.heads, settings.width
        self.fields = Fields(shape, dim)
        attended = heads * width
        self.attention = nn.Sequential(
            *(Interacting(attended if layer else dim, heads, width) for layer in range(settings.layers))
        )
        self.last = nn.Linear(self.fields.count * attended, shape.tasks)
        self.network = (
            fully_connected(self.fields.count * dim, settings.hidden, shape.tasks, style_of(settings))
            if settings.hidden
            else None
        )

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        fields = self.fields(batch)
        logits: torch.Tensor = self.last(self.attention(fields).flatten(1))
        return logits if self.network is None else logits + self.network(fields.flatten(1))


build = AutomaticInteractions
