"""FiBiNET, feature importance and bilinear feature interaction: Huang et al., arXiv 1905.09433."""

import torch
from torch import nn

from persia_cli.config.schema import FibiNet
from persia_cli.model.fields import WeightedFields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear, fully_connected, style_of
from persia_cli.model.shape import InputShape


class SqueezeExcitation(nn.Module):
    """Vectors times the importance of their field: relu(W2 relu(W1 z)), z the means of all vectors (section 3.2)."""

    def __init__(self, fields: int, reduction: float) -> None:
        super().__init__()
        narrow = max(1, int(fields / reduction))
        self.excite = nn.Sequential(
            nn.Linear(fields, narrow, bias=False), nn.ReLU(), nn.Linear(narrow, fields, bias=False), nn.ReLU()
        )

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [n, fields, dim] of [n, fields, dim]."""
        importance: torch.Tensor = self.excite(vectors.mean(2))
        return vectors * importance.unsqueeze(2)


class Bilinear(nn.Module):
    """The products v_i W * v_j of all pairs of fields i < j, column by column (section 3.3 of the paper).

    W is one matrix (field_all), one of each field i (field_each) or one of each pair (field_interaction).
    """

    def __init__(self, fields: int, dim: int, kind: str) -> None:
        super().__init__()
        self.dim = dim
        # All matrices that multiply field i are one layer.
        counts = {"field_all": [1], "field_each": [1] * (fields - 1), "field_interaction": range(fields - 1, 0, -1)}[
            kind
        ]
        self.inner = nn.ModuleList(JoinedLinear(dim, dim, matrices, bias=False) for matrices in counts)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [n, fields (fields - 1) / 2, dim] of [n, fields, dim]; pairs are ordered by i, then j."""
        products = []
        for field, row in enumerate(vectors.unbind(1)[:-1]):
            mapped = self.inner[min(field, len(self.inner) - 1)](row)
            products.append(mapped.unflatten(1, (mapped.shape[1] // self.dim, self.dim)) * vectors[:, field + 1 :])
        return torch.cat(products, dim=1)


class ImportanceAndInteraction(nn.Module):
    """A perceptron on the bilinear products of vectors, and of vectors times their importance; and first-order weights.

    The first `tasks` columns of a row are its id's first-order weights, one for each task, the others its vector.
    """

    def __init__(self, shape: InputShape, settings: FibiNet) -> None:
        super().__init__()
        self.fields = WeightedFields(shape, settings.dim)
        count, dim = self.fields.count, self.fields.dim
        self.importance = SqueezeExcitation(count, settings.reduction)
        self.plain, self.weighed = (Bilinear(count, dim, settings.bilinear) for _ in range(2))
        self.network = fully_connected(count * (count - 1) * dim, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first_order, vectors = self.fields(batch)
        products = torch.cat([self.plain(vectors), self.weighed(self.importance(vectors))], dim=1)
        return first_order + self.network(products.flatten(1))


build = ImportanceAndInteraction
