"""Made-up inputs of dense networks."""

import torch

from persia_cli.model.inputs import FeatureShape, InputShape, ModelBatch


def shape(dense: int = 3, dims: tuple[int, ...] = (4, 4), tasks: int = 1) -> InputShape:
    """Pooled features f0, f1, ... of the dims given."""
    features = tuple(FeatureShape(f"f{number}", dim, "sum") for number, dim in enumerate(dims))
    return InputShape(dense, features, tasks)


def batch_of(wanted: InputShape, groups: list[list[int]], size: int = 5, seed: int = 0) -> ModelBatch:
    """Random float32 inputs of a shape, its pooled features (by position) put together in groups of one dim."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(size, feature.dim, generator=generator) for feature in wanted.pooled]
    return ModelBatch(
        torch.randn(size, wanted.dense, generator=generator),
        [torch.stack([values[position] for position in group], dim=1) for group in groups],
        [[wanted.pooled[position].name for position in group] for group in groups],
        {},
    )
