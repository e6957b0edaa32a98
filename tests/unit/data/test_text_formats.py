"""CSV and JSON Lines: the same samples as of Parquet with the same rows, whatever they are compressed and split by."""

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.schema.dataset import CsvFormat, ParquetDataset
from persia_cli.data.batch import Batch
from persia_cli.data.converted import CACHE
from persia_cli.data.facts import inspect
from persia_cli.data.ids import text_id
from persia_cli.data.scan import scan
from persia_cli.data.scores_file import KeptColumns
from persia_cli.data.source import open_source
from persia_cli.errors import DataError
from persia_cli.inspect.inspection import inspect_data
from persia_cli.prepare.recipe import PrepareOptions, load_recipe

ROWS = 500


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE, str(folder))
    return folder / "text"


def dataset(path: Any, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["d"], "sparse": ["c"]}
    return ParquetDataset.model_validate({**keys, "split": {"kind": "every", "n": 5}, "fill": -1.0, **changes})


def read(data: ParquetDataset, split: Any = "train") -> Batch:
    source = open_source(data, split, 3)
    try:
        return source.read(1, 0, source.rows)
    finally:
        source.close()


def same(one: Batch, other: Batch) -> None:
    for name in ("dense", "labels", "ids", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def rows(first: int = 0) -> list[dict[str, Any]]:
    """Rows with quotes, delimiters, line ends, absent values and ids of both kinds."""
    return [
        {
            "y": n % 2,
            "d": None if n % 7 == 0 else n / 3,
            "c": None if n % 11 == 0 else f'city "{n % 13}", \n{n % 3}',
            "user": n * 10**15 - 2,
            "zip": f"{n % 50:05}",
        }
        for n in range(first, first + ROWS)
    ]


def write_csv(path: Path, table: list[dict[str, Any]], **options: Any) -> None:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), **options)
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in table)


def write_jsonl(path: Path, table: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in table).encode()
    codec = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    path.write_bytes(text)
    if codec:
        with pa.CompressedOutputStream(str(path), codec) as file:
            file.write(text)


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
    assert batch.ids[[0, 300, 602]].tolist() == [2**64 - 1, 5, 0]
    assert batch.ids[601] == text_id("code", "01")


def test_blanks_are_part_of_text_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y, d, c, n\n1, 0.5, 42, a\n0,\t-2 ,7 ,a\n")
    split = {"kind": "files", "train": ["*"]}
    batch = read(dataset(tmp_path, sparse=["c", "n"], split=split, shuffle=False), "train")
    assert batch.dense.ravel().tolist() == [0.5, -2.0]
    assert batch.ids.tolist() == [42, 7, text_id("n", " a"), text_id("n", "a")]


def test_numbers_in_one_file_and_text_in_the_next_are_text(tmp_path: Path) -> None:
    for name, values in (("a", ["1", "2"]), ("b", ["2", "x"])):
        write_csv(tmp_path / f"{name}.csv", [{"y": 1, "d": 0.5, "c": value} for value in values])
    data = dataset(tmp_path, split={"kind": "predict"})
    assert read(data, "eval").ids.tolist() == [text_id("c", text) for text in ("1", "2", "2", "x")]
    settled = inspect(data).settled
    assert settled is not None
    assert settled.sparse[0].ids == "text"  # and so they are in files that are scored later
    (tmp_path / "later").mkdir()
    write_csv(tmp_path / "later" / "a.csv", [{"y": 1, "d": 0.5, "c": "2"}])
    later = settled.model_copy(update={"path": str(tmp_path / "later")})
    assert read(later, "eval").ids.tolist() == [text_id("c", "2")]


def test_fractions_in_one_file_and_text_in_the_next_are_to_be_called_text(tmp_path: Path) -> None:
    """1.0 would be hashed as 1 where a file holds numbers alone, and as 1.0 where it does not."""
    for name, values in (("a", ["1.0", "2.0"]), ("b", ["1.0", "x"])):
        (tmp_path / f"{name}.csv").write_text("y,d,c\n" + "".join(f"1,0.5,{value}\n" for value in values))
    with pytest.raises(DataError, match=r"a\.csv: column c is hashed as text, .*dataset\.csv\.text=\[c\]"):
        scan(dataset(tmp_path, split={"kind": "predict"}))
    batch = read(dataset(tmp_path, split={"kind": "predict"}, csv={"text": ["c"]}), "eval")
    assert batch.ids.tolist() == [text_id("c", text) for text in ("1.0", "2.0", "1.0", "x")]


HEADS = {
    "quotes with line ends": 'y,"d\ne",d,"c"\n',
    "blank lines before it": "\r\n\n\ny,x,d,c\n",
    "a mark": "\ufeffy,x,d,c\r\n",
    "names that come twice": "y,x,d,c,x,x\n",
    "no names": "y,,d,c,\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_headers_of_all_kinds(tmp_path: Path, head: str) -> None:
    more = "," * (head.count(",") - 3)
    (tmp_path / "a.csv").write_text(f'{head}1,7,2.5,"a\nb"{more}\n\n0,8,3.5,c{more}', newline="")
    batch = read(dataset(tmp_path, split={"kind": "predict"}), "eval")
    assert batch.dense.ravel().tolist() == [2.5, 3.5]
    assert batch.ids.tolist() == [text_id("c", "a\nb"), text_id("c", "c")]


def test_a_header_without_rows_or_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,d,c")
    (tmp_path / "b.csv").write_text("y,d,c\n1,2.5,x")
    assert read(dataset(tmp_path, split={"kind": "predict"}), "eval").size == 1


def test_a_quote_is_a_letter_where_nothing_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('y,d,"c\n1,2,"a\n0,1,"b\n')
    data = dataset(tmp_path, csv={"quote": None}, sparse=['"c'], split={"kind": "predict"})
    assert read(data, "eval").ids.tolist() == [text_id('"c', text) for text in ('"a', '"b')]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_behind_it(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_text('y,d,c\n1,2,a\n0,1,"b\n1,1,c\n0,1,d' + end)
    with pytest.raises(DataError, match=r"the quote before 'b 1,1,c 0,1,d' is never closed"):
        scan(dataset(tmp_path))
    (tmp_path / "a.csv").write_text('y,d,c\n1,2,a\n0,1,"b\n1,1,c\n0,1,d"' + end)
    assert read(dataset(tmp_path, split={"kind": "predict"}), "eval").size == 2


def test_large_ids_of_json_lines_are_exact(tmp_path: Path) -> None:
    big = [2**64 - 1, 2**63, 2**53 + 1, 1]
    write_jsonl(tmp_path / "a.jsonl", [{"y": 1, "d": 1e300, "c": each, "l": [each, 5]} for each in big])
    batch = read(dataset(tmp_path, sparse=["c", "l"], fill=0, split={"kind": "predict"}), "eval")
    assert batch.ids.tolist() == [*big, *(id_ for each in big for id_ in (each, 5))]
    write_jsonl(tmp_path / "a.jsonl", [{"y": 1, "d": 1, "c": each} for each in (2**53 + 1, 1.5)])
    with pytest.raises(DataError, match="9007199254740992 is beyond the whole numbers that double can represent"):
        read(dataset(tmp_path, split={"kind": "predict"}), "eval")


def test_a_line_of_json_that_is_no_utf8_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"y":1,"d":2,"c":"\xe9"}\n{"y":0,"d":2,"c":"e"}\n')
    with pytest.raises(DataError, match="line 1: not a JSON object"):
        scan(dataset(tmp_path))
    assert scan(dataset(tmp_path, max_bad_rows=1, split={"kind": "predict"})).unread == 1


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


def test_how_a_csv_is_read_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;'a;b';NA;7\n0;c;2.5;8\n")
    form = {"delimiter": ";", "header": ["y", "c", "d", "n"], "quote": "'", "nulls": ["NA"], "text": ["n"]}
    batch = read(dataset(tmp_path, csv=form, sparse=["c", "n"], split={"kind": "predict"}), "eval")
    assert batch.dense.ravel().tolist() == [-1.0, 2.5]
    texts = [("c", "a;b"), ("c", "c"), ("n", "7"), ("n", "8")]
    assert batch.ids.tolist() == [text_id(*each) for each in texts]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_bad_rows_are_counted_and_named_and_too_many_refused(tmp_path: Path, name: str) -> None:
    table = rows()[:20]
    if name == "a.csv":
        write_csv(tmp_path / name, [{**row, "c": "x"} for row in table])
        lines = (tmp_path / name).read_text().splitlines()
        lines[3], lines[7] = "1,2", "1,2,3,4,5,6"
        expected = ("line 4: 2 fields where there are 5 columns: 1,2", "line 8: 6 fields where there are 5 columns")
    else:
        write_jsonl(tmp_path / name, table)
        lines = (tmp_path / name).read_text().splitlines()
        lines[3], lines[7] = "{broken", "[1]"
        expected = ("line 4: not a JSON object: {broken", "line 8: not a JSON object: [1]")
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        inspect(dataset(tmp_path))
    told = str(caught.value)
    assert told.startswith("2 rows cannot be read, and dataset.max_bad_rows=0 may be left out")
    assert all(f"{tmp_path / name} {row}" in told for row in expected)
    facts = inspect(dataset(tmp_path, max_bad_rows=2))
    assert facts.train_rows + facts.eval_rows == 18
    assert facts.source.endswith(", 2 unreadable rows left out")


HARD = 'y,d,c\n\n1,1,"a\nb ""quoted"""\n\n0,2,x\n1,2\n\r\n0,3,"c\r\nd"\n1,,late\n'
"""Its last row begins in line 11: there are blank lines, fields of two lines and a row that cannot be read."""


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_lines_of_a_csv_are_those_of_the_file(tmp_path: Path, name: str) -> None:
    text = HARD.encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(DataError, match=f"{name} line 7: 2 fields where there are 3 columns: 1,2"):
        inspect(dataset(tmp_path))
    with pytest.raises(DataError, match=r"values of dense column d are unusable, the first is null or NaN in line 11;"):
        read(dataset(tmp_path, fill=None, max_bad_rows=1, split={"kind": "files", "train": [name]}), "train")


def test_lines_of_json_are_those_of_the_file(tmp_path: Path) -> None:
    good = '{"y": 1, "d": 1, "c": 1}\n'
    file = tmp_path / "a.jsonl"
    keys: dict[str, Any] = {"fill": None, "max_bad_rows": 1, "split": {"kind": "files", "train": ["*"]}}
    file.write_text(f'{good}\n[1]\n{good}{good}{{"y": 1, "d": null, "c": 1}}\n')
    with pytest.raises(DataError, match=r"the first is null or NaN in line 6;"):
        read(dataset(tmp_path, **keys), "train")
    file.write_text(f'{good}\n[1]\n{good}{good}{{"y": 1, "d": 1, "c": 1.5}}\n')
    with pytest.raises(DataError, match=r"1.5 is not a whole number in line 6 of column c"):
        read(dataset(tmp_path, **keys), "train")
    file.write_text(f'{good}\n{good}{good}{{"y": 1, "d": 1, "c": "x"}}\n')
    with pytest.raises(DataError, match=r"changed from number to string in line 5\)"):
        inspect(dataset(tmp_path, **keys))


def test_the_row_is_told_where_its_line_takes_too_long_to_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("y,d,c\n" + "1,1,a\n" * 5 + "1,,a\n")
    monkeypatch.setattr("persia_cli.data.text_files.PATIENCE_S", -1.0)
    with pytest.raises(DataError, match=r"a.csv, in its rows from 0 on: .* the first is null or NaN in row 5;"):
        read(dataset(tmp_path, fill=None, split={"kind": "files", "train": ["*"]}), "train")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "y,d,c\n", "the files hold no rows"),
        ("a.csv", b"y,d,c\n1,2,\xff\xfe\n", "cannot be read as CSV"),
        ("a.csv", "y,d,c\n1,abc,x\n", "column d holds strings, but a dense feature is a number"),
        ("a.csv", "y,e,c\n1,2,x\n", "there is no column d (dense column of dataset.dense)"),
        ("a.csv.gz", "y,d,c\n1,2,x\n", "cannot be"),
        ("a.jsonl", '{"y": 1, "d": 1, "c": 1}\n{"y": 1, "d": 1, "c": "x"}\n', "a column has values of several types"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, name: str, text: str | bytes, told: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        inspect(dataset(tmp_path))
    assert told in str(caught.value)
    assert name in str(caught.value) or "no rows" in told


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "a.csv", rows())
    monkeypatch.setenv(CACHE, str(tmp_path / "a.csv" / "no"))
    with pytest.raises(DataError, match=r"cannot be written .* another folder by PERSIA_CACHE_DIR"):
        inspect(dataset(tmp_path / "a.csv"))


def test_formats_are_told_by_names_or_said(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.txt", rows())
    assert inspect(dataset(tmp_path / "rows.txt", format="csv")).train_rows == 400
    with pytest.raises(DataError, match=r"set dataset\.format if it is CSV or JSON Lines"):
        inspect(dataset(tmp_path / "rows.txt"))
    write_csv(tmp_path / "b.csv", rows())
    pq.write_table(pa.Table.from_pylist(rows()[:10]), tmp_path / "a.parquet")
    assert inspect(dataset(tmp_path)).train_rows == 8
    assert inspect(dataset(tmp_path, format="csv")).train_rows == 400


def test_folders_lists_and_kept_columns_of_text(tmp_path: Path) -> None:
    (tmp_path / "day=5").mkdir()
    write_jsonl(tmp_path / "day=5" / "a.jsonl", [{"y": 1, "d": 2, "c": ["a", "b"], "at": "2024-01-01 00:00:00"}] * 6)
    data = dataset(tmp_path, sparse=["c", "day", "at"], split={"kind": "predict"})
    batch = read(data, "eval")
    assert batch.ids[:2].tolist() == [text_id("c", "a"), text_id("c", "b")]
    assert batch.ids[12:].tolist() == [5] * 6 + [text_id("at", "2024-01-01 00:00:00")] * 6
    kept = KeptColumns(scan(data), ["at", "day"])
    assert kept.take(6)[1].to_pylist() == [5] * 6
    kept.close()


def test_text_is_inspected(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", rows())
    found = inspect_data(str(tmp_path), lambda done, total: None)
    assert found.profile.columns["zip"].distinct == 50
    assert found.roles["c"].role == "sparse"
    assert (found.roles["y"].role, found.roles["d"].role) == ("label", "dense")


def test_text_is_inspected_as_it_is_said_to_be_read(tmp_path: Path) -> None:
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
    assert {each[2] for each in told} == {2 * size}


def test_progress_of_conversion_is_that_of_all_files(tmp_path: Path) -> None:
    for name in "ab":
        write_csv(tmp_path / f"{name}.csv", rows())
    told: list[tuple[str, int, int]] = []
    scan(dataset(tmp_path), lambda *each: told.append(each))
    total = 2 * sum(path.stat().st_size for path in tmp_path.iterdir())
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert (told[0][1], told[-1][1], {each[2] for each in told}) == (0, total, {total})
    assert list(dict.fromkeys(Path(path).name for path, _, _ in told)) == ["a.csv", "b.csv"]
    again: list[object] = []
    scan(dataset(tmp_path), lambda *each: again.append(each))
    assert not again


def test_what_ids_are_made_of_is_settled_by_the_training_files(tmp_path: Path) -> None:
    """Files that are scored later may look otherwise: names of digits alone, numbers in quotes."""
    write_csv(tmp_path / "train.csv", [{"y": 1, "d": 0.5, "c": text, "n": 7} for text in ("1", "x")])
    data = dataset(tmp_path / "train.csv", sparse=["c", "n"], split={"kind": "predict"})
    settled = inspect(data).settled
    assert settled is not None
    assert [feature.ids for feature in settled.sparse] == ["text", "integer"]
    pq.write_table(pa.table({"d": [0.5], "c": [1], "n": ["7"]}), tmp_path / "later.parquet")
    later = settled.model_copy(update={"path": str(tmp_path / "later.parquet")})
    assert read(later, "eval").ids.tolist() == [text_id("c", "1"), 7]
