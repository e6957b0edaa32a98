"""The fields of requests, `features.yaml`: what becomes of each, by the rules and the code that read training data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from persia_cli.config.schema.base import Node
from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.batch import Batch, assemble
from persia_cli.data.decode import Ids, decode_dense, decode_ids
from persia_cli.data.ids import seed_of
from persia_cli.errors import CheckpointError, DataError, one_line
from persia_cli.serving.description import FEATURES

WHERE = "the request"
INTEGERS = (np.dtype(np.int64), np.dtype(np.uint64))
Datatype = Literal["FP32", "UINT64", "BYTES"]


class Lists(NamedTuple):
    """Lists of ids: the ids of all samples, and how many each has."""

    values: Any
    lengths: NDArray[np.integer[Any]]


class RequestFields(Node):
    """The columns that a model reads, in the order of its inputs."""

    version: Literal[1] = 1
    """Version of this file's form."""
    fill: float | None = None
    """Value in place of null or non-finite dense values; without it, such values are an error."""
    dense: tuple[DenseFeature, ...]
    """Dense features; the field has the feature's name."""
    sparse: tuple[SparseFeature, ...]
    """Sparse features; the field has the name of the feature's column."""
    lists: tuple[str, ...] = ()
    """Sparse features that have a list of ids in each sample."""
    text_seeds: Mapping[str, str] = Field(default_factory=dict)
    """For people: the seed of XXH64, in hexadecimal, by which texts become ids, of each table whose ids are texts."""

    @classmethod
    def of(cls, dataset: ParquetDataset | GeneratedDataset, lists: frozenset[str]) -> Self:
        """Return the fields of a data set, of which the features in `lists` have lists of ids."""
        if isinstance(dataset, ParquetDataset):
            dense, sparse, fill = dataset.dense_features, dataset.sparse, dataset.fill
        else:
            made = dataset.generator
            dense = tuple(DenseFeature(name=f"dense_{number}") for number in range(made.dense))
            sparse = tuple(SparseFeature(name=f"feature_{number}") for number in range(len(made.cardinalities)))
            fill = None
        texts = dict.fromkeys(each.table_name for each in sparse if each.ids == "text")
        return cls(
            fill=fill,
            dense=dense,
            sparse=sparse,
            lists=tuple(each.name for each in sparse if each.name in lists),
            text_seeds={table: f"{seed_of(table):016x}" for table in texts},
        )

    def inputs(self) -> list[tuple[str, Datatype, tuple[int, ...]]]:
        """Return name, datatype and shape of each field; -1 is any number."""
        found: dict[str, tuple[str, Datatype, tuple[int, ...]]] = {}
        for feature in self.sparse:
            kind: Datatype = "BYTES" if feature.ids == "text" else "FP32" if feature.buckets is not None else "UINT64"
            shape = (-1, -1) if feature.name in self.lists else (-1,)
            found[feature.column_name] = (feature.column_name, kind, shape)
        for each in self.dense:
            found[each.name] = (each.name, "FP32", (-1,))
        return list(found.values())

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        """Return the samples of a request's columns: lists, numpy or Arrow arrays, or `Lists`, by field.

        A column of one value stands for all samples. Raises DataError that names the field which is missing, or which
        value cannot be used.
        """
        names = [name for name, _, _ in self.inputs()]
        if missing := [name for name in names if name not in columns]:
            raise DataError(f"{WHERE} has no field {missing[0]}; the model reads {', '.join(names)}")
        if unknown := [name for name in columns if name not in names]:
            raise DataError(
                f"{WHERE} has a field {unknown[0]}, which the model does not read; it reads {', '.join(names)}"
            )
        sizes = {name: _rows_of(columns[name]) for name in names}
        size = next((rows for rows in sizes.values() if rows != 1), 1)
        if wrong := [name for name, rows in sizes.items() if rows not in (1, size)]:
            raise DataError(f"{WHERE} has {sizes[wrong[0]]} values of {wrong[0]}, and {size} of other fields")
        dense = [_tiled(self._dense(feature, columns[feature.name]), size) for feature in self.dense]
        ids = [_repeated(self._ids(feature, columns[feature.column_name]), size) for feature in self.sparse]
        return assemble(
            dense=np.concatenate(dense, axis=1) if dense else np.empty((size, 0), np.float32),
            labels=np.empty((size, 0), np.float32),
            weights=None,
            ids=[each.values for each in ids],
            offsets=[each.offsets for each in ids],
        )

    def _dense(self, feature: DenseFeature, column: Any) -> NDArray[np.float32]:
        is_plain = feature.transform is None and isinstance(column, np.ndarray) and column.dtype == np.float32
        if is_plain and np.isfinite(column).all():
            return np.asarray(column).reshape(-1, 1)
        return decode_dense(_arrow(column, feature.name), feature, WHERE, None, self.fill, Counter())

    def _ids(self, feature: SparseFeature, column: Any) -> Ids:
        is_list = feature.name in self.lists
        is_plain = feature.buckets is None and feature.ids != "text" and not is_list
        if is_plain and isinstance(column, np.ndarray) and column.dtype in INTEGERS:
            return Ids(column.view(np.uint64), None)
        name = feature.column_name
        try:
            return decode_ids(_arrow(column, name, is_list), feature, is_list, WHERE, None, Counter())
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{WHERE}: field {name} has values that are no ids, {one_line(error)}") from error


def write_fields(folder: Path, fields: RequestFields) -> None:
    """Write the fields of an exported model."""
    text = yaml.safe_dump(fields.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True)
    (folder / FEATURES).write_text("version: 1\n" + text, encoding="utf-8")


def read_fields(folder: Path) -> RequestFields:
    """Return the fields of an exported model; raises CheckpointError."""
    path = folder / FEATURES
    try:
        return RequestFields.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError, ValidationError) as error:
        raise CheckpointError(f"{path} cannot be used: {one_line(error)[:300]}; export the run again") from error


def _rows_of(column: Any) -> int:
    return len(column.lengths if isinstance(column, Lists) else column)


def _arrow(column: Any, name: str, is_list: bool = False) -> Any:
    """Return a column as a chunked Arrow array; raises DataError for values of several types."""
    try:
        if isinstance(column, pa.ChunkedArray):
            return column
        if isinstance(column, Lists):
            bounds = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int64)
            array = pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(column.values))
        else:
            array = column if isinstance(column, pa.Array) else pa.array(column)
        if is_list and pa.types.is_null(array.type):
            array = array.cast(pa.list_(pa.null()))
        return pa.chunked_array([array])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{WHERE}: the values of field {name} do not fit together, {one_line(error)}") from error


def _tiled(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    return values if len(values) == size else np.repeat(values, size, axis=0)


def _repeated(ids: Ids, size: int) -> Ids:
    """Return the ids of `size` samples, those of the only one as often as that."""
    samples = ids.values.size if ids.offsets is None else ids.offsets.size - 1
    if samples == size:
        return ids
    if ids.offsets is None:
        return Ids(np.repeat(ids.values, size), None)
    return Ids(np.tile(ids.values, size), np.arange(size + 1, dtype=np.int64) * ids.values.size)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of a request's rows; a field that a row has not is null there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
