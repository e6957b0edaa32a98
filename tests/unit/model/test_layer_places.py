"""Norms, learned activations and dropout are in the places of the papers: outputs and gradients of plain formulas."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from persia_cli.config.schema import Afm, Bst, FinalNet, Ligr, SasRec
from persia_cli.config.schema.perceptrons import Activation, Norm
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape
from tests.unit.model.batches import shape

Tensor = torch.Tensor


class Style(NamedTuple):
    """The parts after the linear part of every hidden layer."""

    norm: Norm
    activation: Activation
    dropout: float
    embedding_dropout: float


class Plain:
    """Copies of the weights of a network by name; evaluations use its running statistics."""

    def __init__(self, network: nn.Module, style: Style) -> None:
        self.weights = {name: weight.detach().clone().requires_grad_() for name, weight in network.named_parameters()}
        self.buffers = dict(network.named_buffers())
        self.style, self.training = style, True

    def perceptron(self, prefix: str, x: Tensor, hidden: int, output: bool = True, norms: bool = True) -> Tensor:
        """Apply hidden layers, each linear, normalised, activated and dropped, and the linear one of the output."""
        norms = norms and self.style.norm != "none"
        for layer in range(hidden):
            place = self.places(layer, norms)
            x = self.linear(f"{prefix}.{place}", x)
            if norms:
                place += 1
                x = self.normalised(f"{prefix}.{place}", x)
            x = self.dropped(self.activated(f"{prefix}.{place + 1}", x), self.style.dropout)
        return self.linear(f"{prefix}.{self.places(hidden, norms)}", x) if output else x

    def places(self, layers: int, norms: bool) -> int:
        """Return how many parts so many hidden layers have."""
        return layers * (2 + norms + (self.style.dropout > 0))

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Apply a linear layer, or to [copies, n, inputs] one for each."""
        weight = self.weights[f"{name}.weight"]
        return x @ (weight.T if weight.ndim == 2 else weight) + self.weights.get(f"{name}.bias", 0.0)

    def normalised(self, name: str, x: Tensor) -> Tensor:
        """Normalise a batch (arXiv 1502.03167), or each of its samples, then scale and shift."""
        if self.style.norm != "batch":
            return self.over_columns(name, x)
        return self.over_batch(name, x, 1e-5) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def over_columns(self, name: str, x: Tensor) -> Tensor:
        """Normalise each vector (arXiv 1607.06450), then scale and shift it."""
        apart = x - x.mean(-1, keepdim=True)
        x = apart / ((apart**2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def over_batch(self, name: str, x: Tensor, eps: float) -> Tensor:
        """Normalise each column by the batch's statistics, or by running ones in evaluation."""
        mean, variance = self.buffers[f"{name}.running_mean"], self.buffers[f"{name}.running_var"]
        if self.training:
            mean = x.mean(-2).view(mean.shape)
            variance = ((x - mean) ** 2).mean(-2).view(variance.shape)
        return (x - mean) / (variance + eps) ** 0.5

    def activated(self, name: str, x: Tensor) -> Tensor:
        """Apply ReLU, PReLU (arXiv 1502.01852, equation 1) or dice (arXiv 1706.06978, equation 3)."""
        match self.style.activation:
            case "relu":
                return torch.where(x > 0, x, torch.zeros_like(x))
            case "prelu":
                return torch.where(x > 0, x, self.weights[f"{name}.weight"] * x)
        assert self.style.activation == "dice"
        p = 1 / (1 + torch.exp(-self.over_batch(f"{name}.norm", x, 1e-8)))
        return p * x + (1 - p) * self.weights[f"{name}.slope"] * x

    def embedded(self, rows: Tensor) -> Tensor:
        """Return rows, some of whose numbers are dropped."""
        return self.dropped(rows, self.style.embedding_dropout)

    def dropped(self, x: Tensor, share: float) -> Tensor:
        """Set this share of numbers to 0 in training, and scale the others: Srivastava et al., JMLR 2014."""
        if not (self.training and share):
            return x
        cases = round(share * 2**16)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).tolist()
        # Each word has four numbers of 16 bits, two's complement, the lowest first.
        numbers = [((word >> 16 * place) + 2**15) % 2**16 for word in words for place in range(4)]
        kept = torch.tensor(numbers[: x.numel()]).view(x.shape) >= cases
        return torch.where(kept, x / (1 - cases / 2**16), torch.zeros_like(x))


def fields_of(plain: Plain, dense: Tensor, rows: Tensor, name: str = "fields.fields.dense") -> list[Tensor]:
    """Return the vector of every feature; a dense feature's is a learned one times its value."""
    vectors = plain.weights[name]
    return [*plain.embedded(rows).unbind(1), *(x.unsqueeze(1) * v for x, v in zip(dense.T, vectors, strict=True))]


def afm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1708.04617, equation 7; dropout is of the weighed sum."""
    fields = fields_of(plain, dense, rows)
    products = [one[:, 1:] * other[:, 1:] for one, other in combinations(fields, 2)]
    hidden = [relu(plain.linear("attention.0", product)) for product in products]
    shares = softmax([plain.linear("attention.2", own) for own in hidden])
    weighed = sum(share * product for share, product in zip(shares, products, strict=True))
    return sum(field[:, :1] for field in fields) + plain.linear("last", plain.dropped(weighed, plain.style.dropout))


def final_block(plain: Plain, prefix: str, x: Tensor, layers: int) -> Tensor:
    """doi 10.1145/3539618.3591988, equation 3, and an output: half of a layer is linear, half a product of both."""
    size = 2 + (plain.style.norm != "none") + (plain.style.dropout > 0)
    for layer in range(layers):
        at = layer * size
        one, other = plain.linear(f"{prefix}.{at}.linear", x).chunk(2, dim=1)
        x = torch.cat([one, one * other], dim=1)
        if plain.style.norm != "none":
            at += 1
            x = plain.normalised(f"{prefix}.{at}", x)
        x = plain.dropped(plain.activated(f"{prefix}.{at + 1}", x), plain.style.dropout)
    return plain.linear(f"{prefix}.{layers * size}", x)


def finalnet(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3539618.3591988, sections 2.1 to 2.3: two blocks, and a gate before the first."""
    fields = fields_of(plain, dense, rows, "fields.dense")
    weights, biases = plain.weights["gate.linear.weight"], plain.weights["gate.linear.bias"]
    gated = []
    for own, bias, vector in zip(weights, biases, fields, strict=True):
        gated.append(vector * (sum(w * other for w, other in zip(own, fields, strict=True)) + bias))
    first = final_block(plain, "first", torch.cat([*fields, *gated], dim=1), layers=2)
    second = final_block(plain, "second", torch.cat(fields, dim=1), layers=2)
    return (first + second) / 2


def sequence_mask(size: int) -> Tensor:
    """Return bool [n, 2]: every other sample has one element only."""
    return torch.arange(2) < (1 + torch.arange(size) % 2).unsqueeze(1)


def attended(plain: Plain, prefix: str, x: Tensor, mask: Tensor, causal: bool) -> Tensor:
    """arXiv 1706.03762, sections 3.2.1 and 3.2.2, of two heads: every token attends to all, or to those up to it."""
    parts = plain.linear(f"{prefix}.project", x).chunk(3, dim=2)
    found = []
    for i in range(x.shape[1]):
        heads = []
        for query, key, value in zip(*(part.chunk(2, dim=2) for part in parts), strict=True):
            seen = range(i + 1 if causal else x.shape[1])
            scores = [(query[:, i] * key[:, j]).sum(1) / query.shape[2] ** 0.5 for j in seen]
            weights = [mask[:, j] * score.exp() for j, score in zip(seen, scores, strict=True)]
            weighed = sum(weight.unsqueeze(1) * value[:, j] for j, weight in zip(seen, weights, strict=True))
            heads.append(weighed / sum(weights).unsqueeze(1))
        found.append(torch.cat(heads, dim=1))
    return plain.linear(f"{prefix}.last", torch.stack(found, dim=1))


def bst(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1905.06874, equations 2 to 5, two blocks; positions are counted from the target, the newest token."""
    rows, sequence, mask = plain.embedded(rows), plain.embedded(rows[:, 1:]), sequence_mask(len(rows))
    positions, lengths = plain.weights["readers.0.positions.vectors"], mask.sum(1, keepdim=True)
    there = torch.cat([torch.ones(len(mask), 1, dtype=torch.bool), mask], dim=1)
    age = torch.cat([torch.zeros_like(lengths), (lengths - torch.arange(2)).clamp(0)], dim=1)
    x = torch.cat([rows[:, :1], sequence], dim=1) + positions[age]
    for number in range(2):
        prefix = f"readers.0.blocks.{number}"
        added = attended(plain, f"{prefix}.attention", x, there, causal=False)
        x = plain.over_columns(f"{prefix}.attended", x + plain.dropped(added, 0.3))
        inner = plain.linear(f"{prefix}.inner", x)
        added = plain.linear(f"{prefix}.outer", torch.where(inner > 0, inner, 0.01 * inner))
        x = plain.over_columns(f"{prefix}.norm", x + plain.dropped(added, 0.3))
    mean = (x * there.unsqueeze(2)).sum(1) / there.sum(1, keepdim=True)
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1), mean], dim=1), hidden=2)


def sequential(plain: Plain, rows: Tensor, block: Callable[[str, Tensor], Tensor]) -> Tensor:
    """Two such blocks on a sequence; the newest element has the position 0, and its state meets the candidate."""
    candidate, sequence = plain.embedded(rows[:, :1])[:, 0], plain.embedded(rows[:, 1:])
    mask = sequence_mask(len(rows))
    age = (mask.sum(1, keepdim=True) - 1 - torch.arange(2)).clamp(0)
    x = plain.dropped(sequence + plain.weights["positions.vectors"][age], plain.style.dropout)
    for number in range(2):
        x = block(f"blocks.{number}", x)
    newest = torch.where(mask[:, 1:], x[:, 1], x[:, 0])
    return (plain.over_columns("norm", newest) * candidate).sum(1, keepdim=True)


def sasrec(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1808.09781, equations 1 to 6, two blocks."""

    def block(prefix: str, x: Tensor) -> Tensor:
        normal = plain.over_columns(f"{prefix}.before", x)
        added = attended(plain, f"{prefix}.attention", normal, sequence_mask(len(x)), causal=True)
        x = x + plain.dropped(added, plain.style.dropout)
        inner = relu(plain.linear(f"{prefix}.inner", plain.over_columns(f"{prefix}.between", x)))
        inner = plain.dropped(inner, plain.style.dropout)
        return x + plain.dropped(plain.linear(f"{prefix}.outer", inner), plain.style.dropout)

    return sequential(plain, rows, block)


def ligr(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2502.03417, gated residuals, and SwiGLU of arXiv 2002.05202, equation 6; two blocks."""

    def block(prefix: str, x: Tensor) -> Tensor:
        normal = plain.over_columns(f"{prefix}.before", x)
        added = attended(plain, f"{prefix}.attention", normal, sequence_mask(len(x)), causal=True)
        x = x + sigmoid(plain.linear(f"{prefix}.attended", x)) * plain.dropped(added, plain.style.dropout)
        gate, up = plain.linear(f"{prefix}.inner", plain.over_columns(f"{prefix}.between", x)).chunk(2, dim=2)
        inner = plain.dropped(gate * sigmoid(gate) * up, plain.style.dropout)
        added = plain.dropped(plain.linear(f"{prefix}.outer", inner), plain.style.dropout)
        return x + sigmoid(plain.linear(f"{prefix}.fed", x)) * added

    return sequential(plain, rows, block)


def relu(x: Tensor) -> Tensor:
    """Return the greater one of x and 0."""
    return torch.where(x > 0, x, torch.zeros_like(x))


def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function of each number."""
    return 1 / (1 + torch.exp(-x))


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """Return exp of each over their sum."""
    total = sum(score.exp() for score in scores)
    return [score.exp() / total for score in scores]


DENSE, FIELDS, DIM, SIZE = 3, 3, 6, 9
ATTEND = {"f0": ("clicked",)}
FORMULAS = {"afm": afm, "finalnet": finalnet, "bst": bst, "sasrec": sasrec, "ligr": ligr}
MODELS: dict[str, Any] = {
    "afm": Afm(kind="afm", dim=DIM, attention=4),
    "finalnet": FinalNet(kind="finalnet", dim=DIM, first=(8, 6), second=(6, 4), gate=True),
    "bst": Bst(kind="bst", dim=DIM, attend=ATTEND, layers=2, heads=2, inner=7, attention_dropout=0.3, hidden=(8, 6)),
    "sasrec": SasRec(kind="sasrec", dim=DIM, attend=ATTEND, layers=2, heads=2),
    "ligr": Ligr(kind="ligr", dim=DIM, attend=ATTEND, layers=2, heads=2),
}
NEXT_ITEM = ("sasrec", "ligr")
"""Networks that read a sequence and a candidate alone."""
WITHOUT_STYLE = ("afm", *NEXT_ITEM)
"""Networks without hidden layers that take a norm and an activation."""
STYLES = [
    Style(norm, activation, dropout=0.4, embedding_dropout=0.2)
    for norm, activation in (("none", "relu"), ("batch", "dice"), ("layer", "prelu"))
]
CASES = [case for case in product(MODELS, STYLES) if case[1] == STYLES[0] or case[0] not in WITHOUT_STYLE]


@pytest.mark.parametrize(("kind", "style"), CASES, ids=lambda part: part if isinstance(part, str) else part.norm)
def test_training_and_evaluation_are_those_of_the_formula(kind: str, style: Style) -> None:
    """Both sides draw the same numbers where each has dropout in the same place."""
    changes = {key: value for key, value in style._asdict().items() if key in type(MODELS[kind]).model_fields}
    wanted = shape(0 if kind in NEXT_ITEM else DENSE, (DIM,) * (1 if kind in NEXT_ITEM else FIELDS))
    names = [feature.name for feature in wanted.features]
    reads_sequence = hasattr(MODELS[kind], "attend")
    if reads_sequence:
        # Its elements are the rows of the other features.
        wanted = replace(wanted, features=(*wanted.features, FeatureShape("clicked", DIM, "none", FIELDS - 1)))
    network = build_model(MODELS[kind].model_copy(update=changes), wanted, 3).double()
    plain = Plain(network, style)
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(SIZE, wanted.dense, generator=generator, dtype=torch.float64)
    rows = torch.randn(SIZE, FIELDS, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    sequences = {"clicked": (rows[:, 1:], sequence_mask(SIZE))} if reads_sequence else {}
    batch = ModelBatch(dense, [rows[:, : len(names)]], [names], sequences)
    scores = torch.randn(SIZE, 1, generator=generator, dtype=torch.float64)
    for training in (True, False):
        network.train(training)
        plain.training = training
        torch.manual_seed(1)
        ours = network(batch)
        torch.manual_seed(1)
        theirs = FORMULAS[kind](plain, dense, rows)
        torch.testing.assert_close(ours, theirs)
        gradients = [
            torch.autograd.grad((scores * logits).sum(), [*weights, rows])
            for logits, weights in ((ours, network.parameters()), (theirs, plain.weights.values()))
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)
