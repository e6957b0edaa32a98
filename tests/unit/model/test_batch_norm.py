"""Batch normalisation: running statistics, their state in a checkpoint, and a network of linear branches by numpy."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Branches
from persia_cli.model.batch_norm import BatchNorm
from persia_cli.model.build import build_model
from persia_cli.training.dense_state import dense_state, load_dense, write_files
from tests.unit.model.batches import batch_of, shape

SHAPES = [(4,), (3, 1, 4)]


def batches(shape: tuple[int, ...], count: int, size: int = 16) -> list[torch.Tensor]:
    """Batches far from mean 0 and variance 1, each with other statistics."""
    generator = torch.Generator().manual_seed(0)
    copies = shape[:-2]
    found = [torch.randn(*copies, size, shape[-1], generator=generator, dtype=torch.float64) for _ in range(count)]
    return [1e-3 * (number + 1) * values + number for number, values in enumerate(found)]


def statistics(batch: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values = batch.numpy()
    return values.mean(-2, keepdims=values.ndim == 3), values.var(-2, ddof=1, keepdims=values.ndim == 3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_they_are_the_mean_of_the_first_ten_steps(shape, steps):
    norm = BatchNorm(*shape).double()
    given = batches(shape, steps)
    for batch in given:
        norm(batch)
    means, variances = zip(*map(statistics, given), strict=True)
    assert norm.running_mean.numpy() == pytest.approx(np.mean(means, axis=0))
    assert norm.running_var.numpy() == pytest.approx(np.mean(variances, axis=0))


@pytest.mark.parametrize("shape", SHAPES)
def test_later_steps_have_the_weight_of_a_tenth(shape):
    norm = BatchNorm(*shape).double()
    *first, last = batches(shape, 31)
    for batch in first:
        norm(batch)
    before = norm.running_mean.numpy().copy(), norm.running_var.numpy().copy()
    norm(last)
    for running, old, new in zip((norm.running_mean, norm.running_var), before, statistics(last), strict=True):
        assert running.numpy() == pytest.approx(0.9 * old + 0.1 * new)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_without_a_variance_is_not_counted(shape, size):
    norm, other = (BatchNorm(*shape).double() for _ in range(2))
    few = torch.ones(*shape[:-2], size, shape[-1], dtype=torch.float64)
    for batch in batches(shape, 3):
        norm(few)
        norm(batch)
        other(batch)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("stopped", [1, 4, 12])
def test_a_checkpoint_goes_on_with_the_number_of_updates(tmp_path, stopped):
    given = batches((4,), 14)

    def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), BatchNorm(4)).double()
        return module, torch.optim.Adam(module.parameters())

    def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: list[torch.Tensor]) -> None:
        for batch in steps:
            optimizer.zero_grad()
            module(batch).square().sum().backward()
            optimizer.step()

    whole = network()
    train(*whole, given)
    first = network()
    train(*first, given[:stopped])
    write_files(dense_state(*first), tmp_path)
    resumed = network()
    load_dense(tmp_path, *resumed)
    train(*resumed, given[stopped:])
    expected = whole[0].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed[0].state_dict().items())


MODEL = Branches(kind="branches", dim=4, dense=3, sparse=5, hidden=(8, 6))


def by_hand(weights, x: np.ndarray, rows: np.ndarray, statistics) -> np.ndarray:
    """Logits of all samples; `statistics` gives mean and variance of a branch's columns."""
    columns = []
    for name, inputs in (("dense", x), ("sparse", rows)):
        linear = inputs @ weights[f"{name}.0.weight"].T
        mean, variance = statistics(name, linear)
        scaled = (linear - mean) / np.sqrt(variance + 1e-5)
        columns.append(scaled * weights[f"{name}.1.weight"] + weights[f"{name}.1.bias"])
    out = np.concatenate(columns, axis=1)
    for layer in range(3):
        out = out @ weights[f"last.{layer}.weight"].T + weights[f"last.{layer}.bias"]
    return out


def test_it_normalises_by_the_batch_and_later_by_what_it_has_seen():
    wanted = shape(dims=(4, 4))
    network = build_model(MODEL, wanted, seed=1).double()
    batch = batch_of(wanted, [[0, 1]], size=20)
    x, rows = batch.dense.double().numpy(), batch.groups[0].flatten(1).double().numpy()
    weights = {name: value.detach().numpy() for name, value in network.named_parameters()}
    batch = type(batch)(batch.dense.double(), [batch.groups[0].double()], batch.names, {})

    trained = network(batch).detach().numpy()
    expected = by_hand(weights, x, rows, lambda name, linear: (linear.mean(0), linear.var(0)))
    assert trained == pytest.approx(expected, abs=1e-9)

    seen = {name: value.numpy() for name, value in network.named_buffers()}
    linear = x @ weights["dense.0.weight"].T
    assert seen["dense.1.running_mean"] == pytest.approx(linear.mean(0))
    assert seen["dense.1.running_var"] == pytest.approx(linear.var(0, ddof=1))
    running = lambda name, linear: (seen[f"{name}.1.running_mean"], seen[f"{name}.1.running_var"])  # noqa: E731
    assert network.eval()(batch).detach().numpy() == pytest.approx(by_hand(weights, x, rows, running), abs=1e-9)
