"""Encoded rows on the wire: uint8 [n, bytes of a row], in the wire dtype of their group.

float32 is sent unchanged. bfloat16 is rounded to nearest; the error is at most 2^-8 of each value. float16 has a factor
per row; the error is at most 2^-11 of the row's greatest magnitude (a row below 2^-135 becomes zeros, and a row with
NaN or infinity becomes all NaN).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.rows import cast
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.store.layout import Wire


def row_bytes(dim: int, wire: Wire) -> int:
    """Return the encoded size in bytes of a row of `dim` columns."""
    match wire:
        case "float32":
            return 4 * dim
        case "bfloat16":
            return 2 * dim
        case "float16":
            return cast.FACTOR_BYTES + 2 * dim


def encode_rows(values: NDArray[np.float32], wire: Wire, empty: Empty = np.empty) -> NDArray[np.uint8]:
    """Encode float32 [n, dim], C-contiguous, as uint8 [n, row_bytes].

    `empty` allocates the result; for float32 it is a view of `values`.
    """
    size, dim = values.shape
    if wire == "float32":
        return values.view(np.uint8)
    block = empty((size, row_bytes(dim, wire)), np.uint8)
    if wire == "float16":
        cast.to_float16(values.reshape(-1), dim, block.reshape(-1))
    else:
        cast.to_bfloat16(values.reshape(-1), block.reshape(-1))
    return block


def decode_rows(block: NDArray[np.uint8], dim: int, wire: Wire) -> NDArray[np.float32]:
    """Decode uint8 [n, row_bytes], C-contiguous, to float32 [n, dim]; for float32 a view of the same memory.

    Raises ValueError if the size of rows is wrong.
    """
    if wire == "float32":
        _check(block, dim, wire)
        return block.view(np.float32)
    values = np.empty((len(block), dim), np.float32)
    _decode(block, dim, wire, values)
    return values


def decode_into(blocks: Sequence[NDArray[np.uint8]], dim: int, wire: Wire, out: NDArray[np.float32]) -> None:
    """Decode blocks uint8 [U_s, row_bytes] one after the other into out float32 [U, dim], both C-contiguous.

    Raises ValueError if the blocks do not fill `out` exactly, or if the size of rows is wrong.
    """
    if sum(map(len, blocks)) != len(out):
        raise ValueError(f"there are {sum(map(len, blocks))} rows, but {len(out)} are needed")
    start = 0
    for block in blocks:
        _decode(block, dim, wire, out[start : start + len(block)])
        start += len(block)


def _decode(block: NDArray[np.uint8], dim: int, wire: Wire, out: NDArray[np.float32]) -> None:
    _check(block, dim, wire)
    match wire:
        case "float32":
            out.view(np.uint8)[...] = block
        case "float16":
            cast.from_float16(block.reshape(-1), dim, out.reshape(-1))
        case "bfloat16":
            cast.from_bfloat16(block.reshape(-1), out.reshape(-1))


def _check(block: NDArray[np.uint8], dim: int, wire: Wire) -> None:
    if block.shape[1] != row_bytes(dim, wire):
        raise ValueError(f"rows have {block.shape[1]} bytes, but {wire} rows of dim {dim} have {row_bytes(dim, wire)}")
