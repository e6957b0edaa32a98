"""Training by plain formulas in float64: hidden layers, focal loss and Adam as in their papers."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from persia_cli.config.schema.perceptrons import Activation, Norm

Tensor = torch.Tensor
LR, BETA1, BETA2, EPS = 0.01, 0.9, 0.99, 1e-3
"""Settings of Adam, of both sides."""
L2 = 0.05
"""Penalty of dense weights."""
GAMMA, ALPHA, SMOOTHING = 1.5, 0.3, 0.1
"""Settings of the focal loss, and of its labels."""


class Style(NamedTuple):
    """The parts after the linear part of every hidden layer."""

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
        self.updates: dict[str, int] = {}
        self.auxiliary = torch.zeros(())

    def __call__(self, dense: Tensor) -> Tensor:
        """Return logits [n, tasks]; a formula may store auxiliary losses in `auxiliary`."""
        return self.logits(self, dense, self.weights["rows"])

    def step(self, dense: Tensor, labels: Tensor) -> float:
        """Train by one batch; return its mean loss."""
        for weight in self.weights.values():
            weight.requires_grad_()
        loss = (focal_of_samples(self(dense), labels) + self.auxiliary).mean()
        found = torch.autograd.grad(loss, list(self.weights.values()))
        self.steps += 1
        for (name, weight), gradient in zip(self.weights.items(), found, strict=True):
            self.weights[name] = self.adam(name, weight.detach(), gradient)
        return loss.item()

    def adam(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return a weight after a step of Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1; L2 is in the gradient."""
        if name != "rows":
            gradient = gradient + L2 * weight
        self.first[name] = BETA1 * self.first[name] + (1 - BETA1) * gradient
        self.second[name] = BETA2 * self.second[name] + (1 - BETA2) * gradient**2
        mean, square = self.first[name] / (1 - BETA1**self.steps), self.second[name] / (1 - BETA2**self.steps)
        return weight - LR * mean / (square.sqrt() + EPS)

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
        self.norms.add(name)
        return self.over_batch(name, x, 1e-5) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def over_columns(self, name: str, x: Tensor) -> Tensor:
        """Normalise each vector (arXiv 1607.06450), then scale and shift it."""
        self.norms.add(name)
        apart = x - x.mean(-1, keepdim=True)
        x = apart / ((apart**2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def over_batch(self, name: str, x: Tensor, eps: float) -> Tensor:
        """Normalise each column by the batch's statistics; in evaluation, or for a single sample, by running ones."""
        mean, variance = self.means[f"{name}.running_mean"], self.variances[f"{name}.running_var"]
        if self.training and (size := x.shape[-2]) > 1:
            mean_now = x.sum(-2).view(mean.shape) / size
            squares = ((x - mean_now) ** 2).sum(-2).view(mean.shape)
            self.updates[name] = self.updates.get(name, 0) + 1
            rate = max(0.1, 1 / self.updates[name])
            self.means[f"{name}.running_mean"] = (1 - rate) * mean + rate * mean_now.detach()
            self.variances[f"{name}.running_var"] = (1 - rate) * variance + rate * squares.detach() / (size - 1)
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


Formula = Callable[[Plain, Tensor, Tensor], Tensor]
"""Logits [n, tasks] of dense features [n, D] and rows [n, features, dim]."""


def focal_of_samples(z: Tensor, labels: Tensor) -> Tensor:
    """Return the focal loss of each sample whose label is smoothed: one of class 1 and one of class 0, by their shares.

    Half of what a label gives up goes to each of the two classes (arXiv 1512.00567, section 7).
    """
    positive = labels * (1 - SMOOTHING) + SMOOTHING / 2
    return positive * focal_of_class(z, ALPHA) + (1 - positive) * focal_of_class(-z, 1 - ALPHA)


def focal_of_class(toward: Tensor, share: float) -> Tensor:
    """Return -a (1 - p_t)^gamma log p_t (arXiv 1708.02002, equation 5) for p_t = 1 / (1 + exp(-toward))."""
    # Logarithms of p_t and 1 - p_t, of which one may be too near to 0 for a number.
    small = torch.log1p(torch.exp(-toward.abs()))
    zero = torch.zeros_like(toward)
    log_p, log_rest = -(small + torch.maximum(-toward, zero)), -(small + torch.maximum(toward, zero))
    return -share * torch.exp(GAMMA * log_rest) * log_p


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
