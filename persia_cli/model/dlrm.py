"""Deep learning recommendation model: Naumov et al., arXiv 1906.00091."""

from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import Dlrm
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class DeepRecommender(nn.Module):
    """Bottom network on dense features, dot product of every pair of vectors, top network on both.

    The vectors are the bottom network's output and the F pooled embeddings, all of `dim` columns; the top network
    reads `dim` + (F + 1) F / 2 numbers (section 2.1 of the paper, without products of a vector with itself).
    """

    pairs: torch.Tensor
    """int64 [P], the position of each pair in the flat matrix of products."""
    places: torch.Tensor
    """int64 [vectors * vectors], the pair at each position of this matrix; P where there is none."""

    def __init__(self, shape: InputShape, settings: Dlrm) -> None:
        super().__init__()
        self.features = shape.pooled
        vectors = len(self.features) + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        pairs = rows * vectors + columns
        places = torch.full((vectors * vectors,), pairs.numel())
        places[pairs] = torch.arange(pairs.numel())
        self.register_buffer("pairs", pairs, persistent=False)
        self.register_buffer("places", places, persistent=False)
        dim, style = settings.dim, style_of(settings)
        self.bottom = fully_connected(shape.dense, settings.bottom, dim, style, activate_last=True)
        self.top = fully_connected(dim + self.pairs.numel(), settings.top, shape.tasks, style)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        dense = self.bottom(batch.dense)
        vectors = torch.cat([dense.unsqueeze(1), batch.stacked(self.features)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        if products.is_cuda and self.training:
            chosen = _Chosen.apply(products, self.pairs, self.places)  # type: ignore[no-untyped-call]
        else:
            # On the flat matrix: its backward is several times faster than that of advanced indexing.
            chosen = products.index_select(1, self.pairs)
        return self.top(torch.cat([dense, chosen], dim=1))


class _Chosen(torch.autograd.Function):
    """Some columns, each at most once: backward reads each gradient where `index_select` sorts and adds on a GPU."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, columns: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        return values.index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return torch.nn.functional.pad(gradient, (0, 1)).index_select(1, places), None, None


build = DeepRecommender
