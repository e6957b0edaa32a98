"""The built-in networks against plain numpy, and what they refuse."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Dlrm, Ffnn
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.inputs import FeatureShape, InputShape
from tests.unit.model.batches import batch_of, shape

FFNN = Ffnn(kind="ffnn", dim=4, hidden=(8, 6))
DLRM = Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,))


def layers(module, prefix: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of the linear layers under `prefix`, in order."""
    found = [(name, value.detach().double().numpy()) for name, value in module.named_parameters()]
    mine = [value for name, value in found if name.startswith(prefix)]
    return list(zip(mine[0::2], mine[1::2], strict=True))


def perceptron(x: np.ndarray, weights, last_relu: bool) -> np.ndarray:
    for number, (weight, bias) in enumerate(weights):
        x = x @ weight.T + bias
        if last_relu or number < len(weights) - 1:
            x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[0, 2], [1]], [[2], [0], [1]]])
@pytest.mark.parametrize("tasks", [1, 3])
def test_ffnn_is_a_perceptron_on_all_inputs_in_data_set_order(groups, tasks):
    wanted = shape(dims=(4, 4, 4), tasks=tasks)
    network = build_model(FFNN, wanted, seed=1)
    batch = batch_of(wanted, groups)
    x = np.concatenate([batch.dense, *[batch.pooled[f"f{number}"] for number in range(3)]], axis=1).astype(np.float64)
    assert network(batch).detach().numpy() == pytest.approx(perceptron(x, layers(network, ""), False), abs=1e-5)
    assert network(batch).shape == (5, tasks)


def test_ffnn_reads_rows_of_several_dims():
    wanted = shape(dims=(4, 2, 4))
    batch = batch_of(wanted, [[0, 2], [1]])
    network = build_model(FFNN, wanted, seed=1)
    x = np.concatenate([batch.dense, *[batch.pooled[f"f{number}"] for number in range(3)]], axis=1).astype(np.float64)
    assert network(batch).detach().numpy() == pytest.approx(perceptron(x, layers(network, ""), False), abs=1e-5)


@pytest.mark.parametrize(("dense", "dims", "groups"), [(3, (), []), (0, (4, 4), [[0, 1]])])
def test_ffnn_needs_only_one_sort_of_feature(dense, dims, groups):
    wanted = shape(dense, dims)
    assert build_model(FFNN, wanted, seed=0)(batch_of(wanted, groups)).shape == (5, 1)


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[2, 0], [1]]])
def test_dlrm_multiplies_every_pair_of_vectors(groups):
    wanted = shape(dims=(4, 4, 4), tasks=2)
    network = build_model(DLRM, wanted, seed=1)
    # The buffer belongs to no checkpoint: it follows from the number of features.
    assert not any("pairs" in name for name in network.state_dict())
    batch = batch_of(wanted, groups)
    bottom = perceptron(batch.dense.double().numpy(), layers(network, "bottom"), True)
    vectors = [bottom, *[batch.pooled[f"f{number}"].double().numpy() for number in range(3)]]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i)]
    expected = perceptron(np.column_stack([bottom, *products]), layers(network, "top"), False)
    assert network(batch).detach().numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("model", [FFNN, DLRM])
def test_a_batch_without_samples_gives_no_logits_and_zero_gradients(model):
    wanted = shape()
    network = build_model(model, wanted, seed=0)
    logits = network(batch_of(wanted, [[0, 1]], size=0))
    assert logits.shape == (0, 1)
    logits.sum().backward()
    assert all(not parameter.grad.any() for parameter in network.parameters())


@pytest.mark.parametrize("model", [FFNN, DLRM])
def test_weights_follow_from_the_seed_alone(model):
    state = torch.get_rng_state()
    first, again, other = (build_model(model, shape(), seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("model", [FFNN, DLRM])
def test_sequences_are_refused_by_name(model):
    features = (FeatureShape("clicks", 4, "none", 10), FeatureShape("user", 4, "sum"))
    with pytest.raises(ConfigError, match=rf"model.kind={model.kind} .* none for clicks; "):
        build_model(model, InputShape(3, features, 1), seed=0)


def test_dlrm_refuses_rows_of_another_dim():
    with pytest.raises(ConfigError, match=r"model.dim=4 for every feature, not so: f1 \(8\)"):
        build_model(DLRM, shape(dims=(4, 8)), seed=0)


@pytest.mark.parametrize(("dense", "dims", "missing"), [(0, (4,), "dense"), (3, (), "sparse")])
def test_dlrm_refuses_to_do_without_one_sort_of_feature(dense, dims, missing):
    with pytest.raises(ConfigError, match=f"has no {missing} ones"):
        build_model(DLRM, shape(dense, dims), seed=0)


def test_batches_name_their_pooled_vectors():
    wanted = shape(dims=(4, 2, 4))
    batch = batch_of(wanted, [[0, 2], [1]])
    assert list(batch.pooled) == ["f0", "f2", "f1"]
    assert torch.equal(batch.pooled["f2"], batch.groups[0][:, 1])
    assert batch.size == 5
