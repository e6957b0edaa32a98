"""Networks of sequences equal the formulas of their papers, and so do their gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from persia_cli.config.schema import Bst, Dien, Hstu, Ligr, SasRec
from persia_cli.config.schema.sequences import Sequential
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.dien import next_item_losses, others_of
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.by_hand import Array, Sample, Weights, agrees, perceptron, side_by_side, sigmoid, softmax

FEATURES = (
    *(FeatureShape(f"f{number}", dim, "sum") for number, dim in enumerate((2, 4))),
    FeatureShape("clicked", 4, "none", 3),
    FeatureShape("shops", 2, "none", 5),
)
ATTEND = {"f1": ("clicked",), "f0": ("shops",)}
CLICKED = {"f0": ("clicked",)}
CASES = pytest.mark.parametrize(("tasks", "dense"), [(1, 2), (3, 0)])


def linear(weights: Weights, prefix: str, x: Array) -> Array:
    return np.asarray(weights[f"{prefix}.weight"] @ x + weights.get(f"{prefix}.bias", 0.0))


def normalised(weights: Weights, prefix: str, x: Array, eps: float = 1e-5) -> Array:
    return np.asarray(
        (x - x.mean()) / np.sqrt(x.var() + eps) * weights[f"{prefix}.weight"] + weights.get(f"{prefix}.bias", 0.0)
    )


def there(sample: Sample, sequence: str) -> list[Array]:
    """The elements of a sequence."""
    return [value for value, present in zip(*sample.sequences[sequence], strict=True) if present]


def recurrent(weights: Weights, prefix: str, values: list[Array], shares: list[float], dim: int) -> list[Array]:
    """The states of gated recurrent units with attentional update gates, equations 2 to 5 and 13 of DIEN's paper."""
    state, states = np.zeros(dim), []
    for value, share in zip(values, shares, strict=True):
        reads, keeps = linear(weights, f"{prefix}.read", value), linear(weights, f"{prefix}.keep", state)
        update, reset = (sigmoid(reads[at : at + dim] + keeps[at : at + dim]) for at in (0, dim))
        candidate = np.tanh(reads[2 * dim :] + reset * keeps[2 * dim :])
        state = (1 - share * update) * state + share * update * candidate
        states.append(state)
    return states


@CASES
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_dien(tasks, dense, alpha):
    def interests(weights: Weights, number: int, values: list[Array]) -> list[Array]:
        return recurrent(weights, f"readers.{number}.extract", values, [1.0] * len(values), len(values[0]))

    def evolved(weights: Weights, sample: Sample, number: int, target: str, sequence: str) -> Array:
        wanted, values = sample.pooled[target], there(sample, sequence)
        if not values:
            return np.zeros_like(wanted)
        prefix, states = f"readers.{number}", interests(weights, number, values)
        asked = linear(weights, f"{prefix}.relevance", wanted)
        shares = softmax(np.array([state @ asked for state in states]))
        return recurrent(weights, f"{prefix}.evolve", states, list(shares), len(wanted))[-1]

    def formula(weights: Weights, sample: Sample) -> Array:
        found = [evolved(weights, sample, 0, "f1", "clicked"), evolved(weights, sample, 1, "f0", "shops")]
        return perceptron(weights, "network", np.concatenate([side_by_side(sample), *found]))

    def auxiliary(weights: Weights, samples: list[Sample]) -> Array:
        """Equation 6 of the paper, over the places that a sequence has for a next element."""
        losses = np.zeros((len(samples), 1))
        for i, sample in enumerate(samples):
            for number, (sequence, longest) in enumerate([("clicked", 3), ("shops", 5)]):
                own, other = there(sample, sequence), there(samples[i - len(samples) // 2], sequence)
                for t, state in enumerate(interests(weights, number, own)[:-1] if own and other else ()):
                    taken, left = sigmoid(state @ own[t + 1]), sigmoid(state @ other[(t + 1) % len(other)])
                    losses[i] -= alpha * (np.log(taken) + np.log(1 - left)) / (longest - 1)
        assert np.count_nonzero(losses) == 4
        return losses

    model = Dien(kind="dien", dim=4, attend=ATTEND, hidden=(6,), auxiliary_weight=alpha)
    shape = InputShape(dense, FEATURES, tasks)
    agrees(model, shape, formula, [[0], [1]], size=7, auxiliary=auxiliary if alpha else None)


def test_negatives_of_dien_are_of_the_sample_half_a_batch_away():
    values = torch.arange(5 * 3, dtype=torch.float32).view(5, 3, 1)
    mask = torch.arange(3) < torch.tensor([2, 0, 3, 1, 3]).unsqueeze(1)
    others, there = others_of(values, mask)
    assert others[:, :, 0].tolist() == [[9, 9, 9], [12, 13, 14], [0, 1, 0], [3, 3, 3], [6, 7, 8]]
    assert there.tolist() == [True, True, True, False, True]
    alike = torch.zeros(4, 3, 2)
    everywhere = torch.ones(4, 3, dtype=torch.bool)
    assert not next_item_losses(torch.ones(4, 3, 2), alike, everywhere).any()
    # Dropout makes equal elements differ.
    dropped = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).unsqueeze(1).expand(4, 3, 2)
    assert next_item_losses(torch.ones(4, 3, 2), dropped, everywhere).any()
    assert not next_item_losses(torch.ones(4, 3, 2), dropped, everywhere, alike).any()


def test_a_sequence_without_next_elements_has_none_to_learn():
    features = (FeatureShape("f0", 4, "sum"), FeatureShape("clicked", 4, "none", 1))
    model = Dien(kind="dien", dim=4, attend={"f0": ("clicked",)}, hidden=(6,), auxiliary_weight=0.5)
    with pytest.raises(ConfigError, match=r"auxiliary_weight=0.5 .* clicked .* max_length"):
        build_model(model, InputShape(0, features, 1), seed=0)
    build_model(model.model_copy(update={"auxiliary_weight": 0.0}), InputShape(0, features, 1), seed=0)


def attention(weights: Weights, prefix: str, tokens: list[Array], heads: int, causal: bool) -> list[Array]:
    """Scaled dot-product attention of every token to all, or to those up to itself."""
    projected = [np.split(linear(weights, f"{prefix}.project", token), 3) for token in tokens]
    found, head = [], len(tokens[0]) // heads
    for number in range(len(tokens)):
        parts = []
        for first in range(0, heads * head, head):
            own = slice(first, first + head)
            seen = projected[: number + 1] if causal else projected
            shares = softmax(np.array([projected[number][0][own] @ key[own] / np.sqrt(head) for _, key, _ in seen]))
            parts.append(sum(share * value[own] for share, (_, _, value) in zip(shares, seen, strict=True)))
        found.append(linear(weights, f"{prefix}.last", np.concatenate(parts)))
    return found


@CASES
def test_bst(tasks, dense):
    def transformed(weights: Weights, sample: Sample, number: int, target: str, sequence: str) -> Array:
        prefix, values = f"readers.{number}", there(sample, sequence)
        positions = weights[f"{prefix}.positions.vectors"]
        # The target is the newest, in position 0.
        tokens = [value + positions[len(values) - at] for at, value in enumerate(values)]
        tokens.append(sample.pooled[target] + positions[0])
        for layer in range(2):
            own = f"{prefix}.blocks.{layer}"
            added = attention(weights, f"{own}.attention", tokens, 2, causal=False)
            tokens = [normalised(weights, f"{own}.attended", x + y) for x, y in zip(tokens, added, strict=True)]
            fed = []
            for token in tokens:
                inner = linear(weights, f"{own}.inner", token)
                fed.append(linear(weights, f"{own}.outer", np.where(inner > 0, inner, 0.01 * inner)))
            tokens = [normalised(weights, f"{own}.norm", x + y) for x, y in zip(tokens, fed, strict=True)]
        return np.mean(tokens, axis=0)

    def formula(weights: Weights, sample: Sample) -> Array:
        found = [transformed(weights, sample, 0, "f1", "clicked"), transformed(weights, sample, 1, "f0", "shops")]
        return perceptron(weights, "network", np.concatenate([side_by_side(sample), *found]))

    model = Bst(kind="bst", dim=4, attend=ATTEND, layers=2, heads=2, inner=5, hidden=(6,))
    agrees(model, InputShape(dense, FEATURES, tasks), formula, [[0], [1]])


HEADS = pytest.mark.parametrize("heads", [1, 2])
Block = Callable[[Weights, str, list[Array], int], list[Array]]
"""The next tokens of a layer with this prefix and number of heads."""


def agrees_with_blocks(model: Sequential, block: Block) -> None:
    """Check a network whose logit is the product of the candidate and of the last state of two such blocks."""

    def formula(weights: Weights, sample: Sample) -> Array:
        values = there(sample, "clicked")
        if not values:
            return np.zeros(1)
        positions = weights["positions.vectors"]
        tokens = [value + positions[len(values) - 1 - at] for at, value in enumerate(values)]
        for layer in range(2):
            tokens = block(weights, f"blocks.{layer}", tokens, model.heads)
        return np.array([normalised(weights, "norm", tokens[-1]) @ sample.pooled["f0"]])

    features = (FeatureShape("f0", 4, "sum"), FeatureShape("clicked", 4, "none", 3))
    agrees(model, InputShape(0, features, 1), formula, [[0]])


@HEADS
def test_sasrec(heads):
    def block(weights: Weights, own: str, tokens: list[Array], heads: int) -> list[Array]:
        normal = [normalised(weights, f"{own}.before", token) for token in tokens]
        added = attention(weights, f"{own}.attention", normal, heads, causal=True)
        tokens = [x + y for x, y in zip(tokens, added, strict=True)]
        fed = []
        for token in tokens:
            inner = linear(weights, f"{own}.inner", normalised(weights, f"{own}.between", token))
            fed.append(linear(weights, f"{own}.outer", np.maximum(inner, 0)))
        return [x + y for x, y in zip(tokens, fed, strict=True)]

    agrees_with_blocks(SasRec(kind="sasrec", dim=4, attend=CLICKED, layers=2, heads=heads), block)


@HEADS
def test_ligr(heads):
    def block(weights: Weights, own: str, tokens: list[Array], heads: int) -> list[Array]:
        normal = [normalised(weights, f"{own}.before", token) for token in tokens]
        added = attention(weights, f"{own}.attention", normal, heads, causal=True)
        tokens = [x + sigmoid(linear(weights, f"{own}.attended", x)) * y for x, y in zip(tokens, added, strict=True)]
        found = []
        for token in tokens:
            gate, up = np.split(linear(weights, f"{own}.inner", normalised(weights, f"{own}.between", token)), 2)
            fed = linear(weights, f"{own}.outer", gate * sigmoid(gate) * up)
            found.append(token + sigmoid(linear(weights, f"{own}.fed", token)) * fed)
        return found

    agrees_with_blocks(Ligr(kind="ligr", dim=4, attend=CLICKED, layers=2, heads=heads, expansion=2), block)


@HEADS
def test_hstu(heads):
    def silu(x: Array) -> Array:
        return x * sigmoid(x)

    def block(weights: Weights, own: str, tokens: list[Array], heads: int) -> list[Array]:
        """Equations 1 to 3 of arXiv 2402.17152, with the greatest length 3."""
        projected = [
            np.split(silu(linear(weights, f"{own}.project", normalised(weights, f"{own}.before", token, 1e-6))), 4)
            for token in tokens
        ]
        found, head = [], len(tokens[0]) // heads
        for i, (token, (u, _, query, _)) in enumerate(zip(tokens, projected, strict=True)):
            parts = []
            for first in range(0, heads * head, head):
                at = slice(first, first + head)
                seen = enumerate(projected[: i + 1])
                parts.append(
                    sum(
                        silu(query[at] @ key[at] + weights[f"{own}.distances"][i - j]) / 3 * value[at]
                        for j, (_, value, _, key) in seen
                    )
                )
            gated = u * normalised(weights, f"{own}.between", np.concatenate(parts), 1e-6)
            found.append(token + linear(weights, f"{own}.last", gated))
        return found

    agrees_with_blocks(Hstu(kind="hstu", dim=4, attend=CLICKED, layers=2, heads=heads), block)


def test_heads_that_do_not_divide_rows_are_refused():
    bst = Bst(kind="bst", dim=4, attend=ATTEND, layers=1, heads=4, inner=5, hidden=(6,))
    with pytest.raises(ConfigError, match=r"model.heads=4 .* shops .* 2 columns"):
        build_model(bst, InputShape(0, FEATURES, 1), seed=0)
    sasrec = SasRec(kind="sasrec", dim=4, attend={"f1": ("clicked",)}, layers=1, heads=1)
    with pytest.raises(ConfigError, match=r"model.kind=sasrec .* f0; "):
        build_model(sasrec, InputShape(0, FEATURES[:3], 1), seed=0)
    with pytest.raises(ConfigError, match=r"also has dense features"):
        build_model(sasrec, InputShape(2, FEATURES[1:3], 1), seed=0)
    with pytest.raises(ValidationError, match="one candidate and its sequence"):
        SasRec(kind="sasrec", dim=4, attend={"f1": ("clicked", "bought")}, layers=1, heads=1)
