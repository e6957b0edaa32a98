"""Arrays of several dtypes in one block of bytes, so that one copy moves a whole batch to or from a device."""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

ALIGN = 256
"""Bytes at whose multiples arrays begin, as the memory of a GPU is read."""


class Field(NamedTuple):
    """An array of a block."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return prod(self.shape) * self.dtype.itemsize


class BlockLayout:
    """The places of arrays in a block; `nbytes` is its size."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = {field.name: field for field in fields}
        self.starts: dict[str, int] = {}
        at = 0
        for field in self.fields.values():
            self.starts[field.name] = at
            at = -(-(at + field.nbytes) // ALIGN) * ALIGN
        self.nbytes = at

    def arrays(self, block: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a block uint8 [nbytes] of the host, which share its memory."""
        return {
            field.name: block[start : start + field.nbytes].view(field.dtype).reshape(field.shape)
            for start, field in self._places()
        }

    def tensors(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the arrays of a block uint8 [nbytes] on any device, which share its memory."""
        return {
            field.name: block[start : start + field.nbytes].view(_torch_dtype(field.dtype)).view(field.shape)
            for start, field in self._places()
        }

    def _places(self) -> Iterable[tuple[int, Field]]:
        return zip(self.starts.values(), self.fields.values(), strict=True)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
