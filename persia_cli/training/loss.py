"""The loss of a global batch: the weighted losses of all labels, in parts that ranks add up.

Besides losses of single samples there are those of pairs of a positive and a negative sample, of a whole batch or
within each query, and the softmax over the items of a batch: each positive sample's item among those of all samples, of
all ranks. The latter is of Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
RecSys 2019, section 3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from persia_cli.config.schema import (
    Bce,
    Bpr,
    Focal,
    Huber,
    InBatchSoftmax,
    Loss,
    Mse,
    Pairwise,
    Poisson,
    SampledSoftmax,
)
from persia_cli.config.schema.loss import task_weights
from persia_cli.data.read.ids import NULL_ID
from persia_cli.model.item_frequency import item_frequency_of
from persia_cli.model.two_sides import Sides, TwoSides
from persia_cli.training.distributed import World
from persia_cli.training.pooling import Staged


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
    ups, downs = (up.new_zeros(len(up)).index_add(0, numbers, masses) for masses in (up, down))
    return (ups * downs).sum() - torch.dot(up, down)


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
    ours = torch.arange(start, start + n, device=users.device)
    shares = candidates.weights * candidates.labels
    total = shares.sum()
    scores = users @ candidates.vectors.T / temperature
    if log_q is not None:
        times = _log_times(candidates)
        # In place, since the scores of large batches take a gibibyte and more.
        scores = scores.sub_(log_q + times).index_put_((ours - start, ours), times[ours], accumulate=True)
    itself = ours.unsqueeze(1) == torch.arange(len(candidates.keys), device=users.device)
    left_out = (candidates.keys[ours].unsqueeze(1) == candidates.keys) | (candidates.weights == 0)
    scores = scores.masked_fill(left_out & ~itself, -torch.inf)
    losses = torch.logsumexp(scores, 1) - scores[torch.arange(n, device=users.device), ours]
    scale = torch.where(total > 0, candidates.weights.sum() / total, 0.0)
    return losses * (shares[ours] * scale)


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


class Objective:
    """The sum over tasks t of s_t L_t, with L_t = sum over samples of w_it l_it / sum of w_it, over the global batch.

    w_it is the weight of the sample, or 0 if its label of task t is unknown. s_t is the task's weight divided by
    the sum of all tasks' weights. This mean keeps the size of gradients, and so a
    good learning rate, independent of the number of tasks.
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        """Combine the losses of all tasks; at least one must have a weight above 0."""
        self.losses = tuple(losses)
        self.task_weights = task_weights(losses)

    def weighted(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        log_variances: torch.Tensor | None = None,
        others: RemoteSamples | None = None,
        queries: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return w_it l_it float32 [n, T]: each sample's loss in each task, times the sample's weight.

        `logits` and `labels` are float32 [n, T]; `weights` float32 [n, T], or [n] if they are the same for all tasks,
        or None for ones. The weights of tasks are not in it.

        `others` are samples of other ranks, with which those of this one are paired; `queries` int64 [n] or None are
        the queries within which `bpr` pairs them.

        With `log_variances` s float32 [T] it is w_it (c_t exp(-s_t) l_it + s_t / 2), where c_t is 1/2 for squared
        errors and 1 for other losses: Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses"
        (2018), equations 5 and 10.
        """
        losses = self._weighted(logits, labels, weights, others, queries)
        if log_variances is None:
            return losses
        # Filled on the device: a copy from the host would wait for it, and cannot be in a graph.
        halves = torch.cat([losses.new_full((1,), 0.5 if isinstance(loss, Mse) else 1.0) for loss in self.losses])
        scaled = losses * (halves * torch.exp(-log_variances))
        return scaled + _times((0.5 * log_variances).expand_as(losses), weights)

    @property
    def needs_others(self) -> bool:
        """True if a loss is of pairs, of which some are of samples of two ranks."""
        return any(isinstance(loss, Pairwise | Bpr) for loss in self.losses)

    @property
    def in_batch(self) -> InBatchSoftmax | None:
        """The loss that needs a network's vectors instead of its logits, which is the only one then; else None."""
        return next((loss for loss in self.losses if isinstance(loss, InBatchSoftmax)), None)

    @property
    def next_item(self) -> SampledSoftmax | None:
        """The loss of next elements of sequences, which is the only one then; else None."""
        return next((loss for loss in self.losses if isinstance(loss, SampledSoftmax)), None)

    def _weighted(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        others: RemoteSamples | None,
        queries: torch.Tensor | None,
    ) -> torch.Tensor:
        if all(isinstance(loss, Bce) and loss.is_plain for loss in self.losses):
            return _times(functional.binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)
        if weights is not None:
            # Infinity times 0 is NaN, so the values of a sample without weight must not overflow.
            nothing = by_task(weights == 0)
            logits, labels = logits.masked_fill(nothing, 0.0), labels.masked_fill(nothing, 0.0)
        columns = [
            _of_task(
                loss,
                logits[:, task],
                labels[:, task],
                weights if weights is None or weights.ndim == 1 else weights[:, task],
                others and others.of_task(task),
                queries,
            )
            for task, loss in enumerate(self.losses)
        ]
        return torch.stack(columns, dim=1)

    def part(self, weighted: torch.Tensor, weight_totals: Sequence[float]) -> torch.Tensor:
        """Return this rank's part of the loss: the sum over samples of `weighted` / weight_totals, times task weights.

        `weight_totals` has, for each task, the sum of weights over the global batch, so the parts of all ranks add up
        to the loss of the batch. A task without weight in the batch has loss 0.
        """
        return torch.dot(weighted.sum(0), weighted.new_tensor(self.factors(weight_totals)))

    def factors(self, weight_totals: Sequence[float]) -> list[float]:
        """Return the factor of each task's sum of `weighted` in the loss."""
        scales = [1.0 / total if total > 0 else 0.0 for total in weight_totals]
        return [weight * scale for weight, scale in zip(self.task_weights, scales, strict=True)]


def with_auxiliary(
    weighted: torch.Tensor, auxiliary: torch.Tensor | None, weights: torch.Tensor | None
) -> torch.Tensor:
    """Return the weighted losses [n, T] with auxiliary ones [n, T] or [n, 1], weighted like their samples."""
    # One loss of a sample is added to that of each task; since the weights of tasks add up to 1, `Objective.part` has
    # it once.
    return weighted if auxiliary is None else weighted + _times(auxiliary.float(), weights)


def focal(logits: torch.Tensor, labels: torch.Tensor, gamma: float, alpha: float | None) -> torch.Tensor:
    """Return the focal loss of each sample, in the shape of `logits`.

    -alpha y (1 - p)^gamma log p - (1 - alpha) (1 - y) p^gamma log(1 - p), where p is the logistic function of the
    logit; both factors are 1 where alpha is None. Lin et al., "Focal Loss for Dense Object Detection" (2017), equation
    5; a label between 0 and 1 is a mixture of both classes.
    """
    log_p, log_q = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    # Powers are computed from logarithms, since the gradient of 0^gamma would be infinite for gamma below 1.
    positive = labels * torch.exp(gamma * log_q) * log_p
    negative = (1.0 - labels) * torch.exp(gamma * log_p) * log_q
    return -(positive + negative) if alpha is None else -(alpha * positive + (1.0 - alpha) * negative)


def _of_task(
    loss: Loss,
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None,
    others: RemoteSamples | None,
    queries: torch.Tensor | None,
) -> torch.Tensor:
    match loss:
        case Bce():
            smooth = _smoothed(labels, loss.smoothing)
            # Without the factor the computation differs, and so does its rounding.
            positive = None if loss.pos_weight == 1.0 else logits.new_full((), loss.pos_weight)
            losses = functional.binary_cross_entropy_with_logits(logits, smooth, reduction="none", pos_weight=positive)
        case Focal():
            losses = focal(logits, _smoothed(labels, loss.smoothing), loss.gamma, loss.alpha)
        case Mse():
            losses = functional.mse_loss(logits, labels, reduction="none")
        case Huber():
            losses = functional.huber_loss(logits, labels, reduction="none", delta=loss.delta)
        case Poisson():
            losses = functional.poisson_nll_loss(logits, labels, log_input=True, reduction="none")
        case InBatchSoftmax() | SampledSoftmax():
            raise ValueError("a softmax over items is computed from vectors, not from logits")
        case Pairwise() | Bpr():
            given = torch.ones_like(labels) if weights is None else weights
            return pairwise(logits, labels, given, others, queries if isinstance(loss, Bpr) else None)
    return _times(losses, weights)


def _smoothed(labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return labels that are closer to 1/2 (Szegedy et al., 2016, section 7, with two classes)."""
    return torch.lerp(labels, torch.full_like(labels, 0.5), smoothing) if smoothing else labels


def _times(losses: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    if weights is None:
        return losses
    return losses * (weights if losses.ndim == 1 else by_task(weights))
