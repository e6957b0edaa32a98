"""Losses of a whole batch, as plain formulas."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from persia_cli.config.schema import Bce, Bpr, Focal, Huber, Loss, Mse, Pairwise, Poisson
from persia_cli.data.read.ids import NULL_ID


def batch_loss(
    losses: Sequence[Loss],
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    log_variances: torch.Tensor | None = None,
    queries: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean over tasks, by their weights, of the weighted mean over samples (for `pairwise` and `bpr` pairs).

    A sample whose label is NaN does not count for it, and a task without samples has loss 0.

    With `log_variances` each task's mean L becomes the negative log-likelihood of Kendall et al.: L / (2 v) + log
    sqrt v for a squared error, and L / v + log sqrt v for others, where v is its variance.
    """
    total = torch.zeros(())
    for task, loss in enumerate(losses):
        known = ~labels[:, task].isnan()
        if not weights[known].sum() > 0:
            continue
        own = None if queries is None else queries[known]
        mean = _mean(loss, logits[known, task], labels[known, task], weights[known], own)
        if log_variances is not None:
            variance = log_variances[task].exp()
            mean = mean / (2 * variance if isinstance(loss, Mse) else variance) + variance.sqrt().log()
        total = total + loss.weight * mean
    return total / sum(loss.weight for loss in losses)


def _mean(loss: Loss, z: torch.Tensor, y: torch.Tensor, w: torch.Tensor, queries: torch.Tensor | None) -> torch.Tensor:
    match loss:
        case Bce():
            y = y * (1 - loss.smoothing) + loss.smoothing / 2
            positive = torch.tensor(loss.pos_weight, dtype=z.dtype)
            values = functional.binary_cross_entropy_with_logits(z, y, reduction="none", pos_weight=positive)
        case Mse():
            values = (z - y) ** 2
        case Huber():
            e = (z - y).abs()
            values = torch.where(e < loss.delta, e * e / 2, loss.delta * e - loss.delta**2 / 2)
        case Poisson():
            values = z.exp() - y * z
        case Focal():
            y = y * (1 - loss.smoothing) + loss.smoothing / 2
            positive = focal_of_class(z, torch.ones_like(z), loss.gamma, loss.alpha)
            negative = focal_of_class(z, torch.zeros_like(z), loss.gamma, loss.alpha)
            values = y * positive + (1 - y) * negative
        case Pairwise():
            return mean_of_pairs(z, y, w)
        case Bpr():
            return mean_of_pairs(z, y, w, queries)
    return (values * (w / w.sum())).sum()


def focal_of_class(z: torch.Tensor, y: torch.Tensor, gamma: float, alpha: float | None) -> torch.Tensor:
    """Return the focal loss for labels 0 or 1, from the probability p_t of the sample's class."""
    p = z.sigmoid()
    p_t = p * y + (1 - p) * (1 - y)
    values = functional.binary_cross_entropy_with_logits(z, y, reduction="none") * (1 - p_t) ** gamma
    return values if alpha is None else values * (alpha * y + (1 - alpha) * (1 - y))


def mean_of_pairs(
    z: torch.Tensor, y: torch.Tensor, w: torch.Tensor, queries: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the weighted mean of -log sigmoid(z_i - z_j) over all i and other j of i's query; 0 without a pair."""
    total, mass = 0.0 * z.sum(), 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            weight = float(w[i] * y[i] * w[j] * (1 - y[j])) if i != j else 0.0
            if queries is not None and (queries[i] != queries[j] or queries[i] == NULL_ID):
                continue
            if weight:
                total, mass = total - weight * functional.logsigmoid(z[i] - z[j]), mass + weight
    return total / mass if mass else total
