"""The optimizers of rows, and the reserved table, which stores dense weights when they train asynchronously."""

from persia_cli.config.schema import AsyncMode, DenseOptimizer, Optimizer, PlateauSchedule, Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.errors import ConfigError
from persia_cli.store.layout import (
    GroupSpec,
    RowOptimizer,
    Schedule,
    TableSpec,
    partitions_for,
    table_salt,
)

DIM = 1024
"""Number of weights per row; rows are long, so that finding them costs little compared to reading them."""
MAX_WEIGHTS = 64 * 2**20
"""Maximum number of dense weights."""
SPARE = 2
"""Ratio of the capacity to the maximum number of rows: hashing fills partitions unevenly, and no row may be evicted."""
GRADIENT_ALONE = ("sgd", "adagrad", "adam")
"""Optimizers whose steps depend on gradients only, so that a row can store the difference to the initial weights."""


STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""Number of float32 states of each optimizer for a dense weight."""


def dense_bytes(optimizer: DenseOptimizer, weights: int) -> int:
    """Return the memory of so many dense weights, of their gradients and of their optimizer states."""
    return 4 * weights * (2 + STATES[optimizer.kind])


def plain_schedule(optimizer: Optimizer | DenseOptimizer) -> Schedule:
    """Return the learning-rate schedule of an optimizer."""
    schedule = optimizer.schedule
    if isinstance(schedule, PlateauSchedule):
        # Only the coordinator needs the rest of a plateau's settings; tables that differ only in them share a group.
        return Schedule(schedule.kind, schedule.warmup_steps, factor=schedule.factor, floor=schedule.floor)
    return Schedule(**schedule.model_dump())


def row_optimizer(optimizer: Optimizer, clip_norm: float | None, weight_bound: float | None) -> RowOptimizer:
    """Return the optimizer of rows; its settings have the same names as in the config."""
    return RowOptimizer(
        **optimizer.model_dump(exclude={"schedule"}),
        schedule=plain_schedule(optimizer),
        clip_norm=clip_norm,
        weight_bound=weight_bound,
    )


def dense_group(run: Run, number: int, table: int) -> GroupSpec | None:
    """Return the group of the reserved table by these numbers, or None if NN workers store the dense weights.

    A row stores the difference of 1024 weights to their initial values, so it begins as zeros. Memory is taken as rows
    are added, so unused capacity costs nothing. Raises ConfigError for an optimizer that needs the weights themselves.
    """
    if not isinstance(run.mode, AsyncMode):
        return None
    capacity = SPARE * MAX_WEIGHTS // DIM
    return GroupSpec(
        number=number,
        dim=DIM,
        optimizer=_row_optimizer(run.optimizer.dense, run.cluster.nn_workers),
        tables=(TableSpec(DENSE_TABLE, table, table_salt(DENSE_TABLE), init_bound=0.0),),
        capacity=capacity,
        partitions=partitions_for(capacity, run.embedding.num_partitions),
    )


def require_space(weights: int) -> None:
    """Raise ConfigError for more dense weights than fit."""
    if weights > MAX_WEIGHTS:
        raise ConfigError(
            f"the model has {weights:,} dense weights, but mode.kind=async allows at most {MAX_WEIGHTS:,}; "
            "make the model smaller, or set mode.kind to hybrid or sync"
        )


def _row_optimizer(optimizer: DenseOptimizer, ranks: int) -> RowOptimizer:
    """Return the dense optimizer for rows; NN workers apply its `l2`, a part of the gradient."""
    if optimizer.kind not in GRADIENT_ALONE:
        raise ConfigError(
            f"optimizer.dense.kind={optimizer.kind} cannot train with mode.kind=async, where servers know only how far "
            f"dense weights have moved; choose one of {', '.join(GRADIENT_ALONE)}, or another mode"
        )
    if optimizer.clip_norm is not None:
        raise ConfigError(
            "optimizer.dense.clip_norm: with mode.kind=async no process has the gradient of all dense weights; "
            "leave it out, or choose another mode"
        )
    settings = optimizer.model_dump(exclude={"schedule", "l2", "clip_norm"})
    return RowOptimizer(**settings, schedule=plain_schedule(optimizer), each_step=ranks)
