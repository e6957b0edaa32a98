"""CSV and JSON Lines: the same samples as of Parquet with the same rows, whatever they are compressed and split by."""

import fcntl
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.prepare.recipe import PrepareOptions, load_recipe
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import NULL_ID, text_id
from persia_cli.data.read.scan import scan
from persia_cli.errors import DataError
from tests.support.samples import read, same
from tests.support.text_files import ROWS, dataset, rows, write_csv, write_jsonl

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.ndjson.zst", "a.jsonl.gz"])
def test_samples_are_those_of_parquet(tmp_path: Path, name: str) -> None:
    text, parquet = tmp_path / "text", tmp_path / "parquet"
    text.mkdir()
    parquet.mkdir()
    for number in range(2):
        table = rows(number * ROWS)
        pq.write_table(pa.Table.from_pylist(table), parquet / f"{number}.parquet")
        if "json" in name:
            write_jsonl(text / f"{number}{name[1:]}", table)
        else:
            write_csv(text / f"{number}{name[1:]}", table, delimiter="\t" if "tsv" in name else ",")
    keys: dict[str, Any] = {"sparse": ["c", "user", "zip"]}
    for split in ("train", "eval"):
        same(read(dataset(text, **keys), split), read(dataset(parquet, **keys), split))
    facts = inspect(dataset(text, **keys))
    assert (facts.train_rows, facts.eval_rows, facts.files) == (800, 200, 2)
    assert facts.source.startswith(f"2 {'JSON Lines' if 'json' in name else 'CSV'} files at {text}, ")


def test_ids_of_a_csv_are_those_that_a_recipe_prepares(tmp_path: Path) -> None:
    recipe = load_recipe("my_data")
    recipe.prepare(recipe.folder / "purchases.csv", tmp_path / "prepared", PrepareOptions(), lambda done, total: None)
    sparse = ["user", "item", {"name": "last_item", "table": "item"}, "category"]
    split = {"kind": "predict"}
    prepared = dataset(tmp_path / "prepared", labels=["y"], dense=[], sparse=sparse, split=split)
    direct = dataset(recipe.folder / "purchases.csv", labels=["y"], dense=[], sparse=sparse, split=split)
    same(read(prepared, "eval"), read(direct, "eval"))


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
    write_csv(tmp_path / "a.csv", rows())
    said: list[str] = []
    for _ in range(2):
        inspect(dataset(tmp_path), lambda path, done, total: said.append(path))
    (converted,) = cache.iterdir()
    once = len(said)
    assert set(said) == {str(tmp_path / "a.csv")}
    write_csv(tmp_path / "a.csv", rows()[:50])
    assert inspect(dataset(tmp_path)).train_rows == 40
    assert (len(said), len(list(cache.iterdir())), converted.is_file()) == (once, 2, True)


def test_what_a_column_holds_is_found_over_the_whole_file(tmp_path: Path) -> None:
    lines = ["y,d,c,small,big,code,none,flag"]
    lines += [f"0,1,{n},{n},{2**64 - 1 - n},{n % 10},,true" for n in range(300)]
    lines += ["1,.5,x,-7,5,01,,false"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    types = {field.name: str(field.type) for field in scan(dataset(tmp_path)).schemas[0]}
    assert types == {"y": "int64", "d": "double", "c": "string", "small": "int64", "big": "uint64", "code": "string",
                     "none": "null", "flag": "bool"}  # fmt: skip
    batch = read(dataset(tmp_path, sparse=["big", "code", "none"], split={"kind": "predict"}), "eval")
    assert batch.ids[[0, 300, 602]].tolist() == [2**64 - 1, 5, NULL_ID]
    assert batch.ids[601] == text_id("code", "01")


def test_numbers_in_one_file_and_text_in_the_next_are_text(tmp_path: Path) -> None:
    for name, values in (("a", ["1", "2"]), ("b", ["2", "x"])):
        write_csv(tmp_path / f"{name}.csv", [{"y": 1, "d": 0.5, "c": value} for value in values])
    data = dataset(tmp_path, split={"kind": "predict"})
    assert read(data, "eval").ids.tolist() == [text_id("c", text) for text in ("1", "2", "2", "x")]


@pytest.mark.parametrize("texts", [["100000", "1E5", "10E4"], ["1.0", "2"], ["1.5", "2"]])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("key", ["sparse", "group_by"])
def test_an_integer_id_of_a_text_file_is_what_is_written_as_one(
    tmp_path: Path, texts: list[str], name: str, key: str
) -> None:
    """As numbers, 100000, 1E5 and 10E4 would be one id."""
    lines = [f"1,0.5,{text},7" if name == "a.csv" else f'{{"y":1,"d":0.5,"u":{text},"c":7}}' for text in texts]
    (tmp_path / name).write_text("\n".join([*(["y,d,u,c"] if name == "a.csv" else []), *lines]) + "\n")
    keys: dict[str, Any] = {key: "u" if key == "group_by" else ["u"], "split": {"kind": "eval"}}
    with pytest.raises(DataError, match=rf"{name}: column u has numbers that are not .*dataset\.csv\.text=\[u\]"):
        scan(dataset(tmp_path, **keys))
    if name == "a.csv":
        batch = read(dataset(tmp_path, **keys, csv={"text": ["u"]}), "eval")
        found = batch.ids if key == "sparse" else batch.query_ids
        assert found is not None
        assert found.tolist() == [text_id("u", text) for text in texts]


def test_integers_that_pandas_wrote_with_a_zero_are_integers(tmp_path: Path) -> None:
    """So it writes a column of integers that has missing values, in some of several files."""
    for name, values in (("a", ["7.0", "", "-8.0", " 9007199254740993.0"]), ("b", ["7", "8"])):
        write_csv(tmp_path / f"{name}.csv", [{"y": 1, "d": 0.5, "c": value} for value in values])
    data = dataset(tmp_path, split={"kind": "predict"})
    assert read(data, "eval").ids.tolist() == [7, NULL_ID, 2**64 - 8, 2**53 + 1, 7, 8]
    (tmp_path / "b.csv").write_text("y,d,c\n1,0.5,7.0\n1,0.5,x\n")
    with pytest.raises(DataError, match=r"a\.csv: column c .*dataset\.csv\.text=\[c\]"):
        scan(data)


FORM = {"delimiter": ";", "header": ["y", "c", "d", "n"], "quote": "'", "nulls": ["NA"], "text": ["n"]}
TEXTS: dict[str, tuple[str, dict[str, Any], list[float], list[tuple[str, str] | int]]] = {
    "blanks": ("y, d, c, n\n1, 0.5, 42, a\n0,\t-2 ,7 ,a\n", {"sparse": ["c", "n"]}, [0.5, -2.0],
               [42, 7, ("n", " a"), ("n", "a")]),
    "a format": ("1;'a;b';NA;7\n0;c;2.5;8\n", {"csv": FORM, "sparse": ["c", "n"]}, [-1.0, 2.5],
                 [("c", "a;b"), ("c", "c"), ("n", "7"), ("n", "8")]),
    "two characters": ('y::d::c\n1::2.5::"a::b"\n', {"csv": {"delimiter": "::"}}, [2.5], [("c", "a::b")]),
    "blanks around a marker": ("y, d, c\n1, ?, a\n0, 2, ?\n", {"csv": {"nulls": ["?"]}}, [-1.0, 2.0],
                               [("c", " a"), NULL_ID]),
    "years as names": ("y,d,c,2019,2020\n1,2,x,7,8\n", {}, [2.0], [("c", "x")]),
    "no quotes": ('y,d,"c\n1,2,"a\n0,1,"b\n', {"csv": {"quote": None}, "sparse": ['"c']}, [2.0, 1.0],
                  [('"c', '"a'), ('"c', '"b')]),
    **{f"tab as {tab}": ("y\td\tc\n1\t2.5\tx\n", {"csv": {"delimiter": tab}}, [2.5], [("c", "x")])
       for tab in ("\t", "tab", "\\t")},
}  # fmt: skip
HEADS = {
    "quotes with line ends": 'y,"d\ne",d,"c"\n',
    "blank lines before it": "\r\n\n\ny,x,d,c\n",
    "a mark": "\ufeffy,x,d,c\r\n",
    "names that come twice": "y,x,d,c,x,x\n",
    "no names": "y,,d,c,\n",
}
for name, head in HEADS.items():
    more = "," * (head.count(",") - 3)
    TEXTS[name] = (f'{head}1,7,2.5,"a\nb"{more}\n\n0,8,3.5,c{more}', {}, [2.5, 3.5], [("c", "a\nb"), ("c", "c")])


@pytest.mark.parametrize(("text", "keys", "dense", "ids"), TEXTS.values(), ids=TEXTS)
def test_csv_of_every_form_is_read(tmp_path: Path, text: str, keys: Any, dense: Any, ids: Any) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    batch = read(dataset(tmp_path, split={"kind": "predict"}, **keys), "eval")
    assert batch.dense.ravel().tolist() == dense
    assert batch.ids.tolist() == [text_id(*each) if isinstance(each, tuple) else each for each in ids]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_behind_it(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_text('y,d,c\n1,2,a\n0,1,"b\n1,1,c\n0,1,d' + end)
    with pytest.raises(DataError, match=r"a\.csv line 3: a quote in this row is never closed"):
        scan(dataset(tmp_path))
    (tmp_path / "a.csv").write_text('y,d,c\n1,2,a\n0,1,"b\n1,1,c\n0,1,d"' + end)
    assert read(dataset(tmp_path, split={"kind": "predict"}), "eval").size == 2


def test_large_ids_of_json_lines_are_exact(tmp_path: Path) -> None:
    big = [2**64 - 1, 2**63, 2**53 + 1, 1]
    write_jsonl(tmp_path / "a.jsonl", [{"y": 1, "d": 1e300, "c": each, "l": [each, 5]} for each in big])
    batch = read(dataset(tmp_path, sparse=["c", "l"], fill=0, split={"kind": "predict"}), "eval")
    assert batch.ids.tolist() == [*big, *(id_ for each in big for id_ in (each, 5))]


def test_another_file_of_the_same_size_and_time_is_converted_again(tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b"
    path.write_text("y,d,c\n1,2,a\n")
    data = dataset(path, split={"kind": "predict"})
    first = read(data, "eval").ids.tolist()
    other.write_text("y,d,c\n1,2,b\n")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    os.utime(other, ns=times)
    other.rename(path)
    assert (first, read(data, "eval").ids.tolist()) == ([text_id("c", "a")], [text_id("c", "b")])


def test_the_cache_keeps_the_umask(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.csv").write_text("y,d,c\n1,2,a\n")
    before = os.umask(0o027)
    try:
        read(dataset(tmp_path, split={"kind": "predict"}), "eval")
    finally:
        os.umask(before)
    (converted,) = cache.iterdir()
    assert converted.stat().st_mode & 0o777 == 0o640


def test_formats_follow_from_names_or_are_set(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.txt", rows())
    assert inspect(dataset(tmp_path / "rows.txt", format="csv")).train_rows == 400
    with pytest.raises(DataError, match=r"if it is text, set dataset\.format=csv"):
        inspect(dataset(tmp_path / "rows.txt"))
    write_csv(tmp_path / "b.csv", rows())
    pq.write_table(pa.Table.from_pylist(rows()[:10]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"Parquet \(a\.parquet\), CSV \(b\.csv\); set dataset\.format"):
        inspect(dataset(tmp_path))
    facts = inspect(dataset(tmp_path, format="csv"))
    assert facts.train_rows == 400
    assert "(a.parquet, rows.txt)" in facts.left_out


def test_text_is_inspected_as_it_is_set_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y;d;c\n" + "1;NA;a\n0;2.5;b\n" * 9 + "1;2\n")
    form = CsvFormat(delimiter=";", nulls=("NA",))
    told: list[tuple[str, int, int]] = []
    found = inspect_data(str(tmp_path), lambda done, total: None, form, lambda *each: told.append(each))
    assert found.profile.columns["d"].nulls == 9
    assert found.profile.source.unread == (
        f"{tmp_path / 'a.csv'}: rows left out that cannot be read: 1, the first of them line 20: 2 fields where there "
        "are 3 columns: 1;2",
    )
    assert yaml.safe_load(found.suggestion)["csv"] == {"delimiter": ";", "nulls": ["NA"]}
    size = (tmp_path / "a.csv").stat().st_size
    assert {each[2] for each in told} == {size}


def test_what_ids_are_made_of_is_settled_by_the_training_files(tmp_path: Path) -> None:
    """Files that are scored later may look otherwise: names of digits alone, numbers in quotes."""
    write_csv(tmp_path / "train.csv", [{"y": 1, "d": 0.5, "c": text, "n": 7} for text in ("1", "x")])
    data = dataset(tmp_path / "train.csv", sparse=["c", "n"], split={"kind": "predict"})
    settled = inspect(data).settled
    assert [feature.ids for feature in settled.sparse] == ["text", "integer"]
    pq.write_table(pa.table({"d": [0.5], "c": [1], "n": ["7"]}), tmp_path / "later.parquet")
    later = settled.model_copy(update={"path": str(tmp_path / "later.parquet")})
    assert read(later, "eval").ids.tolist() == [text_id("c", "1"), 7]


def test_only_unused_files_of_persia_are_removed_from_the_cache(tmp_path: Path, cache: Path) -> None:
    months = 60 * 86_400.0
    copies: dict[str, Path] = {}
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # a process holds the copies that it uses
        for name in ("unused", "recent", "used"):
            (tmp_path / name).mkdir()
            write_csv(tmp_path / name / "a.csv", rows())
            before = set(cache.glob("*"))
            other.submit(inspect, dataset(tmp_path / name)).result()
            (copies[name],) = set(cache.glob("*")) - before
    mine = cache / "my_raw_logs.csv"
    mine.write_bytes(b"mine")
    for path in (mine, copies["unused"], copies["used"]):
        os.utime(path, (time.time() - months,) * 2)
    with copies["used"].open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)  # as a job does that has trained for two months
        write_csv(tmp_path / "a.csv", rows())
        inspect(dataset(tmp_path / "a.csv"))
        assert not copies["unused"].exists()
        assert all(path.exists() for path in (copies["recent"], copies["used"], mine))
