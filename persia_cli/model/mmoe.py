"""Multi-gate mixture of experts for several tasks: Ma et al., KDD 2018, doi 10.1145/3219819.3220007."""

import torch
from torch import nn

from persia_cli.config.schema import Mmoe
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear, parallel_hidden_layers, parallel_networks, style_of
from persia_cli.model.shape import InputShape


class MultiGateExperts(nn.Module):
    """Experts that all tasks share, and for each task a gate over them and a tower on its mixture of them.

    Task k's logit is tower_k(sum over i of g_ki expert_i(x)) with g_k = softmax(W_k x). Inputs x are the concatenated
    dense features and embeddings. All experts are computed at once, and all towers.
    """

    def __init__(self, shape: InputShape, settings: Mmoe) -> None:
        super().__init__()
        self.inputs = SideBySide(shape, settings)
        width = self.inputs.width
        self.count, style = settings.experts, style_of(settings)
        self.experts = parallel_hidden_layers(self.count, width, settings.expert, style)
        self.gates = JoinedLinear(width, self.count, shape.tasks, bias=False)
        self.towers = parallel_networks(shape.tasks, settings.expert[-1], settings.tower, 1, style)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        inputs = self.inputs(batch)
        experts = self.experts(inputs.expand(self.count, -1, -1))
        gates = self.gates(inputs).unflatten(1, (-1, self.count)).softmax(2)
        logits: torch.Tensor = self.towers(torch.einsum("nki,inh->knh", gates, experts))
        return logits.squeeze(2).t()


build = MultiGateExperts
