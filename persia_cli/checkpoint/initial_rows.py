"""The values that rows begin with, computed anew, to find rows that have moved without a trace in their states."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.checkpoint.rows import RowBlock
from persia_cli.kernels.splitmix import GOLDEN, mix64
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.store.layout import GroupSpec, TableSpec, table_salt

SMALLEST = 3e-23
"""A gradient of less magnitude has a square of 0 in float32."""
RANKS = 16
"""Factor by which a run may have had more ranks than its configuration says, before it was resumed."""
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-10}
"""Relative error of an initial value in memory."""
SUBNORMAL = 6e-8
"""Its absolute error in float16."""
ADAMS = ("adam", "rowwise_adam")
LEAST = 2.0**-149
"""The least float32 above 0."""


def moved_without_trace(
    block: RowBlock, group: GroupSpec, tables: Sequence[TableSpec], manifest: Manifest
) -> NDArray[np.bool_]:
    """Return which rows have another embedding than they began with, while their states are what they began as.

    Only what no sequence of updates can leave counts: a gradient can be so small that its square vanishes. `tables`
    are in the order of the block's names. Rows of other optimizers than Adagrad and Adam are never named, nor those of
    a run that began with rows of elsewhere.
    """
    nothing = np.zeros(block.keys.size, np.bool_)
    optimizer = group.optimizer
    drift = _drift(group, manifest.step * RANKS * int(manifest.config["cluster"]["nn_workers"]))
    if drift is None or manifest.config.get("init_from") is not None:
        return nothing
    start = 0.0 if optimizer.kind in ADAMS else optimizer.initial_accumulator_value
    untouched = np.ones(block.keys.size, np.bool_)
    for name in optimizer.states(group.dim):
        # Most rows have been touched: one column tells them, and only the others are looked at whole.
        untouched &= block.vectors[name][:, 0] == np.float32(start)
        rows = np.flatnonzero(untouched)
        untouched[rows] = (block.vectors[name][rows] == np.float32(start)).all(axis=1)
    rows = np.flatnonzero(untouched)
    if not rows.size:
        return nothing
    bounds = np.array([table.init_bound for table in tables], np.float32)
    salts = np.array([table_salt(table.name) for table in tables], np.uint64)
    of = block.tables[rows]
    began = initial_values(block.ids[rows], salts[of], bounds[of], int(manifest.config["seed"]), group.dim)
    allowed = np.abs(began) * ROUNDING[group.dtype] + (SUBNORMAL if group.dtype == "float16" else 0.0) + drift
    moved = np.abs(block.vectors["embedding"][rows].astype(np.float64) - began) > allowed
    nothing[rows] = moved.any(axis=1)
    return nothing


def initial_values(
    ids: NDArray[np.uint64], salts: NDArray[np.uint64], bounds: NDArray[np.float32], seed: int, dim: int
) -> NDArray[np.float32]:
    """Return the embedding that each id's row begins with, float32 [n, dim], before it is rounded to its dtype.

    `persia_cli.kernels.rows.begin_row` has the formula.
    """
    with np.errstate(over="ignore"):
        start = mix64(mix64(mix64(np.full(ids.size, seed, np.uint64)) ^ salts) ^ ids)
        columns = np.arange(1, dim + 1, dtype=np.uint64) * GOLDEN
        bits = (mix64(start[:, None] + columns) >> np.uint64(40)).astype(np.int32) - np.int32(2**23)
    values: NDArray[np.float32] = bits.astype(np.float32) * (bounds * np.float32(2.0**-23))[:, None]
    return values


def _drift(group: GroupSpec, updates: int) -> float | None:
    """Return how far an embedding can move in so many updates while no state changes; None if there is no useful bound.

    To Adagrad's sum a small square adds nothing: that of a gradient below sqrt(sum * 2^-24), or below SMALLEST. Adam
    loses nothing, but after thousands of gradients of 0 its means are 0 again. Row-wise Adam has no mean of gradients,
    and its mean of squares stays 0 where a square times 1 - beta2 vanishes.
    """
    optimizer = group.optimizer
    if optimizer.weight_bound is not None:
        return None
    if optimizer.kind in ADAMS:
        if updates * math.log(max(optimizer.beta2, 1e-300)) <= math.log(1e-30):
            return None
        lost = math.sqrt(LEAST * group.dim / (1.0 - optimizer.beta2)) if optimizer.kind == "rowwise_adam" else 0.0
        return updates * optimizer.lr * lost / optimizer.eps
    if optimizer.kind not in ("adagrad", "rowwise_adagrad"):
        return None
    begin = optimizer.initial_accumulator_value
    if begin > 0.0 and group.dtype != "float32":
        return None  # changes too small for the dtype are rounded at random
    lost = max(SMALLEST, math.sqrt(begin * 2.0**-24)) * math.sqrt(group.dim)
    divisor = math.sqrt(begin) + optimizer.eps
    return updates * optimizer.lr * lost / divisor if divisor else None
