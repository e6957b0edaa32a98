"""A user's own network, from a class in a Python file."""

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import CustomModel
from persia_cli.errors import ConfigError, did_you_mean
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import checked_output
from persia_cli.model.shape import InputShape
from persia_cli.storage.addresses import local_path


def build(shape: InputShape, model: CustomModel) -> nn.Module:
    """Load the class, build it and try it on two samples of zeros; raises ConfigError with the correction."""
    path = local_path(model.file)
    network = _construct(_find(_load(path), model.name, path), shape, model.args, path)
    _try_out(network, shape, f"{model.name} of {path}")
    return network


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"model.file={path}: there is no such file; give the path of the Python file with your model")
    # A unique module name, since a user's model.py must not replace an installed module.
    name = f"persia_custom_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"model.file={path} is not a Python file; its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"model.file={path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _find(module: ModuleType, name: str, path: Path) -> type[nn.Module]:
    wanted = getattr(module, name, None)
    if isinstance(wanted, type) and issubclass(wanted, nn.Module):
        return wanted
    if wanted is not None:
        raise ConfigError(f"model.name={name} of {path} is not a class derived from torch.nn.Module")
    classes = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)]
    hint = did_you_mean(name, classes) if classes else "it has no torch.nn.Module at all"
    raise ConfigError(f"model.name={name}: {path} has no such class; {hint}")


def _construct(wanted: type[nn.Module], shape: InputShape, args: dict[str, Any], path: Path) -> nn.Module:
    try:
        inspect.signature(wanted).bind(shape, **args)
    except TypeError as error:
        raise ConfigError(
            f"model.args does not fit {wanted.__name__} of {path}, called as {wanted.__name__}(shape, **args): {error}"
        ) from error
    try:
        return wanted(shape, **args)
    except Exception as error:
        raise ConfigError(
            f"{wanted.__name__} of {path} refuses its model.args: {type(error).__name__}: {error}"
        ) from error


def _try_out(network: nn.Module, shape: InputShape, what: str) -> None:
    """Check the output of forward, for two samples and for none, before the job starts."""
    training, buffers = network.training, [buffer.clone() for buffer in network.buffers()]
    for size, trains in ((2, False), (0, False), (2, True)):
        network.train(trains)
        try:
            with torch.no_grad():
                output = network(_zeros(shape, size))
        except Exception as error:
            raise ConfigError(f"{what} fails in forward for {size} samples: {type(error).__name__}: {error}") from error
        _, auxiliary = checked_output(output, (size, shape.tasks), what)
        if auxiliary is not None and not trains:
            raise ConfigError(f"{what} must return its logits alone while self.training is false")
    network.train(training)
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)


def _zeros(shape: InputShape, size: int) -> ModelBatch:
    dims = sorted({feature.dim for feature in shape.pooled})
    names = [[feature.name for feature in shape.pooled if feature.dim == dim] for dim in dims]
    sequences = {
        feature.name: (
            torch.zeros(size, feature.max_length or 0, feature.dim),
            torch.zeros(size, feature.max_length or 0, dtype=torch.bool),
        )
        for feature in shape.sequences
    }
    groups = [torch.zeros(size, len(group), dim) for group, dim in zip(names, dims, strict=True)]
    return ModelBatch(torch.zeros(size, shape.dense), groups, names, sequences)
