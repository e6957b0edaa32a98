"""A network with an auxiliary loss of several tasks, which has a separate weight."""

import torch

from persia_cli.model.inputs import ModelBatch
from tests.unit.training.batches import DENSE, TASKS


class Guessing(torch.nn.Module):
    """Logits by dense features and rows; it also learns to predict the sum of a sample's rows, for each task."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.layer, self.guess = torch.nn.Linear(DENSE, TASKS), torch.nn.Linear(DENSE, TASKS)

    def forward(self, batch: ModelBatch) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits, and in training auxiliary losses too."""
        rows = torch.cat([group.flatten(1) for group in batch.groups], dim=1).sum(1, keepdim=True)
        logits = self.layer(batch.dense) + rows
        return (logits, (self.guess(batch.dense) - rows).square()) if self.training else logits
