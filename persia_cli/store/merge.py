"""The sum of the gradients of several ranks for the same keys of a step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import dedup
from persia_cli.store.batch_rows import dedup_scratch
from persia_cli.store.layout import Storage
from persia_cli.store.wire_rows import decode_into

RankGradients = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8]]
"""Distinct keys uint64[n] with tables uint16[n], and their encoded gradients uint8[n, bytes of a row]."""
Merged = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8] | NDArray[np.float32]]
"""Distinct keys with tables, and gradients: float32 sums [n, dim], or the encoded ones of a single part."""


def merge_gradients(parts: Sequence[RankGradients], dim: int, wire: Storage) -> Merged:
    """Return float32 sums per (key, table), added in the order of parts and listed in order of first appearance.

    A single part is returned as it is. Raises ValueError if there are no parts, or if the size of gradients is not that
    of rows of `dim` columns in the wire dtype.
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
