"""Every network as an ONNX file, computed without torch, has the scores of the training code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.errors import UserError
from persia_cli.export.graph import write_network
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape
from persia_cli.serving.predictor import FrozenNetwork
from persia_cli.serving.row_reader import pooled_name, sequence_names
from persia_cli.training.inputs import GroupShape
from tests.unit.model.batches import batch_of
from tests.unit.model.kinds import AUXILIARY, KINDS, ONE_LABEL, name, regularised, shape_for

QUICK = ("din",)
"""Kinds that are exported also without `-m slow`; the first one takes seconds, since torch imports its compiler."""
ROWS = 10_000


def groups_of(shape: InputShape) -> tuple[GroupShape, ...]:
    """One feature group per dim, as a layout has them."""
    dims = dict.fromkeys(feature.dim for feature in shape.features)
    return tuple(GroupShape(dim, tuple(each for each in shape.features if each.dim == dim)) for dim in dims)


def inputs_of(shape: InputShape, batch: ModelBatch) -> dict[str, np.ndarray]:
    """The network's inputs in the file, of a batch whose groups are those of `groups_of`."""
    inputs = {"dense": batch.dense.numpy()}
    inputs |= {pooled_name(number): rows.detach().numpy() for number, rows in enumerate(batch.groups)}
    for number, feature in enumerate(shape.features):
        if feature.pooling == "none":
            pair = [tensor.detach().numpy() for tensor in batch.sequences[feature.name]]
            inputs |= dict(zip(sequence_names(number), pair, strict=True))
    return inputs


def batch_in_groups(shape: InputShape, size: int) -> ModelBatch:
    """A batch whose groups are those of `groups_of`."""
    names = [feature.name for feature in shape.pooled]
    groups = [
        [names.index(each.name) for each in group.features if each.pooling != "none"] for group in groups_of(shape)
    ]
    return batch_of(shape, groups, size, seed=size)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if name(model) in QUICK else pytest.mark.slow, id=name(model))
        for model in (*KINDS, *AUXILIARY)
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model: model, id="plain"),
        pytest.param(regularised, marks=pytest.mark.slow, id="regularised"),
    ],
)
def test_an_exported_network_gives_the_same_probabilities(tmp_path: Path, change, model) -> None:
    """Also one with batch normalisation and dice, by the statistics that it has seen in training."""
    model = change(model)
    shape = shape_for(model, tasks=1 if model.kind in ONE_LABEL or model.kind == "lr" else 2)
    network = build_model(model, shape, seed=0)
    for size in (200, 300):
        network(batch_in_groups(shape, size))
    network.eval()
    write_network(network, shape, groups_of(shape), tmp_path / "dense.onnx", model.kind)
    exported = FrozenNetwork(tmp_path / "dense.onnx", threads=1)
    for size in (1, 5, ROWS):
        batch = batch_in_groups(shape, size)
        with torch.no_grad():
            expected = torch.sigmoid(network(batch).double()).numpy()
        logits = exported.logits(inputs_of(shape, batch))
        assert logits.shape == expected.shape
        assert logits.dtype == np.float32
        assert np.abs(1 / (1 + np.exp(-logits.astype(np.float64))) - expected).max() <= 5e-6


class Inverting(torch.nn.Module):
    """A network of a user with an operation that ONNX lacks."""

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits."""
        return torch.linalg.qr(batch.dense @ batch.dense.T)[1].sum(1, keepdim=True)


class Deciding(torch.nn.Module):
    """A network of a user whose control flow depends on values."""

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits."""
        return batch.dense[:, :1] if float(batch.dense.sum()) > 0 else -batch.dense[:, :1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "says"), [(Inverting(), r"operation aten.*qr"), (Deciding(), "must not depend on values of tensors")]
)
def test_a_network_that_cannot_be_exported_is_refused_in_a_sentence(tmp_path: Path, network, says: str) -> None:
    shape = InputShape(3, (), 1)
    with pytest.raises(UserError, match=says) as refused:
        write_network(network.eval(), shape, (), tmp_path / "dense.onnx", "model.kind=custom")
    assert "\n" not in str(refused.value)
