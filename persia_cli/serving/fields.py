"""The fields of requests, `features.yaml`: what becomes of each, by the rules and the code that read training data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
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
from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.batch import Batch, assemble
from persia_cli.data.decode import Ids, decode_dense, decode_ids
from persia_cli.data.ids import seed_of
from persia_cli.data.raw_values import column_of_request
from persia_cli.errors import CheckpointError, DataError, one_line
from persia_cli.serving.description import FEATURES

WHERE = "the request"
INTEGERS = (np.dtype(np.int64), np.dtype(np.uint64))
Datatype = Literal["FP32", "FP64", "INT64", "UINT64", "BYTES"]
RAW_TYPES: dict[str, Datatype] = {
    "integer": "INT64", "number": "FP64", "absence": "FP64", "text": "BYTES", "texts": "BYTES", "hexadecimal": "BYTES",
}  # fmt: skip


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
    raw: tuple[RawColumns, ...] = ()
    """What columns are made of, where a field is another column or has another form than in the data set."""
    lists: tuple[str, ...] = ()
    """Sparse features that have a list of ids in each sample."""
    text_seeds: Mapping[str, str] = Field(default_factory=dict)
    """For people: the seed of XXH64, in hexadecimal, by which texts become ids, of each table whose ids are texts."""

    @classmethod
    def of(
        cls, dataset: ParquetDataset | GeneratedDataset, lists: frozenset[str], singles: frozenset[str] = frozenset()
    ) -> Self:
        """Return the fields of a data set.

        The features in `lists` have lists of ids, and the columns in `singles` are float32.
        """
        if isinstance(dataset, ParquetDataset):
            dense, sparse, fill, raw = dataset.dense_features, dataset.sparse, dataset.fill, dataset.raw
        else:
            made = dataset.generator
            dense = tuple(DenseFeature(name=f"dense_{number}") for number in range(made.dense))
            names = [f"feature_{number}" for number in range(len(made.cardinalities))]
            sparse = tuple(SparseFeature(name=name, ids="integer") for name in names)
            fill, raw = None, ()
        # A number that lies on a bound of buckets or bins as float32 may lie beside it as float64.
        bounded = [each.name for each in dense if each.transform is not None]
        bounded += [each.column_name for each in sparse if each.buckets is not None]
        made_already = {column for each in raw for column in each.columns}
        if rounded := [name for name in dict.fromkeys(bounded) if name in singles - made_already]:
            raw = (*raw, RawColumns(columns=tuple(rounded), read="number", steps=("float32",)))
        texts = [each.table_name for each in sparse if each.ids == "text"]
        texts += [table for each in raw for column in each.columns if (table := each.table_of(column)) is not None]
        return cls(
            fill=fill,
            dense=dense,
            sparse=sparse,
            raw=raw,
            lists=tuple(each.name for each in sparse if each.name in lists),
            text_seeds={table: f"{seed_of(table):016x}" for table in dict.fromkeys(texts)},
        )

    def inputs(self) -> list[tuple[str, Datatype, tuple[int, ...]]]:
        """Return name, datatype and shape of each field; -1 is any number."""
        found: dict[str, tuple[str, Datatype, tuple[int, ...]]] = {}
        raw = self.raw_by_column()
        for column in [*(each.column_name for each in self.sparse), *(each.name for each in self.dense)]:
            if column in raw:
                field = raw[column].field_of(column)
                shape = (-1, -1) if raw[column].read == "texts" else (-1,)
                found[field] = (field, RAW_TYPES[raw[column].read], shape)
        for feature in self.sparse:
            if feature.column_name in raw:
                continue
            kind: Datatype = "BYTES" if feature.ids == "text" else "FP64" if feature.buckets is not None else "UINT64"
            shape = (-1, -1) if feature.name in self.lists else (-1,)
            found[feature.column_name] = (feature.column_name, kind, shape)
        for each in self.dense:
            if each.name in raw:
                continue
            found[each.name] = (each.name, "FP32" if each.transform is None else "FP64", (-1,))
        return list(found.values())

    @cached_property
    def names(self) -> dict[str, None]:
        """The names of all fields, in order."""
        return dict.fromkeys(name for name, _, _ in self.inputs())

    @cached_property
    def dense_inputs(self) -> int:
        """Number of dense inputs of the network."""
        return sum(feature.width for feature in self.dense)

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        """Return the samples of a request's columns: lists, numpy or Arrow arrays, or `Lists`, by field.

        A column of one value stands for all samples. Raises DataError that names the field which is missing, or which
        value cannot be used.
        """
        names = self.names
        if missing := [name for name in names if name not in columns]:
            raise DataError(f"{WHERE} has no field {missing[0]}; the model reads {', '.join(names)}")
        if unknown := [name for name in columns if name not in names]:
            raise DataError(
                f"{WHERE} has a field {unknown[0]}, which the model does not read; it reads {', '.join(names)}"
            )
        sizes = {name: _rows_of(columns[name], name) for name in names}
        size = next((rows for rows in sizes.values() if rows != 1), 1)
        if wrong := [name for name, rows in sizes.items() if rows not in (1, size)]:
            raise DataError(f"{WHERE} has {sizes[wrong[0]]} values of {wrong[0]}, and {size} of other fields")
        made = MadeColumns(self.raw_by_column(), columns)
        ids = [self._ids(feature, made.column(feature.column_name)) for feature in self.sparse]
        if all(each.offsets is None for each in ids):
            ids = _in_block(ids, size)
        else:
            ids = [_repeated(each, size) for each in ids]
        return assemble(
            dense=self._dense_block(made, size),
            labels=np.empty((size, 0), np.float32),
            weights=None,
            ids=[each.values for each in ids],
            offsets=[each.offsets for each in ids],
        )

    def raw_by_column(self) -> dict[str, RawColumns]:
        """Return the declarations of the columns that are made of fields."""
        return {column: each for each in self.raw for column in each.columns}

    def _dense_block(self, made: "MadeColumns", size: int) -> NDArray[np.float32]:
        """Return the dense inputs of all samples, finite, float32 [size, inputs]."""
        block = np.empty((size, self.dense_inputs), np.float32)
        for takes_plain in (True, False):
            at = 0
            for feature in self.dense:
                column = made.column(feature.name)
                is_plain = feature.transform is None and isinstance(column, np.ndarray) and column.dtype == np.float32
                if is_plain and takes_plain:
                    block[:, at] = column
                    at += 1
                else:
                    values = self._dense(feature, column)
                    block[:, at : at + values.shape[1]] = values
                    at += values.shape[1]
            if np.isfinite(block).all():
                break  # else some value needs to be filled, or to be named in an error
        return block

    def _dense(self, feature: DenseFeature, column: Any) -> NDArray[np.float32]:
        try:
            return decode_dense(arrow_column(column, feature.name), feature, WHERE, None, self.fill, Counter())
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{WHERE}: field {feature.name} has values that are no numbers, {one_line(error)}"
            ) from error

    def _ids(self, feature: SparseFeature, column: Any) -> Ids:
        is_list = feature.name in self.lists
        is_plain = feature.buckets is None and feature.ids != "text" and not is_list
        if is_plain and isinstance(column, np.ndarray) and column.dtype in INTEGERS:
            return Ids(column.view(np.uint64), None)
        name = feature.column_name
        try:
            return decode_ids(arrow_column(column, name, is_list), feature, is_list, WHERE, None, Counter())
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{WHERE}: field {name} has values that are no ids, {one_line(error)}") from error


class MadeColumns:
    """The data set's columns of a request, made of its fields where they are declared so.

    All columns of a declaration whose values are of one type are made in one pass: dozens cost little more than one.
    """

    def __init__(self, raw: Mapping[str, RawColumns], given: Mapping[str, Any]) -> None:
        self._raw, self._given = raw, given
        self._made: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """Return a column; raises DataError for values that it cannot be made of."""
        raw = self._raw.get(name)
        if raw is None:
            return self._given[name]
        if name not in self._made:
            self._made |= self._columns(raw) if raw.is_same_for_all else {name: self._alone(raw, name)}
        return self._made[name]

    def _columns(self, raw: RawColumns) -> dict[str, Any]:
        """Return the columns of a declaration whose fields the request has."""
        arrays = {name: self._array(raw, name) for name in raw.columns if raw.field_of(name) in self._given}
        kinds = list(dict.fromkeys(array.type for array in arrays.values() if not pa.types.is_null(array.type)))
        made: dict[str, Any] = {}
        for kind in kinds or [pa.null()]:
            # Nulls alone have no type of their own, and go with the first one.
            with_nulls = not kinds or kind == kinds[0]
            own = [
                name for name, each in arrays.items() if each.type == kind or (each.type == pa.null() and with_nulls)
            ]
            try:
                joined = pa.concat_arrays([arrays[name].cast(kind) for name in own])
                whole = column_of_request(raw, own[0], joined)
            except (pa.ArrowException, TypeError):
                made |= {name: self._alone(raw, name) for name in own}  # one of them names the field
                continue
            ends = np.cumsum([len(arrays[name]) for name in own]).tolist()
            for name, begin, end in zip(own, [0, *ends], ends, strict=False):
                made[name] = _plain(whole.slice(begin, end - begin))
        return made

    def _alone(self, raw: RawColumns, name: str) -> Any:
        try:
            return column_of_request(raw, name, self._array(raw, name))
        except (pa.ArrowException, TypeError) as error:
            field = raw.field_of(name)
            raise DataError(f"{WHERE}: field {field} has a value that is no {raw.read}, {one_line(error)}") from error

    def _array(self, raw: RawColumns, name: str) -> Any:
        field = raw.field_of(name)
        return arrow_column(self._given[field], field, raw.read == "texts").combine_chunks()


def _plain(array: Any) -> Any:
    """Return numbers without nulls as a numpy array, which needs no decoding."""
    is_number = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    return array.to_numpy() if is_number and not array.null_count else array


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


def _rows_of(column: Any, name: str) -> int:
    """Return the samples of a column; raises DataError for what has no value of its own for each."""
    if type(column) is np.ndarray and column.ndim == 1:
        return column.size
    if isinstance(column, Lists):
        lengths = np.asarray(column.lengths)
        if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu") or (lengths < 0).any():
            raise DataError(f"{WHERE}: the lengths of field {name} have to be integers from 0 on, one for each sample")
        if (ids := _rows_of(column.values, name)) != lengths.sum():
            raise DataError(f"{WHERE}: the lengths of field {name} add up to {lengths.sum()}, and it has {ids} ids")
        return lengths.size
    if isinstance(column, (list, tuple, pa.Array, pa.ChunkedArray)) or getattr(column, "ndim", 0) == 1:
        return len(column)
    dimensions = getattr(column, "ndim", 0)
    what = f"an array of {dimensions} dimensions" if dimensions else type(column).__name__
    raise DataError(f"{WHERE}: field {name} has to be a list with a value for each sample, and is {what}")


def arrow_column(column: Any, name: str, is_list: bool = False) -> Any:
    """Return a column as a chunked Arrow array; raises DataError for values of several types."""
    try:
        if isinstance(column, pa.ChunkedArray):
            return column
        if isinstance(column, Lists):
            bounds = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int64)
            array = pa.LargeListArray.from_arrays(pa.array(bounds), _inferred(column.values, False))
        else:
            array = column if isinstance(column, pa.Array) else _inferred(column, is_list)
        if is_list and pa.types.is_null(array.type):
            array = array.cast(pa.list_(pa.null()))
        return pa.chunked_array([array])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{WHERE}: the values of field {name} do not fit together, {one_line(error)}") from error


def _inferred(values: Any, is_list: bool) -> Any:
    """Return values as an Arrow array; pyarrow alone does not find the type of integers from 2^63 on."""
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.list_(pa.uint64()) if is_list else pa.uint64())


def _in_block(ids: Sequence[Ids], size: int) -> list[Ids]:
    """Return the ids of features that have one in each of `size` samples, or in the only one."""
    block = np.empty((len(ids), size), np.uint64)
    for row, each in zip(block, ids, strict=True):
        row[:] = each.values
    return [Ids(row, None) for row in block]


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
