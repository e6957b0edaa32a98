"""Initial weights and outputs follow their settings, and layers without biases have none."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from persia_cli.config.schema import CustomModel, Esmm, Ffnn, FinalNet, Model
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.errors import ConfigError
from persia_cli.model.autoint import Interacting
from persia_cli.model.build import INITS, build_model, initialize
from persia_cli.model.dcn_v2 import ExpertCross
from persia_cli.model.dien import GatedUnits
from persia_cli.model.fibinet import Bilinear
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear, ParallelLinear, SummedLinear
from persia_cli.model.requirements import require_fit
from persia_cli.model.self_attention import SelfAttention
from persia_cli.model.shape import InputShape
from tests.unit.model.batches import batch_of, shape
from tests.unit.model.kinds import KINDS, ONE_LABEL, name, shape_for

WITH_OUTPUT_BIAS = [model for model in KINDS if model.kind not in ONE_LABEL]
RATES = (0.3, 0.04, 0.01)
LOGITS = tuple(math.log(rate / (1 - rate)) for rate in RATES)


def without_inputs(wanted: InputShape) -> ModelBatch:
    """Samples whose rows and dense values are 0."""
    batch = batch_of(wanted, [[0, 1]])
    sequences = {key: (torch.zeros_like(values), mask) for key, (values, mask) in batch.sequences.items()}
    return ModelBatch(
        torch.zeros_like(batch.dense), [torch.zeros_like(each) for each in batch.groups], batch.names, sequences
    )


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("model", WITH_OUTPUT_BIAS, ids=name)
def test_an_untrained_network_predicts_the_base_rate_of_each_label(model, tasks):
    wanted = shape_for(model, tasks=tasks)
    changes = {"output_bias": LOGITS[:tasks], **({"init": "xavier_normal"} if isinstance(model, Perceptrons) else {})}
    network = build_model(model.model_copy(update=changes), wanted, seed=0).eval()
    # Other values than a linear layer's weight are random too: biases of the rest, and learned positions.
    if model.kind in ("bst", "branches"):
        kept = [parameter.clone() for parameter in network.parameters() if parameter.numel() == tasks]
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(parameter.numel() == tasks)
        assert kept
    predicted = torch.sigmoid(network(without_inputs(wanted)))
    assert predicted.detach().numpy() == pytest.approx(torch.tensor([RATES[:tasks]] * 5).numpy(), rel=1e-5)


@pytest.mark.parametrize("model", WITH_OUTPUT_BIAS, ids=name)
def test_nothing_but_the_bias_of_the_output_changes(model):
    wanted = shape_for(model)
    plain, begun = (
        build_model(model.model_copy(update={"output_bias": begin}), wanted, seed=0).eval()
        for begin in ("zero", LOGITS[:1])
    )
    batch = batch_of(wanted, [[0, 1]], size=9)
    difference = (begun(batch) - plain(batch)).detach().numpy()
    assert difference == pytest.approx(torch.full((9, 1), LOGITS[0]).numpy(), rel=1e-4)
    unchanged = build_model(model, wanted, seed=0).state_dict()
    differs = [key for key, value in begun.state_dict().items() if not torch.equal(value, unchanged[key])]
    assert all(key.endswith("bias") and begun.state_dict()[key].numel() == 1 for key in differs)
    assert 1 <= len(differs) <= 2


def test_towers_of_esmm_multiply_to_the_base_rates():
    model = Esmm(kind="esmm", dim=4, hidden=(8,), init="xavier_normal", output_bias=LOGITS)
    network = build_model(model, shape(tasks=3), seed=0)
    towers = [layer for layer in network.modules() if isinstance(layer, ParallelLinear)][-1].bias
    rates = torch.sigmoid(towers).flatten().cumprod(0)
    assert rates.detach().numpy() == pytest.approx(RATES, rel=1e-5)
    with pytest.raises(ConfigError, match="one of them is not rarer than the one before"):
        require_fit(model.model_copy(update={"output_bias": (0.0, 0.0, -1.0)}), shape(tasks=3))


def test_rare_and_common_labels_begin_without_rounding():
    for logits in ((-60.0, -700.0), (700.0, -700.0), (30.0, 29.0)):
        model = Esmm(kind="esmm", dim=4, hidden=(8,), init="xavier_normal", output_bias=logits)
        begun = build_model(model, shape(tasks=2), seed=0)(without_inputs(shape(tasks=2)))
        assert begun[0].detach().numpy() == pytest.approx(logits, rel=1e-4)


@pytest.mark.parametrize("model", [each for each in KINDS if each.kind in ONE_LABEL], ids=name)
def test_networks_without_such_a_bias_refuse(model):
    for begin in ("zero", "base_rate", (0.5,)):
        with pytest.raises(ConfigError, match=f"model.output_bias: model.kind={model.kind}"):
            require_fit(model.model_copy(update={"output_bias": begin}), shape_for(model))
    with pytest.raises(ConfigError, match=r"model.output_bias: model.kind=custom"):
        require_fit(CustomModel(kind="custom", dim=4, file="a.py", name="A", output_bias="base_rate"), shape())


def test_numbers_that_do_not_fit_are_refused():
    model = Ffnn(kind="ffnn", dim=4, hidden=(8,), output_bias=(0.5, 0.5))
    with pytest.raises(ConfigError, match=r"model.output_bias has 2 numbers"):
        require_fit(model, shape())
    for wrong in ((), (float("nan"),), (float("inf"),), "mean", (True,)):
        with pytest.raises(ValidationError):
            TypeAdapter(Model).validate_python({"kind": "ffnn", "dim": 4, "hidden": (8,), "output_bias": wrong})


STYLED = [model for model in WITH_OUTPUT_BIAS if isinstance(model, Perceptrons)]


@pytest.mark.parametrize("model", STYLED, ids=name)
def test_layers_without_biases(model):
    wanted = shape_for(model)
    bare = build_model(model.model_copy(update={"bias": False}), wanted, seed=0)
    whole = build_model(model, wanted, seed=0)

    def biases(network: nn.Module) -> set[str]:
        return {key for key in network.state_dict() if key.endswith("bias")}

    assert biases(bare) < biases(whole)
    assert [key for key in whole.state_dict() if key not in biases(whole)] == [
        key for key in bare.state_dict() if key not in biases(bare)
    ]
    assert bare(batch_of(wanted, [[0, 1]])).shape == (5, 1)
    own = model.kind in ("autoint", "dcn_v2", "gdcn", "finalmlp")
    both = model.model_copy(update={"bias": False, "output_bias": LOGITS[:1]})
    if own:
        assert build_model(both, wanted, seed=0)(batch_of(wanted, [[0, 1]])).isfinite().all()
    else:
        with pytest.raises(ConfigError, match=r"model.bias=false .* model.output_bias"):
            require_fit(both, wanted)


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


def test_gates_of_finalnet_begin_at_one_for_every_init():
    model = FinalNet(kind="finalnet", dim=4, first=(8,), gate=True, init="xavier_normal")
    gate = build_model(model, shape(), seed=0).gate.linear
    assert not gate.weight.any()
    assert torch.equal(gate.bias, torch.ones_like(gate.bias))
