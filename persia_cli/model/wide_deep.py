"""Wide & Deep: Cheng et al., arXiv 1606.07792."""

import torch
from torch import nn

from persia_cli.config.schema import WideDeep
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class WideAndDeep(nn.Module):
    """A linear model and a multi-layer perceptron, added up and trained together (section 3.3 of the paper).

    The first `tasks` columns of a row are its id's weights in the linear model, one for each task, the others are
    input of the perceptron; dense features take part in both. A cross of features is a sparse feature of the data
    set; with a table of dim `tasks` it is in the linear model alone, as in the paper.
    """

    wide: torch.Tensor
    deep: torch.Tensor

    def __init__(self, shape: InputShape, settings: WideDeep) -> None:
        super().__init__()
        self.features = shape.pooled
        dims = [feature.dim for feature in self.features]
        rows = torch.split(torch.arange(sum(dims)), dims)
        # Columns of the concatenated features; they follow from the shape, so no checkpoint has them.
        self.register_buffer("wide", torch.cat([columns[: shape.tasks] for columns in rows]), persistent=False)
        self.register_buffer("deep", torch.cat([columns[shape.tasks :] for columns in rows]), persistent=False)
        self.tasks = shape.tasks
        self.linear = nn.Linear(shape.dense, shape.tasks, bias=False) if shape.dense else None
        inputs = shape.dense + self.deep.numel()
        self.network = fully_connected(inputs, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        rows = batch.concatenated(self.features)
        weights = rows.index_select(1, self.wide).view(-1, len(self.features), self.tasks)
        logits: torch.Tensor = self.network(torch.cat([batch.dense, rows.index_select(1, self.deep)], dim=1))
        logits = logits + weights.sum(1)
        return logits if self.linear is None else logits + self.linear(batch.dense)


build = WideAndDeep
