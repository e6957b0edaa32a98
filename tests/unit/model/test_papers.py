"""Each network equals the formulas of its paper, and so do its gradients."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from persia_cli.config.schema import AutoInt, DcnV2, DeepFm, Din, Dlrm, Ffnn, FinalMlp, Mmoe, WideDeep, XDeepFm
from persia_cli.model.shape import FeatureShape, InputShape
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


@CASES
def test_ffnn(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        return perceptron(weights, "network", side_by_side(sample))

    agrees(Ffnn(kind="ffnn", dim=4, hidden=(8, 6)), shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(Ffnn(kind="ffnn", dim=4, hidden=(8, 6)), shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
def test_dense_features_as_vectors(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        vectors = (
            [x * vector for x, vector in zip(sample.dense, weights["inputs.vectors"], strict=True)] if dense else []
        )
        return perceptron(weights, "network", np.concatenate([*vectors, *fields(sample, None)]))

    model = Ffnn(kind="ffnn", dim=3, dense="embed", hidden=(8, 6))
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
def test_dlrm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        bottom = perceptron(weights, "bottom", sample.dense, last_relu=True)
        vectors = [bottom, *fields(sample, None)]
        products = [vectors[i] @ vectors[j] for i in range(4) for j in range(i)]
        return perceptron(weights, "top", np.concatenate([bottom, products]))

    agrees(Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)), shape(dense or 1, (4, 4, 4), tasks), formula, groups)


@CASES
def test_wide_and_deep(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        rows = fields(sample, None)
        wide = sum(row[:tasks] for row in rows)
        if dense:
            wide = wide + weights["linear.weight"] @ sample.dense
        return wide + perceptron(weights, "network", np.concatenate([sample.dense, *(row[tasks:] for row in rows)]))

    # The third feature is in the linear model alone.
    wanted = shape(dense, (4, 5, tasks), tasks)
    agrees(WideDeep(kind="wide_deep", dim=4, hidden=(6, 5)), wanted, formula, [[1], [2], [0]])
    agrees(WideDeep(kind="wide_deep", dim=4, hidden=(6,)), shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
def test_deepfm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        rows = fields(sample, weights.get("fields.fields.dense"))
        pairs = sum(one[tasks:] @ other[tasks:] for one, other in combinations(rows, 2))
        deep = perceptron(weights, "network", np.concatenate([row[tasks:] for row in rows]))
        return sum(row[:tasks] for row in rows) + pairs + deep

    agrees(DeepFm(kind="deepfm", dim=5, hidden=(6, 5)), shape(dense, (5, 5, 5), tasks), formula, groups)


@CASES
def test_xdeepfm(groups, tasks, dense):
    def formula(weights: Weights, sample: Sample) -> Array:
        rows = fields(sample, weights.get("fields.fields.dense"))
        vectors = [row[tasks:] for row in rows]
        maps, sums = vectors, []
        for number in range(2):
            mixed = weights[f"interactions.layers.{number}.weight"]
            maps = [
                sum(own[i * len(vectors) + j] * maps[i] * v for i in range(len(maps)) for j, v in enumerate(vectors))
                for own in mixed
            ]
            sums += [made.sum() for made in maps]
        deep = perceptron(weights, "network", np.concatenate(vectors))
        return sum(row[:tasks] for row in rows) + weights["weights.weight"] @ np.array(sums) + deep

    model = XDeepFm(kind="xdeepfm", dim=5, maps=(4, 3), hidden=(6,))
    agrees(model, shape(dense, (5, 5, 5), tasks), formula, groups)


@CASES
@pytest.mark.parametrize("hidden", [(), (7,)], ids=["autoint", "autoint-plus"])
def test_autoint(groups, tasks, dense, hidden):
    heads, width = 2, 3

    def formula(weights: Weights, sample: Sample) -> Array:
        start = x = fields(sample, weights.get("fields.dense"))
        for layer in range(2):
            query, key, value, residual = np.split(weights[f"attention.{layer}.project.weight"], 4)
            found = []
            for one in x:
                attended = []
                for head in range(heads):
                    own = slice(head * width, (head + 1) * width)
                    alpha = softmax(np.array([(query[own] @ one) @ (key[own] @ other) for other in x]))
                    attended.append(sum(share * (value[own] @ other) for share, other in zip(alpha, x, strict=True)))
                found.append(np.maximum(np.concatenate(attended) + residual @ one, 0.0))
            x = found
        logits = weights["last.weight"] @ np.concatenate(x) + weights["last.bias"]
        return logits + perceptron(weights, "network", np.concatenate(start)) if hidden else logits

    model = AutoInt(kind="autoint", dim=4, layers=2, heads=heads, width=width, hidden=hidden)
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


def crossed(weights: Weights, first: Array, experts: int | None, rank: int | None) -> Array:
    x = first
    for number in range(2):
        own = {name.removeprefix(f"cross.{number}."): w for name, w in weights.items() if f"cross.{number}." in name}
        if experts is None or rank is None:
            x = first * (own["up.weight"] @ (own["down.weight"] @ x if rank else x) + own["up.bias"]) + x
            continue
        gates = softmax(own["gates.weight"] @ x + own["gates.bias"])
        added = np.zeros_like(x)
        for expert in range(experts):
            at = slice(expert * rank, (expert + 1) * rank)
            inner = np.tanh(own["mix"][expert].T @ np.tanh(own["down.weight"][at] @ x))
            added += gates[expert] * first * (own["up.weight"][:, at] @ inner + own["up.bias"])
        x = added + x
    return x


@CASES
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
@pytest.mark.parametrize(("rank", "experts"), [(None, None), (2, None), (2, 3)], ids=["full", "low-rank", "experts"])
def test_dcn_v2(groups, tasks, dense, structure, rank, experts):
    def formula(weights: Weights, sample: Sample) -> Array:
        first = side_by_side(sample)
        x = crossed(weights, first, experts, rank)
        if structure == "stacked":
            last = perceptron(weights, "deep", x, last_relu=True)
        else:
            last = np.concatenate([x, perceptron(weights, "deep", first, last_relu=True)])
        return weights["last.weight"] @ last + weights["last.bias"]

    given = {"layers": 2, "rank": rank, "experts": experts, "structure": structure, "hidden": (6, 5)}
    agrees(DcnV2(kind="dcn_v2", dim=4, **given), shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(DcnV2(kind="dcn_v2", dim=4, **given), shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
@pytest.mark.parametrize("contexts", [None, ((), ("f2", "f0"))], ids=["no-gates", "gates"])
def test_finalmlp(groups, tasks, dense, contexts):
    heads, widths = 2, (4, 6)

    def formula(weights: Weights, sample: Sample) -> Array:
        inputs = side_by_side(sample)
        streams = []
        for number, name in enumerate(("first", "second")):
            seen = inputs
            if contexts is not None:
                context = [sample.pooled[feature] for feature in contexts[number]]
                read = np.concatenate(context) if context else weights[f"gates.{number}.learned"][0]
                seen = 2 * sigmoid(perceptron(weights, f"gates.{number}.network", read)) * inputs
            streams.append(perceptron(weights, name, seen, last_relu=True))
        one, other = streams
        logits = weights["fusion.first.weight"] @ one + weights["fusion.first.bias"]
        logits = logits + weights["fusion.second.weight"] @ other
        for head in range(heads):
            left = one[head * widths[0] // heads : (head + 1) * widths[0] // heads]
            right = other[head * widths[1] // heads : (head + 1) * widths[1] // heads]
            by_task = np.split(weights["fusion.inner"][head], tasks, axis=1)
            logits = logits + np.array([left @ own @ right for own in by_task])
        return logits

    gate = None if contexts is None else {"hidden": (3,), "first": contexts[0], "second": contexts[1]}
    model = FinalMlp(kind="finalmlp", dim=4, first=(5, widths[0]), second=(widths[1],), heads=heads, gate=gate)
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)


@CASES
def test_din(groups, tasks, dense):
    def interest(weights: Weights, sample: Sample, number: int, target: str, sequence: str) -> Array:
        wanted = sample.pooled[target]
        total = np.zeros_like(wanted)
        for value, there in zip(*sample.sequences[sequence], strict=True):
            if there:
                read = np.concatenate([value, wanted, value - wanted, value * wanted])
                total += perceptron(weights, f"readers.{number}.unit", read) * value
        return total

    def formula(weights: Weights, sample: Sample) -> Array:
        told = partial(interest, weights, sample)
        interests = [told(0, "f1", "clicked"), told(1, "f1", "bought"), told(2, "f0", "shops")]
        return perceptron(weights, "network", np.concatenate([side_by_side(sample), *interests]))

    sequences = (("clicked", 4, 3), ("shops", 2, 5), ("bought", 4, 2))
    features = (
        *(FeatureShape(f"f{number}", dim, "sum") for number, dim in enumerate((2, 4, 4))),
        *(FeatureShape(name, dim, "none", length) for name, dim, length in sequences),
    )
    attend = {"f1": ("clicked", "bought"), "f0": ("shops",)}
    model = Din(kind="din", dim=4, attend=attend, attention=(5, 3), hidden=(6,))
    order = [[position] for group in groups for position in group]
    agrees(model, InputShape(dense, features, tasks), formula, order)


@CASES
def test_mmoe(groups, tasks, dense):
    experts = 3

    def formula(weights: Weights, sample: Sample) -> Array:
        x = side_by_side(sample)
        said = [perceptron(copy_of(weights, "experts", i), "experts", x, last_relu=True) for i in range(experts)]
        logits = []
        for task in range(tasks):
            gates = softmax(weights["gates.weight"][task * experts : (task + 1) * experts] @ x)
            mixed = sum(gate * own for gate, own in zip(gates, said, strict=True))
            logits.append(perceptron(copy_of(weights, "towers", task), "towers", mixed)[0])
        return np.array(logits)

    model = Mmoe(kind="mmoe", dim=4, experts=experts, expert=(6, 5), tower=(3,))
    agrees(model, shape(dense, (4, 2, 4), tasks), formula, [[0, 2], [1]])
    agrees(model, shape(dense, (4, 4, 4), tasks), formula, groups)
