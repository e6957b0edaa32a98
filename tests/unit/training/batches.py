"""Generated steps of one rank: features, rows, samples, and the plain torch formulation of their pooling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from persia_cli.config.schema import BCE, DenseAdagrad, DenseAdam, DenseSgd, Ffnn
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.distributed import World
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep, StepSettings
from persia_cli.wire.messages import GroupRows

DENSE, TASKS = 3, 2
FEATURES = (
    FeatureShape("a", 4, "sum", table=0),
    FeatureShape("b", 4, "mean", table=1),
    FeatureShape("c", 4, "sqrtn", table=2),
    FeatureShape("d", 2, "sum", table=3),
)
GROUPS = (GroupShape(4, FEATURES[:3]), GroupShape(2, FEATURES[3:]))
SHAPE = InputShape(DENSE, FEATURES, TASKS)
ROWS = 20
"""Unique rows of every group."""
SGD = DenseSgd(kind="sgd", lr=0.1)
OPTIMIZERS = [SGD, DenseAdagrad(kind="adagrad", lr=0.05), DenseAdam(kind="adam", lr=0.01)]


def network(seed: int = 0) -> torch.nn.Module:
    """A small network over all features."""
    return build_model(Ffnn(kind="ffnn", dim=4, hidden=(8, 5)), SHAPE, seed)


def settings(**changes: Any) -> StepSettings:
    """Settings of a step: binary cross-entropy of each task, in float32."""
    return StepSettings(**{"objective": Objective([BCE] * TASKS)} | changes)


def dense_step(module: torch.nn.Module | None = None, config: Any = SGD, seed: int = 7, **changes: Any) -> DenseStep:
    """The step of one rank, with these settings."""
    module = network() if module is None else module
    return DenseStep(module, dense_optimizer(config, module), GROUPS, World(), DENSE, seed, settings(**changes))


def inputs(step: int, size: int, weighted: bool = True) -> tuple[Samples, list[GroupRows]]:
    """Samples and rows of a step."""
    return samples(size, step, weighted), rows_of(step, size)


def rows_of(step: int, size: int) -> list[GroupRows]:
    """Rows of every group for a step."""
    return [group_rows(shape, size, seed=10 * step + number) for number, shape in enumerate(GROUPS)]


def group_rows(shape: GroupShape, size: int, seed: int, servers: int = 2, unique: int = ROWS) -> GroupRows:
    """Random rows from some servers, 0 to 3 ids per sample, all arrays read-only as those of a message are."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, len(shape.features) * size)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    inverse = rng.integers(0, unique, offsets[-1]).astype(np.int32)
    values = rng.standard_normal((unique, shape.dim)).astype(np.float32)
    rows = [encode_rows(part, shape.wire) for part in np.array_split(values, servers)]
    for array in (offsets, inverse, *rows):
        array.flags.writeable = False
    return GroupRows(rows, inverse, offsets)


def samples(size: int, seed: int, weighted: bool = True, dense: int = DENSE, tasks: int = TASKS) -> Samples:
    """Random samples that are the whole global batch."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((size, dense)).astype(np.float32)
    labels = rng.integers(0, 2, (size, tasks)).astype(np.float32)
    weights = rng.random(size).astype(np.float32) if weighted else None
    for array in (numbers, labels):
        array.flags.writeable = False
    total = float(size if weights is None else weights.sum(dtype=np.float64))
    return Samples(numbers, labels, weights, [total] * tasks)


def share(whole: Samples, groups: list[GroupRows], start: int, stop: int) -> tuple[Samples, list[GroupRows]]:
    """Samples [start, stop) of a global batch, with all of its unique rows."""
    return chosen(whole, groups, range(start, stop))


def chosen(whole: Samples, groups: list[GroupRows], order: Sequence[int]) -> tuple[Samples, list[GroupRows]]:
    """Some samples of a global batch, in an order, with all of its unique rows."""
    these = np.array(order, np.int64)
    weights = None if whole.weights is None else whole.weights[these]
    mine = Samples(whole.dense[these], whole.labels[these], weights, whole.weight_totals)
    size = len(whole.labels)
    parts = []
    for group in groups:
        bags = [
            group.inverse[group.offsets[bag] : group.offsets[bag + 1]]
            for first in range(0, len(group.offsets) - 1, size)
            for bag in first + these
        ]
        offsets = np.cumsum([0, *[len(bag) for bag in bags]]).astype(np.uint32)
        parts.append(GroupRows(group.rows, np.concatenate([np.empty(0, np.int32), *bags]), offsets))
    return mine, parts


def bagged(rows: torch.Tensor, group: GroupRows, feature: int, pooling: str, size: int) -> torch.Tensor:
    """Pool one feature with torch's own embedding_bag: float32 [size, dim]."""
    offsets = torch.tensor(group.offsets.astype(np.int64))[feature * size : (feature + 1) * size + 1]
    ids = torch.tensor(group.inverse.astype(np.int64))[int(offsets[0]) : int(offsets[-1])]
    mode = "mean" if pooling == "mean" else "sum"
    out = torch.nn.functional.embedding_bag(ids, rows, offsets - offsets[0], mode=mode, include_last_offset=True)
    if pooling == "sqrtn":
        out = out / offsets.diff().clamp(min=1).sqrt().unsqueeze(1)
    return out


def leaves(groups: list[GroupRows]) -> list[torch.Tensor]:
    """The rows of each group as a tensor that gets a gradient."""
    return [torch.from_numpy(np.concatenate(group.rows).view(np.float32)).requires_grad_() for group in groups]


def plain_batch(rows: list[torch.Tensor], batch: Samples, groups: list[GroupRows]) -> ModelBatch:
    """The inputs of a network, pooled by torch."""
    size = len(batch.labels)
    pooled = [
        torch.stack([bagged(own, group, n, each.pooling, size) for n, each in enumerate(shape.features)], dim=1)
        for own, group, shape in zip(rows, groups, GROUPS, strict=True)
    ]
    names = [[feature.name for feature in shape.features] for shape in GROUPS]
    return ModelBatch(torch.tensor(batch.dense), pooled, names, {})


def plain_losses(logits: torch.Tensor, batch: Samples) -> torch.Tensor:
    """Weighted binary cross-entropy of each sample and task."""
    labels = torch.tensor(batch.labels)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
    return losses if batch.weights is None else losses * torch.from_numpy(batch.weights)[:, None]
