"""The output of a network: logits, and in training optional auxiliary losses."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from persia_cli.errors import ConfigError

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Logits float [n, tasks]; or these, and losses float [n, tasks] or [n, 1] that are added to those of the labels."""


def split_output(output: Output) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return logits and auxiliary losses, None if the network has none."""
    return output if isinstance(output, tuple) else (output, None)


def change_logits(network: nn.Module, change: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    """Make a network return changed logits; its auxiliary losses stay."""

    def after(module: nn.Module, inputs: Any, output: Output) -> Output:
        logits, auxiliary = split_output(output)
        logits = change(module, logits)
        return logits if auxiliary is None else (logits, auxiliary)

    network.register_forward_hook(after)


def checked_output(output: Any, shape: Sequence[int], whose: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the `split_output` of a network's output of any type; raises ConfigError for one that does not fit.

    `shape` is that of logits; `whose` names the network in the message.
    """
    samples, tasks = shape
    logits, auxiliary = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
    if _shape(logits) != [samples, tasks]:
        raise ConfigError(f"{whose} must return logits [samples, tasks] = {[samples, tasks]}, not {_shape(logits)}")
    if auxiliary is not None and _shape(auxiliary) not in ([samples, tasks], [samples, 1]):
        raise ConfigError(
            f"{whose} must return auxiliary losses with its logits as [samples, tasks] or [samples, 1], here "
            f"{[samples, tasks]} or {[samples, 1]}, not {_shape(auxiliary)}"
        )
    return logits, auxiliary


def _shape(value: Any) -> list[int] | str:
    return list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
