"""The pairwise loss: a positive sample should have a higher logit than a negative one."""

import torch
from torch.nn import functional


def pairwise(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return parts [n] whose sum is sum(w) m, where m is the weighted mean loss of the pairs among these n samples.

    The loss of positive sample i and negative sample j is log(1 + exp(z_j - z_i)), that of Burges et al., "Learning to
    Rank using Gradient Descent" (2005), with target probability 1. Its weight is w_i y_i w_j (1 - y_j), so a sample
    with a label between 0 and 1 is partly positive and partly negative, but no sample is paired with itself. Each of
    the two samples has half of a pair's loss. Without pairs all parts are 0.

    Pairs are formed within one rank's part of the batch: the loss of a global batch is the mean of m over these parts,
    each weighted by its sum of w. With one rank it is the mean over all pairs; with more ranks there are fewer pairs.
    It needs memory for all positives times all negatives.

    logits, labels (in 0..1) and weights are float32 [n].
    """
    up, down = weights * labels, weights * (1.0 - labels)
    positive, negative = up.nonzero().squeeze(1), down.nonzero().squeeze(1)
    mass = up[positive].unsqueeze(1) * down[negative]
    if bool(((labels > 0) & (labels < 1)).any()):
        mass = mass.masked_fill(positive.unsqueeze(1) == negative, 0.0)
    total = mass.sum()
    scale = torch.where(total > 0, 0.5 * weights.sum() / total, 0.0)
    losses = functional.softplus(logits[negative] - logits[positive].unsqueeze(1)) * (mass * scale)
    parts = torch.zeros_like(logits).index_add(0, positive, losses.sum(1))
    return parts.index_add(0, negative, losses.sum(0))
