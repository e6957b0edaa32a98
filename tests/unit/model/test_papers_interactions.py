"""Networks of interacting features equal the formulas of their papers, and so do their gradients."""

from itertools import combinations

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Afm, FibiNet, FinalNet, Fm, Gdcn, Lr, MaskNet
from persia_cli.model.finalnet import teaching_losses
from tests.unit.model.batches import shape
from tests.unit.model.by_hand import (
    CASES,
    Array,
    Sample,
    Weights,
    agrees,
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
