"""DCN v2, the improved deep and cross network: Wang et al., arXiv 2008.13535."""

from collections.abc import Callable

import torch
from torch import nn

from persia_cli.config.schema import DcnV2, Gdcn
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import JoinedLinear, SummedLinear, hidden_layers, style_of
from persia_cli.model.shape import InputShape


class Cross(nn.Module):
    """A cross layer, x0 * (W x + b) + x, as in the paper's cross network; with a rank, W is U V."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = nn.Identity() if rank is None else nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank or width, width)

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return [n, width], given the input x0 of all cross layers and that of this one, both [n, width]."""
        return first * self.up(self.down(last)) + last


class ExpertCross(nn.Module):
    """A cross layer of K low-rank experts: sum of G_i(x) E_i(x), plus x; the paper's mixture of low-rank DCN.

    E_i(x) = x0 * (U_i g(C_i g(V_i x)) + b), with g = tanh and the gates G a softmax of a linear function of x.
    """

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.experts, self.rank = experts, rank
        self.gates = nn.Linear(width, experts)
        self.down = JoinedLinear(width, rank, experts, bias=False)
        bound = rank**-0.5
        self.mix = nn.Parameter(torch.empty(experts, rank, rank).uniform_(-bound, bound))
        self.up = SummedLinear(rank, width, experts)

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Return C of each expert, [rank, rank]."""
        return self.mix.transpose(1, 2).unbind()

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return [n, width], given the input x0 of all cross layers and that of this one, both [n, width]."""
        gates = self.gates(last).softmax(1)
        inner = torch.tanh(self.down(last)).view(-1, self.experts, self.rank)
        inner = torch.tanh(torch.einsum("nkr,krs->nks", inner, self.mix))
        # Gates add up to 1, so one product with all U concatenated also adds the bias just once.
        return first * self.up((inner * gates.unsqueeze(2)).flatten(1)) + last


class DeepCross(nn.Module):
    """Cross layers on all concatenated inputs, and a multi-layer perceptron after them or parallel to them.

    Section 3 of the paper: `stacked`, the perceptron reads the output of the cross layers, else their input.
    """

    def __init__(self, shape: InputShape, settings: DcnV2 | Gdcn, cross: Callable[[int], nn.Module]) -> None:
        """`cross` makes a cross layer for inputs of a width."""
        super().__init__()
        self.inputs = SideBySide(shape, settings)
        width = self.inputs.width
        self.cross = nn.ModuleList(cross(width) for _ in range(settings.layers))
        self.stacked = settings.structure == "stacked"
        self.deep, deep_width = hidden_layers(width, settings.hidden, style_of(settings)), settings.hidden[-1]
        self.last = nn.Linear(deep_width if self.stacked else width + deep_width, shape.tasks)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first = self.inputs(batch)
        crossed = first
        for layer in self.cross:
            crossed = layer(first, crossed)
        deep = self.deep(crossed) if self.stacked else torch.cat([crossed, self.deep(first)], dim=1)
        return self.last(deep)


def build(shape: InputShape, model: DcnV2) -> nn.Module:
    """Build the network for features that `require_fit` accepts."""

    def cross(width: int) -> nn.Module:
        if model.rank is None or model.experts is None:
            return Cross(width, model.rank)
        return ExpertCross(width, model.rank, model.experts)

    return DeepCross(shape, model, cross)
