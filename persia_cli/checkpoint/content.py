"""The content of a checkpoint's files as arrays: rows with their keys, a record batch at a time, and dense tensors."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, deserialize

from persia_cli.config.schema import Run
from persia_cli.errors import CheckpointError, ConfigError, one_line
from persia_cli.kernels.rows import hashing
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.store.checkpoints.record_batches import record_batches, understanding_rows
from persia_cli.store.checkpoints.saved_rows import RowFile, in_order, saved_rows
from persia_cli.store.layout import EmbeddingLayout, table_salt

FIRST_COLUMNS = {"table": pa.dictionary(pa.int32(), pa.string()), "id": pa.uint64(), "last_used": pa.int64()}
"""Columns of each file of rows; those of vectors follow, the embedding first."""


class RowBlock(NamedTuple):
    """Some rows: keys and ids uint64[n], tables uint16[n] by position in `names`, last_used int64[n].

    `vectors` are the embedding and each state of the optimizer, float32[n, columns].
    """

    names: list[str]
    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    ids: NDArray[np.uint64]
    last_used: NDArray[np.int64]
    vectors: dict[str, NDArray[np.float32]]

    def part(self, rows: slice | NDArray[np.int64] | NDArray[np.bool_]) -> "RowBlock":
        """Return some of the rows."""
        return RowBlock(
            self.names,
            self.keys[rows],
            self.tables[rows],
            self.ids[rows],
            self.last_used[rows],
            {name: values[rows] for name, values in self.vectors.items()},
        )


def row_blocks(path: Location, names: list[str]) -> Iterator[RowBlock]:
    """Yield the rows of a file, whose tables are `names`; raises CheckpointError if it is no file of such rows."""
    with record_batches(path) as batches:
        for batch in batches:
            yield decoded(batch, names)


def decoded(batch: pa.RecordBatch, names: list[str]) -> RowBlock:
    """Return a record batch as arrays; raises ValueError for other columns, missing values and unknown tables."""
    batch.validate(full=True)
    for name, kind in FIRST_COLUMNS.items():
        if batch.schema.get_field_index(name) < 0 or batch.column(name).type != kind:
            raise ValueError(f"its column {name} is not of type {kind}")
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count or (pa.types.is_fixed_size_list(column.type) and column.flatten().null_count):
            raise ValueError(f"values of its column {name} are missing")
    column = batch.column("table")
    numbers = {name: number for number, name in enumerate(names)}
    indices, saved_names = column.indices.to_numpy(), column.dictionary.to_pylist()
    if unknown := [saved_names[i] for i in np.unique(indices).tolist() if saved_names[i] not in numbers]:
        raise ValueError(f"it has rows of table {unknown[0]!r}, which is not one of its feature group")
    tables = np.array([numbers.get(name, 0) for name in saved_names], np.uint16)[indices]
    ids = batch.column("id").to_numpy()
    return RowBlock(
        names=names,
        keys=keys_of(ids, tables, names),
        tables=tables,
        ids=ids,
        last_used=batch.column("last_used").to_numpy(),
        vectors={
            field.name: _vectors(batch.column(field.name))
            for field in batch.schema
            if pa.types.is_fixed_size_list(field.type) and field.type.value_type == pa.float32()
        },
    )


def layout_of(manifest: Manifest) -> EmbeddingLayout:
    """Return the layout of a checkpoint's configuration; raises ConfigError if that is not one of this version."""
    try:
        return embedding_layout(Run.model_validate(manifest.config))
    except ValidationError as error:
        raise ConfigError(one_line(error)) from error


def keys_of(ids: NDArray[np.uint64], tables: NDArray[np.uint16], names: list[str]) -> NDArray[np.uint64]:
    """Return the key of each id, which determines its partition and its order."""
    salts, keys = np.array([table_salt(name) for name in names], np.uint64), np.empty(ids.size, np.uint64)
    hashing.hash_ids(ids, tables, salts, keys)
    return keys


def _vectors(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    values: NDArray[np.float32] = column.flatten().to_numpy()
    return values.reshape(len(column), column.type.list_size)


class SortedRows:
    """The rows of one feature group of a checkpoint, in the order of their keys, over all of its files.

    Files are named after ranges of keys, and each is ordered, so a record batch of each is enough memory. Cold rows are
    sorted in temporary files.
    """

    def __init__(self, folder: Location, manifest: Manifest, group: int) -> None:
        """Take the group's files, whose contents should be verified before."""
        self.names = list(manifest.tables_of(group))
        files = [file for file in saved_rows(folder, manifest, with_dense=True) if file.rows.group == group]
        starts = sorted({file.rows.first for file in files})
        self._parts = [[file for file in files if file.rows.first == start] for start in starts]
        """For each range of keys, the rows that were in memory, then those that were not, if there are any."""

    def __iter__(self) -> Iterator[RowBlock]:
        """Yield all rows, without empty blocks; raises CheckpointError if they are not ordered."""
        last = -1
        for part in self._parts:
            for block in self._blocks(part):
                if not block.keys.size:
                    continue
                if int(block.keys[0]) < last or (block.keys[1:] < block.keys[:-1]).any():
                    raise CheckpointError(f"{part[0].path} is not ordered by key; load an older checkpoint")
                last = int(block.keys[-1])
                yield block

    def _blocks(self, part: list[RowFile]) -> Iterator[RowBlock]:
        with understanding_rows(part[0].path):
            for batch in in_order(*part) if len(part) > 1 else part[0].batches():
                yield decoded(batch, self.names)


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
        tensors = {name: _tensor(entry) for name, entry in sorted(deserialize(content))}  # type: ignore[no-untyped-call]
        size = int.from_bytes(content[:8], "little")
        record = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["persia"])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or not a file of a Persia checkpoint: {error}") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} is damaged: its metadata is not an object")
    return DenseFile(tensors, record)


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    shape, content = entry["shape"], entry["data"]
    if entry["dtype"] == "BF16":
        halves = np.frombuffer(content, np.uint16).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    values: Tensor = np.frombuffer(content, DTYPES[entry["dtype"]]).reshape(shape)
    return values
