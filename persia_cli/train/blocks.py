"""Arrays of several dtypes in one block of bytes, so that one copy moves a whole batch to or from a device."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import torch

ALIGN = 256
"""Bytes at whose multiples arrays begin, as the memory of a GPU is read."""


class Field(NamedTuple):
    """An array of a block."""

    name: str
    dtype: torch.dtype
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

    def views(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the arrays of a block uint8 [nbytes], which share its memory."""
        return {
            name: block[start : start + self.fields[name].nbytes]
            .view(self.fields[name].dtype)
            .view(self.fields[name].shape)
            for name, start in self.starts.items()
        }
