"""The samples of requests as columns of the model's data set, so that training and prediction read the same values.

Columns that preparation computes from a field are computed here too. Texts that training hashes stay texts, times are
timestamps, other ids are uint64 and numbers float64, in whichever type a request has them. A column that is read in
several of these ways is a whole number or a text, from which all of them are computed. Nulls stay nulls. The batch of
a data set of these columns equals the predicted one, to the bit.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.arrow_types import UnusableValueError, class_of, is_list
from persia_cli.data.read.decode import decode_ids
from persia_cli.data.read.dense_transforms import numbers_of
from persia_cli.data.read.gaps import readers as readers_of_times
from persia_cli.data.read.lists import with_values
from persia_cli.data.read.times import from_format, microseconds
from persia_cli.data.read.values import float_values, id_values, texts_of
from persia_cli.errors import DataError
from persia_cli.serving.columns import WHERE, arrow_column
from persia_cli.serving.fields import RequestFields

Reader = DenseFeature | SparseFeature
"""A feature that reads a column."""


class SampleColumns:
    """Makes the data set's columns of requests for one model."""

    def __init__(self, fields: RequestFields) -> None:
        self._fields = fields
        readers: dict[str, list[Reader]] = {}
        for feature in fields.sparse:
            readers.setdefault(feature.column_name, []).append(feature)
        for dense_feature in fields.dense:
            if dense_feature.times_of is None:
                readers.setdefault(dense_feature.name, []).append(dense_feature)
        for times in fields.times_of_lists:
            for reader in readers_of_times(times):
                # Integers keep their sign.
                plain = reader if reader.ids == "time" else reader.model_copy(update={"ids": None})
                readers.setdefault(reader.name, []).append(plain)
        self._columns = {
            name: _LoggedColumn(name, features, any(_has_lists(reader, fields) for reader in features))
            for name, features in readers.items()
        }
        self.names = list(self._columns)

    def schema(self) -> Any:
        """Return the Arrow schema of the columns."""
        return pa.schema([(name, column.type) for name, column in self._columns.items()])

    def arrays(self, given: Mapping[str, Any], samples: int) -> list[Any]:
        """Return the columns of a predicted request, given its fields; one value stands for all samples.

        Raises DataError for values that no common column of all features that read it can represent.
        """
        computed = self._fields.made(given)
        return [_repeated(column.array(computed.column(name)), samples) for name, column in self._columns.items()]


class _LoggedColumn:
    """A column, and the features that read it."""

    def __init__(self, name: str, readers: list[Reader], has_lists: bool) -> None:
        self._name, self._readers, self._has_lists = name, readers, has_lists
        plain, self._flat = _form(readers)
        self.type = pa.list_(plain) if has_lists else plain

    def array(self, given: Any) -> Any:
        """Return the column's values; raises DataError if a feature would read other values than the request's."""
        column = arrow_column(given, self._name, self._has_lists)
        array = column.combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        try:
            values = _lists(array, self._flat) if self._has_lists else self._flat(array)
        except UnusableValueError as error:
            raise DataError(f"{WHERE}: {error}") from error
        if len(self._readers) > 1:
            self._require_same(column, pa.chunked_array([values]))
        return values

    def _require_same(self, given: Any, values: Any) -> None:
        for reader in self._readers:
            try:
                is_same = _read(reader, given, self._has_lists) == _read(reader, values, self._has_lists)
            except (DataError, pa.ArrowException, TypeError):
                is_same = False
            if not is_same:
                raise DataError(
                    f"{WHERE}: {reader.name} and other features read {self._name}, and no column of {values.type} "
                    "holds the values that it has here for all of them"
                )


def _has_lists(reader: Reader, fields: RequestFields) -> bool:
    if isinstance(reader, DenseFeature):
        return reader.width is not None
    return reader.name in (*fields.lists, *(feature.name for feature in fields.times_of_lists))


def _form(readers: list[Reader]) -> tuple[Any, Callable[[Any], Any]]:
    """Return the Arrow type of a column's values, and a function that makes them of an array."""
    if all(_is_time(reader) for reader in readers) and len({reader.format for reader in readers}) == 1:
        return pa.timestamp("us", "UTC"), partial(_times, readers[0].format)
    ids = [reader for reader in readers if isinstance(reader, SparseFeature) and reader.buckets is None]
    if any(map(_is_time, readers)):
        return pa.string(), _texts
    if not ids:
        return pa.float64(), _numbers
    kinds = {feature.ids for feature in ids}
    if kinds == {"text"} and len(ids) == len(readers):
        return pa.string(), _texts
    if "text" not in kinds and len(ids) == len(readers):
        return pa.uint64(), lambda array: _whole_numbers(array, ids[0])
    # A data set has no texts for features that read numbers, and different texts can be the same number.
    if len(ids) < len(readers) or None in kinds:
        return pa.int64(), lambda array: _whole_numbers(array, None).view(pa.int64())
    return pa.string(), _texts


def _is_time(reader: Reader) -> bool:
    return (reader.values if isinstance(reader, DenseFeature) else reader.ids) == "time"


def _read(reader: Reader, column: Any, as_lists: bool) -> bytes:
    """Return the values that a feature reads from a column, before it is transformed or truncated."""
    if isinstance(reader, DenseFeature) or reader.buckets is not None:
        column = column.combine_chunks()
        numbers = numbers_of(column.flatten() if is_list(column.type) else column, reader)
        return np.where(np.isnan(numbers), np.nan, numbers).tobytes()
    whole = reader.model_copy(update={"max_length": None})
    ids = decode_ids(column, whole, as_lists, WHERE, None, Counter())
    return ids.values.tobytes() + (b"" if ids.offsets is None else ids.offsets.tobytes())


def _times(form: str | None, array: Any) -> Any:
    return microseconds(from_format(array, form)).cast(pa.timestamp("us", "UTC"))


def _numbers(array: Any) -> Any:
    return pa.array(float_values(array), from_pandas=True)


def _whole_numbers(array: Any, feature: SparseFeature | None) -> Any:
    """Return whole numbers as ids, uint64; those of a feature without a declared source may be hashes."""
    table, source = ("", "integer") if feature is None else (feature.table_name, feature.ids)
    ids = id_values(array, table, source, np.uint64(0))
    absent = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    return pa.array(ids, mask=absent)


def _texts(array: Any) -> Any:
    return array.cast(pa.string()) if class_of(array.type) in ("null", "text") else texts_of(array)


def _lists(array: Any, flat: Callable[[Any], Any]) -> Any:
    """Return lists of values; a value that is no list becomes a list of one."""
    if not is_list(array.type):
        return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1, dtype=np.int32)), flat(array))
    return with_values(array, flat(array.flatten()))


def _repeated(array: Any, samples: int) -> Any:
    if len(array) == samples:
        return array
    return array.take(pa.array(np.zeros(samples, np.int64)))
