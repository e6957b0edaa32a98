"""The arithmetic of the dense network: float32, tf32, or a 16-bit dtype by autocast; float16 with a loss scale."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from persia_cli.errors import UserError

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

FIRST, GROWTH, GROWTH_STEPS = 2.0**16, 2.0, 2000
"""Number of steps without an overflow after which the scale doubles; it halves at each overflow (as GradScaler)."""
LEAST, GREATEST = 2.0**-10, 2.0**100


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of the forward pass; torch decides per operation what is safe in the 16-bit dtype."""
    dtype = DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


class LossScale:
    """The factor of the loss that prevents small float16 gradients from becoming 0; a power of two, so it is exact.

    All ranks change it in the same way, since each overflow is reported to all of them.
    """

    def __init__(self) -> None:
        self.scale = FIRST
        self.skipped = 0
        """Number of skipped steps of the dense weights so far."""
        self._good = 0

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide gradients by the scale in place; values that are not finite stay so."""
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def note(self, overflow: bool, moved: bool) -> None:
        """End a step; `overflow` means that a gradient overflowed on any rank, `moved` that the dense weights changed.

        Raise UserError if gradients overflow at any scale.
        """
        self.skipped += not moved
        self._good = 0 if overflow else self._good + 1
        if overflow:
            self.scale /= GROWTH
            if self.scale < LEAST:
                raise UserError(
                    f"gradients overflow float16 even if the loss is multiplied by {self.scale:g}; "
                    "lower the learning rates, or set train.precision=bfloat16"
                )
        elif self._good == GROWTH_STEPS:
            self.scale, self._good = min(self.scale * GROWTH, GREATEST), 0

    def state(self) -> dict[str, float]:
        """Return the state for `load`."""
        return {"scale": self.scale, "skipped": self.skipped, "good": self._good}

    def load(self, state: dict[str, float]) -> None:
        """Continue from a saved state."""
        self.scale, self.skipped, self._good = float(state["scale"]), int(state["skipped"]), int(state["good"])


def all_finite(tensors: list[torch.Tensor]) -> bool:
    """Return True if no tensor has NaN or infinity; waits for the device once."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return True
    # The greatest magnitude is NaN or infinite if any is.
    return bool(torch.nn.utils.get_total_norm(tensors, norm_type=float("inf")).isfinite())
