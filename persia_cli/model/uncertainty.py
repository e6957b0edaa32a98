"""Learnt weights of tasks: the variance of each, which is a weight of the network like others."""

import torch
from torch import nn

from persia_cli.model.outputs import change_logits

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
    # With several ranks, the logits have to depend on every weight.
    change_logits(network, lambda _, logits: logits + 0.0 * part.log_variances.sum())


def log_variances_of(network: nn.Module) -> torch.Tensor | None:
    """Return the logarithms of the tasks' variances; None if the network does not learn them."""
    part = getattr(network, NAME, None)
    return part.log_variances if isinstance(part, TaskUncertainty) else None
