"""The description of a data set, and every problem with one, all at once and with its remedy."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError

COLUMNS: dict[str, Any] = {"y": [0, 1, 0, 1], "d": [0.5] * 4, "c": [1, 2, 3, 4], "part": ["a", "b", "a", "c"]}


def dataset(path: object, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["d"], "sparse": ["c"]}
    return ParquetDataset.model_validate({**keys, "split": {"kind": "every", "n": 2}, **changes})


def write(path: Path, **changes: Any) -> Path:
    columns = {name: values for name, values in {**COLUMNS, **changes}.items() if values is not None}
    pq.write_table(pa.table(columns), path)
    return path


def problems(data: ParquetDataset) -> list[str]:
    """Return the lines of the error; opening the data set raises the same one."""
    with pytest.raises(DataError) as caught:
        inspect(data)
    with pytest.raises(DataError) as again:
        open_source(data, "train", 0)
    assert str(caught.value) == str(again.value)
    return str(caught.value).split("\n")


def test_facts_of_files(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.parquet"), write(tmp_path / "b.parquet")
    split = {"kind": "column", "column": "part", "train": "a", "eval": "b"}
    facts = inspect(dataset(tmp_path, split=split))
    size = one.stat().st_size + two.stat().st_size
    assert (facts.train_rows, facts.eval_rows, facts.test_rows, facts.unused_rows) == (4, 2, 0, 2)
    assert (facts.files, facts.dense, facts.tasks, facts.stand_in) == (2, 1, 1, False)
    assert [feature.name for feature in facts.sparse] == ["c"]
    assert facts.source == f"2 Parquet files at {tmp_path}, {size / 1024:.1f} KiB"


def test_facts_name_the_columns_with_nulls(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", c=[1, None, 3, 4], part=[1, None, None, 0])
    assert inspect(dataset(tmp_path, labels=["y", "part"])).source.endswith(", nulls in part 50%, c 25%")


def test_facts_of_a_generator() -> None:
    generator = {"train_rows": 10, "eval_rows": 5, "dense": 3, "cardinalities": [4, 6]}
    facts = inspect(GeneratedDataset.model_validate({"kind": "generated", "generator": generator}))
    assert (facts.train_rows, facts.eval_rows, facts.dense, facts.tasks, facts.stand_in) == (10, 5, 3, 1, False)
    assert [feature.name for feature in facts.sparse] == ["feature_0", "feature_1"]


@pytest.fixture
def with_stand_in() -> dict[str, Any]:
    stand_in = {"train_rows": 10, "eval_rows": 5, "dense": 1, "cardinalities": [4]}
    return {"generator": stand_in, "labels": ["y", "z"], "recipe": "criteo"}


def test_a_stand_in_replaces_missing_files_and_is_reported(tmp_path: Path, with_stand_in: dict[str, Any]) -> None:
    data = dataset(tmp_path / "nothing", **with_stand_in)
    facts = inspect(data)
    assert facts.stand_in
    assert (facts.train_rows, facts.eval_rows, facts.tasks) == (10, 5, 2)
    assert facts.sparse == data.sparse
    assert "made-up samples" in facts.source
    assert f"persia recipe prepare criteo --input SOURCE --output {tmp_path}/nothing" in facts.source
    source = open_source(data, "eval", 0)
    assert source.rows == 5
    assert source.read(0, 0, 5).labels.shape == (5, 2)
    source.close()


def test_a_missing_path_names_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(dataset("data/criteo", recipe="criteo")) == [
        f"dataset.path=data/criteo (that is {tmp_path}/data/criteo) does not exist; correct the path, or "
        "prepare the data first: persia recipe prepare criteo --input SOURCE --output data/criteo"
    ]
    (tmp_path / "empty").mkdir()
    (line,) = problems(dataset(tmp_path / "empty"))
    told = "has no Parquet, CSV or JSON Lines file, by the files' names; correct the path, or name files with other"
    assert line == f"dataset.path={tmp_path}/empty {told} endings by a wildcard, such as {tmp_path}/empty/*"
    (line,) = problems(dataset(tmp_path / "empty", recipe="https://data.org/criteo"))
    assert line.endswith(", or fetch the files from https://data.org/criteo")


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = ["x", "y", "x", "y"]
    own = {"price": text, "word": text, "nested": [{"a": 1}] * 4, "when": [["a"]] * 4, "D": [1.0] * 4}
    write(tmp_path / "a.parquet", label=COLUMNS["y"], y=None, **own)
    (tmp_path / "b.parquet").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and then nothing of use PAR1")
    data = dataset(
        tmp_path,
        labels=["lable"],
        weight="part",
        dense=["price", "when", "weather", "d"],
        sparse=["word", "d", "nested", "C"],
    )
    expected = [
        ("b.parquet: the file is empty (0 bytes)", "; delete it or prepare it again"),
        ("c.parquet: this is not a readable Parquet file (", "; prepare it again"),
        ("a.parquet: there is no column lable (label column", "; did you mean label?"),
        ("a.parquet: column part holds strings, but a weight", "; write numbers in its place"),
        ("a.parquet: column price holds strings, but a dense", "dataset.sparse, where strings are hashed"),
        ("a.parquet: column when is list<element: string>", "dataset.sparse, where lists of ids are pooled"),
        ("a.parquet: there is no column weather (dense column", ": d, c, part, label, price, word, nested, when, D"),
        ("a.parquet: column nested holds structs", 'SELECT *, "nested".a AS nested_a'),
        ("a.parquet: there is no column C (sparse column", "; did you mean c?"),
    ]
    for line, (start, remedy) in zip(problems(data), expected, strict=True):
        assert line.startswith(f"{tmp_path}/{start}")
        assert remedy in line


def test_the_same_problem_of_many_files_is_one_line(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.parquet", d=None)
    (line,) = problems(dataset(tmp_path))
    assert line.startswith(f"{tmp_path}/a.parquet and 2 more files: there is no column d")


def test_a_column_named_twice_is_ambiguous(tmp_path: Path) -> None:
    arrays = [pa.array(values) for values in ([0, 1], [0.5, 0.5], [1, 2], [3, 4])]
    pq.write_table(pa.table(arrays, ["y", "d", "c", "c"]), tmp_path / "a.parquet")
    (line,) = problems(dataset(tmp_path))
    assert "there are several columns c (dataset.sparse); give each a different name" in line


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (pa.array([1, 2, 3, 4], pa.int32()), pa.array(["1", "2", "3", "4"]), "strings here and numbers"),
        (pa.array([1, 2, 3, 4]).cast(pa.timestamp("s")), pa.array([1, 2, 3, 4]), "numbers here and timestamps"),
        (pa.array([1, 2, 3, 4]), [[1], [2], [], [3]], "lists of numbers here and numbers"),
    ],
)
def test_files_agree_on_what_a_column_holds(tmp_path: Path, one: Any, other: Any, words: str) -> None:
    write(tmp_path / "a.parquet", c=one)
    write(tmp_path / "b.parquet", c=other)
    write(tmp_path / "c.parquet", c=pa.nulls(4))
    (line,) = problems(dataset(tmp_path))
    assert line.startswith(f"{tmp_path}/b.parquet: column c holds {words} in {tmp_path}/a.parquet; ")


def test_text_and_integers_stand_together_where_ids_are_made_of_text(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", c=pa.array([1, 2, 3, 4], pa.int32()))
    write(tmp_path / "b.parquet", c=["1", "2", "x", "4"])
    source = open_source(dataset(tmp_path, sparse=[{"name": "c", "ids": "text"}], shuffle=False), "train", 0)
    ids = source.read(0, 0, source.rows).ids
    source.close()
    texts = ["1", "2", "3", "4", "1", "2", "x", "4"]
    assert ids.tolist() == [text_id("c", text) for text in texts[1::2]]


def test_no_rows_and_one_row_are_too_few(tmp_path: Path) -> None:
    for rows, told in ((0, "the files hold no rows"), (1, "dataset.split leaves nothing to train on of 1 row")):
        pq.write_table(pa.table(COLUMNS).slice(0, rows), tmp_path / "a.parquet")
        (line,) = problems(dataset(tmp_path))
        assert told in line


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({"column": "part", "train": "tain", "eval": "b"}, "train on: column part is never tain, but a, b, c; correct"),
        ({"column": "part", "train": "a", "eval": "bb"}, "evaluate on: column part is never bb, but a, b, c; correct"),
        ({"column": "part", "train": 1, "eval": 2}, 'holds strings; write dataset.split.train in quotes: "1"'),
        ({"column": "c", "train": 1, "eval": "b"}, 'holds integers; dataset.split.eval must be one, not "b"'),
        ({"column": "d", "train": 1, "eval": 2}, "column d is double, but a split column holds strings, integers"),
        ({"column": "prt", "train": "a", "eval": "b"}, "there is no column prt (split column of"),
        ({"kind": "files", "train": ["z*"], "eval": ["a.*"]}, "dataset.split.train: no file below"),
        ({"kind": "files", "train": ["*"], "eval": ["a.*"]}, "a.parquet: the file is in both splits"),
    ],
)
def test_splits_that_do_not_fit(tmp_path: Path, split: dict[str, Any], text: str) -> None:
    write(tmp_path / "a.parquet")
    (line,) = problems(dataset(tmp_path, split={"kind": "column", **split}))
    assert text in line


def test_a_model_that_is_trained_can_be_evaluated_on_every_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    facts = inspect(dataset(tmp_path, split={"kind": "eval"}))
    assert (facts.train_rows, facts.eval_rows, facts.unused_rows) == (0, 4, 0)
