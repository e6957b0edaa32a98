"""Dropout that draws 16 random bits for each number: Srivastava et al., JMLR 2014."""

import torch
from torch import nn
from torch.nn import functional

CASES = 2**16
"""A share is a whole number of so many equally likely cases."""
DRAWN = 4
"""Numbers that one draw of 64 bits is for."""


def dropped(values: torch.Tensor, share: float) -> torch.Tensor:
    """Return values with this share of them 0, by torch's random numbers, and the others scaled up to the same mean.

    Torch's own draws a double for each number, on a processor, which takes as long as the layer before. Elsewhere, and
    in what the compiler traces, it is torch's own.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(values, share)
    cases = min(round(share * CASES), CASES - 1)
    drawn = torch.empty(-(-values.numel() // DRAWN), dtype=torch.int64).random_(-(2**63), None)
    numbers = drawn.view(torch.int16)[: values.numel()].view(values.shape)
    # From lowest to highest int16; as the values' own type, since a product with truth values is slow.
    kept = (numbers >= cases - CASES // 2).to(values.dtype)
    return values * kept.mul_(CASES / (CASES - cases))


class Dropout(nn.Dropout):
    """`dropped` while it trains; in evaluation nothing."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of any shape, dropped if it trains."""
        return dropped(inputs, self.p) if self.training and self.p else inputs
