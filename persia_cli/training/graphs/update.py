"""The update of dense weights within a graph: every number that changes from step to step is read from the device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

NUMBERS = 3
"""Number of float32 values that an update reads: learning rate, step size of Adam, root of its second correction."""
RATE, STEP_SIZE, ROOT = range(NUMBERS)
KINDS = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW)


class GraphUpdate:
    """The step of one of torch's optimizers, on its state, so that a rank can use either from step to step.

    The formulas are those of torch.optim (SGD without momentum, Adagrad without decay of the learning rate, Adam and
    AdamW without `amsgrad`), by operations on lists of tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the optimizer; raises TypeError for another kind than those of `KINDS`."""
        if not isinstance(optimizer, KINDS):
            raise TypeError(f"{type(optimizer).__name__} has no update in a graph")
        self._optimizer = optimizer
        self._steps: list[tuple[torch.Tensor, NDArray[np.float32]]] = []
        """The numbers of steps of the weights, as tensors and as arrays of the same memory."""

    @property
    def state(self) -> list[torch.Tensor]:
        """The tensors that `run` changes in addition to the weights; empty before the first step of the optimizer."""
        states = self._optimizer.state.values()
        return [value for state in states for key, value in state.items() if key != "step"]

    @property
    def is_even(self) -> bool:
        """True if one number of steps is that of all weights; after a warm start of Adam some have more."""
        states = self._optimizer.state.values() if isinstance(self._optimizer, torch.optim.Adam) else ()
        return len({float(state["step"]) for state in states}) <= 1

    def numbers(self, lr: float) -> list[float]:
        """Count a step of the optimizer, and return the values that `run` reads in it."""
        steps = [state["step"] for state in self._optimizer.state.values() if "step" in state]
        if len(steps) != len(self._steps) or any(a is not b for a, (b, _) in zip(steps, self._steps, strict=True)):
            self._steps = [(step, step.numpy()) for step in steps]
        for _, number in self._steps:
            number += 1.0  # an operation of torch would release the GIL
        if not isinstance(self._optimizer, torch.optim.Adam):
            return [lr, 0.0, 0.0]
        count = float(self._steps[0][1])
        beta1, beta2 = self._optimizer.param_groups[0]["betas"]
        return [lr, lr / (1.0 - beta1**count), (1.0 - beta2**count) ** 0.5]

    @torch.no_grad()
    def run(self, numbers: torch.Tensor) -> None:
        """Change the weights by their gradients; `numbers` float32 [NUMBERS] are those of `numbers`."""
        for group in self._optimizer.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(group, weights, numbers)

    def _move(self, group: dict[str, Any], weights: list[torch.Tensor], numbers: torch.Tensor) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        decay = group["weight_decay"]
        if decay and isinstance(self._optimizer, torch.optim.AdamW):
            torch._foreach_mul_(weights, 1.0 - numbers[RATE] * decay)
        elif decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=decay))
        match self._optimizer:
            case torch.optim.SGD():
                torch._foreach_add_(weights, torch._foreach_mul(gradients, -numbers[RATE]))
            case torch.optim.Adagrad():
                sums = self._of(weights, "sum")
                torch._foreach_addcmul_(sums, gradients, gradients, value=1.0)
                roots = torch._foreach_sqrt(sums)
                torch._foreach_add_(roots, group["eps"])
                torch._foreach_addcdiv_(weights, torch._foreach_mul(gradients, -numbers[RATE]), roots)
            case _:
                beta1, beta2 = group["betas"]
                means, squares = self._of(weights, "exp_avg"), self._of(weights, "exp_avg_sq")
                torch._foreach_lerp_(means, gradients, 1.0 - beta1)
                torch._foreach_mul_(squares, beta2)
                torch._foreach_addcmul_(squares, gradients, gradients, value=1.0 - beta2)
                roots = torch._foreach_sqrt(squares)
                torch._foreach_div_(roots, numbers[ROOT])
                torch._foreach_add_(roots, group["eps"])
                torch._foreach_addcdiv_(weights, torch._foreach_mul(means, -numbers[STEP_SIZE]), roots)

    def _of(self, weights: list[torch.Tensor], key: str) -> list[torch.Tensor]:
        return [self._optimizer.state[weight][key] for weight in weights]
