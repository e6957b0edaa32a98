"""The samples of requests as columns of the model's data set, so that training and prediction read them as its files.

What preparation makes of a field of the source is made of it. Texts that training hashes stay texts, other ids are
uint64 and numbers float64, whichever way a request gave them. The batch of a data set of these columns is the one that
was predicted, to the bit.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.arrow_types import class_of, is_list
from persia_cli.data.decode import decode_ids
from persia_cli.data.values import float_values, texts_of
from persia_cli.serving.fields import WHERE, MadeColumns, RequestFields, arrow_column


class SampleColumns:
    """Makes the data set's columns of requests for one model."""

    def __init__(self, fields: RequestFields) -> None:
        self._fields = fields
        self._ids = {each.column_name: each for each in fields.sparse if each.buckets is None}
        numbers = [*(each.name for each in fields.dense), *(each.column_name for each in fields.sparse)]
        self.names = list(dict.fromkeys([*self._ids, *numbers]))

    def schema(self) -> Any:
        """Return the Arrow schema of the columns."""
        return pa.schema([(name, self._type(name)) for name in self.names])

    def arrays(self, given: Mapping[str, Any], samples: int) -> list[Any]:
        """Return the columns of a request that was predicted, by its fields; one value stands for all samples."""
        made = MadeColumns(self._fields.raw_by_column(), given)
        return [_repeated(self._array(name, made.column(name)), samples) for name in self.names]

    def _type(self, name: str) -> Any:
        feature = self._ids.get(name)
        if feature is None:
            return pa.float64()
        plain = pa.string() if feature.ids == "text" else pa.uint64()
        return pa.list_(plain) if feature.name in self._fields.lists else plain

    def _array(self, name: str, column: Any) -> Any:
        feature = self._ids.get(name)
        if feature is None:
            return pa.array(float_values(arrow_column(column, name)), from_pandas=True)
        as_lists = feature.name in self._fields.lists
        values = arrow_column(column, name, as_lists)
        if feature.ids != "text":
            return _id_array(values, feature, as_lists)
        array = values.combine_chunks()
        return _list_of_texts(array) if as_lists else _text_array(array)


def _id_array(values: Any, feature: SparseFeature, as_lists: bool) -> Any:
    whole = feature.model_copy(update={"max_length": None})  # how many of them count is for who reads them
    ids = decode_ids(values, whole, as_lists, WHERE, None, Counter())
    if not as_lists:
        return pa.array(ids.values)
    offsets = np.arange(ids.values.size + 1) if ids.offsets is None else ids.offsets
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids.values))


def _text_array(array: Any) -> Any:
    if class_of(array.type) == "null":
        return array.cast(pa.string())
    return array.cast(pa.string()) if class_of(array.type) == "text" else texts_of(array)


def _list_of_texts(array: Any) -> Any:
    """Return lists of texts; a value that is no list is one of a single text."""
    if not is_list(array.type):
        return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1, dtype=np.int32)), _text_array(array))
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), _text_array(array.flatten()), mask=mask)


def _repeated(array: Any, samples: int) -> Any:
    if len(array) == samples:
        return array
    return array.take(pa.array(np.zeros(samples, np.int64)))
