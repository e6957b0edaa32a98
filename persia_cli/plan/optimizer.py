"""The plain values of the config's optimizers and schedules."""

from persia_cli.config.schema import DenseOptimizer, Optimizer
from persia_cli.store.layout import RowOptimizer
from persia_cli.store.schedule import Schedule


def plain_schedule(optimizer: Optimizer | DenseOptimizer) -> Schedule:
    """Return the learning-rate schedule of an optimizer."""
    return Schedule(**optimizer.schedule.model_dump())


def row_optimizer(optimizer: Optimizer, clip_norm: float | None, weight_bound: float | None) -> RowOptimizer:
    """Return the optimizer of rows; its settings have the same names as in the config."""
    return RowOptimizer(
        **optimizer.model_dump(exclude={"schedule"}),
        schedule=plain_schedule(optimizer),
        clip_norm=clip_norm,
        weight_bound=weight_bound,
    )
