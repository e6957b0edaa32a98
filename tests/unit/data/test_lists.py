"""Lists of ids and of numbers: padding, separators, vectors of one length, and what planning finds about them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from persia_cli.data.read.scan import scan
from persia_cli.errors import ConfigError, DataError
from persia_cli.plan.job import plan_job
from persia_cli.plan.saved_model import require_same_widths
from persia_cli.serving.columns import Lists
from persia_cli.serving.fields import RequestFields
from tests.support.runs import make_run
from tests.support.samples import read

LISTS = [[3, 1, 2], [], [5], [7, 7, 4, 9], [1], [2, 6]]
ROWS = len(LISTS)
NEWEST = [each[-2:] for each in LISTS]
PADDED = [each + [0] * (5 - len(each)) for each in LISTS]
WORDS = [[f"w{each}" for each in row] for row in LISTS]
JOINED = [" | ".join(row) + ("|" if row else "") for row in WORDS]
IDS_OF_WORDS = [[text_id("t", word) for word in row] for row in WORDS]
DIGITS = [[str(each) for each in row] for row in PADDED]
IDS_OF_DIGITS = [[text_id("t", str(each)) for each in row] for row in LISTS]
NA = ["|".join([*map(str, row), *["NA"] * (5 - len(row))]) for row in LISTS]
TIMES = ["2024-01-01|1970-01-01", "1970-01-01T00:00:00Z"] * 3
DIVIDED = {"separator": "|"}
COLUMNS: dict[str, tuple[Any, dict[str, Any], list[list[int]]]] = {
    "zeros": (PADDED, {"padding": 0}, LISTS),
    "zeros in lists of one size": (pa.array(PADDED, pa.list_(pa.int32(), 5)), {"padding": 0}, LISTS),
    "zeros of floats": (pa.array(PADDED, pa.list_(pa.float32())), {"padding": 0}, LISTS),
    "zeros before": ([row[::-1] for row in PADDED], {"padding": 0}, [row[::-1] for row in LISTS]),
    "the newest": (PADDED, {"padding": 0, "max_length": 2}, NEWEST),
    "single values": ([4, 0, 5, 0, 0, 6], {"padding": 0}, [[4], [], [5], [], [], [6]]),
    "text": ([row + ["PAD"] * (5 - len(row)) for row in WORDS], {"padding": "PAD"}, IDS_OF_WORDS),
    "digits": (DIGITS, {"padding": 0}, IDS_OF_DIGITS),
    "digits as integers": (DIGITS, {"padding": 0, "ids": "integer"}, LISTS),
    "divided text": (JOINED, DIVIDED, IDS_OF_WORDS),
    "divided dictionary": (pa.array([text or None for text in JOINED]).dictionary_encode(), DIVIDED, IDS_OF_WORDS),
    "divided text in lists": (pa.array([[text] for text in JOINED], pa.list_(pa.string())), DIVIDED, IDS_OF_WORDS),
    "lists that need no division": (pa.array(WORDS, pa.list_(pa.string())), DIVIDED, IDS_OF_WORDS),
    "the newest integers": ([",".join(map(str, r)) for r in LISTS],
                            {"separator": ",", "ids": "integer", "max_length": 2}, NEWEST),
    "divided and padded": (NA, DIVIDED | {"ids": "integer", "padding": "NA"}, LISTS),
    "times": (TIMES, DIVIDED | {"ids": "time", "padding": "1970-01-01"}, [[1_704_067_200_000_000], []] * 3),
}  # fmt: skip
TRAINS = {"kind": "every", "n": 2}


def dataset(path: Path, sparse: object = (), dense: object = (), **keys: Any) -> ParquetDataset:
    own = {"path": str(path), "labels": ["y"], "sparse": sparse, "dense": dense, "split": {"kind": "eval"}}
    return ParquetDataset.model_validate({"kind": "parquet", **own, **keys})


def read_eval(data: ParquetDataset) -> Batch:
    return read(data, "eval")


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"y": [0, 1] * (ROWS // 2), **columns}), path, row_group_size=4)
    return path


def lists_of(batch: Batch) -> list[list[int]]:
    return [each.tolist() for each in np.split(batch.ids, batch.offsets[1:-1].astype(np.int64))]


@pytest.mark.parametrize(("column", "keys", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_padding_is_left_out_and_text_divided(column: Any, keys: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", c=column)
    assert lists_of(read_eval(dataset(path, [{"name": "c", "table": "t", **keys}]))) == expected


def test_columns_of_csv_are_divided_too(tmp_path: Path, cache: Path) -> None:
    for name in ("divided text", "divided and padded"):
        texts, keys, expected = COLUMNS[name]
        (tmp_path / "a.csv").write_text("y,c\n" + "".join(f"{n % 2},{text}\n" for n, text in enumerate(texts)))
        assert lists_of(read_eval(dataset(tmp_path / "a.csv", [{"name": "c", "table": "t", **keys}]))) == expected
    with pytest.raises(DataError, match="'NA' is not an integer"):
        read_eval(dataset(tmp_path / "a.csv", [{"name": "c", **keys, "padding": "none"}]))


def test_divided_texts_have_the_integers_of_their_table(tmp_path: Path, cache: Path) -> None:
    sparse = ["item", {"name": "last", "table": "item", "separator": "|"}]
    for name, last in (("several.csv", ["", "8|7", "7"] * 2), ("one.csv", ["", "8", "7"] * 2)):
        (tmp_path / name).write_text("y,item,last\n" + "".join(f"{n % 2},7,{text}\n" for n, text in enumerate(last)))
        found = lists_of(read_eval(dataset(tmp_path / name, sparse)))
        assert found == [[7]] * 6 + [[int(each) for each in text.split("|") if each] for text in last]
    path = write(tmp_path / "a.parquet", item=[1] * 6, last=["1|x"] * 6)
    with pytest.raises(DataError, match="'x' is not an integer"):
        read_eval(dataset(path, sparse))


def test_features_of_a_table_have_ids_of_one_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", item=[1] * 6, name=["1"] * 6)
    data = dataset(path, ["item", {"name": "name", "table": "item"}], split=TRAINS)
    with pytest.raises(ConfigError, match=r"item .*name .*table item.* ids"):
        plan_job(make_run(dataset=data.model_dump()), inspect(data), "train", tmp_path / "run")


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 3), pa.list_(pa.float64()), pa.list_(pa.int64())])
def test_a_dense_column_of_lists_is_as_many_inputs_as_its_lists_are_long(tmp_path: Path, kind: Any) -> None:
    vectors = np.arange(3 * ROWS).reshape(ROWS, 3)
    path = write(tmp_path / "a.parquet", v=pa.array([*vectors.tolist()[:-1], None], kind), x=np.arange(ROWS) / 2)
    data = dataset(path, dense=["x", "v"], fill=-1.0)
    facts = inspect(data)
    assert facts.dense == 4
    assert [each.width for each in facts.settled.dense_features] == [None, 3]
    batch = read_eval(data)
    vectors[-1] = -1
    assert batch.dense.tolist() == np.column_stack([np.arange(ROWS) / 2, vectors]).tolist()
    assert read_eval(facts.settled).dense.tolist() == batch.dense.tolist()


def test_lists_of_several_lengths_are_refused_with_the_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet", v=[[1.0, 2.0]] * 5 + [[1.0]], f=pa.array([[1.0, 2.0]] * 6, pa.list_(pa.float64(), 2))
    )
    with pytest.raises(DataError, match=r"row group 1: a list of 1 numbers in row 1 of dense column v.*need 2 each"):
        read_eval(dataset(path, dense=["v"]))
    with pytest.raises(DataError, match="dense feature f has lists of 2 and 3 numbers"):
        inspect(dataset(path, dense=[{"name": "f", "width": 3}], split=TRAINS))
    with pytest.raises(DataError, match=r"row group 0: a list of 2 numbers in row 0 of dense column v.*need 3 each"):
        read_eval(dataset(path, dense=[{"name": "v", "width": 3}]))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ({"dense": [{"name": "v", "transform": "log1p"}]}, "transform: log1p, which is of one number per row"),
        ({"dense": [{"name": "x", "width": 2}]}, "column x holds numbers .*, and dataset.dense gives it width: 2"),
        ({"dense": ["t"]}, "list it under dataset.sparse"),
        ({"sparse": [{"name": "i", "padding": "PAD"}]}, "padding: 'PAD' of i is no number"),
        ({"sparse": [{"name": "x", "separator": "|"}]}, "separator is of texts; leave it out of x"),
        ({"sparse": [{"name": "x", "buckets": 3, "padding": 0}]}, "padding"),
        ({"sparse": [{"name": "i", "separator": ""}]}, "separator"),
        ({"dense": [{"name": "v", "width": 2, "transform": "log1p"}]}, "leave out transform, or width"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, features: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "a.parquet", v=[[1.0, 2.0]] * ROWS, x=[0.5] * ROWS, i=[1] * ROWS, t=[["a"]] * ROWS)
    with pytest.raises((DataError, ValidationError), match=says):
        inspect(dataset(path, **features, split=TRAINS))


def test_a_pooling_without_lists_is_reported_before_training(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", g=["a|b", "c"] * (ROWS // 2), n=LISTS, split=["t", "e"] * (ROWS // 2))
    split = {"kind": "column", "column": "split", "train": "t", "eval": "e"}
    sparse = [{"name": "g", "pooling": "mean"}, {"name": "n", "pooling": "mean"}]
    (warning,) = inspect(dataset(path, sparse, split=split)).warnings
    assert "sparse feature g has pooling: mean" in warning
    assert "separator: '|'" in warning
    divided = [{"name": "g", "pooling": "mean", "separator": "|"}]
    assert inspect(dataset(path, divided, split=split)).warnings == ()
    (warning,) = inspect(dataset(path, ["n", {"name": "g", "table": "nn"}], split=split)).warnings
    assert "set table: n" in warning


def test_requests_give_the_samples_of_the_data(tmp_path: Path) -> None:
    words = [[f"w{each}" for each in row] for row in LISTS]
    vectors = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    path = write(
        tmp_path / "a.parquet",
        g=["|".join(row) for row in words],
        p=[row + [0] * (5 - len(row)) for row in LISTS],
        v=vectors.tolist(),
    )
    sparse = [{"name": "g", "separator": "|"}, {"name": "p", "padding": 0, "max_length": 2, "pooling": "mean"}]
    data = dataset(path, sparse, ["v"])
    settled, trained = scan(data).settled, read_eval(data)
    fields = RequestFields.of(settled, frozenset({"g", "p"}))
    assert [shape for _, _, shape in fields.inputs()] == [(-1, -1), (-1, -1), (-1, 3)]
    table = pq.read_table(path)
    as_lists = Lists(np.array([word for row in words for word in row]), np.array([len(row) for row in words]))
    given: list[Callable[[], dict[str, Any]]] = [
        lambda: {name: table[name].to_pylist() for name in ("g", "p", "v")},
        lambda: {"g": words, "p": LISTS, "v": vectors},
        lambda: {"g": as_lists, "p": table["p"], "v": Lists(vectors.reshape(-1), np.full(ROWS, 3))},
    ]
    for columns in given:
        batch = fields.batch(columns())
        assert batch.ids.tolist() == trained.ids.tolist()
        assert batch.offsets.tolist() == trained.offsets.tolist()
        assert batch.dense.tolist() == trained.dense.tolist()
    for wrong in ([1.0], [[1.0, 2.0]], [["a", "b", "c"]]):
        with pytest.raises(DataError, match=r"the request.* v\b"):
            fields.batch({"g": ["w1"], "p": [[1]], "v": wrong})


def test_vectors_of_other_data_are_those_of_the_model(tmp_path: Path) -> None:
    """Each mistake is one of the data, since the settings are those of a saved model."""
    of_two, of_one = {"name": "v", "width": 2}, {"name": "v"}
    saved = make_run(dataset={"kind": "parquet", "path": str(tmp_path), "dense": [of_one]})
    triples = pa.array([[1.0, 2.0, 3.0]] * ROWS, pa.list_(pa.float32(), 3))
    write(tmp_path / "a.parquet", v=triples)
    with pytest.raises(DataError, match="lists of 3 numbers, and the model was trained with 2; write"):
        scan(dataset(tmp_path, dense=[of_two]))
    with pytest.raises(DataError, match="lists of 3 numbers, and the model was trained with one number per row; write"):
        require_same_widths(saved, scan(dataset(tmp_path, dense=[of_one])).settled)
    write(tmp_path / "a.parquet", v=[1.0] * ROWS)
    with pytest.raises(DataError, match=r"holds .*, and the model was trained with lists of 2 numbers; write"):
        scan(dataset(tmp_path, dense=[of_two]))
    require_same_widths(saved, scan(dataset(tmp_path, dense=[of_one])).settled)
