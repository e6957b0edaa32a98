"""Values that no column can mean: the id of null as a query, and padding among times."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.reserved_ids import NULL_ID
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError


def dataset(folder: Path, table: dict[str, Any], **settings: Any) -> ParquetDataset:
    pq.write_table(pa.table(table), folder / "d.parquet")
    split = settings.pop("split", {"kind": "eval"})
    given = {"kind": "parquet", "path": str(folder / "d.parquet"), "labels": ["y"], "split": split}
    return ParquetDataset.model_validate(given | settings)


def test_the_id_of_null_is_no_query(tmp_path: Path) -> None:
    found = dataset(tmp_path, {"y": [0, 1], "u": [1, 2], "g": [5, NULL_ID]}, sparse=["u"], group_by="g")
    source = open_source(found, "eval", 0)
    with pytest.raises(DataError, match=r"group_by, column g"):
        source.read(0, 0, 2)
    source.close()


@pytest.mark.parametrize("texts", [["2024-01-01|1970-01-01", "1970-01-01"], ["1970-01-01T00:00:00Z", "2024-01-01"]])
def test_padding_among_times_is_a_time(tmp_path: Path, texts: list[str]) -> None:
    feature = {"name": "a", "ids": "time", "separator": "|", "padding": "1970-01-01"}
    source = open_source(dataset(tmp_path, {"y": [0, 1], "a": texts}, sparse=[feature]), "eval", 0)
    batch = source.read(0, 0, 2)
    source.close()
    assert batch.ids.tolist() == [1_704_067_200_000_000]


@pytest.mark.parametrize("zone", ["", "Z", "+00:00"])
def test_times_of_a_split_have_zones_too(tmp_path: Path, zone: str) -> None:
    times = [f"2024-01-{day:02}T12:00:00{zone}" for day in range(1, 11)]
    split = {"kind": "time", "column": "t", "eval_from": "2024-01-08"}
    table = {"y": np.arange(10) % 2, "u": np.arange(10), "t": times}
    source = open_source(dataset(tmp_path, table, sparse=["u"], split=split), "eval", 0)
    assert source.rows == 3
    source.close()
