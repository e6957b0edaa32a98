"""xDeepFM, with a compressed interaction network: Lian et al., arXiv 1803.05170."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import XDeepFm
from persia_cli.model.fields import WeightedFields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape

PRODUCTS_AT_ONCE = 2**19
"""Size of products that fit in a processor's cache: 2 MiB. Those of a whole batch are hundreds of MiB, which take
longer to write and read than to compute."""


class InParts(torch.autograd.Function):
    """A linear layer of all products of two vectors, of which only a part exists at a time, also in the gradient."""

    @staticmethod
    def forward(ctx: Any, maps: torch.Tensor, fields: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs] of maps [rows, a], fields [rows, b] and weight [outputs, a * b]."""
        ctx.save_for_backward(maps, fields, weight)
        results = maps.new_empty(len(maps), len(weight))
        for rows, products in products_in_parts(maps, fields):
            torch.mm(products.flatten(1), weight.t(), out=results[rows])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the gradients of maps, fields and weight."""
        (gradient,), (maps, fields, weight) = gradients, ctx.saved_tensors
        of_maps, of_fields, of_weight = torch.empty_like(maps), torch.empty_like(fields), torch.zeros_like(weight)
        for rows, products in products_in_parts(maps, fields):
            of_weight.addmm_(gradient[rows].t(), products.flatten(1))
            # The gradient of the products overwrites them, since they are not needed any more.
            torch.mm(gradient[rows], weight, out=products.flatten(1))
            torch.bmm(products, fields[rows].unsqueeze(2), out=of_maps[rows].unsqueeze(2))
            torch.bmm(maps[rows].unsqueeze(1), products, out=of_fields[rows].unsqueeze(1))
        return of_maps, of_fields, of_weight


def products_in_parts(maps: torch.Tensor, fields: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Return rows and their products [rows, a, b], part by part; each part overwrites the previous one."""
    columns, other = maps.shape[1], fields.shape[1]
    size = max(1, PRODUCTS_AT_ONCE // (columns * other))
    memory = maps.new_empty(min(size, len(maps)), columns, other)
    for first in range(0, len(maps), size):
        rows = slice(first, min(first + size, len(maps)))
        part = memory[: rows.stop - first]
        torch.mul(maps[rows].unsqueeze(2), fields[rows].unsqueeze(1), out=part)
        yield rows, part


def pays_in_parts(values: torch.Tensor) -> bool:
    """Return True if computing in parts is faster: on a CPU in float32, without autocast and compiler."""
    takes_over = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return values.device.type == "cpu" and torch.is_grad_enabled() and not takes_over


class CompressedInteractions(nn.Module):
    """The compressed interaction network, CIN (section 3.1 of the paper), with the identity as activation.

    A layer computes H maps from the maps x before it and the m fields: map h is the sum over all pairs (i, j) of W_hij
    times the elementwise product of x_i and field j. A map's columns are then summed.
    """

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        before = [fields, *maps[:-1]]
        layers = [nn.Linear(last * fields, after, bias=False) for last, after in zip(before, maps, strict=True)]
        self.layers = nn.ModuleList(layers)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [n, sum of maps], the maps of every layer summed over columns, of vectors [n, fields, dim]."""
        fields = vectors.transpose(1, 2).contiguous()
        maps, sums = fields, []
        for layer in self.layers:
            if pays_in_parts(fields):
                rows = InParts.apply(maps.flatten(0, 1), fields.flatten(0, 1), layer.weight)  # type: ignore[no-untyped-call]
                maps = rows.unflatten(0, fields.shape[:2])
            else:
                # A product of matrices, since its gradient takes no further memory of this size.
                products = maps.unsqueeze(3) @ fields.unsqueeze(2)
                maps = layer(products.flatten(2))
            sums.append(maps.sum(1))
        return torch.cat(sums, dim=1)


class ExtremeDeepFactorizationMachine(nn.Module):
    """A linear model, a CIN and a multi-layer perceptron on the same vectors, added up (section 3.2 of the paper).

    The first `tasks` columns of a row are its id's first-order weights, one for each task, the others its vector. A
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


build = ExtremeDeepFactorizationMachine
