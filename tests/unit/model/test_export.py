"""Every network can be exported: torch.export makes one graph of it, for any number of samples."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape
from tests.unit.model.batches import batch_of
from tests.unit.model.kinds import AUXILIARY, KINDS, name, regularised, shape_for

QUICK = ("din",)
"""Kinds that are exported also without `-m slow`; the first one takes seconds, since torch imports its compiler."""


class OfTensors(nn.Module):
    """A network as a function of plain tensors: dense values, one vector of each feature, sequences and their masks."""

    def __init__(self, network: nn.Module, shape: InputShape) -> None:
        super().__init__()
        self.network, self.shape = network, shape

    def forward(self, dense: torch.Tensor, pooled: list[torch.Tensor], sequences: list[torch.Tensor]) -> torch.Tensor:
        pairs = zip(sequences[::2], sequences[1::2], strict=True)
        padded = {feature.name: pair for feature, pair in zip(self.shape.sequences, pairs, strict=True)}
        names = [[feature.name] for feature in self.shape.pooled]
        logits: torch.Tensor = self.network(ModelBatch(dense, [rows.unsqueeze(1) for rows in pooled], names, padded))
        return logits


Inputs = tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]


def inputs_of(shape: InputShape, size: int) -> Inputs:
    batch = batch_of(shape, [[position] for position in range(len(shape.pooled))], size, seed=size)
    sequences = [tensor for feature in shape.sequences for tensor in batch.sequences[feature.name]]
    return batch.dense, [batch.pooled[feature.name] for feature in shape.pooled], sequences


def any_size(tensors: Sequence[torch.Tensor]) -> list[dict[int, object]]:
    return [{0: torch.export.Dim.DYNAMIC} for _ in tensors]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if name(model) in QUICK else pytest.mark.slow, id=name(model))
        for model in (*KINDS, *AUXILIARY)
    ],
)
@pytest.mark.parametrize("change", [lambda model: model, regularised], ids=["plain", "regularised"])
def test_an_exported_network_gives_the_same_logits(change, model):
    """Also one with batch normalisation and dice, by the statistics that it has seen in training."""
    model = change(model)
    shape = shape_for(model)
    network = OfTensors(build_model(model, shape, seed=0), shape)
    for size in (20, 30):
        network(*inputs_of(shape, size))
    network.eval()
    dense, pooled, sequences = inputs_of(shape, 6)
    sizes = ({0: torch.export.Dim.DYNAMIC}, any_size(pooled), any_size(sequences))
    exported = torch.export.export(network, (dense, pooled, sequences), dynamic_shapes=sizes).module()
    for size in (6, 11):
        given = inputs_of(shape, size)
        assert exported(*given).detach().numpy() == pytest.approx(network(*given).detach().numpy(), abs=1e-6)
