"""The correction of a saved network's logits by a slope and a shift of each label, when it is no longer trained."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.control.calibration import Calibration
from persia_cli.model.outputs import change_logits

NAME = "logit_calibration"
Factors = NDArray[np.float32]


def factors_of(calibration: Sequence[Calibration], tasks: int) -> Factors | None:
    """Return float32 [2, tasks], the slopes and the shifts of all labels; None if no label is corrected."""
    if not calibration:
        return None
    factors = unchanged(tasks)
    for correction in calibration:
        factors[:, correction.task] = correction.slope, correction.shift
    return factors


def unchanged(tasks: int) -> Factors:
    """Return the factors that do not change logits."""
    return np.array([np.ones(tasks), np.zeros(tasks)], np.float32)


def calibrate(network: nn.Module, factors: Factors) -> None:
    """Make a network in evaluation mode return corrected logits."""
    network.register_buffer(NAME, torch.tensor(factors), persistent=False)

    def correct(module: nn.Module, logits: torch.Tensor) -> torch.Tensor:
        slopes_and_shifts = getattr(module, NAME)
        return logits * slopes_and_shifts[0] + slopes_and_shifts[1]

    change_logits(network, correct)
