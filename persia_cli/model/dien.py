"""DIEN, deep interest evolution network: Zhou et al., arXiv 1809.03672."""

import torch
from torch import nn

from persia_cli.config.schema import Dien
from persia_cli.model.attending import AttendingNetwork
from persia_cli.model.shape import InputShape


class GatedUnits(nn.Module):
    """Gated recurrent units whose update gate is multiplied by a share of each step: AUGRU, section 4.3 of the paper.

    h_t = (1 - a_t u_t) * h_(t-1) + a_t u_t * tanh(W i_t + b + r_t * (U h_(t-1) + c)), with gates u_t and r_t. A share
    of 1 makes it the plain GRU; one of 0 leaves the state as it is, as that of a step that is not there does.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        # Of update gate, reset gate and candidate, side by side.
        self.read = nn.Linear(width, 3 * width)
        self.keep = nn.Linear(width, 3 * width)

    def forward(self, values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the states [n, length, width] after each of the values [n, length, width], with shares [n, length]."""
        state = values.new_zeros(values.shape[0], self.width)
        states = []
        # A loop, for torch's GRU knows no shares, and its compiler takes no GRU.
        for read, share in zip(self.read(values).unbind(1), shares.unbind(1), strict=True):
            update_in, reset_in, new_in = read.chunk(3, dim=1)
            update_kept, reset_kept, new_kept = self.keep(state).chunk(3, dim=1)
            candidate = torch.tanh(new_in + torch.sigmoid(reset_in + reset_kept) * new_kept)
            update = share.unsqueeze(1) * torch.sigmoid(update_in + update_kept)
            state = (1.0 - update) * state + update * candidate
            states.append(state)
        return torch.stack(states, dim=1)


class InterestEvolution(nn.Module):
    """Interests of a sequence by a GRU, and how that in the target evolved: the last state of AUGRU on these interests.

    An interest's share is a softmax over the sequence of h_t W e, where e is the target.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extract, self.evolve = GatedUnits(dim), GatedUnits(dim)
        self.relevance = nn.Linear(dim, dim, bias=False)

    def forward(self, target: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [n, dim] of a target [n, dim] and a sequence [n, length, dim], its mask bool [n, length]."""
        there = mask.to(values.dtype)
        interests = self.extract(values, there)
        scores = (interests * self.relevance(target).unsqueeze(1)).sum(2)
        shares = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(1) * there
        evolved: torch.Tensor = self.evolve(interests, shares)[:, -1]
        return evolved


def build(model: Dien, shape: InputShape) -> nn.Module:
    """Build the network; raises ConfigError for targets and sequences that do not fit each other."""
    return AttendingNetwork(shape, model, lambda target, _: InterestEvolution(target.dim))
