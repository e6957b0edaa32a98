"""Hidden layers and dropout follow their settings: torch's own layers and the formulas of the papers."""

import copy

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from persia_cli.config.schema import MaskNet, Model
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.model.batch_norm import BatchNorm
from persia_cli.model.build import build_model
from persia_cli.model.layers import (
    CASES,
    Dice,
    Dropout,
    LayerNorm,
    LayerStyle,
    ParallelLinear,
    ParametricRelu,
    dropped,
    fully_connected,
    parallel_networks,
)
from tests.unit.model.batches import batch_of, shape
from tests.unit.model.kinds import KINDS, name, shape_for

STYLED = [model for model in KINDS if isinstance(model, Perceptrons)]
TORCH = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "none": nn.Identity,
    "prelu": nn.PReLU,
}


def cumulative(width: int) -> nn.Module:
    """Torch's batch normalisation with the mean of all steps, as in ours for the first ten."""
    return nn.BatchNorm1d(width, momentum=None)


def by_torch(ours: nn.Sequential, activations: list[str], norm: str, dropout: list[float]) -> nn.Sequential:
    """The same perceptron of torch's layers, with copies of the weights."""
    linear = [layer for layer in ours if isinstance(layer, nn.Linear)]
    layers: list[nn.Module] = []
    for layer, activation, share in zip(linear[:-1], activations, dropout, strict=True):
        width = layer.out_features
        normal = {"batch": cumulative, "layer": nn.LayerNorm, "none": lambda _: nn.Identity()}[norm](width)
        slope = {"num_parameters": width} if activation == "prelu" else {}
        layers += [copy.deepcopy(layer), normal, TORCH[activation](**slope), Dropout(share)]
    return nn.Sequential(*layers, copy.deepcopy(linear[-1]))


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("activations", [[kind, "silu"] for kind in TORCH])
def test_they_are_those_of_torch_in_training_and_evaluation(norm, activations):
    torch.manual_seed(0)
    dropout = [0.5, 0.2]
    ours = fully_connected(5, [8, 6], 2, LayerStyle(activation=activations, norm=norm, dropout=dropout))
    theirs = by_torch(ours, activations, norm, dropout)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.01) for network in (ours, theirs)]
    for step in range(4):
        inputs = torch.randn(16, 5)
        found = []
        for network, optimizer in zip((ours, theirs), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            logits = network(inputs)
            logits.square().sum().backward()
            optimizer.step()
            found.append(logits.detach().numpy())
        assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-5)
    for network in (ours, theirs):
        network.eval()
    assert ours(inputs).detach().numpy() == pytest.approx(theirs(inputs).detach().numpy(), rel=1e-5, abs=1e-5)


def test_the_gradient_of_prelu_is_that_of_torch_at_0_too():
    inputs = torch.tensor([[0.0, -2.0, 3.0], [0.0, 0.5, -0.0]])
    gradients = []
    for layer in (ParametricRelu(3), nn.PReLU(3)):
        own = inputs.clone().requires_grad_()
        layer(own).sum().backward()
        gradients.append((own.grad.tolist(), layer.weight.grad.tolist()))
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("activation", ["relu", "prelu", "dice"])
def test_networks_side_by_side_are_each_what_they_are_alone(norm, activation):
    torch.manual_seed(0)
    copies, chosen = 3, LayerStyle(activation=activation, norm=norm)
    together = parallel_networks(copies, 5, [8, 6], 2, chosen)
    alone = [fully_connected(5, [8, 6], 2, chosen) for _ in range(copies)]
    learned = [layer for layer in together if isinstance(layer, BatchNorm | LayerNorm | ParametricRelu | Dice)]
    for layer in learned:
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
    for number, network in enumerate(alone):
        for ours, theirs in zip(together, network, strict=True):
            for key, value in ours.state_dict().items():
                if value.ndim == 0:
                    continue
                own = value[number].t() if isinstance(ours, ParallelLinear) and key == "weight" else value[number]
                part = theirs.get_submodule(key.rpartition(".")[0])
                target = getattr(part, key.rpartition(".")[2])
                target.data.copy_(own.reshape(target.shape))
    for _ in range(3):
        inputs = torch.randn(copies, 11, 5)
        expected = torch.stack([network(own) for network, own in zip(alone, inputs, strict=True)])
        assert torch.allclose(together(inputs), expected, atol=1e-5)
    for network in (together, *alone):
        network.eval()
    expected = torch.stack([network(own) for network, own in zip(alone, inputs, strict=True)])
    assert torch.allclose(together(inputs), expected, atol=1e-5)


@pytest.mark.parametrize("model", STYLED, ids=name)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_every_network_takes_them(model, norm):
    changes = {"norm": norm, "dropout": 0.3, "embedding_dropout": 0.2, "activation": "dice", "init": "xavier_normal"}
    wanted = shape_for(model)
    network = build_model(model.model_copy(update=changes), wanted, seed=0)
    kinds = {type(part) for part in network.modules()}
    assert {Dice, Dropout, BatchNorm if norm == "batch" else LayerNorm} <= kinds
    batch = batch_of(wanted, [[0, 1]], size=64)
    torch.manual_seed(1)
    first = network(batch)
    torch.manual_seed(2)
    assert not torch.equal(first, network(batch)), "dropout draws anew"
    first.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())
    network.eval()
    assert torch.equal(network(batch), network(batch))
    none = network.train()(batch_of(wanted, [[0, 1]], size=0))
    assert none.shape == (0, 1)
    assert network(batch_of(wanted, [[0, 1]], size=1)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "ffnn", "hidden": (8, 6), "dropout": (0.1,)}, "model.dropout has 1 value.*hidden has 2"),
        ({"kind": "dlrm", "bottom": (8,), "top": (9, 8), "activation": ("relu",)}, "model.activation has 1 value, and"),
        ({"kind": "finalmlp", "first": (8,), "second": (6, 4), "heads": 2, "dropout": (0.1, 0.2)}, "model.first has 1"),
        ({"kind": "ffnn", "hidden": (), "dropout": (0.1,)}, "model.dropout has 1 value, and model.hidden has 0"),
        ({"kind": "finalnet", "first": (8, 7)}, "model.first or model.second has the width 7"),
        ({"kind": "ffnn", "hidden": (8,), "dropout": 1.0}, "less than 1"),
        ({"kind": "ffnn", "hidden": (8,), "norm": "group"}, "none"),
    ],
)
def test_settings_that_fit_no_layers_are_refused(settings, sentence):
    with pytest.raises(ValidationError, match=sentence):
        TypeAdapter(Model).validate_python({"dim": 4, **settings})


def test_a_perceptron_that_is_left_out_takes_no_values_of_a_list():
    model = MaskNet(kind="masknet", dim=4, blocks=(8, 6), hidden=(), dropout=(0.1, 0.2), activation=("relu", "gelu"))
    kinds = [type(part) for part in build_model(model, shape(), seed=0).modules()]
    assert kinds.count(Dropout) == 2
    assert nn.GELU in kinds


@pytest.mark.parametrize("share", [1e-6, 1 / CASES, 0.1, 0.25, 0.5, 0.9])
def test_the_share_is_dropped_and_others_are_scaled_to_the_same_mean(share):
    torch.manual_seed(0)
    values = dropped(torch.ones(1_000_003), share)
    kept = values != 0
    assert kept.double().mean().item() == pytest.approx(1 - share, abs=5 * (share / 1_000_003) ** 0.5 + 1 / CASES)
    cases = round(share * CASES)
    assert (values[kept] == CASES / (CASES - cases)).all()
    # Neighbours, which share a draw, are dropped independently of each other.
    for apart in (1, 2, 3):
        both = (~kept[apart:] & ~kept[:-apart]).double().mean().item()
        assert both == pytest.approx((cases / CASES) ** 2, abs=0.002)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 7), (2, 3, 4)])
def test_any_shape_has_its_dtype_and_the_gradient_of_its_mask(shape, dtype):
    torch.manual_seed(0)
    values = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    result = dropped(values, 0.5)
    assert (result.shape, result.dtype) == (values.shape, dtype)
    result.sum().backward()
    assert torch.equal(values.grad, torch.where(result != 0, 2.0, 0.0).to(dtype))


def test_a_layer_draws_by_the_seed_in_training_only():
    layer, inputs = Dropout(0.5), torch.ones(10, 10)
    torch.manual_seed(1)
    first, second = layer(inputs), layer(inputs)
    torch.manual_seed(1)
    assert torch.equal(layer(inputs), first)
    assert not torch.equal(first, second)
    assert layer.eval()(inputs) is inputs
    assert Dropout(0.0)(inputs) is inputs
