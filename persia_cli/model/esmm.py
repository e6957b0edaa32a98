"""ESMM, entire space multi-task model: Ma et al., arXiv 1804.07931."""

import torch
from torch import nn

from persia_cli.config.schema import Esmm
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import parallel_networks, style_of
from persia_cli.model.shape import InputShape


class EntireSpace(nn.Module):
    """A tower for each label on the same embeddings; a label's probability is that of its tower times the one before.

    With the labels click and conversion the towers give pCTR and pCVR, and the logits are those of pCTR and of
    pCTCVR = pCTR pCVR (equation 1 of the paper). So the losses of both are those of all samples, which the paper adds
    up, and pCVR itself needs no label: it is pCTCVR / pCTR. A conversion without a click is labelled 0.
    """

    def __init__(self, shape: InputShape, settings: Esmm) -> None:
        super().__init__()
        self.inputs, self.tasks = SideBySide(shape, settings), shape.tasks
        self.towers = parallel_networks(self.tasks, self.inputs.width, settings.hidden, 1, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        towers: torch.Tensor = self.towers(self.inputs(batch).expand(self.tasks, -1, -1)).squeeze(2)
        # Half types have too few digits for these sums.
        first, *others = towers.to(torch.promote_types(towers.dtype, torch.float32)).unbind(0)
        logits = [first]
        for tower in others:
            logits.append(logit_of_both(logits[-1], tower))
        return torch.stack(logits, dim=1)


def logit_of_both(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the logit of the product of two probabilities, given by their logits; all have one shape.

    The odds of p q are 1 / (1/p 1/q - 1) with 1/p = 1 + exp(-first), so no probability is ever rounded to 0 or 1.
    """
    return -torch.logsumexp(torch.stack([-first, -second, -first - second]), dim=0)


build = EntireSpace
