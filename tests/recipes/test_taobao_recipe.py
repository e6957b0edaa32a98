"""The Taobao recipe, on made-up files of the published layout."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.prepare.recipe import PrepareOptions, load_recipe
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from tests.support.prepared import prepare
from tests.support.taobao import LAST_DAY, write_taobao

SAMPLES = f"""\
user,time_stamp,adgroup_id,pid,nonclk,clk
7,{LAST_DAY - 100},11,430548_1007,1,0
7,{LAST_DAY},12,430539_1007,0,1
9,{LAST_DAY - 50},12,430548_1007,1,0
8,{LAST_DAY - 60},13,430548_1007,0,1
"""
ADS = "adgroup_id,cate_id,campaign_id,customer,brand,price\n12,501,92,3,NULL,0.0\n11,500,91,2,70,19.0\n"
USERS = (
    "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
    "new_user_class_level \n7,0,5,2,5,,3,0,3\n8,0,5,1,5,2,3,0,\n"
)
BEHAVIOURS = f"""\
user,time_stamp,btag,cate,brand
7,{LAST_DAY - 10},pv,502,71
9,{LAST_DAY - 60},cart,503,72
7,{LAST_DAY - 200},buy,500,70
7,{LAST_DAY - 100},fav,501,73
7,{LAST_DAY + 5},pv,504,74
"""
FILES = {
    "raw_sample.csv": SAMPLES,
    "ad_feature.csv": ADS,
    "user_profile.csv": USERS,
    "behavior_log.csv": BEHAVIOURS,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_values_are_those_of_the_readme(source: Path, tmp_path: Path) -> None:
    report = prepare("taobao", source, tmp_path / "out")
    assert (report.rows, report.bad_rows) == (4, 0)
    rows = {(row["user"], row["time"] - LAST_DAY): row for row in pq.read_table(report.files[0]).to_pylist()}
    assert list(rows) == [(7, -100), (8, -60), (9, -50), (7, 0)]  # in the order of time
    first, last = rows[7, -100], rows[7, 0]
    assert (first["label"], first["split"], first["cate_id"], first["brand"]) == (0, "train", 500, 70)
    assert (first["campaign_id"], first["customer"], first["pid"]) == (91, 2, text_id("pid", "430548_1007"))
    assert first["price"] == pytest.approx(np.log1p(19.0))
    assert (first["cms_group_id"], first["pvalue_level"], first["new_user_class_level"]) == (5, None, 3)
    assert (last["label"], last["split"], last["brand"], last["price"]) == (1, "eval", None, 0.0)
    # Earlier behaviour, oldest first; behaviour at the same second is not earlier.
    assert (first["cate_history"], first["brand_history"]) == ([500], [70])
    assert (last["cate_history"], last["brand_history"]) == ([500, 501, 502], [70, 73, 71])
    assert rows[9, -50]["cate_history"] == [503]
    assert (rows[8, -60]["cate_history"], rows[8, -60]["final_gender_code"]) == ([], 1)
    assert (rows[8, -60]["cate_id"], rows[8, -60]["price"]) == (None, None)  # nothing is known of advertisement 13
    assert rows[9, -50]["age_level"] is None  # nor of user 9
    assert not list(tmp_path.glob(".*"))


def test_histories_do_not_depend_on_the_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_taobao(tmp_path / "raw", users=60, samples=600, seed=0)
    recipe = load_recipe("taobao")
    made = []
    for name, nbytes in (("one", 1 << 30), ("many", 5000)):
        monkeypatch.setitem(recipe.function.__globals__, "FILE_BYTES", nbytes)
        report = recipe.prepare(tmp_path / "raw", tmp_path / name, PrepareOptions(), lambda done, total: None)
        tables = [pq.read_table(file) for file in report.files]
        made.append(pa.concat_tables(tables).sort_by([("time", "ascending"), ("user", "ascending")]))
    assert len(report.files) > 10
    assert made[0].num_rows == 600
    columns = [name for name in made[0].column_names if name != "split"]
    assert made[0].select(columns).equals(made[1].select(columns))
    past = made[0].column("cate_history").to_pylist()
    assert max(map(len, past)) == 50
    check_one_by_one(tmp_path / "raw" / "behavior_log.csv", made[0])


def check_one_by_one(file: Path, made: pa.Table) -> None:
    seen = [
        tuple(map(int, (line[0], line[1], line[3])))
        for line in (text.split(",") for text in file.read_text().split()[1:])
    ]
    for row in made.select(["user", "time", "cate_history"]).to_pylist()[::20]:
        before = sorted((time, cate) for user, time, cate in seen if user == row["user"] and time < row["time"])
        assert row["cate_history"] == [cate for _, cate in before][-50:]


def test_the_data_is_what_the_configurations_expect(tmp_path: Path) -> None:
    write_taobao(tmp_path / "raw", users=30, samples=300, seed=1)
    report = prepare("taobao", tmp_path / "raw", tmp_path / "taobao")
    for words in (["dataset=taobao"], ["dataset=taobao_pooled"]):
        facts = inspect(compose_run([*words, f"dataset.path={report.dataset.parent}"]).dataset)
        assert facts.train_rows + facts.eval_rows == 300
        assert min(facts.train_rows, facts.eval_rows) > 0
