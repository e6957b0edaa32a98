"""The Adult recipe, and the data made by it that ships."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.ids import text_id
from persia_cli.errors import DataError
from persia_cli.shipped import shipped
from tests.support.prepared import dataset_of, prepare

ONE = (
    b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, "
)
DATA = ONE + b"<=50K\n\n" + ONE.replace(b"State-gov", b"?") + b">50K\n\n"
TEST = b"|1x3 Cross validator\n" + ONE + b">50K.\r\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.data").write_bytes(DATA)
    (folder / "adult.test.gz").write_bytes(gzip.compress(TEST))
    return folder


def test_values_are_those_of_the_readme(source: Path, tmp_path: Path) -> None:
    report = prepare("adult_income", source, tmp_path / "out")
    assert (report.rows, report.bad_rows) == (3, 0)
    rows = pq.read_table(report.files[0]).to_pylist()
    assert [(row["split"], row["label"]) for row in rows] == [("train", 0), ("train", 1), ("eval", 1)]
    first, second, _ = rows
    assert first["age"] == pytest.approx((39 - 40) / 15)
    assert first["education_num"] == pytest.approx((13 - 10) / 2.5)
    assert first["hours_per_week"] == 0.0
    assert first["capital_gain"] == pytest.approx(np.log(2175) / 9)
    assert first["capital_loss"] == 0.0
    assert [first[f"raw_{name}"] for name in ("age", "education_num", "capital_gain")] == [39, 13, 2174]
    assert [first[f"raw_{name}"] for name in ("capital_loss", "hours_per_week")] == [0, 40]
    assert first["workclass"] == text_id("workclass", "State-gov")
    assert second["workclass"] == text_id("workclass", "?")
    assert first["native_country"] == text_id("native_country", "Cuba")
    assert first["age_bucket"] == text_id("age_bucket", "7")
    assert first["capital_gain_amount"] == text_id("capital_gain_amount", "2174")
    assert "fnlwgt" not in first


def test_both_files_are_needed(source: Path, tmp_path: Path) -> None:
    (source / "adult.test.gz").unlink()
    with pytest.raises(DataError, match=r"has neither adult\.test nor adult\.test\.gz"):
        prepare("adult_income", source, tmp_path / "out")


def test_the_data_set_is_described_as_the_shipped_configuration_does(source: Path, tmp_path: Path) -> None:
    made = dataset_of(prepare("adult_income", source, tmp_path / "out").dataset)
    shipped = compose_run(["dataset=adult_income"]).dataset
    assert made.model_dump(exclude={"path"}) == shipped.model_dump(exclude={"path"})


def test_the_shipped_file_is_small_and_of_several_row_groups() -> None:
    path = shipped("recipes") / "adult_income" / "data" / "adult_income.parquet"
    assert path.stat().st_size < 600_000
    with pq.ParquetFile(path) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert counts == [4096] * 11 + [3786]


def test_the_shipped_file_is_what_the_recipe_makes_of_the_original(real_data: Path, tmp_path: Path) -> None:
    report = prepare("adult_income", real_data / "adult", tmp_path / "out")
    assert report.rows == 32_561 + 16_281
    table = pq.read_table(shipped("recipes") / "adult_income" / "data" / "adult_income.parquet")
    assert pq.read_table(report.files[0]).equals(table)
    labels = table.column("label").to_numpy()
    assert int(labels[:32_561].sum()) == 7841
    assert int(labels[32_561:].sum()) == 3846
