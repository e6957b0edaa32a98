"""The optimizer of the dense weights: torch's own, with the settings of the config."""

import torch
from torch import nn

from persia_cli.config.schema import Adagrad, Adam, Optimizer, Sgd
from persia_cli.errors import ConfigError


def dense_optimizer(config: Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Build torch's SGD, Adagrad or Adam for the trainable parameters of `module`, in their order."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; a dense network needs at least one")
    match config:
        case Sgd():
            return torch.optim.SGD(parameters, lr=config.lr)
        case Adagrad():
            return torch.optim.Adagrad(
                parameters,
                lr=config.lr,
                initial_accumulator_value=config.initial_accumulator_value,
                eps=config.eps,
            )
        case Adam():
            return torch.optim.Adam(parameters, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
