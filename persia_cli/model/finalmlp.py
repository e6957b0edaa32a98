"""FinalMLP: Mao et al., arXiv 2304.00902."""

from collections.abc import Sequence

import torch
from torch import nn

from persia_cli.config.schema import FinalMlp
from persia_cli.model.fields import SideBySide, learned_vectors
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, hidden_layers, style_of
from persia_cli.model.requirements import gate_contexts
from persia_cli.model.shape import FeatureShape, InputShape


class FeatureGate(nn.Module):
    """A gate on a stream's inputs: 2 sigmoid(network(context)) times the inputs, the paper's feature selection.

    The context is the rows of the named features; without any it is a learned vector, the same for all samples.
    """

    def __init__(self, context: Sequence[FeatureShape], dim: int, hidden: Sequence[int], width: int) -> None:
        super().__init__()
        self.context = tuple(context)
        self.register_parameter("learned", None if self.context else learned_vectors(1, dim))
        inputs = sum(feature.dim for feature in self.context) if self.context else dim
        self.network = fully_connected(inputs, hidden, width)

    def forward(self, inputs: torch.Tensor, batch: ModelBatch) -> torch.Tensor:
        """Return [n, width] of inputs [n, width]."""
        context = batch.concatenated(self.context) if self.learned is None else self.learned
        return inputs * (2.0 * torch.sigmoid(self.network(context)))


class BilinearFusion(nn.Module):
    """Logits of two streams: b + w1 o1 + w2 o2 + the sum over heads of o1 W o2, the paper's multi-head bilinear fusion.

    A head has its own part of both streams and its own W.
    """

    def __init__(self, first: int, second: int, heads: int, tasks: int) -> None:
        super().__init__()
        # Columns of a head, in the first stream and in the second.
        self.heads, self.columns, self.tasks = heads, (first // heads, second // heads), tasks
        self.first = nn.Linear(first, tasks)
        self.second = nn.Linear(second, tasks, bias=False)
        bound = first**-0.5
        left, right = self.columns
        self.inner = nn.Parameter(torch.empty(heads, left, tasks * right).uniform_(-bound, bound))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return logits [n, tasks] of [n, first] and [n, second]."""
        left, right = self.columns
        mapped = torch.einsum("nha,hab->nhb", first.view(-1, self.heads, left), self.inner)
        products = mapped.view(-1, self.heads, self.tasks, right) * second.view(-1, self.heads, 1, right)
        return self.first(first) + self.second(second) + products.sum((1, 3))


class TwoStreams(nn.Module):
    """Two multi-layer perceptrons on the same inputs, each with its own gate, and their bilinear fusion."""

    def __init__(self, shape: InputShape, settings: FinalMlp) -> None:
        super().__init__()
        self.inputs = SideBySide(shape, settings)
        width = self.inputs.width
        self.first = hidden_layers(width, settings.first, style_of(settings))
        self.second = hidden_layers(width, settings.second, style_of(settings))
        self.gates = nn.ModuleList(_gates(shape, settings, width))
        self.fusion = BilinearFusion(settings.first[-1], settings.second[-1], settings.heads, shape.tasks)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        inputs = self.inputs(batch)
        left, right = (gate(inputs, batch) for gate in self.gates) if self.gates else (inputs, inputs)
        return self.fusion(self.first(left), self.second(right))


def _gates(shape: InputShape, settings: FinalMlp, width: int) -> list[FeatureGate]:
    """Return the gates of both streams, or none if the model has no gates."""
    if settings.gate is None:
        return []
    contexts = gate_contexts(settings.gate, shape)
    return [FeatureGate(context, settings.dim, settings.gate.hidden, width) for context in contexts]


build = TwoStreams
