"""Learnt weights of tasks: the variance of each, which is a weight of the network like others."""

from typing import Any

import torch
from torch import nn

from persia_cli.model.outputs import Output, split_output

NAME = "task_uncertainty"


class TaskUncertainty(nn.Module):
    """The logarithms of the tasks' variances, float32 [tasks]; they are 0 at first, which leaves losses unchanged.

    Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses" (2018).
    """

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(tasks))


def learn_uncertainty(network: nn.Module, tasks: int) -> None:
    """Add the uncertainty of tasks to a network; its logits stay the same."""
    part = TaskUncertainty(tasks)
    network.add_module(NAME, part)

    def after(module: nn.Module, inputs: Any, output: Output) -> Output:
        logits, auxiliary = split_output(output)
        # With several ranks, the logits have to depend on every weight.
        logits = logits + 0.0 * part.log_variances.sum()
        return logits if auxiliary is None else (logits, auxiliary)

    network.register_forward_hook(after)


def log_variances_of(network: nn.Module) -> torch.Tensor | None:
    """Return the logarithms of the tasks' variances; None if the network does not learn them."""
    part = getattr(network, NAME, None)
    return part.log_variances if isinstance(part, TaskUncertainty) else None
