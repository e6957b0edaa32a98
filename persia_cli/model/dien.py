"""DIEN, deep interest evolution network: Zhou et al., arXiv 1809.03672."""

import torch
from torch import nn
from torch.nn.functional import embedding, softplus

from persia_cli.config.schema import Dien
from persia_cli.model.attending import AttendingNetwork
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear
from persia_cli.model.outputs import Output
from persia_cli.model.shape import InputShape


class GatedUnits(nn.Module):
    """Gated recurrent units whose update gate is multiplied by a share of each step: AUGRU, section 4.3 of the paper.

    h_t = (1 - a_t u_t) * h_(t-1) + a_t u_t * tanh(W i_t + b + r_t * (U h_(t-1) + c)), with gates u_t and r_t. With a
    share of 1 it is the plain GRU; a share of 0, as of padding, leaves the state unchanged.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        # Update gate, reset gate and candidate, concatenated.
        self.read = JoinedLinear(width, width, parts=3)
        self.keep = JoinedLinear(width, width, parts=3)

    def forward(self, values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the states [n, length, width] after each of the values [n, length, width], with shares [n, length]."""
        state = values.new_zeros(values.shape[0], self.width)
        states = []
        # A loop, since torch's GRU has no shares, and its compiler supports no GRU.
        for read, share in zip(self.read(values).unbind(1), shares.unbind(1), strict=True):
            update_in, reset_in, new_in = read.chunk(3, dim=1)
            update_kept, reset_kept, new_kept = self.keep(state).chunk(3, dim=1)
            candidate = torch.tanh(new_in + torch.sigmoid(reset_in + reset_kept) * new_kept)
            update = share.unsqueeze(1) * torch.sigmoid(update_in + update_kept)
            state = (1.0 - update) * state + update * candidate
            states.append(state)
        return torch.stack(states, dim=1)


class InterestEvolution(nn.Module):
    """The evolution of interests in a target: the last state of AUGRU on the interests that a GRU finds in a sequence.

    An interest's share is a softmax over the sequence of h_t W e, where e is the target.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extract, self.evolve = GatedUnits(dim), GatedUnits(dim)
        self.relevance = nn.Linear(dim, dim, bias=False)

    def interests(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the interest after each element of a sequence [n, length, dim] with mask bool [n, length]."""
        interests: torch.Tensor = self.extract(values, mask.to(values.dtype))
        return interests

    def forward(self, target: torch.Tensor, interests: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [n, dim] of a target [n, dim] and `interests` [n, length, dim]."""
        scores = (interests * self.relevance(target).unsqueeze(1)).sum(2)
        shares = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(1) * mask.to(scores.dtype)
        evolved: torch.Tensor = self.evolve(interests, shares)[:, -1]
        return evolved


def next_item_losses(
    interests: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, elements: torch.Tensor | None = None
) -> torch.Tensor:
    """Return [n], how badly each sample's interests discriminate the next element of its sequence from another's.

    It is the sum over t of -log s(h_t . e_(t+1)) - log(1 - s(h_t . o_(t+1))), where s is the logistic function and o
    the sequence of another sample (equation 6 of the paper). As in the authors' code it is divided by the number of
    elements that can be a next one, so its size does not depend on the maximum length of sequences. An equal element
    of the other sample is no negative; `elements`, which are `values` without dropout, are compared.
    """
    others, there = others_of(values, mask)
    following, rival, interests = values[:, 1:], others[:, 1:], interests[:, :-1]
    losses = softplus(-(interests * following).sum(2)) + softplus((interests * rival).sum(2))
    if elements is not None:
        following, rival = elements[:, 1:], others_of(elements, mask)[0][:, 1:]
    counts = mask[:, 1:] & there.unsqueeze(1) & (following != rival).any(2)
    return (losses * counts).sum(1) / max(mask.shape[1] - 1, 1)


def others_of(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of other samples, and bool [n] whether they have elements: of the sample half a batch away.

    It is repeated to the full length. Nothing is drawn, so every device, and a repeated step, has the same; and
    neighbours, which may be of one user, are not compared.
    """
    size, length = mask.shape
    away = size // 2
    lengths = mask.sum(1).roll(away)
    samples = torch.arange(size, device=mask.device).roll(away)
    elements = torch.arange(length, device=mask.device) % lengths.clamp(min=1).unsqueeze(1)
    return embedding(samples.unsqueeze(1) * length + elements, values.flatten(0, 1)), lengths > 0


class DeepInterestEvolution(AttendingNetwork):
    """Sequences read by their evolving interests, which with `auxiliary_weight` learn to predict the next element."""

    def __init__(self, shape: InputShape, settings: Dien) -> None:
        super().__init__(shape, settings, lambda target, _: InterestEvolution(target.dim))
        self.auxiliary_weight = settings.auxiliary_weight

    def forward(self, batch: ModelBatch) -> Output:
        """Return logits float32 [n, tasks], and in training with `auxiliary_weight` losses [n, 1]."""
        evolved, losses = [], []
        for reader, (target, sequence) in zip(self.readers, self.pairs, strict=True):
            assert isinstance(reader, InterestEvolution)
            values, mask = batch.sequences[sequence]
            interests = reader.interests(values, mask)
            evolved.append(reader(batch.pooled[target], interests, mask))
            if self.training and self.auxiliary_weight:
                losses.append(next_item_losses(interests, values, mask, batch.elements(sequence)))
        logits = self.logits(batch, evolved)
        return (logits, self.auxiliary_weight * torch.stack(losses, dim=1).sum(1, keepdim=True)) if losses else logits


build = DeepInterestEvolution
