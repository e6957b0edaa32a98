"""Arithmetic of the dense network: float32, or a half type by autocast; float16 with a loss scale that adapts."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from persia_cli.errors import PersiaError

Precision = Literal["float32", "bfloat16", "float16"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

FIRST, GROWTH, GROWTH_STEPS = 2.0**16, 2.0, 2000
"""As in torch.amp.GradScaler: the scale doubles after so many steps without an overflow, and halves at one."""
LEAST, GREATEST = 2.0**-10, 2.0**100


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return what the forward pass is to run in; torch decides per operation what is safe in the half type."""
    dtype = DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


class LossScale:
    """What the loss is multiplied by, lest small gradients become 0 in float16; a power of two, so scaling is exact.

    All ranks make the same steps with it, because they are told of an overflow together.
    """

    def __init__(self) -> None:
        self.scale = FIRST
        self.skipped = 0
        """Steps of the dense weights that were left out so far."""
        self._good = 0

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide gradients by the scale in place; what is not finite stays so."""
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def note(self, overflow: bool, moved: bool) -> None:
        """Let a step be over: whether a gradient overflowed on any rank, and whether the dense weights moved.

        Raises PersiaError if gradients overflow at any scale.
        """
        self.skipped += not moved
        self._good = 0 if overflow else self._good + 1
        if overflow:
            self.scale /= GROWTH
            if self.scale < LEAST:
                raise PersiaError(
                    f"gradients overflow float16 even where the loss is multiplied by {self.scale:g}; "
                    "lower the learning rates, or set train.precision=bfloat16"
                )
        elif self._good == GROWTH_STEPS:
            self.scale, self._good = min(self.scale * GROWTH, GREATEST), 0

    def state(self) -> dict[str, float]:
        """Return what `load` takes back."""
        return {"scale": self.scale, "skipped": self.skipped, "good": self._good}

    def load(self, state: dict[str, float]) -> None:
        """Go on from a saved state."""
        self.scale, self.skipped, self._good = float(state["scale"]), int(state["skipped"]), int(state["good"])


def all_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity; waits for the device once."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return True
    # The greatest magnitude is NaN or infinite if any is.
    return bool(torch.nn.utils.get_total_norm(tensors, norm_type=float("inf")).isfinite())
