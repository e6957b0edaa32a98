"""The Avazu recipe."""

import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.prepared import prepare

HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
)
ROW = (
    "10000169349117863715,{click},{hour},1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,96809ac8,"
    "711ee120,1,0,15704,320,50,1722,0,35,-1,79\n"
)


def text(*hours: str) -> str:
    return HEADER + "".join(ROW.format(click=number % 2, hour=hour) for number, hour in enumerate(hours))


def test_values_are_those_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(text("14102100", "14102123", "14103005", "14022800", "14123123"))
    report = prepare("avazu", tmp_path / "train.csv", tmp_path / "out")
    assert (report.rows, report.bad_rows) == (5, 0)
    rows = pq.read_table(report.files[0]).to_pylist()
    first = rows[0]
    assert (first["label"], first["hour_of_day"], first["weekday"]) == (0, 0, 1)  # a Tuesday
    assert first["day"] == datetime.date(2014, 10, 21)
    assert (first["C1"], first["banner_pos"], first["C20"]) == (1005, 0, 2**64 - 1)
    assert (first["site_id"], first["device_model"], first["C21"]) == (0x1FBE01FE, 0x711EE120, 79)
    assert "id" not in first
    assert [row["hour_of_day"] for row in rows] == [0, 23, 5, 0, 23]
    days = [row["day"] for row in rows]
    assert [row["weekday"] for row in rows] == [day.weekday() for day in days]
    assert days[3:] == [datetime.date(2014, 2, 28), datetime.date(2014, 12, 31)]
    assert [row["split"] for row in rows] == ["train"] * 4 + ["eval"]


def test_the_header_is_checked(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text(text("14102100").replace("click,", ""))
    with pytest.raises(DataError, match="its first line should name the columns id,click,hour"):
        prepare("avazu", tmp_path / "test.csv", tmp_path / "out")


def test_the_real_rows_make_the_job_of_the_readme(real_data: Path, tmp_path: Path) -> None:
    report = prepare("avazu", real_data / "avazu" / "avazu_first10k.csv.gz", tmp_path / "avazu")
    assert (report.rows, report.bad_rows) == (9_999, 0)
    for words in (["conf=avazu", f"dataset.path={report.dataset.parent}"], ["conf=avazu", f"dataset={report.dataset}"]):
        run = compose_run(words)
        facts = inspect(run.dataset)
        assert (facts.train_rows, facts.eval_rows, facts.stand_in, len(facts.sparse)) == (7_999, 2_000, False, 23)
