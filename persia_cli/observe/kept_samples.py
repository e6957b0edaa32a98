"""The part of a run's data that an export needs: some samples, and the rules for fields of requests.

A run keeps them in its directory from its start, and with its record in every checkpoint, since the data may be gone
or replaced when the model is exported.
"""

import math
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import class_of
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.parquet import ParquetSource
from persia_cli.data.read.row_groups import RowGroupStream
from persia_cli.data.read.scan import ParquetScan
from persia_cli.data.read.source import Source, open_source
from persia_cli.errors import CheckpointError, one_line
from persia_cli.plan.columns import label_names, sparse_features
from persia_cli.serving.fields import CsvFields, Held, RequestFields
from persia_cli.serving.sample_table import batch_of_table, columns_of_batch

NUMBER = 256
"""Number of samples, if the data has enough."""
COMMON = 10
"""A text is common if it has one of so many rows."""
MOST_LISTED = 100
"""Maximum number of values of a list in an example."""
_FIELDS = b"persia.fields"
"""Key of the file's metadata with the fields, in JSON."""


class KeptSamples(NamedTuple):
    """The first evaluation samples of a run, else of training, and the fields of requests."""

    batch: Batch
    fields: RequestFields


def encoded_samples(run: Run, contents: ParquetScan | None) -> bytes:
    """Return the content of the file; `found` are the contents of the data set's files, None if it has none.

    Raises DataError for samples that cannot be read.
    """
    batch = _first(run, "eval", contents) or _first(run, "train", contents)
    assert batch is not None  # a job without samples is not planned
    csv = None if contents is None else csv_fields(contents)
    fields = RequestFields.of(run.dataset, _lists(run, batch, contents), _single_columns(contents), csv)
    if contents is not None:
        fields = fields.model_copy(update={"example": _example(contents, fields)})
    columns = columns_of_batch(batch, [feature.name for feature in sparse_features(run)])
    table = pa.table(columns).replace_schema_metadata({_FIELDS: fields.model_dump_json(exclude_defaults=True)})
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_samples(run: Run, path: Path) -> KeptSamples:
    """Return the content of the file of a run; raises CheckpointError if it is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as file:
            table = pyarrow.ipc.open_file(file).read_all().combine_chunks()
        fields = RequestFields.model_validate_json(table.schema.metadata[_FIELDS])
        features = [feature.name for feature in sparse_features(run)]
        batch = batch_of_table(table, features, fields.dense_inputs, len(label_names(run)))
    except (OSError, KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise CheckpointError(
            f"{path} cannot be read, and an export needs the samples there: {one_line(error)}; copy it from run/ or "
            "run-renewed/ of a checkpoint"
        ) from error
    return KeptSamples(batch, fields)


def _first(run: Run, split: SplitName, contents: ParquetScan | None) -> Batch | None:
    """Return the first samples of a split; None if it has none."""
    source: Source
    if contents is None:
        source = open_source(run.dataset, split, run.seed, run.links)
    else:
        source = ParquetSource(contents.settled, contents, split, run.seed, run.links)
    try:
        return source.read(0, 0, min(source.rows, NUMBER)) if source.rows else None
    finally:
        source.close()


def _example(contents: ParquetScan, fields: RequestFields) -> dict[str, Any]:
    """Return the values of the first row, of fields that are columns of the files; without missing and long ones.

    A text is the most frequent of the first rows, if it is common there: a rare one could name a person, and exported
    models contain the example.
    """
    group = next(group for group in contents.groups if group.rows)
    computed = {column for declaration in fields.raw if declaration.read != "number" for column in declaration.columns}
    names = [name for name in fields.names if name in contents.schemas[0].names and name not in computed]
    with closing(RowGroupStream(contents.filesystem, group, names, NUMBER)) as stream:
        table = stream.read()
    columns = {name: table[name].to_pylist() for name in names}
    values = {name: values[0] for name, values in columns.items() if _is_short(values[0])}
    values |= {name: text for name, column in columns.items() if (text := _common_text(column)) is not None}
    return {name: _plain(table[name].type, value) for name, value in values.items()}


def _is_short(value: Any) -> bool:
    """Return True for a time, a finite number, or a list of at most MOST_LISTED of these."""
    if isinstance(value, list):
        return len(value) <= MOST_LISTED and all(map(_is_short, value))
    return isinstance(value, (int, datetime)) or (isinstance(value, float) and math.isfinite(value))


def _common_text(values: list[Any]) -> str | None:
    """Return the most frequent text, if it is there again and at least once in COMMON values; else None."""
    texts = Counter(value for value in values if isinstance(value, str))
    for text, count in texts.most_common(1):
        if count > 1 and count * COMMON >= len(values):
            return text
    return None


def _plain(kind: pa.DataType, value: Any) -> Any:
    """Return a value as people write it: a float32 by its own digits, a time as text."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return float(str(np.float32(value))) if kind == pa.float32() and value is not None else value


def _lists(run: Run, batch: Batch, contents: ParquetScan | None) -> frozenset[str]:
    """Return the features whose columns contain lists: by the files, as sequences, or by a sample of not one id.

    A feature that drops nulls has no id for a null.
    """
    lists = set()
    for number, feature in enumerate(sparse_features(run)):
        offsets = batch.offsets[number * batch.size : (number + 1) * batch.size + 1]
        lengths = np.diff(offsets.astype(np.int64))
        has_lists = (lengths > 1).any() if feature.drops_nulls else (lengths != 1).any()
        in_files = contents is not None and (feature.column_name in contents.lists or feature.makes_lists)
        if feature.pooling != "sum" or feature.max_length is not None or has_lists or in_files:
            lists.add(feature.name)
    return frozenset(lists)


def _single_columns(contents: ParquetScan | None) -> frozenset[str]:
    """Return the columns that are float32 in all files."""
    singles = (
        []
        if contents is None
        else [{field.name for field in schema if field.type == pa.float32()} for schema in contents.schemas]
    )
    return frozenset.intersection(*map(frozenset, singles)) if singles else frozenset()


def csv_fields(contents: ParquetScan) -> CsvFields | None:
    """Return the rules by which the fields of a data set's files are read; None if these are no CSV files."""
    if contents.format != "csv":
        return None
    dataset = contents.settled
    from_folders = {name for group in contents.groups for name in group.constants}
    kinds = {name: _held(contents, name) for name in _columns(dataset) if name not in from_folders}
    return CsvFields(nulls=dataset.csv.nulls, columns=kinds)


def _columns(dataset: ParquetDataset) -> list[str]:
    """Return the columns of samples that features read."""
    columns = [
        *(feature.column_name for feature in dataset.sparse if dataset.history_of(feature) is None),
        *(feature.name for feature in dataset.dense_features if dataset.history_of_times(feature) is None),
        *(str(feature.until) for feature in dataset.times),
    ]
    return list(dict.fromkeys(columns))


def _held(contents: ParquetScan, column: str) -> Held:
    """Return the type of a column in all files; numbers, if it has no value and a feature reads numbers."""
    dataset = contents.settled
    if any(
        column in (feature.name, feature.until) and feature.values == "time" for feature in dataset.dense_features
    ) or any(feature.column_name == column and feature.ids == "time" for feature in dataset.sparse):
        return "text"
    if any(column in (feature.name, feature.until) for feature in dataset.times):
        return "integer"
    classes = {class_of(schema.field(column).type) for schema in contents.schemas} - {"null"}
    if classes == {"boolean"}:
        return "boolean"
    features = [feature for feature in dataset.sparse if feature.column_name == column]
    if any(feature.buckets is None and feature.ids == "integer" for feature in features):
        return "integer"
    reads_numbers = any(feature.name == column for feature in dataset.dense_features) or any(
        feature.buckets is not None for feature in features
    )
    return "number" if reads_numbers or (classes and "text" not in classes) else "text"
