"""The optimizer of the dense weights: torch's own, with the settings of the config."""

import torch
from torch import nn

from persia_cli.config.schema import AdamW, DenseAdagrad, DenseAdam, DenseOptimizer, DenseSgd
from persia_cli.errors import ConfigError
from persia_cli.plan.dense import plain_schedule


def dense_optimizer(config: DenseOptimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Build torch's SGD, Adagrad, Adam or AdamW for the trainable parameters of `module`, in their order."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameters; a dense network needs at least one")
    # Fused: one pass over the weights instead of one per operation; on a GPU torch chooses by itself.
    fused = True if all(parameter.device.type == "cpu" for parameter in parameters) else None
    match config:
        case DenseSgd():
            return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
        case DenseAdagrad():
            return torch.optim.Adagrad(
                parameters,
                lr=config.lr,
                initial_accumulator_value=config.initial_accumulator_value,
                eps=config.eps,
                weight_decay=config.weight_decay,
                fused=fused,
            )
        case DenseAdam() | AdamW():
            kind = torch.optim.AdamW if isinstance(config, AdamW) else torch.optim.Adam
            betas = (config.beta1, config.beta2)
            return kind(
                parameters, lr=config.lr, betas=betas, eps=config.eps, weight_decay=config.weight_decay, fused=fused
            )


class LearningRate:
    """The learning rate of the dense weights: a function of the step alone, so that a resumed run continues with it."""

    def __init__(self, config: DenseOptimizer, optimizer: torch.optim.Optimizer) -> None:
        """Control the learning rate of `optimizer`, which `dense_optimizer` built from `config`."""
        self._optimizer = optimizer
        self._lr = config.lr
        self._schedule = plain_schedule(config)

    def set(self, step: int) -> None:
        """Give the optimizer the learning rate of a step, counted from 0 over the whole training."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr * self._schedule.at(step)
