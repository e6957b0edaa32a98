"""The flaws of a checkpoint's dense weights and of the state of their optimizer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from persia_cli.errors import CheckpointError
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, kind_of

DENSE = "dense"
WEIGHTS, OPTIMIZER, INITIAL = "dense.safetensors", "dense_optimizer.safetensors", "dense_initial.safetensors"
DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16,
}  # fmt: skip
"""Types of safetensors; BF16, which numpy does not have, is read as float32."""

Tensor = NDArray[Any]


class DenseFile(NamedTuple):
    """The tensors of a file by name, and its metadata."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def read_tensors(path: Location) -> DenseFile:
    """Return the tensors of a safetensors file; raises CheckpointError if it cannot be read."""
    try:
        content = path.read_bytes()
        found = {name: _tensor(entry) for name, entry in sorted(deserialize(content))}  # type: ignore[no-untyped-call]
        size = int.from_bytes(content[:8], "little")
        record = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["persia"])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or not a file of a Persia checkpoint: {error}") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} is damaged: its metadata is not an object")
    return DenseFile(found, record)


def tensor_shapes(path: Location) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file by name; raises CheckpointError if it cannot be read."""
    return {name: list(values.shape) for name, values in read_tensors(path).tensors.items()}


def dense_flaws(folder: Location, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each flaw of the dense files."""
    listed = {file.name: folder / file.folder / file.name for file in manifest.files if kind_of(file) == DENSE}
    is_async = manifest.config["mode"]["kind"] == "async"
    weights: dict[str, Tensor] | None = None
    for name in [WEIGHTS, OPTIMIZER, *([INITIAL] if is_async else [])]:
        if (path := listed.get(name)) is None:
            yield f"{folder / DENSE / name} is not in the checkpoint, which needs it"
            continue
        try:
            found = read_tensors(path).tensors
        except CheckpointError as error:
            yield str(error)
            continue
        for tensor, values in found.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                wrong = values.size - np.count_nonzero(np.isfinite(values))
                yield f"{path}: {tensor} has {wrong:,} values that are NaN or infinite, of {values.size:,}"
        if name == WEIGHTS:
            weights = found
        elif name == OPTIMIZER and weights is not None:
            yield from _state_flaws(path, weights, found)


def _state_flaws(path: Location, weights: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a sentence for each state without a weight, and each that only some of the weights with states have."""
    kinds_of: dict[str, set[str]] = {}
    for name in states:
        weight, _, kind = name.rpartition("/")
        kinds_of.setdefault(weight, set()).add(kind)
    every = set().union(*kinds_of.values())
    for weight, kinds in kinds_of.items():
        if weight not in weights:
            yield f"{path} has states of {weight}, and {WEIGHTS} has no such weight"
        for kind in sorted(every - kinds):
            yield f"{path} has no {weight}/{kind}, which other weights have"


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    shape, content = entry["shape"], entry["data"]
    if entry["dtype"] == "BF16":
        halves = np.frombuffer(content, np.uint16).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    values: Tensor = np.frombuffer(content, DTYPES[entry["dtype"]]).reshape(shape)
    return values
