"""The initial dense weights of a new run from a saved model: those whose names and shapes fit."""

import torch
from torch import nn

from persia_cli.plan.warm_start import DenseFit
from persia_cli.storage.places import Place
from persia_cli.training.dense_state import OPTIMIZER, WEIGHTS, Tensors, parameter_names, read_tensors, weights_of


def take_weights(directory: Place, module: nn.Module, optimizer: torch.optim.Optimizer, states: bool) -> DenseFit:
    """Read the weights that fit into a module, in place; with `states` also the state of their optimizer.

    The optimizer state of a parameter does not change if its weights do not fit, or were saved with another kind
    of optimizer. Raise CheckpointError for a file that is missing or damaged; then nothing has changed.
    """
    saved, _ = read_tensors(directory / WEIGHTS)
    fit, own = _fit_of(saved, weights_of(module)), weights_of(module)
    loaded = _states(directory, module, optimizer, set(fit.taken)) if states else {}
    module.load_state_dict({name: saved[name] if name in fit.taken else value for name, value in own.items()})
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": whole["state"] | loaded, "param_groups": whole["param_groups"]})
    return DenseFit(fit.taken, fit.new, fit.unused, len(loaded))


def _fit_of(saved: Tensors, own: Tensors) -> DenseFit:
    """Compare names, shapes and dtypes of a saved module's tensors with those of another one."""
    taken = tuple(name for name in own if name in saved and _kind(saved[name]) == _kind(own[name]))
    new = [
        f"{name} {_shape(own[name])}" + (f" (saved: {_shape(saved[name])})" if name in saved else "")
        for name in own
        if name not in taken
    ]
    return DenseFit(taken, tuple(new), tuple(sorted(saved.keys() - own.keys())))


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "1"


def _states(
    directory: Place, module: nn.Module, optimizer: torch.optim.Optimizer, taken: set[str]
) -> dict[int, dict[str, torch.Tensor]]:
    """Return the saved state of each parameter that is `taken`, by its number in the optimizer."""
    tensors, record = read_tensors(directory / OPTIMIZER)
    if record.get("kind") != type(optimizer).__name__:
        return {}
    parameters = dict(module.named_parameters())
    numbers = {name: number for number, name in enumerate(parameter_names(module, optimizer))}
    states: dict[int, dict[str, torch.Tensor]] = {}
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        if name in taken and name in numbers and value.shape in ((), parameters[name].shape):
            states.setdefault(numbers[name], {})[key] = value
    return states
