"""Perceptrons of all networks: linear layers, and `model.activation`, `norm`, ... after each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import dropout, layer_norm, relu

from persia_cli.config.schema.perceptrons import Activation, Norm, Perceptrons
from persia_cli.model.batch_norm import BatchNorm

CASES = 2**16
"""Number of equally likely cases of dropout; a share is a whole number of them."""
DRAWN = 4
"""Number of values for which one draw of 64 bits is used."""


def dropped(values: torch.Tensor, share: float) -> torch.Tensor:
    """Return values of which this share is 0, by torch's random numbers, and the others scaled to the same mean.

    On a CPU, torch's own function draws a double for each number, which takes as long as the layer before. Elsewhere,
    and in code that the compiler traces, torch's own is used.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return dropout(values, share)
    cases = min(round(share * CASES), CASES - 1)
    drawn = torch.empty(-(-values.numel() // DRAWN), dtype=torch.int64).random_(-(2**63), None)
    numbers = drawn.view(torch.int16)[: values.numel()].view(values.shape)
    # From lowest to highest int16; as the values' own type, since a product with truth values is slow.
    mask = (numbers >= cases - CASES // 2).to(values.dtype)
    return values * mask.mul_(CASES / (CASES - cases))


class Dropout(nn.Dropout):
    """`dropped` in training; the identity in evaluation: Srivastava et al., JMLR 2014."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of any shape, dropped in training."""
        return dropped(inputs, self.p) if self.training and self.p else inputs


class ParametricRelu(nn.Module):
    """ReLU with a learned slope of each column below zero: He et al., arXiv 1502.01852."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, 0.25))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., width] of [..., width]."""
        # The gradient of clamp at 0 is 1. So the slope there, of zero biases and empty lists, is torch's own.
        return relu(inputs) + self.weight * inputs.clamp(max=0.0)


class Dice(nn.Module):
    """p(s) s + (1 - p(s)) a s, with p the sigmoid of s normalised over the batch, and a slope a of each column.

    Equation 3 of Zhou et al., arXiv 1706.06978; slopes begin at 0.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.norm = BatchNorm(*shape, affine=False, eps=1e-8)
        self.slope = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., n, width] of [..., n, width]."""
        share = torch.sigmoid(self.norm(inputs))
        return inputs * (share + (1.0 - share) * self.slope)


class LayerNorm(nn.Module):
    """Normalisation of each sample over its columns, then a scale and an offset: Ba et al., arXiv 1607.06450."""

    bias: nn.Parameter | None

    def __init__(self, *shape: int, bias: bool = True, eps: float = 1e-5) -> None:
        """Normalise [..., n, width] with `shape` as of `BatchNorm`; without `bias` there is no offset."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape))
        self.register_parameter("bias", nn.Parameter(torch.zeros(shape)) if bias else None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., n, width] of [..., n, width]."""
        scaled = layer_norm(inputs, inputs.shape[-1:], eps=self.eps) * self.weight
        return scaled if self.bias is None else scaled + self.bias


ACTIVATIONS: dict[Activation, Callable[..., nn.Module]] = {
    "relu": lambda *shape: nn.ReLU(),
    "gelu": lambda *shape: nn.GELU(),
    "silu": lambda *shape: nn.SiLU(),
    "sigmoid": lambda *shape: nn.Sigmoid(),
    "tanh": lambda *shape: nn.Tanh(),
    "none": lambda *shape: nn.Identity(),
    "prelu": ParametricRelu,
    "dice": Dice,
}
"""Each activation, made for the shape of its learned values: (width,) or (copies, 1, width)."""
NORMS: dict[Norm, Callable[..., nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm}


@dataclass(frozen=True)
class LayerStyle:
    """The parts after each hidden linear layer; activation and dropout are one for all, or one for each."""

    activation: Activation | Sequence[Activation] = "relu"
    norm: Norm = "none"
    dropout: float | Sequence[float] = 0.0
    bias: bool = True
    """True if linear layers have a bias, that of the output too; `hidden_bias` has the exception."""

    @property
    def hidden_bias(self) -> bool:
        """True if the linear part of a hidden layer has a bias: batch normalisation would subtract it again.

        Its gradient would be rounding noise, which Adam scales to full steps, and the running mean would lag behind.
        """
        return self.bias and self.norm != "batch"

    def activate(self, layer: int, *shape: int) -> nn.Module:
        """Return the activation of a layer, counted from 0; layers without their own have the last one."""
        kinds = [self.activation] if isinstance(self.activation, str) else self.activation
        return ACTIVATIONS[kinds[min(layer, len(kinds) - 1)]](*shape)

    def after(self, layer: int, *shape: int) -> list[nn.Module]:
        """Return those of normalisation, activation and dropout that a hidden layer has, in this order."""
        share = self.dropout if isinstance(self.dropout, float | int) else self.dropout[layer]
        return [
            *([NORMS[self.norm](*shape)] if self.norm != "none" else ()),
            self.activate(layer, *shape),
            *([Dropout(share)] if share else ()),
        ]


PLAIN = LayerStyle()


def style_of(settings: Perceptrons) -> LayerStyle:
    """Return the style of a network's hidden layers; without a plan, which settles `auto`, they are plain."""
    dropout = 0.0 if settings.dropout == "auto" else settings.dropout
    return LayerStyle(settings.activation, settings.norm, dropout, settings.bias)


def hidden_layers(inputs: int, widths: Sequence[int], style: LayerStyle) -> nn.Sequential:
    """Hidden layers of the widths given, the last one included, from [n, inputs]."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise([inputs, *widths])):
        layers += [nn.Linear(before, after, bias=style.hidden_bias), *style.after(number, after)]
    return nn.Sequential(*layers)


def fully_connected(
    inputs: int, hidden: Sequence[int], outputs: int, style: LayerStyle = PLAIN, activate_last: bool = False
) -> nn.Sequential:
    """Hidden layers and a linear one of `outputs` columns; with `activate_last` it has an activation only."""
    last = nn.Linear([inputs, *hidden][-1], outputs, bias=style.bias)
    layers = [*hidden_layers(inputs, hidden, style), last]
    return nn.Sequential(*layers, *([style.activate(len(hidden), outputs)] if activate_last else ()))


class JoinedLinear(nn.Linear):
    """Linear layers with the same input, as one matrix of stacked rows; each is initialized as if it were alone."""

    def __init__(self, inputs: int, outputs: int, parts: int, bias: bool = True) -> None:
        """Join as many layers as `parts`, each of as many `outputs`."""
        super().__init__(inputs, parts * outputs, bias)
        self.parts = parts

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Return the matrix [outputs, inputs] of each layer."""
        return self.weight.chunk(self.parts)


class SummedLinear(nn.Linear):
    """Linear layers with an input each, as one matrix of concatenated columns; their outputs are added up.

    Each is initialized as if it were alone. They have one bias.
    """

    def __init__(self, inputs: int, outputs: int, parts: int) -> None:
        """Join as many layers as `parts`, each of as many `inputs`."""
        self.parts, self.bound = parts, inputs**-0.5
        super().__init__(parts * inputs, outputs)

    def reset_parameters(self) -> None:
        """Draw the weights as torch does for a layer of one part."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -self.bound, self.bound)

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Return the matrix [outputs, inputs] of each layer."""
        return self.weight.chunk(self.parts, dim=1)


class ParallelLinear(nn.Module):
    """Linear layers of one shape, computed at once; they are initialized as torch's `nn.Linear`."""

    bias: nn.Parameter | None

    def __init__(self, copies: int, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(copies, inputs, outputs).uniform_(-bound, bound))
        start = torch.empty(copies, 1, outputs).uniform_(-bound, bound) if bias else None
        self.register_parameter("bias", None if start is None else nn.Parameter(start))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float [copies, n, outputs] of float [copies, n, inputs]: a layer for each."""
        if self.bias is None:
            return torch.bmm(inputs, self.weight)
        return torch.baddbmm(self.bias, inputs, self.weight)

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Return the matrix [outputs, inputs] of each layer."""
        return self.weight.transpose(1, 2).unbind()


def parallel_hidden_layers(copies: int, inputs: int, widths: Sequence[int], style: LayerStyle) -> nn.Sequential:
    """As many networks as `copies`, each as `hidden_layers` makes them, from [copies, n, inputs] at once."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise([inputs, *widths])):
        layers += [ParallelLinear(copies, before, after, style.hidden_bias), *style.after(number, copies, 1, after)]
    return nn.Sequential(*layers)


def parallel_networks(
    copies: int, inputs: int, hidden: Sequence[int], outputs: int, style: LayerStyle
) -> nn.Sequential:
    """As many networks as `copies`, each as `fully_connected` makes them, from [copies, n, inputs] at once."""
    layers = parallel_hidden_layers(copies, inputs, hidden, style)
    return nn.Sequential(*layers, ParallelLinear(copies, [inputs, *hidden][-1], outputs, style.bias))
