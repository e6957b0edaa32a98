"""Matrices that share a parameter are initialized as if each were alone."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from persia_cli.config.schema import FinalNet
from persia_cli.model.autoint import Interacting
from persia_cli.model.build import build_model
from persia_cli.model.dcn_v2 import ExpertCross
from persia_cli.model.dien import GatedUnits
from persia_cli.model.fibinet import Bilinear
from persia_cli.model.initial import INITS, SeveralMatrices, initialize
from persia_cli.model.layers import JoinedLinear, ParallelLinear, SummedLinear
from persia_cli.model.self_attention import SelfAttention
from tests.unit.model.batches import shape

FANS = {
    "query-key-value": (partial(SelfAttention, 96, heads=4), "project", 3, (96, 96)),
    "query-key-value-residual": (partial(Interacting, 64, heads=2, width=50), "project", 4, (100, 64)),
    "gates-of-values": (partial(GatedUnits, 96), "read", 3, (96, 96)),
    "gates-of-states": (partial(GatedUnits, 96), "keep", 3, (96, 96)),
    "pairs-of-a-feature": (partial(Bilinear, 5, 80, "field_interaction"), "inner.0", 4, (80, 80)),
    "down-to-ranks": (partial(ExpertCross, 150, rank=40, experts=4), "down", 4, (40, 150)),
    "up-from-ranks": (partial(ExpertCross, 150, rank=40, experts=4), "up", 4, (150, 40)),
    "within-ranks": (partial(ExpertCross, 20, rank=90, experts=4), "", 4, (90, 90)),
    "gates-of-tasks": (partial(JoinedLinear, 120, 60, parts=3), "", 3, (60, 120)),
    "experts": (partial(ParallelLinear, 3, 120, 60), "", 3, (60, 120)),
}
"""A constructor, the part of its module with matrices, their number, and the size [outputs, inputs] of each."""
DEVIATIONS = {
    "torch": lambda outputs, inputs: (3 * inputs) ** -0.5,
    "xavier_uniform": lambda outputs, inputs: (2 / (outputs + inputs)) ** 0.5,
    "xavier_normal": lambda outputs, inputs: (2 / (outputs + inputs)) ** 0.5,
    "he_uniform": lambda outputs, inputs: (2 / inputs) ** 0.5,
    "he_normal": lambda outputs, inputs: (2 / inputs) ** 0.5,
}


@pytest.mark.parametrize("init", DEVIATIONS)
@pytest.mark.parametrize(("make", "name", "count", "size"), FANS.values(), ids=FANS)
def test_each_matrix_has_the_deviation_of_its_inputs_and_outputs(make, name, count, size, init):
    torch.manual_seed(5)
    module = make()
    initialize(module, init)
    matrices = module.get_submodule(name).matrices()
    assert [tuple(matrix.shape) for matrix in matrices] == [size] * count
    for matrix in matrices:
        assert float(matrix.detach().std()) == pytest.approx(DEVIATIONS[init](*size), rel=0.05)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("make", [partial(JoinedLinear, 7, 5), partial(SummedLinear, 7, 5)])
def test_a_single_part_is_drawn_as_a_layer_of_torch(make: Any, init):
    torch.manual_seed(3)
    alone = nn.Linear(7, 5)
    torch.manual_seed(3)
    joined = make(parts=1)
    assert torch.equal(joined.weight, alone.weight)
    assert torch.equal(joined.bias, alone.bias)
    for layer in (alone, joined):
        torch.manual_seed(4)
        initialize(layer, init)
    assert torch.equal(joined.weight, alone.weight)
    assert not joined.bias.any()


@pytest.mark.parametrize("make", [make for make, *_ in FANS.values()], ids=FANS)
def test_no_weight_is_left_unchanged(make):
    module = make()
    for part in module.modules():
        if isinstance(part, SeveralMatrices):
            before = [matrix.clone() for matrix in part.matrices()]
            initialize(part, "he_normal")
            assert all((old != new).any() for old, new in zip(before, part.matrices(), strict=True))


def test_gates_of_finalnet_begin_at_one_for_every_init():
    model = FinalNet(kind="finalnet", dim=4, first=(8,), gate=True, init="xavier_normal")
    gate = build_model(model, shape(), seed=0).gate.linear
    assert not gate.weight.any()
    assert torch.equal(gate.bias, torch.ones_like(gate.bias))
