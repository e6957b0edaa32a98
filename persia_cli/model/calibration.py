"""The correction of a saved network's logits by a slope and a shift of each label, when it is no longer trained."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.control.calibration import Calibration
from persia_cli.model.outputs import Output, split_output

NAME = "logit_calibration"
Factors = NDArray[np.float32]


def factors_of(calibration: Sequence[Calibration], tasks: int) -> Factors | None:
    """Return float32 [2, tasks], the slopes and the shifts of all labels; None if no label is corrected."""
    if not calibration:
        return None
    factors = np.array([np.ones(tasks), np.zeros(tasks)], np.float32)
    for each in calibration:
        factors[:, each.task] = each.slope, each.shift
    return factors


def calibrate(network: nn.Module, factors: Factors) -> None:
    """Make a network in evaluation mode return corrected logits."""
    network.register_buffer(NAME, torch.tensor(factors), persistent=False)

    def after(module: nn.Module, inputs: Any, output: Output) -> Output:
        logits, auxiliary = split_output(output)
        logits = logits * getattr(module, NAME)[0] + getattr(module, NAME)[1]
        return logits if auxiliary is None else (logits, auxiliary)

    network.register_forward_hook(after)
