"""The fields of requests, `features.yaml`: their conversion, by the rules and the code that read training data."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from persia_cli.config.schema.base import Node
from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.arrow_types import class_of, is_list
from persia_cli.data.read.batch import Batch, Ids, assemble
from persia_cli.data.read.csv_files import numbers_of, without_markers
from persia_cli.data.read.decode import decode_dense, decode_ids
from persia_cli.data.read.gaps import ListTimes, checked_gaps, decode_moments, elements_in, wrong_moments
from persia_cli.data.read.ids import seed_of
from persia_cli.data.read.lists import with_values
from persia_cli.data.read.times import described, example_of
from persia_cli.errors import CheckpointError, DataError, one_line
from persia_cli.serving.columns import WHERE, ComputedColumns, Lists, arrow_column, rows_of, with_lists
from persia_cli.serving.description import FEATURES
from persia_cli.serving.packed import PackedColumns, PackedLayout, PackedReader

Held = Literal["text", "integer", "number", "boolean"]
"""The type of a column of CSV files."""


class CsvFields(Node):
    """The rules by which the CSV files of training were read; texts of requests are read by the same rules."""

    nulls: tuple[str, ...]
    """Texts that stand for a missing value."""
    columns: Mapping[str, Held]
    """The type of each column that was read from fields; blanks around a number are ignored, those around text are part
    of it."""

    def read(self, name: str, given: Any) -> Any:
        """Return a column of a request with its texts read as those of training; other values are unchanged.

        Raises DataError for values of several types.
        """
        kind = self.columns.get(name)
        if kind is None:
            return given
        if isinstance(given, Lists):
            return Lists(self.read(name, given.values), given.lengths)
        read = partial(self._read, kind)
        try:
            return of_texts(name, given, read)
        except DataError:
            if not isinstance(given, (list, tuple)):
                raise
            # Null markers may be mixed with numbers, value by value; that is slower, and rare.
            return of_texts(name, self._unmarked(given), read)

    def _unmarked(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Return values, which may be lists, with None in place of null markers; the others may be numbers."""
        return [
            self._unmarked(value)
            if isinstance(value, (list, tuple))
            else None
            if isinstance(value, str) and value in self.nulls
            else value
            for value in values
        ]

    def _read(self, kind: Held, texts: Any) -> Any:
        texts = without_markers(texts, self.nulls)
        return texts if kind == "text" else numbers_of(texts, kind)


def of_texts(name: str, given: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the result of `made` for a column's texts, an Arrow array of strings, or for those in its lists.

    A column without texts is unchanged. Raises DataError for texts among other values.
    """
    if isinstance(given, np.ndarray) and given.dtype.kind not in "OTU":
        return given
    try:
        array = arrow_column(given, name).combine_chunks()
    except DataError:
        if _holds_text(given):
            raise
        return given
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values = array.flatten() if is_list(array.type) else array
    if class_of(values.type) != "text":
        return given
    read = convert(values.cast(pa.string()))
    return with_values(array, read) if is_list(array.type) else read


def _holds_text(values: Iterable[Any]) -> bool:
    return any(isinstance(value, str) or (isinstance(value, (list, tuple)) and _holds_text(value)) for value in values)


INTEGERS = (np.dtype(np.int64), np.dtype(np.uint64))
SINGLE = np.dtype(np.float32)
SOME_TIME = "2024-01-31T12:30:00Z"
Datatype = Literal["FP32", "FP64", "INT64", "UINT64", "BYTES"]
RAW_TYPES: dict[str, Datatype] = {
    "integer": "INT64", "number": "FP64", "absence": "FP64", "text": "BYTES", "texts": "BYTES", "hexadecimal": "BYTES",
}  # fmt: skip


class RequestFields(Node):
    """The columns that a model reads, in the order of its inputs."""

    version: Literal[1] = 1
    """Version of this file's format."""
    fill: float | None = None
    """Value in place of null or non-finite dense values; without it, such values are an error."""
    dense: tuple[DenseFeature, ...]
    """Dense features; the field has the feature's name, and lists of numbers if the feature has a `width`."""
    sparse: tuple[SparseFeature, ...]
    """Sparse features; the field has the name of the feature's column."""
    raw: tuple[RawColumns, ...] = ()
    """The declarations of computed columns, for fields that have another name or format than in the data set."""
    lists: tuple[str, ...] = ()
    """Sparse features that have a list of ids in each sample."""
    csv: CsvFields | None = None
    """The rules by which CSV files of training were read, if any; texts of requests are read by the same rules."""
    example: Mapping[str, Any] = Field(default_factory=dict)
    """The values of a row of the data set's files, of the fields that are its columns."""
    text_seeds: Mapping[str, str] = Field(default_factory=dict)
    """For readers: the seed of XXH64, in hexadecimal, by which texts become ids, of each table whose ids are texts."""

    @classmethod
    def of(
        cls, dataset: ParquetDataset | GeneratedDataset, lists: frozenset[str], singles: frozenset[str] = frozenset(),
        csv: CsvFields | None = None,
    ) -> Self:  # fmt: skip
        """Return the fields of a data set.

        The features in `lists` have lists of ids, and the columns in `singles` are float32.
        """
        if isinstance(dataset, ParquetDataset):
            dense, sparse, fill, raw = dataset.dense_features, dataset.sparse, dataset.fill, dataset.raw
        else:
            generator = dataset.generator
            dense = tuple(DenseFeature(name=f"dense_{number}") for number in range(generator.dense))
            names = [f"feature_{number}" for number in range(len(generator.cardinalities))]
            sparse = tuple(SparseFeature(name=name, ids="integer") for name in names)
            fill, raw = None, ()
        # A float64 may be on the other side of a bound of buckets or bins than its float32.
        bounded = [feature.name for feature in dense if feature.transform is not None]
        bounded += [feature.column_name for feature in sparse if feature.buckets is not None]
        computed = {column for declaration in raw for column in declaration.columns}
        if rounded := [name for name in dict.fromkeys(bounded) if name in singles - computed]:
            raw = (*raw, RawColumns(columns=tuple(rounded), read="number", steps=("float32",)))
        texts = [feature.table_name for feature in sparse if feature.ids == "text"]
        texts += [
            table
            for declaration in raw
            for column in declaration.columns
            if (table := declaration.table_of(column)) is not None
        ]
        return cls(
            fill=fill,
            dense=dense,
            sparse=sparse,
            raw=raw,
            lists=tuple(feature.name for feature in sparse if feature.name in lists),
            csv=csv,
            text_seeds={table: f"{seed_of(table):016x}" for table in dict.fromkeys(texts)},
        )

    def inputs(self) -> list[tuple[str, Datatype, tuple[int, ...]]]:
        """Return name, datatype and shape of each field; -1 is any number."""
        fields: dict[str, tuple[str, Datatype, tuple[int, ...]]] = {}
        raw = self.raw_by_column()
        read = [*(feature.column_name for feature in self.sparse), *(feature.name for feature in self.dense)]
        for column in [*read, *(str(feature.until) for feature in self.times_of_lists)]:
            if column in raw:
                field = raw[column].field_of(column)
                shape = (-1, -1) if raw[column].read == "texts" else (-1,)
                fields[field] = (field, RAW_TYPES[raw[column].read], shape)
        for feature in self.sparse:
            if feature.column_name in raw:
                continue
            is_text = feature.ids in ("text", "time") or feature.separator is not None
            kind: Datatype = "BYTES" if is_text else "FP64" if feature.buckets is not None else "UINT64"
            shape = (-1, -1) if feature.name in self.lists else (-1,)
            fields[feature.column_name] = (feature.column_name, kind, shape)
        for dense_feature in self.dense:
            if dense_feature.name in raw:
                continue
            width = () if dense_feature.width is None else (dense_feature.width,)
            if dense_feature.times_of is not None:
                moment: Datatype = "BYTES" if dense_feature.values == "time" else "INT64"
                fields[dense_feature.name] = (dense_feature.name, moment, (-1, -1))
                continue
            number: Datatype = "FP32" if dense_feature.transform is None else "FP64"
            fields[dense_feature.name] = (
                dense_feature.name,
                "BYTES" if dense_feature.values == "time" else number,
                (-1, *width),
            )
        for times in self.times_of_lists:
            if (asked := str(times.until)) not in fields:
                fields[asked] = (asked, "BYTES" if times.values == "time" else "INT64", (-1,))
        return list(fields.values())

    @property
    def times_of_lists(self) -> tuple[DenseFeature, ...]:
        """The dense features that are the times of a list."""
        return tuple(feature for feature in self.dense if feature.times_of is not None)

    @cached_property
    def times(self) -> dict[str, str]:
        """An example for each field that takes dates, timestamps or texts of these."""
        read = {feature.name: feature.format for feature in self.dense if feature.values == "time"}
        read |= {str(feature.until): feature.format for feature in self.times_of_lists if feature.values == "time"}
        read |= {feature.column_name: feature.format for feature in self.sparse if feature.ids == "time"}
        return {name: SOME_TIME if form is None else example_of(form) for name, form in read.items()}

    @cached_property
    def names(self) -> dict[str, None]:
        """The names of all fields, in order."""
        return dict.fromkeys(name for name, _, _ in self.inputs())

    @cached_property
    def list_names(self) -> frozenset[str]:
        """The names of fields that take a list in each sample."""
        return frozenset(name for name, _, shape in self.inputs() if len(shape) == 2)

    @cached_property
    def dense_inputs(self) -> int:
        """Number of dense inputs of the network."""
        return sum(feature.inputs for feature in self.dense)

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        """Return the samples of a request's columns: lists, numpy or Arrow arrays, or `Lists`, by field.

        A column of one value stands for all samples. Raises DataError that names the missing field, or the wrong value.
        """
        if isinstance(columns, PackedColumns) and (batch := self._packed_batch(columns)) is not None:
            return batch
        names = self.names
        if missing := [name for name in names if name not in columns]:
            raise DataError(f"{WHERE} has no field {missing[0]}; the model reads {', '.join(names)}")
        if unknown := [name for name in columns if name not in names]:
            raise DataError(
                f"{WHERE} has a field {unknown[0]}, which the model does not read; it reads {', '.join(names)}"
            )
        columns = with_lists(columns, self.list_names)
        sizes = {name: rows_of(columns[name], name) for name in names}
        size = next((rows for rows in sizes.values() if rows != 1), 1)
        if wrong := [name for name, rows in sizes.items() if rows not in (1, size)]:
            raise DataError(f"{WHERE} has {sizes[wrong[0]]} values of {wrong[0]}, and {size} of other fields")
        computed = self.made(columns)
        ids = [self._ids(feature, computed.column(feature.column_name)) for feature in self.sparse]
        if all(feature_ids.offsets is None for feature_ids in ids):
            ids = _in_block(ids, size)
        else:
            ids = [_repeated(feature_ids, size) for feature_ids in ids]
        return assemble(
            dense=self._dense_block(computed, size),
            labels=np.empty((size, 0), np.float32),
            weights=None,
            ids=[feature_ids.values for feature_ids in ids],
            offsets=[feature_ids.offsets for feature_ids in ids],
        )

    def made(self, columns: Mapping[str, Any]) -> ComputedColumns:
        """Return the data set's columns, computed from a request's."""
        return ComputedColumns(self.raw_by_column(), columns, self._read)

    def _read(self, name: str, given: Any) -> Any:
        """Return a column of a request, with its texts read by the rules of the data."""
        return given if self.csv is None else self.csv.read(name, given)

    def _packed_batch(self, columns: PackedColumns) -> Batch | None:
        """Return the samples of columns that need no decoding; None if some need it, are missing, or are invalid."""
        readers, layout = self._packed_readers, columns.layout
        if layout not in readers:
            readers[layout] = self._packed_reader(layout)
        reader = readers[layout]
        return None if reader is None else reader.batch(columns.body)

    @cached_property
    def _packed_readers(self) -> WeakKeyDictionary[PackedLayout, PackedReader | None]:
        return WeakKeyDictionary()

    def _packed_reader(self, layout: PackedLayout) -> PackedReader | None:
        if layout.columns.keys() != self.names.keys() or self.raw:
            return None
        dense = [layout.columns[feature.name] for feature in self.dense]
        ids = [layout.columns[feature.column_name] for feature in self.sparse]
        are_plain = all(feature.transform is None and feature.width is None for feature in self.dense) and all(
            self._has_plain_ids(feature) for feature in self.sparse
        )
        if (
            not are_plain
            or {feature.dtype for feature in dense} - {SINGLE}
            or {column.dtype for column in ids} - set(INTEGERS)
        ):
            return None
        return PackedReader.of(dense, ids)

    def raw_by_column(self) -> dict[str, RawColumns]:
        """Return the declarations of the computed columns."""
        return {column: declaration for declaration in self.raw for column in declaration.columns}

    def _dense_block(self, computed: ComputedColumns, size: int) -> NDArray[np.float32]:
        """Return the dense inputs of all samples, finite, float32 [size, inputs]."""
        block = np.empty((size, self.dense_inputs), np.float32)
        for takes_plain in (True, False):
            at = 0
            for feature in self.dense:
                if feature.times_of is not None:
                    block[:, at : at + feature.inputs] = self._gaps(feature, computed, size)
                    at += feature.inputs
                    continue
                column = computed.column(feature.name)
                is_plain = isinstance(column, np.ndarray) and column.dtype == SINGLE
                is_plain = is_plain and feature.transform is None and feature.width is None
                if is_plain and takes_plain:
                    block[:, at] = column
                    at += 1
                else:
                    values = self._dense(feature, column)
                    block[:, at : at + values.shape[1]] = values
                    at += values.shape[1]
            if np.isfinite(block).all():
                break  # else a value has to be filled, or named in an error
        return block

    def _gaps(self, feature: DenseFeature, computed: ComputedColumns, size: int) -> NDArray[np.float32]:
        """Return the inputs of the times of a list in `size` samples."""
        lists = arrow_column(computed.column(feature.name), feature.name, True)
        asked = arrow_column(computed.column(str(feature.until)), str(feature.until))
        for name, column in ((feature.name, lists), (str(feature.until), asked)):
            if (wrong := wrong_moments(feature, name, column.type)) is not None:
                raise DataError(f"{WHERE}: field {wrong}")
        moments = decode_moments(lists, asked, feature, WHERE, None, f"give {described(feature.format)}")
        repeated = ListTimes(_repeated(moments.lists, size), _repeated(Ids(moments.asked, None), size).values)
        [of] = [each.column_name for each in self.sparse if each.name == feature.times_of]
        elements = elements_in(arrow_column(computed.column(of), of, True))
        return checked_gaps(repeated, feature, np.broadcast_to(elements, size), WHERE, None)

    def _dense(self, feature: DenseFeature, column: Any) -> NDArray[np.float32]:
        try:
            given = arrow_column(column, feature.name, feature.width is not None)
            remedy = f"the model needs a {'time' if feature.values == 'time' else 'number'} there"
            return decode_dense(given, feature, WHERE, None, self.fill, Counter(), remedy)
        except (pa.ArrowException, TypeError) as error:
            plain = "times" if feature.values == "time" else "numbers"
            wanted = plain if feature.width is None else f"lists of {feature.width} numbers"
            raise DataError(
                f"{WHERE}: field {feature.name} has values that are no {wanted}, {one_line(error)}"
            ) from error

    def _has_plain_ids(self, feature: SparseFeature) -> bool:
        """Return True if whole numbers are the feature's ids unchanged, one for each sample (`NULL_ID` for null)."""
        return (
            feature.buckets is None
            and feature.ids not in ("text", "time")
            and feature.name not in self.lists
            and feature.missing_id is None
        )

    def _ids(self, feature: SparseFeature, column: Any) -> Ids:
        if isinstance(column, np.ndarray) and column.dtype in INTEGERS and self._has_plain_ids(feature):
            return Ids(column.view(np.uint64), None)
        is_list = feature.name in self.lists
        name = feature.column_name
        times = f"times such as {self.times[name]}" if feature.ids == "time" else ""
        wanted = times or ("texts" if feature.ids == "text" else "whole numbers")
        try:
            given = arrow_column(column, name, is_list)
            return decode_ids(given, feature, is_list, WHERE, None, Counter(), f"give {wanted}, or null")
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


def _in_block(ids: Sequence[Ids], size: int) -> list[Ids]:
    """Return the ids of features that have one in each of `size` samples, or in the only one."""
    block = np.empty((len(ids), size), np.uint64)
    for row, feature_ids in zip(block, ids, strict=True):
        row[:] = feature_ids.values
    return [Ids(row, None) for row in block]


def _repeated(ids: Ids, size: int) -> Ids:
    """Return the ids of `size` samples, by repeating those of the only one."""
    samples = ids.values.size if ids.offsets is None else ids.offsets.size - 1
    if samples == size:
        return ids
    if ids.offsets is None:
        return Ids(np.repeat(ids.values, size), None)
    return Ids(np.tile(ids.values, size), np.arange(size + 1, dtype=np.int64) * ids.values.size)
