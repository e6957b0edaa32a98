"""Ids and numbers of values of every Arrow type, against the documented rules, and against preparation."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.read.arrow_types import UnusableValueError
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.values import float_values, id_values
from persia_cli.errors import DataError
from tests import naive_text
from tests.support.samples import ids_by_sample, read

MISSING = np.uint64(77)
DAY = datetime.date(1970, 1, 11)


def hashed(table: str, text: str) -> int:
    """The documented rule, by the slow twin of the hash."""
    return naive_text.xxh64(text.encode(), naive_text.xxh64(table.encode(), 0))


def ids(values: Any, made: Any = None) -> list[int]:
    return id_values(values, "t", made, MISSING).tolist()


@settings(max_examples=30)
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=20),
    st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]),
    st.booleans(),
    st.integers(0, 5),
)
def test_text_of_any_type_is_hashed(texts: list[str | None], kind: Any, encoded: bool, start: int) -> None:
    array = pa.array(texts, pa.string()).cast(kind)
    array = array.cast(pa.dictionary(pa.int32(), kind)) if encoded and kind != pa.string_view() else array
    expected = [77 if text is None else hashed("t", text) for text in texts]
    assert ids(array.slice(start)) == expected[start:]
    assert ids(pa.chunked_array([array, array])) == expected * 2


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([True, None, False]), [1, 77, 0]),
        (pa.array([DAY, None]), [10 * 86_400_000_000, 77]),
        (pa.array([3, None], pa.timestamp("s")), [3_000_000, 77]),
        (pa.array([3_000_001_999], pa.timestamp("ns", "Asia/Tokyo")), [3_000_001]),
        (pa.array([1.0, float("nan"), None, -2.0, 2.0**53 - 1]), [1, 77, 77, 2**64 - 2, 2**53 - 1]),
        (pa.array([Decimal("5.00"), None], pa.decimal128(9, 2)), [5, 77]),
        (pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), [2**64 - 1]),
        (pa.nulls(2), [77, 77]),
        (pa.array([2.0, None, 2.0]).dictionary_encode(), [2, 77, 2]),
        (pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.uint8()), pa.array([4.0, 0.5])), [4, 4]),
        (pa.DictionaryArray.from_arrays(pa.array([None, 1, 0], pa.int8()), pa.array(["a", None])),
         [77, 77, hashed("t", "a")]),
    ],
)  # fmt: skip
def test_ids_of_other_types(array: Any, expected: list[int]) -> None:
    assert ids(array) == expected


def test_the_source_of_ids_can_be_set() -> None:
    assert ids(pa.array([5, None, -1]), "text") == [hashed("t", "5"), 77, hashed("t", "-1")]
    assert ids(pa.array([5.0]), "text") == [hashed("t", "5")]
    assert ids(pa.array([DAY]), "text") == [hashed("t", "1970-01-11")]
    assert ids(pa.array(["5", None, "-1"]).dictionary_encode(), "integer") == [5, 77, 2**64 - 1]
    assert ids(pa.array([str(2**64 - 1)]), "integer") == [2**64 - 1]
    mixed = pa.array([str(2**64 - 1), None, "-1", "7", str(-(2**63)), str(2**63)])
    assert ids(mixed, "integer") == [2**64 - 1, 77, 2**64 - 1, 7, 2**63, 2**63]
    assert ids(mixed.slice(2), "integer") == [2**64 - 1, 7, 2**63, 2**63]


@pytest.mark.parametrize(
    ("array", "made", "index", "text"),
    [
        (pa.array([1.0, 1.5]), None, 1, "1.5 is not a whole number"),
        (pa.array([1.0, float("inf")]), None, 1, "inf is not a whole number"),
        (pa.array([2.0**53]), None, 0, "9007199254740992 is beyond the whole numbers that double can represent"),
        (pa.array([Decimal("1.00"), None, Decimal("1.50")]), None, 2, "1.50 is not a whole number"),
        (pa.array(["1", None, "x"]), "integer", 2, "'x' is not an integer"),
        (pa.array(["1", "0x1F"]), "integer", 1, "'0x1F' is not an integer"),
        (pa.array(["-1", str(2**64 - 1), str(2**64)]), "integer", 2, f"'{2**64}' is not an integer"),
        (pa.array(["1", ""]), "integer", 1, "'' is not an integer"),
        (pa.chunked_array([pa.array([1.0, 2.0]), pa.array([3.0, 0.5])]), None, 3, "0.5 is not a whole number"),
        (pa.array([1.0, 0.5, 1.0, 0.5]).dictionary_encode(), None, 1, "0.5 is not a whole number"),
    ],
)
def test_a_value_that_is_no_id_is_reported_with_its_place(array: Any, made: Any, index: int, text: str) -> None:
    with pytest.raises(UnusableValueError) as caught:
        ids(array, made)
    assert (caught.value.index, str(caught.value)) == (index, text)


def test_numbers_of_any_type() -> None:
    nan = float("nan")
    for array, expected in (
        (pa.array([True, None, False]), [1.0, nan, 0.0]),
        (pa.array([Decimal("1.5"), None]), [1.5, nan]),
        (pa.array([DAY, None]), [10.0, nan]),
        (pa.array([12 * 3600, None], pa.timestamp("s", "Asia/Tokyo")), [0.5, nan]),
        (pa.array([86_400_000_000_000], pa.timestamp("ns")), [1.0]),
        (pa.array([0.5, None, 0.5]).dictionary_encode(), [0.5, nan, 0.5]),
        (pa.nulls(1), [nan]),
    ):
        np.testing.assert_array_equal(float_values(array), expected)
        np.testing.assert_array_equal(float_values(pa.chunked_array([array, array])), expected * 2)


def dataset(path: Path, **keys: Any) -> ParquetDataset:
    split = {"kind": "every", "n": 1000, "offset": 999}
    values = {"kind": "parquet", "path": str(path), "split": split, "shuffle": False, **keys}
    return ParquetDataset.model_validate(values)


def test_a_data_frame_is_read_as_it_is(tmp_path: Path) -> None:
    """Categories, whole numbers that became floats for a missing one, flags and times, as pandas writes them."""
    frame = pd.DataFrame(
        {
            "y": [True, False, True],
            "city": pd.Categorical(["Bern", None, "Rome"]),
            "size": pd.Categorical([40, 42, 40]),
            "user": [3.0, None, 5.0],
            "new": [True, False, True],
            "day": [DAY, DAY, None],
            "seen": pd.to_datetime(["1970-01-02 00:00:00", "1970-01-01 06:00:00", None]),
            "tags": [["a", "b"], [], None],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=2)
    names = ["city", "size", "user", "new", "tags"]
    features = [{"name": name, "missing_id": 77} for name in names] + [{"name": "t", "column": "tags", "table": "city"}]
    days = {"transform": "standardise", "mean": 0.0, "deviation": 1.0}
    dense = ["new", {"name": "day", **days}, {"name": "seen", **days}]
    batch = read(dataset(tmp_path, labels=["y"], dense=dense, sparse=features, fill=-1.0))
    assert batch.labels.ravel().tolist() == [1.0, 0.0, 1.0]
    assert batch.dense.tolist() == [[1.0, 10.0, 1.0], [0.0, 10.0, 0.25], [1.0, -1.0, -1.0]]
    tags = [hashed("tags", "a"), hashed("tags", "b")]
    shared = [hashed("city", "a"), hashed("city", "b")]
    assert ids_by_sample(batch) == [
        [[hashed("city", "Bern")], [40], [3], [1], tags, shared],
        [[77], [42], [77], [0], [], []],
        [[hashed("city", "Rome")], [40], [5], [1], [77], [NULL_ID]],
    ]


def test_a_value_that_is_no_id_names_file_row_group_and_row(tmp_path: Path) -> None:
    table = pa.table({"y": [0, 1, 0, 1], "c": [1.0, 2.0, 3.0, 4.5], "l": [[1.0], [], [2.0], [3.0, 0.25]]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    for name, value in (("c", "4.5"), ("l", "0.25")):
        with pytest.raises(DataError) as caught:
            read(dataset(tmp_path, labels=["y"], sparse=[name]))
        assert str(caught.value).startswith(
            f"{tmp_path}/a.parquet, row group 1: {value} is not a whole number in row 1 of column {name}"
        )


def test_what_extension_types_store_is_read(tmp_path: Path) -> None:
    """UUIDs as DuckDB and pyarrow write them, flags of a byte."""
    uuid, flags = bytes(range(16)), pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8()))
    pq.write_table(pa.table({"y": [1], "u": pa.array([uuid], pa.uuid()), "flag": flags}), tmp_path / "a.parquet")
    expected = naive_text.xxh64(uuid, naive_text.xxh64(b"u", 0))
    assert read(dataset(tmp_path, labels=["y"], sparse=["u", "flag"])).ids.tolist() == [expected, 1]
    assert inspect_data(str(tmp_path), lambda done, total: None).profile.columns["u"].kind == "text"
