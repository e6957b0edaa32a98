"""Rows in their wire format, decoded and encoded by torch's operations on any device, as `store.wire_rows` does."""

import torch

from persia_cli.store.layout import Wire

EXPONENT_AT = 23
"""Lowest bit of a float32's exponent."""


def decode(block: torch.Tensor, dim: int, wire: Wire) -> torch.Tensor:
    """Return the rows of uint8 [U, bytes of a row] as float32 [U, dim], in new memory."""
    match wire:
        case "float32":
            return block.view(torch.float32).clone()
        case "bfloat16":
            return block.view(torch.bfloat16).float()
        case "float16":
            halves = block.view(torch.float16)
            factor = halves[:, :2].contiguous().view(torch.float32)
            return halves[:, 2:].float() * factor


def encode_into(values: torch.Tensor, wire: Wire, block: torch.Tensor) -> None:
    """Write the rows float32 [U, dim] in their wire format into uint8 [U, bytes of a row]."""
    match wire:
        case "float32":
            block.view(torch.float32).copy_(values)
        case "bfloat16":
            block.view(torch.bfloat16).copy_(values)
        case "float16":
            halves = block.view(torch.float16)
            factor, reciprocal = _factors(values.abs().amax(1))
            halves[:, :2].copy_(factor.view(torch.float16).view(-1, 2))
            halves[:, 2:].copy_((values * reciprocal.unsqueeze(1)).half())


def _factors(greatest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's factor and its reciprocal, given its greatest magnitude, as `kernels.cast.float16_factor`."""
    exponent = greatest.view(torch.int32) >> EXPONENT_AT
    itself = (exponent == 255) | (greatest == 0)
    exponent = exponent.clamp(min=15)
    factor = torch.where(itself, greatest, ((exponent - 14) << EXPONENT_AT).view(torch.float32))
    reciprocal = torch.where(itself, 0.0, ((268 - exponent) << EXPONENT_AT).view(torch.float32))
    return factor, reciprocal
