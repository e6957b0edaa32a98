"""DataFrames as people have them become tables, or one sentence that names the column."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from persia_cli.api.tables import as_table
from persia_cli.errors import UserError

ODD = {
    "texts and integers": ["a", 1],
    "numbers and a word": [0.5, "n/a"],
    "complex": [1j, 2j],
    "beyond 64 bits": [2**70, 1],
    "objects": [object(), object()],
    "matrices": [np.ones((2, 2)), np.ones((2, 2))],
    "sparse": pd.arrays.SparseArray([0, 1]),
    "intervals": pd.cut(pd.Series([0.0, 1.0]), 2),
    "periods": pd.PeriodIndex(["2024-01", "2024-02"], freq="M"),
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD.keys())
def test_a_column_that_arrow_lacks_is_named(values: Any) -> None:
    with pytest.raises(UserError, match="column odd"):
        as_table(pd.DataFrame({"good": [1, 2], "odd": values}))


def test_a_polars_column_of_objects_is_named() -> None:
    with pytest.raises(UserError, match="column odd"):
        as_table(pl.DataFrame({"good": [1], "odd": [object()]}))


@pytest.mark.parametrize("data", [pd.Series([1]), {"a": [1], "b": [1, 2]}, [{"a": 1}], np.ones(2), None])
def test_what_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises(UserError, match=type(data).__name__):
        as_table(data)


def test_a_name_twice_is_refused() -> None:
    twice = pd.DataFrame([[1, 2]], columns=["user", "user"])
    for frame in (
        twice,
        pd.DataFrame({"user": [1]}, index=pd.Index([2], name="user")),
        twice.set_axis([0, "0"], axis=1),
    ):
        with pytest.raises(UserError, match="two columns"):
            as_table(frame)


def test_a_named_index_is_a_column() -> None:
    frame = pd.DataFrame({"user": [5, 6], "day": [1, 2], "x": [0.5, None]})
    expected = {"user": [5, 6], "day": [1, 2], "x": [0.5, None]}
    assert as_table(frame.set_index(["user", "day"])).to_pydict() == expected
    assert as_table(frame.set_index("user").rename_axis(None)).column_names == ["day", "x"]
    assert as_table(frame.set_index("user", drop=False)).to_pydict() == expected
