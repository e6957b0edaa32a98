"""The blocks of memory that a graph of a step reads and writes: arrays of several dtypes, so that one copy moves all.

Rows are in their wire format there; torch's operations decode and encode them, as `store.wire_rows` does.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.store.layout import Wire
from persia_cli.store.wire_rows import row_bytes
from persia_cli.training.graphs.update import NUMBERS
from persia_cli.training.inputs import GroupShape

ALIGN = 256
"""Bytes at whose multiples arrays begin, as the memory of a GPU is read."""
FLOAT, BYTES = np.dtype(np.float32), np.dtype(np.uint8)
EXPONENT_AT = 23
"""Lowest bit of a float32's exponent."""


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
    """The arrays of a block; `nbytes` is its size."""

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
            for start, field in self._starts_and_fields()
        }

    def tensors(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the arrays of a block uint8 [nbytes] on any device, which share its memory."""
        return {
            field.name: block[start : start + field.nbytes].view(_torch_dtype(field.dtype)).view(field.shape)
            for start, field in self._starts_and_fields()
        }

    def nbytes_with(self, rows: int) -> int:
        """Return the bytes of a block of whose last array only so many rows are used."""
        last = next(reversed(self.fields.values()))
        return self.starts[last.name] + Field(last.name, last.dtype, (rows, *last.shape[1:])).nbytes

    def _starts_and_fields(self) -> Iterable[tuple[int, Field]]:
        return zip(self.starts.values(), self.fields.values(), strict=True)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def padded(count: int) -> int:
    """Return the padded size of an array of `count`: one of eight between two powers of two."""
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return -(-max(1, count) // step) * step


def step_blocks(
    fields: Iterable[Field], rows: Sequence[int], groups: Sequence[GroupShape], samples: int, tasks: int
) -> tuple[BlockLayout, BlockLayout]:
    """Return the blocks that a graph reads and writes, with so many rows of each group; `fields` are all but rows."""
    shapes = [(count, row_bytes(group.dim, group.wire)) for count, group in zip(rows, groups, strict=True)]
    results = [
        Field("logits", FLOAT, (samples, tasks)),
        Field("loss", np.dtype(np.float64), (tasks,)),
        Field("finite", np.dtype(np.bool_), (2,)),
    ]
    results += [
        Field(f"gradients {number}", BYTES, shape)
        for number, (shape, group) in enumerate(zip(shapes, groups, strict=True))
        if not group.is_frozen
    ]
    inputs = [*fields, *(Field(f"rows {number}", BYTES, shape) for number, shape in enumerate(shapes))]
    return BlockLayout(inputs), BlockLayout(results)


def step_bytes(groups: Sequence[GroupShape], samples: int, dense: int, tasks: int) -> int:
    """Return the bytes of both blocks for samples whose ids are all different, with one id per list.

    Sequences have their full length. Longer lists take more, and ids that repeat take less.
    """
    fields = [
        Field("factors", FLOAT, (tasks,)),
        Field("dense", FLOAT, (samples, dense)),
        Field("labels", FLOAT, (samples, tasks)),
        Field("numbers", FLOAT, (NUMBERS,)),
    ]
    padded_rows = []
    for number, group in enumerate(groups):
        rounds = group.rounds or (1,) * len(group.features)
        lengths = [feature.max_length or 1 if feature.pooling == "none" else 1 for feature in group.features]
        ids = samples * sum(length * rows for length, rows in zip(lengths, rounds, strict=True))
        padded_rows.append(padded(ids))
        fields.append(Field(f"ids {number}", np.dtype(np.int32), (ids,)))
    return sum(block.nbytes for block in step_blocks(fields, padded_rows, groups, samples, tasks))


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
