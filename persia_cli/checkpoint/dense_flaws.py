"""The flaws of a checkpoint's dense weights and of the state of their optimizer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from persia_cli.errors import CheckpointError
from persia_cli.storage.places import Place
from persia_cli.store.checkpoints.manifest import Manifest, kind_of

DENSE = "dense"
WEIGHTS, OPTIMIZER, INITIAL = "dense.safetensors", "dense_optimizer.safetensors", "dense_initial.safetensors"
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "sum")
"""States of torch's optimizers that are never negative."""
DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16,
}  # fmt: skip
"""Types of safetensors; BF16, which numpy does not have, is read as float32."""

Tensor = NDArray[Any]


class DenseFile(NamedTuple):
    """The tensors of a file by name, and what it says of itself."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def read_tensors(path: Place) -> DenseFile:
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


def tensor_shapes(path: Place) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file by name; raises CheckpointError if it cannot be read."""
    return {name: list(values.shape) for name, values in read_tensors(path).tensors.items()}


def dense_flaws(folder: Place, manifest: Manifest, expected: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a sentence for each flaw of the dense files; `expected` is from `persia_cli.train.expected_state`.

    Without it, shapes and completeness are not compared with the configuration's network.
    """
    listed = {file.name: folder / file.folder / file.name for file in manifest.files if kind_of(file) == DENSE}
    is_async = manifest.config["mode"]["kind"] == "async"
    for name in [WEIGHTS, OPTIMIZER, *([INITIAL] if is_async else [])]:
        if (path := listed.get(name)) is None:
            yield f"{folder / DENSE / name} is not in the checkpoint, which needs it"
            continue
        try:
            file = read_tensors(path)
        except CheckpointError as error:
            yield str(error)
            continue
        for tensor, values in file.tensors.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                wrong = values.size - np.count_nonzero(np.isfinite(values))
                yield f"{path}: {tensor} has {wrong:,} values that are NaN or infinite, of {values.size:,}"
        if name == OPTIMIZER:
            yield from _state_flaws(path, file, manifest, expected)
        elif expected is not None and name == WEIGHTS:
            yield from _differing(path, file.tensors, expected["weights"], "the configuration's network")


def _state_flaws(path: Place, file: DenseFile, manifest: Manifest, expected: Mapping[str, Any] | None) -> Iterator[str]:
    if expected is not None:
        if file.record.get("kind") != expected["kind"]:
            yield (
                f"{path} has the state of {file.record.get('kind')}, and the configuration's optimizer is "
                f"{expected['kind']}"
            )
        elif manifest.step:
            yield from _differing(path, file.tensors, expected["states"], f"{expected['kind']} of this network")
    counts: dict[str, float] = {}
    for name, values in file.tensors.items():
        key = name.rpartition("/")[2]
        if key in SQUARES and values.size and (values < 0).any():
            yield f"{path}: {name} has {np.count_nonzero(values < 0):,} negative values, though it is of squares"
        # A run that began with another one's state counts that one's steps too, and new layers count from 0.
        if key == "step" and manifest.config.get("init_from") is None:
            if not 0 <= float(values) <= manifest.step:
                yield f"{path}: {name} counts {float(values):g} steps, and the checkpoint is of step {manifest.step}"
            counts[name] = float(values)
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        yield f"{path}: {least} counts {counts[least]:g} steps, and {most} counts {counts[most]:g}"


def _differing(path: Place, found: Mapping[str, Tensor], wanted: Mapping[str, list[int]], what: str) -> Iterator[str]:
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            yield f"{path} has no {name}, which {what} has"
        elif name not in wanted:
            yield f"{path} has {name}, which {what} does not have"
        elif list(found[name].shape) != wanted[name]:
            yield f"{path}: {name} has the shape {list(found[name].shape)}, and that of {what} is {wanted[name]}"


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    shape, content = entry["shape"], entry["data"]
    if entry["dtype"] == "BF16":
        halves = np.frombuffer(content, np.uint16).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    values: Tensor = np.frombuffer(content, DTYPES[entry["dtype"]]).reshape(shape)
    return values
