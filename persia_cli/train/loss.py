"""Binary cross-entropy of one or more tasks, scaled by the weights of the whole global batch."""

import torch
from torch.nn import functional


def weighted_losses(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return w_i l_it float32 [n, T]: each sample's loss in each task, times the sample's weight.

    `logits` and `labels` (in 0..1) are float32 [n, T], `weights` float32 [n] or None for ones;
    l = -y log s(z) - (1 - y) log(1 - s(z)) with the logistic function s.
    """
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return losses if weights is None else losses * weights.unsqueeze(1)


def batch_loss(weighted: torch.Tensor, weight_total: float) -> torch.Tensor:
    """Return this rank's part of the loss: the sum of `weighted` / (weight_total * T).

    `weight_total` is the sum of weights over the global batch, so the parts of all ranks add up to the loss of the
    batch: the weighted mean over samples of the mean over tasks. The mean, not the sum, keeps the size of gradients,
    and so a good learning rate, independent of the number of tasks. A batch without weight has loss 0.
    """
    scale = 1.0 / (weight_total * weighted.shape[1]) if weight_total > 0 else 0.0
    return weighted.sum() * scale
