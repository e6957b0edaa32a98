"""FinalNet, of factorized interaction layers: Zhu et al., SIGIR 2023, doi 10.1145/3539618.3591988."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from persia_cli.config.schema import FinalNet
from persia_cli.model.fields import Fields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import LayerStyle, style_of
from persia_cli.model.outputs import Output
from persia_cli.model.shape import InputShape


class FactorizedInteraction(nn.Module):
    """A linear layer and its columns' products: with two halves a, b of W x + c it gives [a, a * b].

    The paper's layer with two factors, the gate of the second being the identity; it learns products of two inputs.
    """

    def __init__(self, inputs: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width, bias=bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [n, width] of [n, inputs]."""
        plain, factor = self.linear(inputs).chunk(2, dim=1)
        return torch.cat([plain, plain * factor], dim=1)


class FieldGate(nn.Module):
    """Vectors, then the same times a gate: column by column a linear function of this column of all fields."""

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.linear = nn.Linear(fields, fields)
        self.set_initial_weights()

    def set_initial_weights(self) -> None:
        """Set gates of 1, so that training begins with the vectors unchanged."""
        nn.init.zeros_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 fields, dim] of [n, fields, dim]."""
        gates = self.linear(vectors.transpose(1, 2)).transpose(1, 2)
        return torch.cat([vectors, vectors * gates], dim=1)


class FactorizedBlocks(nn.Module):
    """Blocks of factorized interaction layers on the same vectors, a linear layer on each; their logits are averaged.

    With `teaching` each block also learns from the mean of both. Dense features have a vector too: a learned one times
    the value.
    """

    def __init__(self, shape: InputShape, settings: FinalNet) -> None:
        super().__init__()
        self.fields = Fields(shape, settings.dim)
        count, style = self.fields.count, style_of(settings)
        self.gate = FieldGate(count) if settings.gate else nn.Identity()
        first = count * settings.dim * (2 if settings.gate else 1)
        self.first = _block(first, settings.first, style, shape.tasks)
        second = count * settings.dim
        self.second = _block(second, settings.second, style, shape.tasks) if settings.second else None
        self.teaching = settings.teaching

    def forward(self, batch: ModelBatch) -> Output:
        """Return logits float32 [n, tasks], and in training with `teaching` losses of the same shape."""
        vectors = self.fields(batch)
        first: torch.Tensor = self.first(self.gate(vectors).flatten(1))
        if self.second is None:
            return first
        second = self.second(vectors.flatten(1))
        logits = 0.5 * (first + second)
        return (logits, self.teaching * teaching_losses(first, second)) if self.training and self.teaching else logits


def teaching_losses(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each block's probability and that of both, in the shape of their logits.

    The probability of both is a soft label, through which no gradient passes.
    """
    # The gradient is a difference of probabilities, of which half precision would leave few digits.
    first, second = (logits.to(torch.promote_types(logits.dtype, torch.float32)) for logits in (first, second))
    label = torch.sigmoid(0.5 * (first + second)).detach()
    losses = [binary_cross_entropy_with_logits(logits, label, reduction="none") for logits in (first, second)]
    return losses[0] + losses[1]


def _block(inputs: int, widths: Sequence[int], style: LayerStyle, tasks: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise([inputs, *widths])):
        layers += [FactorizedInteraction(before, after, style.bias), *style.after(number, after)]
    return nn.Sequential(*layers, nn.Linear([inputs, *widths][-1], tasks, bias=style.bias))


build = FactorizedBlocks
