"""The arithmetic of the dense network: float32, tf32, or bfloat16 by autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of the forward pass; torch decides per operation what is safe in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
