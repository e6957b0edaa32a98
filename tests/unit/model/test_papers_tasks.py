"""Networks of several labels and of two towers equal the formulas of their papers, and so do their gradients."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Esmm, Ple, TwoTower
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.esmm import logit_of_both
from tests.unit.model.batches import batch_of, shape
from tests.unit.model.by_hand import (
    Array,
    Sample,
    Weights,
    agrees,
    copy_of,
    perceptron,
    side_by_side,
    sigmoid,
    softmax,
)

CASES = pytest.mark.parametrize(
    ("groups", "tasks", "dense"),
    [([[0, 1, 2]], 1, 2), ([[2, 0], [1]], 3, 2), ([[1, 0, 2]], 2, 0)],
    ids=["plain", "two-groups-and-three-tasks", "other-order-and-no-dense"],
)


@CASES
@pytest.mark.parametrize("layers", [1, 2])
def test_ple(groups, tasks, dense, layers):
    own, shared = 2, 3

    def expert(weights: Weights, level: int, number: int, x: Array) -> Array:
        prefix = f"levels.{level}.experts"
        return perceptron(copy_of(weights, prefix, number), prefix, x, last_relu=True)

    def formula(weights: Weights, sample: Sample) -> Array:
        of_tasks, common = [side_by_side(sample)] * tasks, side_by_side(sample)
        for level in range(layers):
            said = [
                [expert(weights, level, task * own + i, of_tasks[task]) for i in range(own)] for task in range(tasks)
            ]
            of_all = [expert(weights, level, tasks * own + i, common) for i in range(shared)]
            gates = weights[f"levels.{level}.gates.weight"]
            mixed = []
            for task in range(tasks):
                shares = softmax(gates[task].T @ of_tasks[task])
                mixed.append(sum(share * one for share, one in zip(shares, said[task] + of_all, strict=True)))
            if level + 1 < layers:
                shares = softmax(weights[f"levels.{level}.shared_gate.weight"] @ common)
                everyone = [one for ones in said for one in ones] + of_all
                common = sum(share * one for share, one in zip(shares, everyone, strict=True))
            of_tasks = mixed
        return np.array([perceptron(copy_of(weights, "towers", k), "towers", x)[0] for k, x in enumerate(of_tasks)])

    model = Ple(kind="ple", dim=4, layers=layers, own=own, shared=shared, expert=(6, 5), tower=(3,))
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
def test_esmm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        inputs = side_by_side(sample)
        towers = [sigmoid(perceptron(copy_of(weights, "towers", k), "towers", inputs)[0]) for k in range(tasks)]
        chain = np.cumprod(towers)
        return np.log(chain / (1.0 - chain))

    model = Esmm(kind="esmm", dim=4, hidden=(6, 5))
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


def test_the_logit_of_a_product_of_probabilities_holds_at_both_ends():
    """In float32 the product of probabilities would be 0 or 1, and its logarithm infinite."""
    logits = torch.tensor([-200.0, -50.0, -3.0, 0.0, 4.0, 60.0, 300.0])
    first, second = (part.flatten().requires_grad_() for part in torch.meshgrid(logits, logits, indexing="ij"))
    found = logit_of_both(first, second)
    found.sum().backward()
    one, other = (part.detach().numpy().astype(np.longdouble) for part in (first, second))
    # p q = 1 / ((1 + exp(-a)) (1 + exp(-b))), and its logit from the odds, in 80 bits.
    expected = -np.log(np.exp(-one) + np.exp(-other) + np.exp(-one - other))
    assert found.detach().numpy() == pytest.approx(expected.astype(np.float64), rel=1e-5, abs=1e-6)
    assert first.grad.isfinite().all()
    assert ((first.grad >= 0) & (first.grad < 1.00001)).all()


def test_a_conversion_is_never_likelier_than_its_click():
    wanted = shape(tasks=3)
    logits = build_model(Esmm(kind="esmm", dim=4, hidden=(8,)), wanted, seed=0)(batch_of(wanted, [[0, 1]], size=50))
    assert (logits[:, 1:] < logits[:, :-1]).all()


@pytest.mark.parametrize(("groups", "dense"), [([[0, 1, 2]], 2), ([[2, 0], [1]], 0)])
def test_two_towers(groups, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        user = np.concatenate([sample.dense, sample.pooled["f2"], sample.pooled["f0"]])
        one = perceptron(weights, "user.network", user)
        other = perceptron(weights, "item.network", sample.pooled["f1"])
        one, other = one / np.sqrt(one @ one), other / np.sqrt(other @ other)
        return np.array([one @ other / 0.3])

    given = {"user": ("f2", "f0"), "item": ("f1",), "temperature": 0.3}
    model = TwoTower(kind="two_tower", dim=4, hidden=(6,), width=5, **given)
    agrees(model, shape(dense, (4, 4, 4), 1), formula, groups)


@pytest.mark.parametrize(
    ("user", "item", "sentence"),
    [
        (("f0",), ("f1",), "model.user and model.item name f2 nowhere"),
        (("f0", "f2"), ("f1", "f2"), "name f2 twice"),
        (("f0", "f2"), ("f9",), r"model.item=f9: needs a sparse feature .* there are f0, f1, f2"),
    ],
)
def test_each_feature_is_of_one_tower(user, item, sentence):
    model = TwoTower(kind="two_tower", dim=4, user=user, item=item, hidden=(6,), width=5)
    with pytest.raises(ConfigError, match=sentence):
        build_model(model, shape(0, (4, 4, 4)), seed=0)
