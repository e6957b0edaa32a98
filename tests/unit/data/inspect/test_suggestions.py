"""Suggestions for odd tables: training accepts them and reads every row, and they leave out what teaches nothing."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.known_values import SPLITS
from tests.support.samples import read

ROWS = 120
DAY = datetime.datetime(2024, 3, 1)
WORDS = ["Action", "Comedy", "Drama", "Horror"]


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_nulls(values: Any, kind: Any = None) -> Any:
    mask = np.arange(len(values)) % 7 == 3
    return pa.array([None if hidden else each for hidden, each in zip(mask, values, strict=True)], kind)


COLUMNS: dict[str, Callable[[int], Any]] = {
    "id from 0": lambda n: np.arange(n),
    "id from 0 as float": lambda n: np.arange(n) * 1.0,
    "unique integer": lambda n: draw(1).permutation(10 * n)[:n] * 17,
    "unique text": lambda n: [f"order-{each}" for each in range(n)],
    "unix seconds": lambda n: 1_700_000_000 + draw(2).integers(0, 10**6, n),
    "unix milliseconds": lambda n: with_nulls((1_700_000_000_000 + draw(2).integers(0, 10**6, n)).tolist()),
    "iso text": lambda n: [str(DAY + datetime.timedelta(hours=int(each) % 50)) for each in range(n)],
    "iso days": lambda n: [str((DAY + datetime.timedelta(days=int(each) % 9)).date()) for each in range(n)],
    "moment": lambda n: pa.array([DAY + datetime.timedelta(days=each % 9) for each in range(n)]),
    "genres": lambda n: ["|".join(draw(each).choice(WORDS, each % 4, replace=False)) for each in range(n)],
    "padded": lambda n: [[each % 5 + 1, each % 3 + 1, 0, 0][:4] for each in range(n)],
    "padded text": lambda n: [[WORDS[each % 4], "", ""] for each in range(n)],
    "bag": lambda n: with_nulls([list(range(each % 4)) for each in range(n)], pa.list_(pa.int64())),
    "vector": lambda n: draw(3).normal(size=(n, 4)).astype(np.float32).tolist(),
    "vector with nulls": lambda n: with_nulls(draw(3).normal(size=(n, 4)).tolist(), pa.list_(pa.float32(), 4)),
    "ragged": lambda n: [[0.5] * (each % 3) for each in range(n)],
    "struct": lambda n: [{"a": each} for each in range(n)],
    "null": lambda n: pa.nulls(n),
    "constant": lambda n: ["x"] * n,
    "price": lambda n: with_nulls((draw(4).random(n) * 1e5).tolist()),
    "infinite": lambda n: np.where(np.arange(n) % 5, draw(5).random(n), np.inf),
    "large float32": lambda n: (draw(6).integers(0, 3, n) * 2.0**25).astype(np.float32),
    "(dense)": lambda n: draw(7).integers(0, 5, n),
    "line\nend": lambda n: draw(8).integers(0, 5, n),
    "null: #x": lambda n: ["a", "b", "NA"] * (n // 3),
    "weight": lambda n: draw(9).random(n),
    "sample_weight": lambda n: with_nulls(draw(9).random(n).tolist()),
    "label": lambda n: with_nulls((np.arange(n) % 3 == 0).astype(int).tolist()),
    "decimal": lambda n: pa.array(draw(10).integers(0, 9, n)).cast(pa.decimal128(25, 2)),
    "flag": lambda n: with_nulls((np.arange(n) % 2 == 0).tolist()),
    "bytes": lambda n: [b"\xff" + bytes([each % 5]) for each in range(n)],
    "unsigned": lambda n: draw(11).integers(0, 4, n).astype(np.uint64) + np.uint64(2**63),
    "duration": lambda n: pa.array(np.arange(n), pa.duration("s")),
    "split": lambda n: ["train", "train", "test"] * (n // 3),
}
USELESS = {"id from 0", "id from 0 as float", "unique integer", "unique text", "unix seconds", "unix milliseconds",
           "iso text", "iso days", "moment", "ragged", "struct", "null", "constant", "duration"}  # fmt: skip


def look(path: Path) -> Inspection:
    return inspect_data(str(path), lambda done, total: None)


def table(path: Path, names: list[str], rows: int = ROWS) -> Path:
    columns = {"clicked": (draw(0).random(rows) < 0.4).astype(np.int8)} | {name: COLUMNS[name](rows) for name in names}
    pq.write_table(pa.table(columns), path)
    return path


def read_all(found: Inspection) -> ParquetDataset:
    """Check and read every row of a suggestion, as training does."""
    dataset = ParquetDataset.model_validate(yaml.safe_load(found.suggestion))
    inspect(dataset)
    for split in SPLITS:
        assert read(dataset, split).size > 0
    return dataset


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    return look(table(tmp_path_factory.mktemp("data") / "all.parquet", list(COLUMNS)))


def test_training_reads_all_rows_of_what_is_suggested_for_an_odd_table(everything: Inspection) -> None:
    dataset = read_all(everything)
    used = {each.name for each in dataset.dense_features} | {each.name for each in dataset.sparse}
    assert not used & USELESS
    assert {"genres", "padded", "padded text", "vector", "vector with nulls", "bag", "price", "(dense)"} <= used
    assert dataset.label_names == ("clicked",)
    assert dataset.weight == "weight"


def test_lists_are_suggested_as_they_look(everything: Inspection) -> None:
    dataset = read_all(everything)
    sparse = {each.name: each for each in dataset.sparse}
    assert sparse["genres"].separator == "|"
    assert (sparse["padded"].padding, sparse["padded text"].padding, sparse["bag"].padding) == (0, "", None)
    assert sparse["padded"].pooling == sparse["genres"].pooling == "mean"
    assert {each.name: each.width for each in dataset.dense_features}["vector"] == 4


@pytest.mark.parametrize("separator", ["|", " "])
def test_divided_ids_are_a_list_that_may_share_a_table(tmp_path: Path, separator: str) -> None:
    lists = [separator.join(map(str, draw(each).integers(1, 9, each % 5))) for each in range(ROWS)]
    title = [f"{WORDS[each % 4]} {each % 3}" for each in range(ROWS)]
    columns = {"y": [0, 1] * (ROWS // 2), "item_id": np.arange(ROWS) % 8, "last_items": lists, "title": title}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = look(tmp_path / "a.parquet")
    assert {each.name: each.separator for each in read_all(found).sparse if each.separator} == {"last_items": separator}
    assert "table: item_id" in found.roles["last_items"].doubt


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True),
    rows=st.sampled_from([12, 30, 120]),
)
def test_training_reads_all_rows_of_any_suggestion(tmp_path: Path, names: list[str], rows: int) -> None:
    found = look(table(tmp_path / "a.parquet", names, rows))
    values = yaml.safe_load(found.suggestion)
    assert values["labels"] == ["clicked"]
    if values["dense"] or values["sparse"]:  # else no column teaches anything
        read_all(found)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
@pytest.mark.parametrize("quoted", ["text", "header", "nothing"])
@pytest.mark.parametrize(("delimiter", "written"), [(";", ";"), ("\t", "\t"), ("|", "|"), (",", None)])
def test_the_delimiter_of_csv_is_found(
    tmp_path: Path, cache: Path, delimiter: str, written: str | None, quoted: str, mark: str, end: str
) -> None:
    word = 'sa"d, or; glad' if quoted == "text" else "glad"
    rows = [["user", "shop", "mood", "clicked"]]
    rows += [[f"u{n % 5}", f"{n % 3},5", word if n % 2 else "well", str(n // 2 % 2)] for n in range(40)]

    def field(text: str, row: int) -> str:
        is_quoted = (quoted == "text" and not text.isdigit()) or (quoted == "header" and not row) or delimiter in text
        return '"' + text.replace('"', '""') + '"' if is_quoted else text

    lines = (delimiter.join(field(text, row) for text in fields) + end for row, fields in enumerate(rows))
    (tmp_path / "a.csv").write_text(mark + "".join(lines), newline="")
    found = look(tmp_path / "a.csv")
    dataset = read_all(found)
    assert dataset.csv.delimiter == written
    assert [each.name for each in dataset.sparse] == ["user", "mood"]
    assert word in dict(found.profile.columns["mood"].top)
    assert "numbers with commas" in found.roles["shop"].reason


def test_whole_numbers_with_a_point_in_json_are_no_ids(tmp_path: Path, cache: Path) -> None:
    rows = ({"user": n % 3, "price": n % 7 * 1.0 if n % 9 else 2, "clicked": n % 2} for n in range(200))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [each.name for each in read_all(look(tmp_path / "a.jsonl")).dense_features] == ["price"]


@pytest.mark.parametrize("written", ["{:,d}", "1.234.567,{}", "{}.5%", "${:,d}", "-{},25 €", "{} %"])
def test_numbers_as_people_write_them_are_left_out_aloud(tmp_path: Path, cache: Path, written: str) -> None:
    lines = (f"{number % 3};{written.format(number * 531)};{number % 2}" for number in range(40))
    (tmp_path / "a.csv").write_text("\n".join(["user;price;clicked", *lines]))
    found = look(tmp_path / "a.csv")
    assert found.roles["price"].role == "unused"
    assert any("1234.5" in note and "price" in note for note in found.notes)


def test_a_comma_in_the_header_divides_no_rows(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.csv").write_text("price (in €, net);user;clicked\n" + "3.5;u1;1\n0.25;u2;0\n" * 20)
    assert yaml.safe_load(look(tmp_path / "a.csv").suggestion)["csv"] == {"delimiter": ";"}


@pytest.mark.parametrize(
    ("words", "is_number"),
    [(["?"], True), (["NA", "", " "], True), (["-"], True), (["?"] * 25, True), (["10+"], False), (["never"], False)],
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_words_for_none_among_numbers_are_null(
    tmp_path: Path, cache: Path, words: list[str], is_number: bool, quote: str
) -> None:
    fields = [*(f"{each:.2f}" for each in draw(1).random(50 - len(words)) * 9), *words]
    rows = [f"{quote}{fields[n % 50]}{quote},{'ab?'[n % 3]},{n % 2}" for n in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["charges,plan,clicked", *rows]) + "\n")
    found = look(tmp_path / "a.csv")
    dataset = read_all(found)
    assert [each.name for each in dataset.dense_features] == (["charges"] if is_number else [])
    assert found.profile.columns["charges"].nulls == (4 * len(words) if is_number else 0)
    assert ("csv.nulls" in found.roles["charges"].doubt) is not is_number
    assert [each.name for each in dataset.sparse if each.name != "charges"] == ["plan"]


def test_a_word_that_may_be_a_label_is_never_null(tmp_path: Path, cache: Path) -> None:
    rows = [f"{n / 7 if n % 50 else '-'},{n % 9},{'+-'[n % 2]}" for n in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["charges,user,label", *rows]) + "\n")
    found = look(tmp_path / "a.csv")
    assert found.profile.columns["label"].nulls == 0
    assert "'-'" in found.suggestion
