"""The dtypes of rows in a file: float32 vectors become bytes, which `persia_cli.kernels.serving.frozen_rows` reads."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import UserError
from persia_cli.serving.description import Form

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
BFLOAT16_OVERFLOW = np.float32(2.0**127 * (2.0 - 2.0**-8))
"""The smallest float32 that is rounded to infinity in bfloat16, whose significand has 8 bits."""


def encoded(rows: Floats, form: Form, table: str) -> Bytes:
    """Return rows float32 [n, dim] as bytes [n, stride].

    Raises UserError for a row of `table` that the dtype cannot represent.
    """
    if form == "float32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if not np.isfinite(rows).all():
        raise UserError(f"table {table} has a row that is not finite, which {form} cannot hold; use --rows float32")
    match form:
        case "bfloat16":
            return _bfloat16(rows, table)
        case "float16":
            with np.errstate(over="ignore"):
                halves = rows.astype(np.float16)
            if not np.isfinite(halves).all():
                raise UserError(f"table {table} has a value beyond the range of float16; use --rows bfloat16")
            return halves.view(np.uint8)
        case "int8":
            return _int8(rows, table)
        case "int4":
            return _int4(rows, table)


def _bfloat16(rows: Floats, table: str) -> Bytes:
    if (np.abs(rows) >= BFLOAT16_OVERFLOW).any():
        raise UserError(f"table {table} has a value beyond the range of bfloat16; use --rows float32")
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16).view(np.uint8)


def _int8(rows: Floats, table: str) -> Bytes:
    """Return rows in the layout of FBGEMM's Fused8BitRowwiseQuantizedSBFloat."""
    low = rows.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        range_ = rows.max(axis=1, keepdims=True) - low
    if not np.isfinite(range_).all():
        raise UserError(f"table {table} has a row whose values lie too far apart for int8; use --rows float32")
    numbers = np.rint((rows - low) * (np.float32(255.0) / (range_ + np.float32(1e-8))))
    tail = np.concatenate([range_ / np.float32(255.0), low], axis=1)
    return np.concatenate([numbers.astype(np.uint8), tail.view(np.uint8)], axis=1)


def _int4(rows: Floats, table: str) -> Bytes:
    """Return rows in the layout of FBGEMM's FusedNBitRowwiseQuantizedSBHalf with 4 bits."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        low = rows.min(axis=1, keepdims=True).astype(np.float16)
        bias = low.astype(np.float32)
        range_ = rows.max(axis=1, keepdims=True) - bias
        scale = (range_ / np.float32(15.0)).astype(np.float16)
        scale[scale == 0] = 1.0
        inverse = np.float32(1.0) / scale.astype(np.float32)
        endless = np.isinf(inverse)
        scale[endless], inverse[endless] = 1.0, 1.0
    if not (np.isfinite(low).all() and np.isfinite(scale).all()):
        raise UserError(f"table {table} has a row beyond the range of float16, as int4 has it; use --rows int8")
    numbers = np.clip(np.rint((rows - bias) * inverse), 0, 15).astype(np.uint8)
    if numbers.shape[1] % 2:
        numbers = np.concatenate([numbers, np.zeros((len(numbers), 1), np.uint8)], axis=1)
    packed = numbers[:, 0::2] | numbers[:, 1::2] << np.uint8(4)
    return np.concatenate([packed, scale.view(np.uint8), low.view(np.uint8)], axis=1)
