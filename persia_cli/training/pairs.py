"""Losses of pairs of a positive and a negative sample: of a whole batch, or within each query."""

from typing import NamedTuple

import torch
from torch.nn import functional

from persia_cli.data.read.reserved_ids import NULL_ID
from persia_cli.training.distributed import World
from persia_cli.training.staging import Staged


class RemoteSamples(NamedTuple):
    """The samples of a step that other ranks have.

    Logits, labels and weights float32 [m, T] or [m], query ids int64 [m] if this rank's samples have some.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    queries: torch.Tensor | None = None

    def of_task(self, task: int) -> "RemoteSamples":
        """Return them with the logits, labels and weights of one task."""
        return RemoteSamples(self.logits[:, task], self.labels[:, task], self.weights[:, task], self.queries)


def by_task(weights: torch.Tensor) -> torch.Tensor:
    """Return weights [n, T] unchanged, and weights [n] of all tasks as [n, 1]."""
    return weights if weights.ndim == 2 else weights.unsqueeze(1)


def remote_samples(logits: torch.Tensor, staged: Staged, world: World) -> RemoteSamples:
    """Return the samples of a step that the other ranks have; all ranks must call this together."""
    # Weights of each task on every rank, since only some ranks may have unknown labels.
    weights = torch.ones_like(logits) if staged.weights is None else by_task(staged.weights).expand_as(logits)
    rows = world.rows_of_others(torch.cat([logits, staged.labels, weights], dim=1))
    queries = None if staged.queries is None else world.rows_of_others(staged.queries.unsqueeze(1)).squeeze(1)
    others, labels, weights = rows.chunk(3, dim=1)
    return RemoteSamples(others, labels, weights, queries)


def pairwise(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    others: RemoteSamples | None = None,
    queries: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return parts [n] whose sum over all ranks is sum(w) m, where m is the weighted mean loss of all pairs.

    A positive sample should have a higher logit than a negative one. The loss of positive sample i and negative sample
    j is log(1 + exp(z_j - z_i)), that of Burges et al., "Learning to Rank using Gradient Descent" (2005), with target
    probability 1. Its weight is w_i y_i w_j (1 - y_j), so a sample with a label between 0 and 1 is partly positive and
    partly negative, but no sample is paired with itself. Each of the two samples has half of a pair's loss. Without
    pairs all parts are 0.

    With `queries` int64 [n] only samples of one query are paired, and samples without a query with none: Rendle et al.,
    "BPR: Bayesian Personalized Ranking from Implicit Feedback" (2009), whose users are the queries, with the pairs that
    the batch has.

    Pairs are formed among these n samples and the `others`. The gradient is that of all ranks' parts by these logits:
    a pair with a sample of another rank has all of its gradient here and half of its loss. It needs memory for all
    pairs that have one of these samples, also where their queries differ.

    logits, labels (in 0..1) and weights are float32 [n], of the others too.
    """
    size, up, down = len(logits), weights * labels, weights * (1.0 - labels)
    weight = weights.sum()
    if others is not None:
        logits = torch.cat([logits, others.logits])
        up = torch.cat([up, others.weights * others.labels])
        down = torch.cat([down, others.weights * (1.0 - others.labels)])
        weight = weight + others.weights.sum()
        if queries is not None and others.queries is not None:
            queries = torch.cat([queries, others.queries])
    if queries is not None:
        has_query = queries != NULL_ID
        up, down = up * has_query, down * has_query
    positive, negative = up.nonzero().squeeze(1), down.nonzero().squeeze(1)
    total = _mass_of_pairs(up.double(), down.double(), queries)
    parts = torch.zeros_like(logits)
    # The pairs of a positive sample that is here, and those of a negative one alone.
    for ups, downs in ((positive[positive < size], negative), (positive[positive >= size], negative[negative < size])):
        mass = up[ups].unsqueeze(1) * down[downs].double()
        mass = mass.masked_fill(ups.unsqueeze(1) == downs, 0.0)
        if queries is not None:
            mass = mass.masked_fill(queries[ups].unsqueeze(1) != queries[downs], 0.0)
        # The mass is divided first: its total can be so small that a number divided by it is infinite.
        shares = torch.where(total > 0, mass / total, 0.0).float() * (0.5 * weight)
        losses = functional.softplus(logits[downs] - logits[ups].unsqueeze(1)) * shares
        # A pair within this rank has both halves here. A pair of two ranks has one half here, and the gradient of both,
        # since logits of other ranks have none: the value of `2 x - x.detach()` is x, and its gradient twice that of x.
        of_two_ranks = (ups.unsqueeze(1) >= size) | (downs >= size)
        losses = torch.where(of_two_ranks, 2.0 * losses - losses.detach(), losses)
        parts = parts.index_add(0, ups, losses.sum(1)).index_add(0, downs, losses.sum(0))
    return parts[:size]


def _mass_of_pairs(up: torch.Tensor, down: torch.Tensor, queries: torch.Tensor | None) -> torch.Tensor:
    """Return the sum of up_i down_j over all pairs of two samples, of one query if there are queries."""
    if queries is None:
        return up.sum() * down.sum() - torch.dot(up, down)
    numbers = torch.unique(queries, return_inverse=True)[1]
    ups, downs = (up.new_zeros(len(up)).index_add(0, numbers, each) for each in (up, down))
    return (ups * downs).sum() - torch.dot(up, down)
