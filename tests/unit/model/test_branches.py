"""Linear branches with batch normalisation, against numpy."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Branches
from persia_cli.model.build import build_model
from tests.unit.model.batches import batch_of, shape

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


@pytest.mark.parametrize("size", [0, 1])
def test_too_few_samples_for_a_variance_leave_the_statistics_unchanged(size):
    wanted = shape(dims=(4, 4))
    network = build_model(MODEL, wanted, seed=1)
    network(batch_of(wanted, [[0, 1]], size=20))
    before = {name: value.clone() for name, value in network.named_buffers()}
    few = batch_of(wanted, [[0, 1]], size=size)
    logits = network(few)
    assert torch.equal(logits, network.eval()(few))
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
