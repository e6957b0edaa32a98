"""The optimizer of the dense weights: torch's own, with the settings of the config."""

import torch
from torch import nn

from persia_cli.config.schema import AdamW, DenseAdagrad, DenseAdam, DenseOptimizer, DenseSgd
from persia_cli.errors import ConfigError
from persia_cli.model.uncertainty import TaskUncertainty
from persia_cli.plan.dense import plain_schedule


def penalties(config: DenseOptimizer, module: nn.Module) -> dict[str, float]:
    """Return the penalty of each trainable parameter by name: `weight_decay` of AdamW, `l2` of the others."""
    given = config.weight_decay if isinstance(config, AdamW) else config.l2
    # A variance has no preferred small value: 1 is as good as any.
    variances = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, TaskUncertainty)
        for parameter in part.parameters(recurse=False)
    }
    return {
        name: 0.0 if id(parameter) in variances else given
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def dense_optimizer(config: DenseOptimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Build torch's SGD, Adagrad, Adam or AdamW for the trainable parameters of `module`.

    They are in their order, in one group for each penalty that they have.
    """
    parameters = dict(module.named_parameters())
    groups: dict[float, list[nn.Parameter]] = {}
    for name, penalty in penalties(config, module).items():
        groups.setdefault(penalty, []).append(parameters[name])
    if not groups:
        raise ConfigError("the model has no trainable parameters; a dense network needs at least one")
    decayed = [{"params": group, "weight_decay": penalty} for penalty, group in groups.items()]
    # Fused: one pass over the weights instead of one per operation; on a GPU torch chooses by itself.
    fused = True if all(parameter.device.type == "cpu" for parameter in parameters.values()) else None
    match config:
        case DenseSgd():
            return torch.optim.SGD(decayed, lr=config.lr, fused=fused)
        case DenseAdagrad():
            return torch.optim.Adagrad(decayed, lr=config.lr, eps=config.eps, fused=fused)
        case DenseAdam() | AdamW():
            kind = torch.optim.AdamW if isinstance(config, AdamW) else torch.optim.Adam
            betas = (config.beta1, config.beta2)
            return kind(decayed, lr=config.lr, betas=betas, eps=config.eps, fused=fused)


class LearningRate:
    """The learning rate of the dense weights: a function of the step, and of the reductions by evaluations."""

    def __init__(self, config: DenseOptimizer, optimizer: torch.optim.Optimizer) -> None:
        """Control the learning rate of `optimizer`, which `dense_optimizer` built from `config`."""
        self._optimizer = optimizer
        self._lr = config.lr
        self._schedule = plain_schedule(config)

    def set(self, step: int, reductions: int = 0) -> None:
        """Give the optimizer the learning rate of a step, counted from 0; `reductions` is as in `Schedule.at`."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.at(step, reductions)

    def at(self, step: int, reductions: int = 0) -> float:
        """Return the learning rate of a step."""
        return self._lr * self._schedule.at(step, reductions)
