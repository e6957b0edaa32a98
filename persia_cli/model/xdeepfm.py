"""xDeepFM, with a compressed interaction network: Lian et al., arXiv 1803.05170."""

from collections.abc import Sequence

import torch
from torch import nn

from persia_cli.config.schema import XDeepFm
from persia_cli.model.fields import WeightedFields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class CompressedInteractions(nn.Module):
    """The compressed interaction network, CIN (section 3.1 of the paper), with the identity as activation.

    A layer of H maps makes of the maps x before it and the m fields H maps more: map h is the sum over all pairs
    (i, j) of W_hij times the elementwise product of x_i and field j. A map's columns are then summed.
    """

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        before = [fields, *maps[:-1]]
        layers = [nn.Linear(last * fields, own, bias=False) for last, own in zip(before, maps, strict=True)]
        self.layers = nn.ModuleList(layers)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [n, sum of maps], the maps of every layer summed over columns, of vectors [n, fields, dim]."""
        fields = vectors.transpose(1, 2).contiguous()
        maps, sums = fields, []
        for layer in self.layers:
            # A product of matrices, for its gradient takes no further memory of this size.
            products = maps.unsqueeze(3) @ fields.unsqueeze(2)
            maps = layer(products.flatten(2))
            sums.append(maps.sum(1))
        return torch.cat(sums, dim=1)


class ExtremeDeepFactorizationMachine(nn.Module):
    """A linear model, a CIN and a multi-layer perceptron on the same vectors, added up (section 3.2 of the paper).

    Of a row, the first `tasks` columns are its id's first-order weights, one for each task, the others its vector. A
    dense feature has weights and a vector too, both times its value.
    """

    def __init__(self, shape: InputShape, settings: XDeepFm) -> None:
        super().__init__()
        self.fields = WeightedFields(shape, settings.dim)
        self.interactions = CompressedInteractions(self.fields.count, settings.maps)
        self.weights = nn.Linear(sum(settings.maps), shape.tasks, bias=False)
        inputs = self.fields.count * self.fields.dim
        self.network = fully_connected(inputs, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first_order, vectors = self.fields(batch)
        return self.network(vectors.flatten(1)) + first_order + self.weights(self.interactions(vectors))


def build(model: XDeepFm, shape: InputShape) -> nn.Module:
    """Build the network for features that `require_fit` accepts."""
    return ExtremeDeepFactorizationMachine(shape, model)
