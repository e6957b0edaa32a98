"""Networks trained by plain formulas in float64: hidden layers, focal loss and Adam as their papers have them."""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import nn

from persia_cli.config.schema.perceptrons import Activation, Norm

Tensor = torch.Tensor
LR, BETA1, BETA2, EPS = 0.01, 0.9, 0.99, 1e-3
"""Settings of Adam, of both sides."""
L2 = {"weight": 0.05, "bias": 0.01, "norm": 0.02}
"""Penalties of dense weights by their kind."""
GAMMA, ALPHA = 1.5, 0.3
"""Settings of the focal loss."""


class Style(NamedTuple):
    """What follows the linear part of every hidden layer."""

    norm: Norm
    activation: Activation
    dropout: float
    embedding_dropout: float


class Plain:
    """The weights of a network and the running statistics of its layers, by name; `logits` is its paper's formula."""

    def __init__(self, network: nn.Module, style: Style, logits: "Formula", rows: Tensor) -> None:
        self.weights = {name: weight.detach().clone() for name, weight in network.named_parameters()}
        self.weights["rows"] = rows.clone()
        self.means = {name: torch.zeros_like(mean) for name, mean in network.named_buffers() if "running_mean" in name}
        self.variances = {name.replace("mean", "var"): torch.ones_like(mean) for name, mean in self.means.items()}
        self.first = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.style, self.logits, self.training, self.steps = style, logits, True, 0
        self.norms: set[str] = set()

    def __call__(self, dense: Tensor) -> Tensor:
        """Return logits [n, 1]."""
        rows = self.weights["rows"]
        return self.logits(self, dense, self.dropped(rows, self.style.embedding_dropout))

    def step(self, dense: Tensor, labels: Tensor) -> float:
        """Train by one batch; return its mean loss."""
        for weight in self.weights.values():
            weight.requires_grad_()
        loss = focal_of_samples(self(dense)[:, 0], labels).mean()
        found = torch.autograd.grad(loss, list(self.weights.values()))
        self.steps += 1
        for (name, weight), gradient in zip(self.weights.items(), found, strict=True):
            self.weights[name] = self.adam(name, weight.detach(), gradient)
        return loss.item()

    def adam(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return a weight after a step of Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1; L2 is in the gradient."""
        if name != "rows":
            kind = "bias" if name.endswith(".bias") else "weight"
            gradient = gradient + L2["norm" if name.rpartition(".")[0] in self.norms else kind] * weight
        self.first[name] = BETA1 * self.first[name] + (1 - BETA1) * gradient
        self.second[name] = BETA2 * self.second[name] + (1 - BETA2) * gradient**2
        mean, square = self.first[name] / (1 - BETA1**self.steps), self.second[name] / (1 - BETA2**self.steps)
        return weight - LR * mean / (square.sqrt() + EPS)

    def perceptron(self, prefix: str, x: Tensor, hidden: int, output: bool = True) -> Tensor:
        """Apply hidden layers, each linear, normalised, activated and dropped, and the linear one of the output."""
        for layer in range(hidden):
            place = self.places(layer)
            x = self.linear(f"{prefix}.{place}", x)
            if self.style.norm != "none":
                place += 1
                x = self.normalised(f"{prefix}.{place}", x)
            x = self.dropped(self.activated(f"{prefix}.{place + 1}", x), self.style.dropout)
        return self.linear(f"{prefix}.{self.places(hidden)}", x) if output else x

    def places(self, layers: int) -> int:
        """Return how many parts so many hidden layers have."""
        return layers * (2 + (self.style.norm != "none") + (self.style.dropout > 0))

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Apply a linear layer, or to [copies, n, inputs] one for each."""
        weight = self.weights[f"{name}.weight"]
        return x @ (weight.T if weight.ndim == 2 else weight) + self.weights.get(f"{name}.bias", 0.0)

    def normalised(self, name: str, x: Tensor) -> Tensor:
        """Normalise a batch (arXiv 1502.03167), or each of its samples (arXiv 1607.06450), then scale and shift."""
        self.norms.add(name)
        if self.style.norm == "batch":
            x = self.over_batch(name, x, 1e-5)
        else:
            apart = x - x.mean(-1, keepdim=True)
            x = apart / ((apart**2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def over_batch(self, name: str, x: Tensor, eps: float) -> Tensor:
        """Normalise each column by the batch's figures; in evaluation, or for a single sample, by running ones."""
        mean, variance = self.means[f"{name}.running_mean"], self.variances[f"{name}.running_var"]
        if self.training and (size := x.shape[-2]) > 1:
            mean_now = x.sum(-2).view(mean.shape) / size
            squares = ((x - mean_now) ** 2).sum(-2).view(mean.shape)
            self.means[f"{name}.running_mean"] = 0.9 * mean + 0.1 * mean_now.detach()
            self.variances[f"{name}.running_var"] = 0.9 * variance + 0.1 * squares.detach() / (size - 1)
            mean, variance = mean_now, squares / size
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

    def dropped(self, x: Tensor, share: float) -> Tensor:
        """Set this share of numbers to 0 while it trains, and scale the others: Srivastava et al., JMLR 2014."""
        if not (self.training and share):
            return x
        kept = torch.empty_like(x).bernoulli_(1 - share)
        return x * kept / (1 - share)


Formula = Callable[[Plain, Tensor, Tensor], Tensor]
"""Logits [n, 1] of dense features [n, D] and rows [n, features, dim]."""


def focal_of_samples(z: Tensor, labels: Tensor) -> Tensor:
    """Return -a (1 - p_t)^gamma log p_t of each sample (arXiv 1708.02002, equation 5), p_t as 1 / (1 + exp(-+z))."""
    toward = torch.where(labels == 1, z, -z)
    # Logarithms of p_t and 1 - p_t, of which one may be too near to 0 for a number.
    small = torch.log1p(torch.exp(-toward.abs()))
    zero = torch.zeros_like(z)
    log_p, log_rest = -(small + torch.maximum(-toward, zero)), -(small + torch.maximum(toward, zero))
    share = ALPHA * labels + (1 - ALPHA) * (1 - labels)
    return -share * torch.exp(GAMMA * log_rest) * log_p


def fields_of(plain: Plain, dense: Tensor, rows: Tensor) -> list[Tensor]:
    """Return the vector of every feature; a dense feature's is a learned one times its value."""
    vectors = plain.weights["fields.fields.dense"]
    return [*rows.unbind(1), *(x.unsqueeze(1) * v for x, v in zip(dense.T, vectors, strict=True))]


def ffnn(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """A perceptron."""
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1)], dim=1), hidden=2)


def wide_deep(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1606.07792, section 3.3."""
    deep = torch.cat([dense, *(row[:, 1:] for row in rows.unbind(1))], dim=1)
    wide = sum(row[:, :1] for row in rows.unbind(1)) + plain.linear("linear", dense)
    return wide + plain.perceptron("network", deep, hidden=2)


def deepfm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1703.04247, equations 1 to 4."""
    fields = fields_of(plain, dense, rows)
    vectors = [field[:, 1:] for field in fields]
    pairs = sum((one * other).sum(1, keepdim=True) for one, other in combinations(vectors, 2))
    return sum(field[:, :1] for field in fields) + pairs + plain.perceptron("network", torch.cat(vectors, 1), hidden=2)


def dlrm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1906.00091, section 2.1."""
    bottom = plain.perceptron("bottom", dense, hidden=1)
    bottom = plain.activated(f"bottom.{plain.places(1) + 1}", bottom)
    vectors = [bottom, *rows.unbind(1)]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
    return plain.perceptron("top", torch.cat([bottom, torch.stack(products, dim=1)], dim=1), hidden=2)


def dcn_v2(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2008.13535, section 3, a perceptron beside the cross layers."""
    first = x = torch.cat([dense, *rows.unbind(1)], dim=1)
    for number in range(2):
        x = first * plain.linear(f"cross.{number}.up", x) + x
    deep = plain.perceptron("deep", first, hidden=2, output=False)
    return plain.linear("last", torch.cat([x, deep], dim=1))


def gdcn(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2311.04635, equation 2, a perceptron beside the cross layers."""
    first = x = torch.cat([dense, *rows.unbind(1)], dim=1)
    for number in range(2):
        gate = 1 / (1 + torch.exp(-plain.linear(f"cross.{number}.gate", x)))
        x = first * plain.linear(f"cross.{number}.cross", x) * gate + x
    deep = plain.perceptron("deep", first, hidden=2, output=False)
    return plain.linear("last", torch.cat([x, deep], dim=1))


def xdeepfm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1803.05170, equations 6 to 9, one layer of three maps."""
    fields = fields_of(plain, dense, rows)
    vectors = [field[:, 1:] for field in fields]
    products = [one * other for one in vectors for other in vectors]
    mixed = plain.weights["interactions.layers.0.weight"]
    sums = [sum(w * each for w, each in zip(own, products, strict=True)).sum(1) for own in mixed]
    crossed = plain.linear("weights", torch.stack(sums, dim=1))
    return (
        sum(field[:, :1] for field in fields) + crossed + plain.perceptron("network", torch.cat(vectors, 1), hidden=2)
    )


def din(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1706.06978, section 4.3: the first row is the target, the others are a sequence, whose last may miss."""
    target, *elements = rows.unbind(1)
    interest = torch.zeros_like(target)
    for there, value in zip(sequence_mask(len(rows)).T, elements, strict=True):
        x = plain.linear("readers.0.unit.0", torch.cat([value, target, value - target, value * target], dim=1))
        x = torch.where(x > 0, x, plain.weights["readers.0.unit.1.weight"] * x)
        interest = interest + there.unsqueeze(1) * plain.linear("readers.0.unit.2", x) * value
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1), interest], dim=1), hidden=2)


def sequence_mask(size: int) -> Tensor:
    """Return bool [n, 2]: every other sample has one element only."""
    return torch.arange(2) < (1 + torch.arange(size) % 2).unsqueeze(1)


def mmoe(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3219819.3220007, equations 5 to 7, for one task."""
    x = torch.cat([dense, *rows.unbind(1)], dim=1)
    experts = plain.perceptron("experts", x.unsqueeze(0), hidden=2, output=False)
    gates = plain.linear("gates", x).exp()
    mixed = sum(
        gate.unsqueeze(1) * own for gate, own in zip((gates / gates.sum(1, keepdim=True)).T, experts, strict=True)
    )
    return plain.perceptron("towers", mixed.unsqueeze(0), hidden=1)[0]


def afm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1708.04617, equation 7; dropout is of the weighed sum."""
    fields = fields_of(plain, dense, rows)
    products = [one[:, 1:] * other[:, 1:] for one, other in combinations(fields, 2)]
    hidden = [plain.linear("attention.0", product) for product in products]
    scores = [plain.linear("attention.2", torch.where(own > 0, own, torch.zeros_like(own))) for own in hidden]
    total = sum(score.exp() for score in scores)
    weighed = sum(score.exp() / total * product for score, product in zip(scores, products, strict=True))
    return sum(field[:, :1] for field in fields) + plain.linear("last", plain.dropped(weighed, plain.style.dropout))
