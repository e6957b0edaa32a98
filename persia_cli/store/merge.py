"""Sums the gradients that several ranks have for the same keys of a step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import dedup
from persia_cli.store.batch_rows import dedup_scratch
from persia_cli.store.layout import Storage
from persia_cli.store.wire_rows import decode_into

Part = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8]]
"""Distinct keys uint64[n] with tables uint16[n], and their gradients uint8[n, bytes of a row] as they came."""
Merged = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8] | NDArray[np.float32]]
"""Distinct keys with tables, and gradients: float32 sums [n, dim], or those of a single part as they came."""


def merge_gradients(parts: Sequence[Part], dim: int, wire: Storage) -> Merged:
    """Sum per (key, table) in float32, in the order of parts; the result is in order of first appearance.

    A single part is returned as it is. Raises ValueError for no parts at all, or gradients of another size than rows
    of `dim` columns have on this wire.
    """
    if not parts:
        raise ValueError("there is nothing to merge")
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([keys for keys, _, _ in parts])
    tables = np.concatenate([tables for _, tables, _ in parts])
    gradients = np.empty((keys.size, dim), np.float32)
    decode_into([gradients for _, _, gradients in parts], dim, wire, gradients)
    unique_keys, unique_tables = np.empty_like(keys), np.empty_like(tables)
    inverse = np.empty(keys.size, np.int32)
    count = dedup.number_keys(keys, tables, dedup_scratch(keys.size), 1, unique_keys, unique_tables, inverse)
    sums = np.zeros((count, dim), np.float32)
    dedup.add_rows(gradients.reshape(-1), inverse, dim, sums.reshape(-1))
    return unique_keys[:count].copy(), unique_tables[:count].copy(), sums
