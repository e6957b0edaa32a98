"""The times of lists as dense inputs: the time from each element to the next, and from the last one to the sample.

Events, columns of samples and requests all pass through `gaps`, so that equal times are equal bits of inputs. The sums
of gaps are the times between any two elements, which float32 could not hold: it has no seconds in years.
"""

from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.arrow_types import WORDS, class_of, is_list, plain_type
from persia_cli.data.read.bad_rows import BadValueError
from persia_cli.data.read.batch import Ids
from persia_cli.data.read.decode import CORRECT_IDS, Rows, decode_ids, place_in
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.times import READ_AS_TIMES, classes_of, described

_SECOND = 1_000_000


class ListTimes(NamedTuple):
    """The times of lists, and the times of samples [n]: microseconds, or integers unchanged, as the bits of int64."""

    lists: Ids
    asked: NDArray[np.uint64]


def gaps(moments: ListTimes, feature: DenseFeature) -> NDArray[np.float32]:
    """Return the gaps of the newest elements of each list, in their order, float32 [n, width]; then zeros."""
    assert feature.width is not None
    assert moments.lists.offsets is not None
    times, asked, bounds = moments.lists.values.view(np.int64), moments.asked.view(np.int64), moments.lists.offsets
    stops, lengths = bounds[1:], np.minimum(np.diff(bounds), feature.width)
    following = np.append(times[1:], 0)
    following[stops[lengths > 0] - 1] = asked[lengths > 0]
    sample = np.repeat(np.arange(lengths.size), lengths)
    place = np.arange(sample.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = np.repeat(stops - lengths, lengths) + place
    found = np.zeros((lengths.size, feature.width), np.float32)
    found[sample, place] = (following - times)[entry] / (_SECOND if feature.values == "time" else 1)
    return found


def readers(feature: DenseFeature) -> tuple[SparseFeature, SparseFeature]:
    """Return what reads a column of lists of times, and that of the samples' times."""
    ids: Literal["time", "integer"] = "time" if feature.values == "time" else "integer"
    return (
        SparseFeature(name=feature.name, ids=ids, format=feature.format),
        SparseFeature(name=str(feature.until), ids=ids, format=feature.format),
    )


def decode_moments(
    lists: Any, asked: Any, feature: DenseFeature, where: object, rows: Rows, remedy: str = CORRECT_IDS
) -> ListTimes:
    """Return the times in chunked arrays of lists and of samples; raises DataError for what is no time."""
    of_lists, of_samples = readers(feature)
    found = decode_ids(lists, of_lists, True, where, rows, Counter(), remedy)
    return ListTimes(found, decode_ids(asked, of_samples, False, where, rows, Counter(), remedy).values)


def elements_in(column: Any) -> NDArray[np.int64]:
    """Return the number of elements in each row of a chunked array of lists, or of single ids, int64 [n].

    A null list is one missing id, as `decode_ids` reads it.
    """
    if not is_list(plain := plain_type(column.type)):
        return np.ones(len(column), np.int64)
    lists = column.cast(plain) if pa.types.is_dictionary(column.type) else column
    return np.asarray(pc.list_value_length(lists).fill_null(1), np.int64)


def checked_gaps(
    moments: ListTimes, feature: DenseFeature, elements: NDArray[np.int64], where: object, rows: Rows
) -> NDArray[np.float32]:
    """Return `gaps`; raise DataError for a sample without a time for each of its elements, in ascending order.

    `elements` has their number in each sample, also of those that a longer list loses.
    """
    bounds = moments.lists.offsets
    assert bounds is not None
    lengths = np.diff(bounds)
    found = gaps(moments, feature)
    null = np.append(0, np.cumsum(moments.lists.values == np.uint64(NULL_ID)))
    unknown = (moments.asked == np.uint64(NULL_ID)) & (lengths > 0)
    for wrong, what in (
        (lengths != elements, f"has another number of times than {feature.times_of} has elements"),
        (null[bounds[1:]] > null[bounds[:-1]], "has a missing time"),
        (unknown, f"has times, and {feature.until} has none"),
        ((found < 0).any(axis=1), f"does not ascend up to {feature.until}"),
    ):
        if wrong.any():
            bad = np.flatnonzero(wrong) if rows is None else rows[wrong]
            text = f"{where}: {feature.name} {what} in {place_in(where, int(bad[0]))}; give a time for each element of "
            raise BadValueError(f"{text}{feature.times_of}, oldest first, and none after {feature.until}", bad)
    return found


def wrong_moments(feature: DenseFeature, column: str, kind: Any) -> str | None:
    """Return a clause if a column of this Arrow type has no times such as the feature was trained with."""
    plain = plain_type(kind)
    has_lists = is_list(plain)
    values = class_of(plain.value_type if has_lists else plain)
    if values == "null":
        return None
    if has_lists != (column == feature.name):
        holds, wanted = "lists of times", "one time"
        if not has_lists:
            holds, wanted = "one value for each sample", f"a list of times, as long as that of {feature.times_of}"
        return f"{column} holds {holds}, but each sample needs {wanted}"
    if feature.values == "time":
        fits, wanted = values in READ_AS_TIMES | classes_of(feature.format), described(feature.format)
    else:
        fits, wanted = values == "integer" or (feature.values is None and values in READ_AS_TIMES), "an integer"
    if fits:
        return None
    return f"{column} holds {WORDS.get(values, values)}, but each time of {feature.times_of} is {wanted}"
