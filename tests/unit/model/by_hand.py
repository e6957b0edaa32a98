"""Networks against the formulas of their papers: written out for one sample at a time, in float64, with loops."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import split_output
from persia_cli.model.shape import FeatureShape, InputShape

Array = NDArray[np.float64]
Weights = dict[str, Array]
"""Parameters of a network by name."""

STEP = 1e-6
"""Of the central difference."""
CASES = pytest.mark.parametrize(
    ("groups", "tasks", "dense"),
    [([[0, 1, 2]], 1, 2), ([[2, 0], [1]], 3, 2), ([[1, 0, 2]], 1, 0)],
    ids=["plain", "two-groups-and-three-tasks", "other-order-and-no-dense"],
)
"""Blocks of three pooled features, tasks and dense features."""


class Sample(NamedTuple):
    """One sample: `dense` [D], rows [dim] of pooled features, (values [length, dim], mask [length]) of sequences."""

    dense: Array
    pooled: dict[str, Array]
    sequences: dict[str, tuple[Array, NDArray[np.bool_]]]


Formula = Callable[[Weights, Sample], Array]
"""The logits [tasks] of a sample."""
Losses = Callable[[Weights, list[Sample]], Array]
"""The auxiliary losses [n, tasks] or [n, 1] of samples; parts without a gradient stay as in the first call."""


def agrees(
    model: Any,
    shape: InputShape,
    formula: Formula,
    groups: Sequence[Sequence[int]],
    seed: int = 0,
    auxiliary: Losses | None = None,
    size: int = 4,
) -> None:
    """Check a network of these settings, with random weights, on random samples: its output and its gradients.

    `groups` has the positions of the pooled features that share a block. The gradients of weights, rows and dense
    features are compared with a difference of the formula's results, along one random direction in all of them.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    network = build_model(model, shape, seed).double()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.5 * draw(*weight.shape))
    inputs = {"": draw(size, shape.dense)}
    inputs |= {feature.name: draw(size, feature.dim) for feature in shape.pooled}
    inputs |= {feature.name: draw(size, feature.max_length or 0, feature.dim) for feature in shape.sequences}
    # Of every length from none to all.
    masks = {f.name: torch.arange(f.max_length or 0) < torch.arange(size).unsqueeze(1) for f in shape.sequences}
    for value in inputs.values():
        value.requires_grad_()
    logits, losses = split_output(network(_batch(shape, inputs, masks, groups)))
    found = logits if losses is None else torch.cat([logits, losses], dim=1)
    scores = draw(*found.shape)
    (scores * found).sum().backward()

    leaves = dict(network.named_parameters()) | {f"input {name}": value for name, value in inputs.items()}
    direction = {name: draw(*leaf.shape) for name, leaf in leaves.items()}
    slope = sum(float((leaf.grad * direction[name]).sum()) for name, leaf in leaves.items() if leaf.grad is not None)

    def by_formula(step: float) -> Array:
        moved = {name: (leaf + step * direction[name]).detach().numpy() for name, leaf in leaves.items()}
        weights = {name: value for name, value in moved.items() if not name.startswith("input ")}
        samples = [_sample(shape, moved, masks, row) for row in range(size)]
        expected = np.array([formula(weights, sample) for sample in samples])
        return expected if auxiliary is None else np.concatenate([expected, auxiliary(weights, samples)], axis=1)

    assert found.detach().numpy() == pytest.approx(by_formula(0.0), rel=1e-9, abs=1e-9)
    assert logits.shape == (size, shape.tasks)
    change = (scores.numpy() * (by_formula(STEP) - by_formula(-STEP))).sum() / (2 * STEP)
    assert slope == pytest.approx(change, rel=1e-5)


def perceptron(weights: Weights, prefix: str, x: Array, last_relu: bool = False) -> Array:
    """Apply linear layers `prefix.0`, `prefix.2`, ... with ReLU, or PReLU where it has a weight, between them."""
    linear = sorted(
        int(name.removeprefix(f"{prefix}.").partition(".")[0])
        for name, weight in weights.items()
        if name.startswith(f"{prefix}.") and name.endswith(".weight") and weight.ndim == 2
    )
    for number in linear:
        x = weights[f"{prefix}.{number}.weight"] @ x + weights[f"{prefix}.{number}.bias"]
        if number != linear[-1] or last_relu:
            x = np.where(x > 0, x, weights.get(f"{prefix}.{number + 1}.weight", np.zeros(1)) * x)
    return x


def copy_of(weights: Weights, prefix: str, copy: int) -> Weights:
    """Return one of several networks that are stacked under `prefix`, as `perceptron` needs it."""
    own = {name: weight[copy] for name, weight in weights.items() if name.startswith(f"{prefix}.")}
    return {name: weight.T if name.endswith(".weight") else weight[0] for name, weight in own.items()}


def fields(sample: Sample, dense: Array | None) -> list[Array]:
    """Return the vector of every feature: rows f0, f1, ..., then a learned vector times each dense value."""
    vectors = [sample.pooled[f"f{number}"] for number in range(len(sample.pooled))]
    return vectors if dense is None else vectors + [x * vector for x, vector in zip(sample.dense, dense, strict=True)]


def side_by_side(sample: Sample) -> Array:
    """Return dense values and rows f0, f1, ... in one vector."""
    return np.concatenate([sample.dense, *(sample.pooled[f"f{number}"] for number in range(len(sample.pooled)))])


def softmax(x: Array) -> Array:
    """Return exp(x) over its sum."""
    return np.asarray(np.exp(x) / np.exp(x).sum())


def sigmoid(x: Array) -> Array:
    """Return the logistic function of each number."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _batch(
    shape: InputShape,
    inputs: dict[str, torch.Tensor],
    masks: dict[str, torch.Tensor],
    groups: Sequence[Sequence[int]],
) -> ModelBatch:
    names = [[shape.pooled[position].name for position in group] for group in groups]
    return ModelBatch(
        inputs[""],
        [torch.stack([inputs[name] for name in group], dim=1) for group in names],
        names,
        {name: (inputs[name], mask) for name, mask in masks.items()},
    )


def _sample(shape: InputShape, moved: Weights, masks: dict[str, torch.Tensor], row: int) -> Sample:
    def of(features: Sequence[FeatureShape]) -> dict[str, Array]:
        return {feature.name: moved[f"input {feature.name}"][row] for feature in features}

    sequences = {name: (values, masks[name][row].numpy()) for name, values in of(shape.sequences).items()}
    return Sample(moved["input "][row], of(shape.pooled), sequences)
