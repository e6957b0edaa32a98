"""Networks of interacting features, several labels or two towers equal the formulas of their papers."""

from itertools import combinations

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Afm, Esmm, FibiNet, FinalNet, Fm, Gdcn, Lr, MaskNet, Ple, TwoTower
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.esmm import logit_of_both
from persia_cli.model.finalnet import teaching_losses
from tests.unit.model.batches import shape
from tests.unit.model.by_hand import (
    CASES,
    Array,
    Sample,
    Weights,
    agrees,
    copy_of,
    fields,
    perceptron,
    side_by_side,
    sigmoid,
    softmax,
)


def weights_and_vectors(sample: Sample, dense: Array | None, tasks: int) -> tuple[Array, list[Array]]:
    """The sum of first-order weights, and the vectors, of rows and of dense features."""
    rows = fields(sample, dense)
    return np.sum([row[:tasks] for row in rows], axis=0), [row[tasks:] for row in rows]


@CASES
def test_lr(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        return weights["bias"] + sum(fields(sample, weights.get("weights.dense")))

    agrees(Lr(kind="lr", dim=tasks), shape(dense, (tasks,) * 3, tasks), formula, groups)


@CASES
def test_fm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        first, vectors = weights_and_vectors(sample, weights.get("fields.fields.dense"), tasks)
        return weights["bias"] + first + sum(one @ other for one, other in combinations(vectors, 2))

    agrees(Fm(kind="fm", dim=5), shape(dense, (5, 5, 5), tasks), formula, groups)


@CASES
def test_afm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        first, vectors = weights_and_vectors(sample, weights.get("fields.fields.dense"), tasks)
        products = [one * other for one, other in combinations(vectors, 2)]
        scores = []
        for product in products:
            hidden = np.maximum(weights["attention.0.weight"] @ product + weights["attention.0.bias"], 0.0)
            scores.append((weights["attention.2.weight"] @ hidden)[0])
        pooled = sum(share * product for share, product in zip(softmax(np.array(scores)), products, strict=True))
        return first + weights["last.weight"] @ pooled + weights["last.bias"]

    agrees(Afm(kind="afm", dim=5, attention=6), shape(dense, (5, 5, 5), tasks), formula, groups)


@CASES
@pytest.mark.parametrize("kind", ["field_all", "field_each", "field_interaction"])
def test_fibinet(groups, tasks, dense, kind):
    dim = 5 - tasks

    def bilinear(weights: Weights, prefix: str, vectors: list[Array]) -> list[Array]:
        products = []
        for i, j in combinations(range(len(vectors)), 2):
            owner = weights[f"{prefix}.inner.{0 if kind == 'field_all' else i}.weight"]
            at = (j - i - 1) * dim if kind == "field_interaction" else 0
            matrix = owner[at : at + dim]
            products.append((matrix @ vectors[i]) * vectors[j])
        return products

    def formula(weights: Weights, sample: Sample) -> Array:
        first, vectors = weights_and_vectors(sample, weights.get("fields.fields.dense"), tasks)
        squeezed = np.array([vector.mean() for vector in vectors])
        excited = np.maximum(weights["importance.excite.0.weight"] @ squeezed, 0.0)
        importance = np.maximum(weights["importance.excite.2.weight"] @ excited, 0.0)
        weighed = [share * vector for share, vector in zip(importance, vectors, strict=True)]
        products = bilinear(weights, "plain", vectors) + bilinear(weights, "weighed", weighed)
        return first + perceptron(weights, "network", np.concatenate(products))

    model = FibiNet(kind="fibinet", dim=5, bilinear=kind, reduction=1.5, hidden=(6,))
    agrees(model, shape(dense, (5, 5, 5), tasks), formula, groups)


def normalised(x: Array) -> Array:
    """x less its mean, over its deviation."""
    return np.asarray((x - x.mean()) / np.sqrt(x.var() + 1e-5))


@CASES
@pytest.mark.parametrize("structure", ["serial", "parallel"])
@pytest.mark.parametrize("norms", [True, False], ids=["norms", "no-norms"])
def test_masknet(groups, tasks, dense, structure, norms):
    def block(weights: Weights, number: int, embeddings: Array, x: Array) -> Array:
        mask = perceptron(weights, f"blocks.{number}.mask", embeddings)
        x = weights[f"blocks.{number}.layer.0.weight"] @ (mask * x)
        if norms:
            x = normalised(x) * weights[f"blocks.{number}.layer.1.weight"] + weights[f"blocks.{number}.layer.1.bias"]
        return np.maximum(x, 0.0)

    def formula(weights: Weights, sample: Sample) -> Array:
        vectors = fields(sample, weights.get("fields.dense"))
        x = embeddings = np.concatenate(vectors)
        if norms:
            own = [normalised(v) * weights["norm.weight"][i] + weights["norm.bias"][i] for i, v in enumerate(vectors)]
            x = np.concatenate(own)
        if structure == "serial":
            for number in range(2):
                x = block(weights, number, embeddings, x)
        else:
            x = np.concatenate([block(weights, number, embeddings, x) for number in range(2)])
        return perceptron(weights, "network", x)

    hidden = () if structure == "serial" else (4,)
    given = {"norm": "layer" if norms else "none", "embedding_norm": norms, "hidden": hidden}
    model = MaskNet(kind="masknet", dim=4, structure=structure, blocks=(6, 5), reduction=1.5, **given)
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_gdcn(groups, tasks, dense, structure):
    def formula(weights: Weights, sample: Sample) -> Array:
        first = x = side_by_side(sample)
        for number in range(2):
            crossed = weights[f"cross.{number}.cross.weight"] @ x + weights[f"cross.{number}.cross.bias"]
            x = first * crossed * sigmoid(weights[f"cross.{number}.gate.weight"] @ x) + x
        if structure == "stacked":
            last = perceptron(weights, "deep", x, last_relu=True)
        else:
            last = np.concatenate([x, perceptron(weights, "deep", first, last_relu=True)])
        return weights["last.weight"] @ last + weights["last.bias"]

    model = Gdcn(kind="gdcn", dim=4, layers=2, structure=structure, hidden=(6, 5))
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
@pytest.mark.parametrize(
    ("second", "gate", "teaching"),
    [((), False, 0.0), ((4,), True, 0.0), ((4,), True, 0.7)],
    ids=["one-block", "two-blocks-and-gate", "teaching"],
)
def test_finalnet(groups, tasks, dense, second, gate, teaching):
    def block(weights: Weights, prefix: str, layers: int, x: Array) -> Array:
        # A layer, and its activation after it; a linear layer at the end.
        for number in range(0, 2 * layers, 2):
            both = weights[f"{prefix}.{number}.linear.weight"] @ x + weights[f"{prefix}.{number}.linear.bias"]
            plain, factor = np.split(both, 2)
            x = np.concatenate([plain, plain * factor])
            x = np.tanh(x)
        return weights[f"{prefix}.{2 * layers}.weight"] @ x + weights[f"{prefix}.{2 * layers}.bias"]

    def blocks(weights: Weights, sample: Sample) -> list[Array]:
        vectors = fields(sample, weights.get("fields.dense"))
        read = list(vectors)
        for number in range(len(vectors)) if gate else ():
            shares = sum(own * v for own, v in zip(weights["gate.linear.weight"][number], vectors, strict=True))
            read.append(vectors[number] * (shares + weights["gate.linear.bias"][number]))
        found = [block(weights, "first", 2, np.concatenate(read))]
        return [*found, block(weights, "second", 1, np.concatenate(vectors))] if second else found

    def formula(weights: Weights, sample: Sample) -> Array:
        return np.mean(blocks(weights, sample), axis=0)

    soft_labels: list[Array] = []

    def auxiliary(weights: Weights, samples: list[Sample]) -> Array:
        """The cross-entropy of each block with the probability of both, through which no gradient passes."""
        if not soft_labels:
            soft_labels.extend(sigmoid(formula(weights, sample)) for sample in samples)
        losses = np.zeros((len(samples), tasks))
        for number, (sample, label) in enumerate(zip(samples, soft_labels, strict=True)):
            for logits in blocks(weights, sample):
                p = sigmoid(logits)
                losses[number] -= teaching * (label * np.log(p) + (1 - label) * np.log(1 - p))
        return losses

    given = {"gate": gate, "activation": "tanh", "norm": "none", "teaching": teaching}
    model = FinalNet(kind="finalnet", dim=4, first=(6, 4), second=second, **given)
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups, auxiliary=auxiliary if teaching else None)


def test_blocks_that_nearly_agree_still_learn_in_half_precision():
    first, second = (torch.tensor([logit], dtype=torch.bfloat16, requires_grad=True) for logit in (0.5, 0.5234375))
    with torch.autocast("cpu", torch.bfloat16):
        teaching_losses(first, second).sum().backward()
    label = sigmoid((first.item() + second.item()) / 2)
    for logit in (first, second):
        assert logit.grad.item() == pytest.approx(sigmoid(logit.item()) - label, rel=2**-8)


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
