"""Dropout that draws 16 random bits for each number: Srivastava et al., JMLR 2014."""

import torch
from torch import nn
from torch.nn import functional

CASES = 2**16
"""Number of equally likely cases; a share is a whole number of them."""
DRAWN = 4
"""Number of values for which one draw of 64 bits is used."""


def dropped(values: torch.Tensor, share: float) -> torch.Tensor:
    """Return values of which this share is 0, by torch's random numbers, and the others scaled to the same mean.

    On a CPU, torch's own function draws a double for each number, which takes as long as the layer before. Elsewhere,
    and in code that the compiler traces, torch's own is used.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(values, share)
    cases = min(round(share * CASES), CASES - 1)
    drawn = torch.empty(-(-values.numel() // DRAWN), dtype=torch.int64).random_(-(2**63), None)
    numbers = drawn.view(torch.int16)[: values.numel()].view(values.shape)
    # From lowest to highest int16; as the values' own type, since a product with truth values is slow.
    mask = (numbers >= cases - CASES // 2).to(values.dtype)
    return values * mask.mul_(CASES / (CASES - cases))


class Dropout(nn.Dropout):
    """`dropped` in training; the identity in evaluation."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of any shape, dropped in training."""
        return dropped(inputs, self.p) if self.training and self.p else inputs
