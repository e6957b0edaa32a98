"""The construction of a network by its kind, the name of its module, with initial weights drawn from a seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from persia_cli.config.schema import Model
from persia_cli.config.schema.perceptrons import Init, Perceptrons
from persia_cli.model.inputs import drop_embeddings
from persia_cli.model.item_frequency import count_items
from persia_cli.model.layers import ParallelLinear
from persia_cli.model.requirements import require_fit
from persia_cli.model.shape import InputShape
from persia_cli.model.uncertainty import learn_uncertainty

INITS: dict[Init, Callable[[torch.Tensor], torch.Tensor]] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "he_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "he_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}
"""The draw of a matrix by each `init`: Glorot and Bengio (AISTATS 2010), and He et al. (arXiv 1502.01852)."""
_LAST: Mapping[str, Mapping[str, float]] = {
    "afm": {"last": 1.0},
    "autoint": {"last": 1.0, "network": 0.0},
    "branches": {"last": 1.0},
    "dcn_v2": {"last": 1.0},
    "dlrm": {"top": 1.0},
    "esmm": {"towers": 1.0},
    "finalmlp": {"fusion.first": 1.0},
    "finalnet": {"first": 1.0, "second": 1.0},
    "fm": {"": 1.0},
    "gdcn": {"last": 1.0},
    "lr": {"": 1.0},
    "mmoe": {"towers": 1.0},
    "ple": {"towers": 1.0},
}
"""The modules whose last layer computes logits, and the multiple of the output in each one's bias.

AutoInt adds up two of them, FinalNet takes their mean; a module without a name is the network itself.
"""
_PERCEPTRON = {"network": 1.0}
"""Those of all other kinds."""


@runtime_checkable
class HasMatrices(Protocol):
    """A module whose parameters contain several matrices: their bounds are those of one, not of all together."""

    def matrices(self) -> Sequence[torch.Tensor]:
        """Return each matrix [outputs, inputs] as a view of the parameters."""


@runtime_checkable
class FixedInitialWeights(Protocol):
    """A module with the same initial weights for every `init`."""

    def set_initial_weights(self) -> None:
        """Set the parameters."""


def build_model(model: Model, shape: InputShape, seed: int) -> nn.Module:
    """Build the network of `model.kind`, whose forward(ModelBatch) returns logits float32 [n, tasks]; see `outputs`.

    Initial weights are drawn from `seed` alone; the caller's random state is unchanged.
    Raises ConfigError if the model does not fit the features.
    """
    require_fit(model, shape)
    build: Callable[[InputShape, Model], nn.Module] = import_module(f"{__package__}.{model.kind}").build
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(shape, model)
        if isinstance(model, Perceptrons):
            initialize(network, model.init)
    begin_output(network, model)
    if model.embedding_dropout:
        drop_embeddings(network, model.embedding_dropout)
    if shape.uncertainty:
        learn_uncertainty(network, shape.tasks)
    if shape.item_buckets:
        count_items(network, shape.item_buckets, shape.item_rate)
    return network


@torch.no_grad()
def initialize(network: nn.Module, init: Init) -> None:
    """Draw the weights of all linear layers by `init`, with biases of 0; `torch` leaves them unchanged.

    Each matrix is drawn by itself, also where a parameter has several.
    """
    if init == "torch":
        return
    draw = INITS[init]
    for layer in network.modules():
        plain = [layer.weight] if isinstance(layer, nn.Linear) else []
        for matrix in layer.matrices() if isinstance(layer, HasMatrices) else plain:
            draw(matrix)
        if isinstance(layer, nn.Linear | ParallelLinear) and layer.bias is not None:
            layer.bias.zero_()
    for layer in network.modules():
        if isinstance(layer, FixedInitialWeights):
            layer.set_initial_weights()


@torch.no_grad()
def begin_output(network: nn.Module, model: Model) -> None:
    """Set the biases of a network's output by `model.output_bias`, which `require_fit` has accepted, in place.

    For an unknown base rate nothing is set: the plan of a job has numbers in its place.
    """
    if model.output_bias in ("init", "base_rate"):
        return
    modules = dict(network.named_modules())
    for path, times in _LAST.get(model.kind, _PERCEPTRON).items():
        # AutoInt may have no perceptron, or one without biases, and FinalNet no second block.
        bias = _last_bias(modules[path]) if path in modules else None
        if bias is None:
            continue
        wanted = model.output_bias if isinstance(model.output_bias, tuple) else (0.0,) * bias.numel()
        if model.kind == "esmm" and isinstance(model.output_bias, tuple):
            wanted = tower_logits(wanted)
        bias.copy_((times * torch.tensor(wanted, dtype=torch.float64)).view_as(bias))


def tower_logits(logits: Sequence[float]) -> tuple[float, ...]:
    """Return the logits of ESMM's towers, whose probabilities multiply to those of the labels.

    With probabilities p before q it is log(r / (1 - r)) for r = q / p: q / (p - q) = 1 / (p / q - 1).
    """
    inverse = [1.0 + math.exp(min(-logit, 700.0)) for logit in logits]
    return (logits[0], *(-math.log(later / earlier - 1.0) for earlier, later in pairwise(inverse)))


def _last_bias(module: nn.Module) -> nn.Parameter | None:
    """Return the bias of the last linear layer in a module, or the module's own."""
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear | ParallelLinear)]
    bias = (linear[-1] if linear else module).bias
    assert bias is None or isinstance(bias, nn.Parameter)
    return bias
