"""Deep learning recommendation model: Naumov et al., arXiv 1906.00091."""

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

    def __init__(self, shape: InputShape, settings: Dlrm) -> None:
        super().__init__()
        self.features = shape.pooled
        vectors = len(self.features) + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        dim, style = settings.dim, style_of(settings)
        self.bottom = fully_connected(shape.dense, settings.bottom, dim, style, activate_last=True)
        self.top = fully_connected(dim + self.pairs.numel(), settings.top, shape.tasks, style)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        dense = self.bottom(batch.dense)
        vectors = torch.cat([dense.unsqueeze(1), batch.stacked(self.features)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        # index_select on the flat matrix: its backward is several times faster than that of advanced indexing.
        return self.top(torch.cat([dense, products.index_select(1, self.pairs)], dim=1))


def build(model: Dlrm, shape: InputShape) -> nn.Module:
    """Build the network for features that `require_fit` accepts."""
    return DeepRecommender(shape, model)
