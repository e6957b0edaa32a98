"""The dense state of a checkpoint: named tensors, without code, in two safetensors files."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import nn
from xxhash import xxh128

from persia_cli.errors import CheckpointError, PersiaError
from persia_cli.plan.warm_start import DenseFit
from persia_cli.storage.locations import Location, put
from persia_cli.store.checkpoints.saved import SavedFile

WEIGHTS = "dense.safetensors"
OPTIMIZER = "dense_optimizer.safetensors"
INITIAL = "dense_initial.safetensors"
"""Name of the file of initial weights in asynchronous training, to which rows store the differences."""

Tensors = dict[str, torch.Tensor]


class TensorFile(NamedTuple):
    """The content of a file of tensors: those of the network itself, or copies."""

    name: str
    tensors: Tensors
    record: dict[str, Any]

    def copied(self) -> "TensorFile":
        """Return a copy in the host's memory, which training does not change any more."""
        # Copies of each, also because safetensors refuses tensors that share memory (tied weights).
        copies = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in self.tensors.items()}
        return TensorFile(self.name, copies, self.record)

    def write(self, directory: Location) -> SavedFile:
        """Write the file into `directory`; raises DiskError."""
        content = safetensors.torch.save(self.tensors, {"persia": json.dumps(self.record, sort_keys=True)})
        put(directory / self.name, content)
        return SavedFile(directory.name, self.name, len(content), xxh128(content).hexdigest())


def write_files(files: Iterable[TensorFile], directory: Location) -> list[SavedFile]:
    """Write files into a folder, which is created if missing; raise DiskError."""
    return [file.write(directory) for file in files]


def dense_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[TensorFile]:
    """Return all state of dense training: `WEIGHTS` (parameters and buffers) and `OPTIMIZER` (its state).

    The tensors are those of the network, not copies.

    State of parameter p is named `p/key`, such as `network.0.weight/exp_avg`; the header's metadata, under `persia`,
    is a JSON object with the optimizer's kind and settings, and the names of its parameters in order.
    """
    weights = weights_of(module)
    names = parameter_names(module, optimizer)
    state = optimizer.state_dict()
    tensors = {
        f"{names[index]}/{key}": value
        for index, entries in state["state"].items()
        for key, value in entries.items()
        if isinstance(value, torch.Tensor)
    }
    settings = {key: value for key, value in state["param_groups"][0].items() if key != "params"}
    record = {"kind": type(optimizer).__name__, "parameters": names, "settings": settings}
    return [
        TensorFile(WEIGHTS, weights, {"kind": type(module).__name__}),
        TensorFile(OPTIMIZER, tensors, record),
    ]


def load_dense(directory: Location, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read the files of `dense_state`, in place; the optimizer's settings (learning rate …) stay those of the config.

    Raises CheckpointError if a file is missing or damaged, or is of another model or another kind of optimizer;
    then neither module nor optimizer has changed.
    """
    weights = _read_weights(directory / WEIGHTS, weights_of(module))
    path, names, kind = directory / OPTIMIZER, parameter_names(module, optimizer), type(optimizer).__name__
    tensors, record = read_tensors(path)
    if record.get("kind") != kind or record.get("parameters") != names:
        raise CheckpointError(
            f"{path} has the state of {record.get('kind')} over {len(record.get('parameters', []))} "
            f"parameters, but the config asks for {kind} over {len(names)}; do not change optimizer.dense and model"
        )
    states, unfit = _states_of(tensors, module, names)
    if unfit:
        raise CheckpointError(f"{path} has state {unfit[0]}, which fits no parameter of the model")
    module.load_state_dict(weights)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def load_weights(directory: Location, module: nn.Module) -> None:
    """Read only the weights of `dense_state`; raises CheckpointError as `load_dense` does."""
    module.load_state_dict(_read_weights(directory / WEIGHTS, weights_of(module)))


def load_initial(directory: Location, wanted: Tensors) -> Tensors | None:
    """Read `INITIAL`; None if there is none. Raises CheckpointError for names or shapes other than the `wanted`."""
    path = directory / INITIAL
    return _read_weights(path, wanted) if path.is_file() else None


def weights_of(module: nn.Module) -> Tensors:
    """Return parameters and buffers by name; raises PersiaError for state that is not a tensor."""
    weights = module.state_dict()
    other = [name for name, value in weights.items() if not isinstance(value, torch.Tensor)]
    if other:
        raise PersiaError(f"the model has state that is not a tensor and so cannot be saved: {', '.join(other)}")
    return weights


def parameter_names(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of the parameters in the order in which the optimizer numbers them."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def read_tensors(path: Location) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors of a file and its record; raise CheckpointError if it is missing or damaged."""
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
        # 8 bytes with the header's size, then the header as JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        record = json.loads(header["__metadata__"]["persia"])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing from the checkpoint") from error
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a file of a persia checkpoint: {error}") from error
    return tensors, record


def _read_weights(path: Location, wanted: Tensors) -> Tensors:
    """Return the tensors of a file; raises CheckpointError for names, shapes or dtypes other than the `wanted`."""
    weights, _ = read_tensors(path)

    def described(tensors: Tensors, name: str) -> str:
        return f"{name} {list(tensors[name].shape)} {tensors[name].dtype}" if name in tensors else f"no {name}"

    for name in sorted(weights.keys() | wanted.keys()):
        if described(weights, name) != described(wanted, name):
            raise CheckpointError(
                f"{path} is of another model: it has {described(weights, name)}, the config's model has "
                f"{described(wanted, name)}; do not change model and features"
            )
    return weights


def _states_of(tensors: Tensors, module: nn.Module, names: list[str]) -> tuple[dict[int, Tensors], list[str]]:
    """Return the saved state of each parameter by its number in the optimizer, and the entries that fit none."""
    parameters, numbers = dict(module.named_parameters()), {name: number for number, name in enumerate(names)}
    states: dict[int, Tensors] = {}
    unfit = []
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        if name in numbers and value.shape in ((), parameters[name].shape):
            states.setdefault(numbers[name], {})[key] = value
        else:
            unfit.append(f"{full} {list(value.shape)}")
    return states, unfit


def load_fitting(directory: Location, module: nn.Module, optimizer: torch.optim.Optimizer, states: bool) -> DenseFit:
    """Read the weights that fit into a module, in place; with `states` also the state of their optimizer.

    The optimizer state of a parameter does not change if its weights do not fit, or were saved with another kind
    of optimizer. Raise CheckpointError for a file that is missing or damaged; then nothing has changed.
    """
    saved, _ = read_tensors(directory / WEIGHTS)
    weights = weights_of(module)
    fit, loaded = _fit_of(saved, weights), {}
    if states:
        tensors, record = read_tensors(directory / OPTIMIZER)
        if record.get("kind") == type(optimizer).__name__:
            names = parameter_names(module, optimizer)
            saved_states, _ = _states_of(tensors, module, names)
            loaded = {number: state for number, state in saved_states.items() if names[number] in fit.taken}
    module.load_state_dict({name: saved[name] if name in fit.taken else value for name, value in weights.items()})
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": whole["state"] | loaded, "param_groups": whole["param_groups"]})
    return DenseFit(fit.taken, fit.new, fit.unused, len(loaded))


def _fit_of(saved: Tensors, weights: Tensors) -> DenseFit:
    """Compare names, shapes and dtypes of a saved module's tensors with those of another one."""

    def kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
        return tensor.shape, tensor.dtype

    def shape(tensor: torch.Tensor) -> str:
        return "x".join(map(str, tensor.shape)) or "1"

    taken = tuple(name for name in weights if name in saved and kind(saved[name]) == kind(weights[name]))
    new = [
        f"{name} {shape(weights[name])}" + (f" (saved: {shape(saved[name])})" if name in saved else "")
        for name in weights
        if name not in taken
    ]
    return DenseFit(taken, tuple(new), tuple(sorted(saved.keys() - weights.keys())))
