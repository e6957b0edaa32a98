"""The row optimizers that torch lacks, as torch optimizers of sparse gradients; written from their papers.

Row-wise Adagrad is FBGEMM's `EXACT_ROWWISE_ADAGRAD`, FTRL that of McMahan et al. ("Ad Click Prediction", 2013) with its
z scaled by the learning rate. States have the names that they have in checkpoints.
"""

from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import Ftrl, Optimizer, RowwiseAdagrad, RowwiseAdam


class RowwiseAdagradOfRows(torch.optim.Optimizer):
    """One sum of mean squared gradients for each row."""

    def __init__(self, config: RowwiseAdagrad, weight: nn.Parameter) -> None:
        super().__init__([weight], {})
        self.config = config
        self.state[weight] = {"adagrad_row_sum": torch.full((len(weight), 1), config.initial_accumulator_value)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Change the rows that have a gradient."""
        for weight, state in self.state.items():
            rows, gradient = _rows_of(weight)
            sums = state["adagrad_row_sum"]
            sums[rows] += (gradient * gradient).mean(1, keepdim=True)
            weight[rows] -= self.config.lr * gradient / (sums[rows].sqrt() + self.config.eps)


class RowwiseAdamOfRows(torch.optim.Optimizer):
    """Adam with beta1 = 0 and one running mean of mean squared gradients for each row; steps count from 1."""

    def __init__(self, config: RowwiseAdam, weight: nn.Parameter) -> None:
        super().__init__([weight], {})
        self.config = config
        self.state[weight] = {"adam_row_square": torch.zeros(len(weight), 1)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Change the rows that have a gradient."""
        beta2 = self.config.beta2
        for weight, state in self.state.items():
            rows, gradient = _rows_of(weight)
            state["step"] = state.get("step", 0) + 1
            mean = (gradient * gradient).mean(1, keepdim=True)
            square = beta2 * state["adam_row_square"][rows] + (1 - beta2) * mean
            state["adam_row_square"][rows] = square
            rate = self.config.lr * (1 - beta2 ** state["step"]) ** 0.5
            weight[rows] -= rate * gradient / (square.sqrt() + self.config.eps)


class FtrlOfRows(torch.optim.Optimizer):
    """Follow the regularised leader from z = 0, with z times the learning rate; weights without a gradient stay."""

    def __init__(self, config: Ftrl, weight: nn.Parameter) -> None:
        super().__init__([weight], {})
        self.config = config
        n = torch.full_like(weight, config.initial_accumulator_value)
        self.state[weight] = {"ftrl_z": torch.zeros_like(weight), "ftrl_n": n}

    def _strength(self, n: torch.Tensor) -> torch.Tensor:
        return self.config.beta + n.sqrt() + self.config.lr * self.config.l2

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Change the rows that have a gradient."""
        lr, l1 = self.config.lr, self.config.l1
        for weight, state in self.state.items():
            rows, gradient = _rows_of(weight)
            before = state["ftrl_n"][rows]
            n = before + gradient * gradient
            z = state["ftrl_z"][rows] + lr * gradient - (n.sqrt() - before.sqrt()) * weight[rows]
            state["ftrl_z"][rows], state["ftrl_n"][rows] = z, n
            solution = -z.sign() * (z.abs() - lr * l1).clamp(min=0) / self._strength(n)
            weight[rows] = torch.where(gradient == 0, weight[rows], solution)


def row_optimizer(config: Optimizer, weight: nn.Parameter) -> torch.optim.Optimizer | None:
    """Return the optimizer of a table's rows, None for one that torch has."""
    match config:
        case RowwiseAdagrad():
            return RowwiseAdagradOfRows(config, weight)
        case RowwiseAdam():
            return RowwiseAdamOfRows(config, weight)
        case Ftrl():
            return FtrlOfRows(config, weight)
    return None


def _rows_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert weight.grad is not None
    gradient = weight.grad.coalesce()
    return gradient.indices()[0], gradient.values()
