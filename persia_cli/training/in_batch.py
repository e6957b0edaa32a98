"""The softmax over the items of a batch: each positive sample's item among those of all samples, of all ranks.

Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019, section 3.
"""

from typing import NamedTuple

import torch
from torch import nn

from persia_cli.model.item_frequency import item_frequency_of
from persia_cli.model.two_sides import Sides, TwoSides
from persia_cli.training.distributed import World
from persia_cli.training.staging import Staged


class Candidates(NamedTuple):
    """The items of the samples of a step, of all ranks that share one.

    `vectors` float32 [m, width], `keys` int64 [m] (equal for the same item), `labels` and `weights` float32 [m]. This
    rank's samples are those from number `first` on.
    """

    vectors: torch.Tensor
    keys: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    first: int = 0


def in_batch_softmax(
    users: torch.Tensor, candidates: Candidates, temperature: float, log_q: torch.Tensor | None = None
) -> torch.Tensor:
    """Return parts [n] whose sum over all ranks is sum(w) m, where m is the mean loss of positive samples.

    The loss of sample i with user u_i and item v_i is -log(exp(c_ii) / sum over j of exp(c_ij)), where c_ij is
    u_i . v_j / temperature less `log_q`_j, float32 [m] (equation 3 of the paper); j are i itself and all candidates
    with another item than i's. `log_q` is the log probability that a batch has the item, so with it each other item is
    in the sum once, as the mean over the candidates that have it. In the mean a sample weighs w_i y_i, so those with
    label 0 are only candidates; those of weight 0 are no candidates either. Without a positive sample all parts are 0.

    `users` float32 [n, width] are this rank's. It needs memory for n m scores.
    """
    n, start = len(users), candidates.first
    own = torch.arange(start, start + n, device=users.device)
    shares = candidates.weights * candidates.labels
    total = shares.sum()
    scores = users @ candidates.vectors.T / temperature
    if log_q is not None:
        times = _log_times(candidates)
        # In place, since the scores of large batches take a gibibyte and more.
        scores = scores.sub_(log_q + times).index_put_((own - start, own), times[own], accumulate=True)
    itself = own.unsqueeze(1) == torch.arange(len(candidates.keys), device=users.device)
    left_out = (candidates.keys[own].unsqueeze(1) == candidates.keys) | (candidates.weights == 0)
    scores = scores.masked_fill(left_out & ~itself, -torch.inf)
    losses = torch.logsumexp(scores, 1) - scores[torch.arange(n, device=users.device), own]
    scale = torch.where(total > 0, candidates.weights.sum() / total, 0.0)
    return losses * (shares[own] * scale)


def _log_times(candidates: Candidates) -> torch.Tensor:
    """Return float32 [m], the logarithm of the number of candidates with each one's item; 0 for non-candidates."""
    there = (candidates.weights != 0).to(candidates.vectors.dtype)
    _, where = torch.unique(candidates.keys, return_inverse=True)
    times = torch.zeros_like(there).index_add(0, where, there)[where]
    return times.clamp(min=1.0).log()


def softmax_of_step(
    network: nn.Module, sides: Sides, staged: Staged, world: World
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and weighted losses float32 [n, 1] of a step whose samples have these vectors.

    Candidates are the samples of all ranks of `world`, which call this together. A network that trains and counts items
    counts those of the step first.
    """
    assert isinstance(network, TwoSides)
    assert staged.items is not None
    sides = Sides(sides.user.float(), sides.item.float())
    weights = sides.item.new_ones(len(sides.item)) if staged.weights is None else staged.weights
    vectors, first = world.rows_of_all(sides.item)
    facts, _ = world.rows_of_all(torch.stack([staged.labels[:, 0], weights], dim=1))
    keys = world.rows_of_all(staged.items.unsqueeze(1))[0].squeeze(1)
    frequency, log_q = item_frequency_of(network), None
    if frequency is not None:
        if network.training:
            frequency.observe(keys[facts[:, 1] != 0])
        log_q = frequency.log_probability(keys)
    candidates = Candidates(vectors, keys, facts[:, 0], facts[:, 1], first)
    losses = in_batch_softmax(sides.user, candidates, network.temperature, log_q)
    return network.scores(sides), losses.unsqueeze(1)
