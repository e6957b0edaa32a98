"""Batch normalisation over the samples of all ranks: Ioffe and Szegedy, arXiv 1502.03167."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import batch_norm

MIN_RATE = 0.1
"""Minimum weight of a step's statistics in the running ones, torch's default."""

LOCAL = (
    nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
    | nn.LazyBatchNorm1d | nn.LazyBatchNorm2d | nn.LazyBatchNorm3d
)  # fmt: skip
"""Layers of torch whose statistics are those of one rank's samples."""


class BatchNorm(nn.Module):
    """Normalisation of each column by its mean and variance over the samples of a step, then a scale and an offset.

    Several ranks share their statistics, so they compute what one rank with all samples would, up to rounding; a rank
    without samples takes part. Evaluation uses running statistics, and so does a step of fewer than two samples, which
    have no variance.

    The running statistics are the mean of all steps so far, and after ten steps an exponential average: step n has the
    weight max(0.1, 1/n) in them. So they are independent of their first values, and suit the first evaluations too.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor
    running_var: torch.Tensor
    updates: torch.Tensor

    def __init__(self, *shape: int, affine: bool = True, eps: float = 1e-5) -> None:
        """Normalise [n, width] with `shape` (width,), or [copies, n, width] with `shape` (copies, 1, width).

        Without `affine` there is no scale and no offset.
        """
        super().__init__()
        self.eps = eps
        self.ranks = 1
        self.register_parameter("weight", nn.Parameter(torch.ones(shape)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(shape)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        # A tensor, so that checkpoints have it, and no step waits for the device to read it.
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs, in their shape."""
        statistics = (self.running_mean, self.running_var)
        if inputs.dim() == 2 and (self.ranks == 1 or not self.training):
            if not self.training or inputs.shape[0] < 2:
                return batch_norm(inputs, *statistics, self.weight, self.bias, False, eps=self.eps)
            of_step = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
            # With a momentum of 1 it puts the statistics of this step alone into `own`.
            normal = batch_norm(inputs, *of_step, self.weight, self.bias, True, 1.0, self.eps)
            self._learn(*of_step)
            return normal
        # Sums over a batch need more digits than half precision has.
        mean, variance = self._moments(inputs.to(self.running_mean.dtype)) if self.training else statistics
        normal = (inputs - mean) * (variance + self.eps).rsqrt()
        return normal if self.weight is None or self.bias is None else normal * self.weight + self.bias

    def _moments(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance over the samples of all ranks, in the shape of the running ones, which it updates.

        The variance is computed from differences to the mean, since a difference of large sums would lose its digits.
        """
        shape = self.running_mean.shape
        sums, total = inputs.sum(-2).flatten(), float(inputs.shape[-2])
        if self.ranks > 1:
            # In one message; and a tensor without ranks, since the compiler cannot trace a number read from a tensor.
            sums = self._over_ranks(torch.cat([sums, sums.new_full((1,), total)]))
            sums, total = sums[:-1], float(sums[-1].detach())
        if total < 2:
            return self.running_mean, self.running_var
        mean = (sums / total).view(shape)
        squares = self._over_ranks((inputs - mean).square().sum(-2).flatten()).view(shape)
        self._learn(mean, squares / (total - 1))
        return mean, squares / total

    @torch.no_grad()
    def _learn(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Add the statistics of a step to the running ones; the variance is that of n - 1."""
        self.updates.add_(1)
        rate = self.updates.to(mean.dtype).reciprocal().clamp(min=MIN_RATE)
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance, rate)

    def _over_ranks(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.ranks == 1:
            return tensor
        summed: torch.Tensor = SumOverRanks.apply(tensor)  # type: ignore[no-untyped-call]
        return summed


class SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over ranks; its gradient is the sum over ranks of their gradients, as their losses add up."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        return summed


def share_statistics(module: nn.Module, ranks: int) -> None:
    """Make every `BatchNorm` in `module` normalise over the samples of so many ranks, all of torch's default group."""
    for part in module.modules():
        if isinstance(part, BatchNorm):
            part.ranks = ranks
