"""Copies of a network's state, which training does not change."""

import torch
from torch import nn

from persia_cli.training.dense_state import TensorFile, dense_state


def dense_files(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[TensorFile]:
    """Return the dense files of a checkpoint of the network."""
    return [file.copied() for file in dense_state(module, optimizer)]
