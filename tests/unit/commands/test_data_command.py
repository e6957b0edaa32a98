"""`persia data inspect` tells people and programs what Parquet files hold."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from persia_cli.commands.inspect_view import show_profile
from persia_cli.config.schema.embedding import parse_bytes
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.plan.capacity import table_needs
from persia_cli.store.layout import RowOptimizer, bytes_per_row


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Samples whose `item` and `last_items` share their ids."""
    row = np.arange(2000)
    columns = {
        "bought": (row + row // 100) % 4 == 0,
        "price": row / 7.0,
        "item": row % 100,
        "last_items": pa.array([list(range(number % 90)) for number in row.tolist()]),
        "name": pa.array([f"name {number % 3}" for number in row.tolist()]),
    }
    pq.write_table(pa.table(columns), tmp_path / "shop.parquet")
    return tmp_path / "shop.parquet"


def test_json_has_everything(persia, shop: Path) -> None:
    ended = persia("data", "inspect", str(shop), "--json", "--dim", "32", "--optimizer", "adam", "--memory", "20KiB")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert (told["data"], told["rows"], told["splits"]["eval"]["rows"]) == (str(shop), 2000, 400)
    assert told["splits"]["train"]["bought_rate"] == 0.25
    item = told["columns"]["item"]
    assert (item["role"], item["distinct"], set(item["top"].values())) == ("sparse", 100, {0.01})
    assert sum(told["columns"]["last_items"]["length_counts"]) == 2000
    assert told["columns"]["name"]["top"]["name 0"] == 667 / 2000
    assert set(told["tables"]) == {"item", "last_items", "name"}
    need = told["tables"]["item"]
    row_bytes = bytes_per_row(32, "float32", RowOptimizer("adam", lr=1.0), counts_uses=True)
    assert (need["rows"], told["tables"]["name"]["rows"]) == (100, 3)
    assert need["bytes"] == pytest.approx(100 * row_bytes, abs=1)
    assert need["fitting"] < 100
    assert told["suggestion"].startswith("# Suggested")
    assert ended.err.splitlines() == [f"next      persia data inspect {shop} --write dataset.yaml"]


def test_the_suggestion_is_written_once(persia, shop: Path) -> None:
    ended = persia("data", "inspect", str(shop), "--write", "shop.yaml")
    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == ["wrote     shop.yaml", "next      persia train dataset=shop.yaml --dry-run"]
    assert Path("shop.yaml").read_text() not in ended.out
    assert Path("shop.yaml").read_text() in persia("data", "inspect", str(shop)).out
    again = persia("data", "inspect", str(shop), "--write", "shop.yaml")
    assert (again.code, again.out) == (2, "")
    assert again.err.startswith("error: shop.yaml exists already")


def test_a_relative_path_is_relative_to_the_written_file_so_that_both_can_move(persia, shop: Path) -> None:
    Path("clicks").symlink_to(shop.parent)
    Path("described").mkdir()
    ended = persia("data", "inspect", "clicks/shop.parquet", "--write", "described/shop.yaml")
    assert ended.code == 0, ended.err
    assert "path: ../clicks/shop.parquet\n" in Path("described/shop.yaml").read_text()
    ended = persia("train", "dataset=described/shop.yaml", "--dry-run")
    assert ended.code == 0, ended.err


def test_on_a_terminal_there_are_tables(shop: Path) -> None:
    found = inspect_data(str(shop), lambda done, total: None)
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None, highlight=False)
    show_profile(console, found, table_needs(found.table_rows, 16, "adagrad", parse_bytes("1GiB")), True)
    text = console.file.getvalue()
    assert "2,000 rows in 1 row group" in text
    assert "1,600 training and 400 evaluation rows: the last fifth, for the comparison below" in text
    assert "training splits by {kind: hash" in text
    [last] = [line for line in text.splitlines() if line.startswith("last_items")][:1]
    assert "0…89 ids, mean 44.1 ▁▁▁▂▃▅█▇" in last
    assert "kind: parquet" in text
    assert "too small" not in text
    show_profile(console, found, table_needs(found.table_rows, 16, "adagrad", 1000), True)
    assert "too small for all ids" in console.file.getvalue()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing"], "nothing) does not exist"),
        (["x", "--memory", "lots"], "--memory lots: expected a size"),
        (["x", "--memory", "0"], "--memory 0: "),
        (["x", "--write", "shop"], "--write shop: "),
        (["x", "--write", "no/shop.yaml"], "--write no/shop.yaml: there is no folder no"),
        (["ftp://x"], "ftp://x is not a place"),
    ],
)
def test_mistakes_are_one_sentence(persia, words: list[str], text: str) -> None:
    ended = persia("data", "inspect", *words)
    assert (ended.code, ended.out) == (2, "")
    [line] = [line for line in ended.err.splitlines() if not line.startswith("looking ")]
    assert text in line


DATA = "".join(f"{row}\t{row % 7}\t{row % 2}\n" for row in range(100))


def test_a_file_without_header_and_ending_is_read_as_the_messages_say(persia) -> None:
    Path("u.data").write_text(DATA)
    assert "set dataset.format=csv" in persia("data", "inspect", "u.data").err
    ended = persia("data", "inspect", "u.data", "dataset.format=csv")
    assert "u.data: the first line looks like data (0, 0, 0); name the columns: 'dataset.csv.header=[c0" in ended.err
    words = ["dataset.format=csv", "dataset.csv.header=[row,u,y]"]
    ended = persia("data", "inspect", "u.data", *words, "--write", "d.yaml")
    assert ended.code == 0, ended.err
    assert persia("train", "dataset=d.yaml", "cluster=embedded", "--dry-run").code == 0
    assert "dataset.csv.quotes" in persia("data", "inspect", "u.data", "dataset.csv.quotes=x").err
    assert "dataset.csv alone" in persia("data", "inspect", "u.data", "train.epochs=2").err


def test_a_column_twice_is_found_before_the_conversion(persia, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    Path("a.csv").write_text("u,u,y\n1,2,0\n3,4,1\n")
    ended = persia("data", "inspect", "a.csv")
    assert (ended.code, (tmp_path / "cache").exists()) == (2, False)
    assert "a.csv: there are several columns u; give each a different name" in ended.err


def test_texts_of_whole_floats_are_numbers_that_training_takes(persia, monkeypatch, tmp_path: Path) -> None:
    """As ids, training would refuse them: `1E0` and `1` would be two."""
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    Path("a.csv").write_text("u,y\n" + "".join(f"{row % 3}E0,{row % 2}\n" for row in range(200)))
    assert "refuses" not in persia("data", "inspect", "a.csv", "--write", "d.yaml").err
    assert "sparse: []" in Path("d.yaml").read_text()
    assert persia("train", "dataset=d.yaml", "--dry-run").code == 0


def test_digits_as_text_are_noted(persia) -> None:
    pq.write_table(pa.table({"u": [str(row % 9) for row in range(100)], "y": [0, 1] * 50}), "a.parquet")
    assert "{name: u, ids: integer}" in persia("data", "inspect", "a.parquet").err


def test_training_asks_for_a_label_that_was_not_chosen(persia) -> None:
    churn, target = ["Yes", "No", "No"] * 40, [1, 0, 0, 0] * 30
    pq.write_table(pa.table({"Churn?": churn, "u": [7, 8, 9, 6, 5] * 24, "target": target}), "a.parquet")
    asked = "write labels: [target] or labels: [{name: 'Churn?', positive: 'Yes'}] in line 5"
    assert asked in persia("data", "inspect", "a.parquet", "--write", "d.yaml").err
    refused = persia("train", "dataset=d.yaml", "--dry-run")
    assert refused.code == 2
    [line] = refused.err.splitlines()
    assert asked in line
    Path("e.yaml").write_text(Path("d.yaml").read_text().replace("labels: ???", "labels: [target]"))
    assert "dataset.labels both name target" in persia("train", "dataset=e.yaml", "--dry-run").err
