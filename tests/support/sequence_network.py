"""A user's own network, which reads sequences beside dense features and pooled embeddings."""

from typing import Any

import torch


class SequenceNetwork(torch.nn.Module):
    """Dense features, pooled vectors and the mean of each sequence, side by side, through one hidden layer."""

    def __init__(self, shape: Any, width: int) -> None:
        super().__init__()
        self.features = shape.features
        inputs = shape.dense + sum(feature.dim for feature in shape.features)
        self.hidden = torch.nn.Linear(inputs, width)
        self.logits = torch.nn.Linear(width, shape.tasks)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return logits [n, tasks]."""
        vectors = []
        for feature in self.features:
            if feature.pooling == "none":
                values, mask = batch.sequences[feature.name]
                vectors.append(values.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))
            else:
                vectors.append(batch.pooled[feature.name])
        return self.logits(torch.tanh(self.hidden(torch.cat([batch.dense, *vectors], dim=1))))
