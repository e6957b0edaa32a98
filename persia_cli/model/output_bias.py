"""The initial output of a network: the bias of the layer that computes its logits."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn

from persia_cli.config.schema import Model
from persia_cli.model.layers import ParallelLinear

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
    linear = [each for each in module.modules() if isinstance(each, nn.Linear | ParallelLinear)]
    bias = (linear[-1] if linear else module).bias
    assert bias is None or isinstance(bias, nn.Parameter)
    return bias
