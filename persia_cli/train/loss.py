"""The loss of a global batch: the weighted losses of all labels, in parts that ranks add up."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from persia_cli.config.schema import BCE, Bce, Focal, Huber, Loss, Mse, Pairwise, Poisson


class Objective:
    """The sum over tasks t of s_t L_t, with L_t = sum over samples of w_i l_it / sum of w_i, over the global batch.

    s_t is the task's weight divided by the sum of all tasks' weights. This mean keeps the size of gradients, and so a
    good learning rate, independent of the number of tasks.
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        """Combine the losses of all tasks; at least one must have a weight above 0."""
        self._losses = tuple(losses)
        total = sum(loss.weight for loss in losses)
        self.task_weights = tuple(loss.weight / total for loss in losses)

    def weighted(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        log_variances: torch.Tensor | None = None,
        others: "Others | None" = None,
    ) -> torch.Tensor:
        """Return w_i l_it float32 [n, T]: each sample's loss in each task, times the sample's weight.

        `logits` and `labels` are float32 [n, T], `weights` float32 [n] or None for ones. The weights of tasks are not
        in it.

        `others` are samples of other ranks, with which those of this one form pairs.

        With `log_variances` s float32 [T] it is w_i (c_t exp(-s_t) l_it + s_t / 2), where c_t is 1/2 for squared errors
        and 1 for other losses: Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses"
        (2018), equations 5 and 10.
        """
        losses = self._weighted(logits, labels, weights, others)
        if log_variances is None:
            return losses
        halves = losses.new_tensor([0.5 if isinstance(loss, Mse) else 1.0 for loss in self._losses])
        scaled = losses * (halves * torch.exp(-log_variances))
        return scaled + _times((0.5 * log_variances).expand_as(losses), weights)

    @property
    def needs_others(self) -> bool:
        """True if a loss is of pairs, of which some are of samples of two ranks."""
        return any(isinstance(loss, Pairwise) for loss in self._losses)

    def _weighted(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, others: "Others | None"
    ) -> torch.Tensor:
        if all(isinstance(loss, Bce) and not loss.smoothing for loss in self._losses):
            return _times(functional.binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)
        columns = [
            _of_task(loss, logits[:, task], labels[:, task], weights, others and others.of_task(task))
            for task, loss in enumerate(self._losses)
        ]
        return torch.stack(columns, dim=1)

    def part(self, weighted: torch.Tensor, weight_total: float) -> torch.Tensor:
        """Return this rank's part of the loss: the sum over samples of `weighted` / weight_total, times task weights.

        `weight_total` is the sum of weights over the global batch, so the parts of all ranks add up to the loss of the
        batch. A batch without weight has loss 0.
        """
        scale = 1.0 / weight_total if weight_total > 0 else 0.0
        scaled = weighted.new_tensor([weight * scale for weight in self.task_weights])
        return torch.dot(weighted.sum(0), scaled)


PLAIN = Objective([BCE])
"""Binary cross-entropy of a single label."""


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


class Others(NamedTuple):
    """The samples of a step that other ranks have: logits and labels float32 [m, T] or [m], weights float32 [m]."""

    logits: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    def of_task(self, task: int) -> "Others":
        """Return them with the logits and labels of one task."""
        return Others(self.logits[:, task], self.labels[:, task], self.weights)


def pairwise(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, others: Others | None = None
) -> torch.Tensor:
    """Return parts [n] whose sum over all ranks is sum(w) m, where m is the weighted mean loss of all pairs.

    A positive sample should have a higher logit than a negative one. The loss of positive sample i and negative sample
    j is log(1 + exp(z_j - z_i)), that of Burges et al., "Learning to Rank using Gradient Descent" (2005), with target
    probability 1. Its weight is w_i y_i w_j (1 - y_j), so a sample with a label between 0 and 1 is partly positive and
    partly negative, but no sample is paired with itself. Each of the two samples has half of a pair's loss. Without
    pairs all parts are 0.

    Pairs are formed among these n samples and the `others`. The gradient is that of all ranks' parts by these logits:
    a pair with a sample of another rank has all of its gradient here and half of its loss. It needs memory for all
    pairs that have one of these samples.

    logits, labels (in 0..1) and weights are float32 [n], of the others too.
    """
    size, up, down = len(logits), weights * labels, weights * (1.0 - labels)
    weight = weights.sum()
    if others is not None:
        logits = torch.cat([logits, others.logits])
        up = torch.cat([up, others.weights * others.labels])
        down = torch.cat([down, others.weights * (1.0 - others.labels)])
        weight = weight + others.weights.sum()
    positive, negative = up.nonzero().squeeze(1), down.nonzero().squeeze(1)
    all_up, all_down = up.double(), down.double()
    total = all_up.sum() * all_down.sum() - torch.dot(all_up, all_down)
    parts = torch.zeros_like(logits)
    # The pairs of a positive sample that is here, and those of a negative one alone.
    for ups, downs in ((positive[positive < size], negative), (positive[positive >= size], negative[negative < size])):
        mass = up[ups].unsqueeze(1) * down[downs].double()
        mass = mass.masked_fill(ups.unsqueeze(1) == downs, 0.0)
        # The mass is divided first: its total can be so small that a number divided by it is infinite.
        shares = torch.where(total > 0, mass / total, 0.0).float() * (0.5 * weight)
        losses = functional.softplus(logits[downs] - logits[ups].unsqueeze(1)) * shares
        # A pair of two ranks has but one of its halves here, and the gradient of both.
        apart = (ups.unsqueeze(1) >= size) | (downs >= size)
        losses = torch.where(apart, 2.0 * losses - losses.detach(), losses)
        parts = parts.index_add(0, ups, losses.sum(1)).index_add(0, downs, losses.sum(0))
    return parts[:size]


def _of_task(
    loss: Loss, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, others: Others | None
) -> torch.Tensor:
    match loss:
        case Bce():
            smooth = _smoothed(labels, loss.smoothing)
            losses = functional.binary_cross_entropy_with_logits(logits, smooth, reduction="none")
        case Focal():
            losses = focal(logits, _smoothed(labels, loss.smoothing), loss.gamma, loss.alpha)
        case Mse():
            losses = functional.mse_loss(logits, labels, reduction="none")
        case Huber():
            losses = functional.huber_loss(logits, labels, reduction="none", delta=loss.delta)
        case Poisson():
            losses = functional.poisson_nll_loss(logits, labels, log_input=True, reduction="none")
        case _:
            return pairwise(logits, labels, torch.ones_like(labels) if weights is None else weights, others)
    return _times(losses, weights)


def _smoothed(labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return labels that are closer to 1/2 (Szegedy et al., 2016, section 7, with two classes)."""
    return torch.lerp(labels, torch.full_like(labels, 0.5), smoothing) if smoothing else labels


def _times(losses: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return losses if weights is None else losses * weights.view(-1, *[1] * (losses.ndim - 1))
