"""The settings of kernels for initializing and changing the rows of a group."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.rows import optimizers
from persia_cli.kernels.table import slots
from persia_cli.kernels.table.arguments import KernelTable, RowInit
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer

ACCUMULATORS = ("adagrad_sum", "adagrad_row_sum", "ftrl_n")
"""States that begin at the optimizer's `initial_accumulator_value`; all others begin at 0."""


def row_init(layout: EmbeddingLayout, group: GroupSpec, salts: NDArray[np.uint64]) -> RowInit:
    """Return the rules for new rows of a group."""
    optimizer = group.optimizer
    bounds, admission = np.zeros(salts.size, np.float32), np.zeros(salts.size, np.uint64)
    min_count = np.zeros(salts.size, np.uint64)
    for table in group.tables:
        bounds[table.number] = table.init_bound
        admission[table.number] = round(table.admission * 2**24)
        min_count[table.number] = table.min_count
    states, at = np.zeros(group.width - group.state_at, np.float32), 0
    for name, columns in optimizer.states(group.dim).items():
        states[at : at + columns] = optimizer.initial_accumulator_value if name in ACCUMULATORS else 0.0
        at += columns
    return RowInit(
        seed=np.uint64(layout.seed % 2**64),
        salts=salts,
        bounds=bounds,
        admission=admission,
        min_count=min_count,
        states=states,
        eviction=slots.EvictionRules(group.rows_per_partition, policy_of(layout, group), layout.expire_after or 0),
    )


def expiring(table: KernelTable, steps: int) -> KernelTable:
    """Return a table whose rows expire after so many steps without use."""
    return table._replace(rules=table.rules._replace(eviction=table.rules.eviction._replace(expires=steps)))


def policy_of(layout: EmbeddingLayout, group: GroupSpec) -> int:
    """Return the policy of kernels for new keys of a group in a full partition."""
    if layout.when_full == "refuse":
        return slots.REFUSE
    return slots.EVICT_LFU if group.counts_uses else slots.EVICT_LRU


def rule_at(optimizer: RowOptimizer, step: int, seed: int, reductions: int = 0) -> optimizers.Rule:
    """Return the settings of the optimizer at a step; `reductions` is as in `Schedule.at`."""
    lr = optimizer.lr * optimizer.schedule.at(step, reductions)
    rate, eps, mean_rate, square_rate = lr, optimizer.eps, 0.0, 0.0
    l1, l2, decay = optimizer.l1, optimizer.l2, optimizer.weight_decay
    adds_l2 = l2 > 0.0
    if optimizer.kind in ("adam", "rowwise_adam"):
        beta1 = optimizer.beta1 if optimizer.kind == "adam" else 0.0
        count = (step + 1) * max(1, optimizer.each_step)
        correction = sqrt(1 - optimizer.beta2**count)
        rate = lr * correction / (1 - beta1**count)
        # torch.optim.Adam adds eps to the corrected root, torch.optim.SparseAdam to the plain one.
        eps *= correction if optimizer.each_step else 1.0
        mean_rate, square_rate = 1 - beta1, 1 - optimizer.beta2
    elif optimizer.kind == "ftrl":
        # Weights follow from their sums, so they have separate penalties and cannot decay.
        l1, l2, decay, adds_l2 = optimizer.lr * l1, optimizer.lr * l2, 0.0, False
    return optimizers.Rule(
        lr=np.float32(rate),
        eps=np.float32(eps),
        mean_rate=np.float32(mean_rate),
        square_rate=np.float32(square_rate),
        beta=np.float32(optimizer.beta),
        l1=np.float32(l1),
        l2=np.float32(l2),
        decay=np.float32(1 - lr * decay),
        clip=np.float32(optimizer.clip_norm or 0.0),
        bound=np.float32(optimizer.weight_bound or 0.0),
        plain=not (adds_l2 or decay or optimizer.clip_norm or optimizer.weight_bound),
        noise=optimizers.noise_of(seed, step),
    )
