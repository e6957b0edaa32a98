"""Networks of a test that read sequences, dense features and pooled embeddings."""

from typing import Any

import torch


class SequenceNetwork(torch.nn.Module):
    """Dense features, pooled vectors and the mean of each sequence, concatenated, through one hidden layer."""

    def __init__(self, shape: Any, width: int) -> None:
        super().__init__()
        self.features = shape.features
        inputs = shape.dense + sum(feature.dim for feature in shape.features)
        self.hidden = torch.nn.Linear(inputs, width)
        self.logits = torch.nn.Linear(width, shape.tasks)

    def inputs(self, batch: Any) -> torch.Tensor:
        """Return all features of a sample, concatenated."""
        vectors = []
        for feature in self.features:
            if feature.pooling == "none":
                values, mask = batch.sequences[feature.name]
                vectors.append(values.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))
            else:
                vectors.append(batch.pooled[feature.name])
        return torch.cat([batch.dense, *vectors], dim=1)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return logits [n, tasks]."""
        return self.logits(torch.tanh(self.hidden(self.inputs(batch))))


class GuessingNetwork(SequenceNetwork):
    """The same; in training it also learns to predict the mean of its inputs, for each task separately."""

    def __init__(self, shape: Any, width: int) -> None:
        super().__init__(shape, width)
        self.guess = torch.nn.Linear(width, shape.tasks)

    def forward(self, batch: Any) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n, tasks], and in training losses of the same shape."""
        read = self.inputs(batch)
        hidden = torch.tanh(self.hidden(read))
        logits = self.logits(hidden)
        return (logits, (self.guess(hidden) - read.mean(1, keepdim=True)).square()) if self.training else logits
