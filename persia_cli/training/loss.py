"""The loss of a global batch: the weighted losses of all labels, in parts that ranks add up."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from persia_cli.config.schema import BCE, Bce, Bpr, Focal, Huber, InBatchSoftmax, Loss, Mse, Pairwise, Poisson
from persia_cli.config.schema.loss import task_weights
from persia_cli.training.pairs import RemoteSamples, by_task, pairwise


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

        `others` are samples of other ranks, with which those of this one form pairs; `queries` int64 [n] or None are
        the queries within which `bpr` forms them.

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


PLAIN = Objective([BCE])
"""Binary cross-entropy of a single label."""


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
        case InBatchSoftmax():
            raise ValueError("a softmax over the items of a batch is computed from vectors, by in_batch_softmax")
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
