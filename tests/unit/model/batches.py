"""Generated inputs of dense networks."""

import torch

from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape, InputShape


def shape(dense: int = 3, dims: tuple[int, ...] = (4, 4), tasks: int = 1) -> InputShape:
    """Pooled features f0, f1, ... of the dims given."""
    features = tuple(FeatureShape(f"f{number}", dim, "sum") for number, dim in enumerate(dims))
    return InputShape(dense, features, tasks)


def batch_of(wanted: InputShape, groups: list[list[int]], size: int = 5, seed: int = 0) -> ModelBatch:
    """Random float32 inputs of a shape, its pooled features (by position) put together in groups of one dim.

    Positions without a feature are left out. Sequences are of lengths that go round from none to `max_length`.
    """
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(size, feature.dim, generator=generator) for feature in wanted.pooled]
    sequences = {}
    for feature in wanted.sequences:
        length = feature.max_length or 0
        mask = torch.arange(length) < (torch.arange(size) % (length + 1)).unsqueeze(1)
        sequences[feature.name] = (torch.randn(size, length, feature.dim, generator=generator) * mask[:, :, None], mask)
    groups = [kept for group in groups if (kept := [position for position in group if position < len(values)])]
    return ModelBatch(
        torch.randn(size, wanted.dense, generator=generator),
        [torch.stack([values[position] for position in group], dim=1) for group in groups],
        [[wanted.pooled[position].name for position in group] for group in groups],
        sequences,
    )
