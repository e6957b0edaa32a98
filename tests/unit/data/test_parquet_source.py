"""Reading Parquet: the same samples whatever the portions, splits, ids, and what is wrong with the values."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read import parquet, slices
from persia_cli.data.read.batch import join
from persia_cli.data.read.ids import NULL_ID, text_id
from persia_cli.data.read.order import BlockSize
from persia_cli.data.read.source import Source, open_source
from persia_cli.errors import DataError
from tests.support.samples import ids_by_sample, read

EVERY = {"kind": "every", "n": 1000, "offset": 999}


def dataset(path: Path, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["d"], "sparse": ["c"]}
    return ParquetDataset.model_validate({**keys, "rescale": False, "split": EVERY, **changes})


def write(path: Path, columns: dict[str, Any], group_rows: int = 5) -> Path:
    """Write columns (and whatever of y, d, c they lack) to a file."""
    rows = len(next(iter(columns.values())))
    default = {"y": [0.0] * rows, "d": [0.5] * rows, "c": list(range(rows))}
    pq.write_table(pa.table({**default, **columns}), path, row_group_size=group_rows)
    return path


@contextmanager
def blocks_of(size: BlockSize) -> Iterator[None]:
    """Make blocks of this size; streams read few rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "block_size", lambda *_: size)
        patch.setattr(slices, "FEWEST_ROWS", 2)
        yield


@contextmanager
def opened(data: ParquetDataset, split: Any = "train", seed: int = 0) -> Iterator[Source]:
    source = open_source(data, split, seed)
    try:
        yield source
    finally:
        source.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 23 and 40 rows in groups of 7; d is the row's number, l a list of row number mod 4 ids."""
    folder = tmp_path_factory.mktemp("rows")
    for name, start, stop in (("b", 23, 63), ("a", 0, 23)):
        numbers = list(range(start, stop))
        lists = [list(range(n, n + n % 4)) for n in numbers]
        part = ["train" if n % 3 else "eval" for n in numbers]
        columns = {"d": [float(n) for n in numbers], "c": numbers, "l": lists, "part": part}
        write(folder / f"{name}.parquet", columns, group_rows=7)
    return folder


@settings(deadline=None, max_examples=20)
@given(
    cuts=st.lists(st.integers(0, 63), max_size=6),
    seed=st.integers(0, 2**63 - 1),
    size=st.builds(BlockSize, rows=st.integers(5, 70), groups=st.integers(1, 9)),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_samples_do_not_depend_on_how_they_are_read(
    folder: Path, cuts: list[int], seed: int, size: BlockSize, shuffle: bool, epoch: int
) -> None:
    split = {"kind": "every", "n": 4, "offset": 1}
    data = dataset(folder, sparse=["c", "l"], split=split, shuffle=shuffle)
    with blocks_of(size), opened(data, seed=seed) as source:
        whole = source.read(epoch, 0, source.rows)
        edges = sorted({0, source.rows, *(min(cut, source.rows) for cut in cuts)})
        pairs = list(pairwise(edges))
        parts = {start: source.read(epoch, start, stop) for start, stop in reversed(pairs)}
    parted = join([parts[start] for start, _ in pairs])
    numbers = whole.dense[:, 0].astype(int).tolist()
    assert sorted(numbers) == [n for n in range(63) if n % 4 != 1]
    assert ids_by_sample(whole) == [[[n], list(range(n, n + n % 4))] for n in numbers]
    for one, other in ((whole.ids, parted.ids), (whole.offsets, parted.offsets), (whole.dense, parted.dense)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "every", "n": 5, "offset": 4},
        {"kind": "column", "column": "part", "train": "train", "eval": "eval"},
        {"kind": "files", "train": ["a*"], "eval": ["b.parquet"]},
    ],
)
def test_splits_are_disjoint_and_complete(folder: Path, split: dict[str, Any]) -> None:
    data = dataset(folder, split=split)
    train, evaluation = (read(data, name).dense[:, 0].astype(int).tolist() for name in ("train", "eval"))
    assert sorted(train + evaluation) == list(range(63))
    assert evaluation == sorted(evaluation)  # never shuffled
    assert train != sorted(train)
    expected = {"every": lambda n: n % 5 == 4, "column": lambda n: n % 3 == 0, "files": lambda n: n >= 23}
    assert evaluation == [n for n in range(63) if expected[split["kind"]](n)]


def test_a_wrong_value_in_a_slice_is_found_at_its_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"d": [0.5] * 777 + [float("nan")] + [0.5] * 222}, group_rows=500)
    with (
        blocks_of(BlockSize(rows=100, groups=1)),
        opened(dataset(tmp_path)) as source,
        pytest.raises(DataError, match=r"row group 1: .* in row 277;"),
    ):
        source.read(0, 0, source.rows)


def test_a_null_has_an_id_that_no_value_has(tmp_path: Path) -> None:
    columns = {
        "number": pa.array([0, None, 5]), "word": pa.array(["", None, "5"]), "price": pa.array([0.5, None, 9.0]),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    }  # fmt: skip
    write(tmp_path / "a.parquet", columns)

    def ids(missing: object) -> list[list[list[int]]]:
        features = [{"name": name, "missing_id": missing} for name in columns]
        features[2]["buckets"] = [1.0]
        return ids_by_sample(read(dataset(tmp_path, sparse=features, shuffle=False)))

    empty, five = text_id("word", ""), text_id("word", "5")
    for missing, null in ((None, [NULL_ID]), (-1, [2**64 - 1]), (0, [0]), (2**64 - 2, [2**64 - 2]), ("none", [])):
        assert ids(missing) == [[[0], [empty], [1], [1, *null]], [null] * 4, [[5], [five], [2], []]], missing
    write(tmp_path / "a.parquet", {"c": pa.array([1, None, NULL_ID])})
    with pytest.raises(DataError, match="row 2 of column c, so sparse feature c has no id there"):
        read(dataset(tmp_path, sparse=["c"]))


def test_long_sequences_keep_their_newest_ids_and_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"l": [[1, 2, 3, 4], [5], [], [6, 7, 8]]})
    feature = {"name": "clicks", "column": "l", "pooling": "none", "max_length": 2}
    with opened(dataset(tmp_path, sparse=[feature], shuffle=False)) as source:
        assert ids_by_sample(source.read(0, 0, 4)) == [[[3, 4]], [[5]], [[]], [[7, 8]]]
        assert source.counts == {"truncated_sequences": 2}


def test_weights_tasks_and_other_number_types(tmp_path: Path) -> None:
    columns = {
        "y": pa.array([True, False]),
        "z": pa.array([0.25, 1.0], pa.float64()),
        "w": pa.array([0, 3], pa.int8()),
        "d": pa.array([2**53 + 1, 1], pa.int64()),
    }
    write(tmp_path / "a.parquet", columns)
    batch = read(dataset(tmp_path, labels=["y", "z"], weight="w", shuffle=False))
    assert batch.labels.tolist() == [[1.0, 0.25], [0.0, 1.0]]
    assert batch.weights.tolist() == [0.0, 3.0]
    assert batch.dense[0, 0] == np.float32(2**53)


def test_evaluation_samples_alone_have_groups(tmp_path: Path) -> None:
    words = pa.array(["b", None, "a", "b"])
    columns = {"c": pa.array([-1, 2, None, 4], pa.int64()), "word": words, "coded": words.dictionary_encode()}
    write(tmp_path / "a.parquet", columns, group_rows=3)

    def groups(column: str) -> list[int]:
        found = read(dataset(tmp_path, group_by=column, split={"kind": "eval"}), "eval").query_ids
        return found.tolist()

    assert groups("c") == [2**64 - 1, 2, NULL_ID, 4]
    for name in ("word", "coded"):
        assert groups(name) == [text_id(name, "b"), NULL_ID, text_id(name, "a"), text_id(name, "b")]
    assert read(dataset(tmp_path, group_by="word")).query_ids is None
    for column, told in (("d", "0.5 is not a whole number in row 0 of dataset.group_by"), ("wrod", "no column wrod")):
        with pytest.raises(DataError, match=told):
            groups(column)
    write(tmp_path / "a.parquet", {"c": pa.array([5.0, None])})
    assert groups("c") == [5, NULL_ID]
    write(tmp_path / "a.parquet", {"c": pa.array([5, NULL_ID])})
    with pytest.raises(DataError, match="group_by, column c"):
        groups("c")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e300])
def test_dense_values_that_are_no_numbers_need_a_fill(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "a.parquet", {"d": pa.array([1.0] * 7 + [value] + [value], pa.float64())})
    with pytest.raises(DataError, match=r"row group 1: values of dense column d .* in row 2.*dataset\.fill"):
        read(dataset(tmp_path))
    with opened(dataset(tmp_path, fill=-1.0, shuffle=False)) as source:
        assert source.read(0, 0, 9).dense[:, 0].tolist() == [1.0] * 7 + [-1.0, -1.0]
        assert source.counts == {"filled_dense_values": 2}


@pytest.mark.parametrize(
    ("column", "value"), [("y", None), ("y", float("nan")), ("y", 1.5), ("w", None), ("w", float("inf")), ("w", -1.0)]
)
def test_impossible_labels_and_weights_are_refused(tmp_path: Path, column: str, value: float | None) -> None:
    write(tmp_path / "a.parquet", {column: pa.array([0.0, 1.0, 0.5, 0.0, 0.0, value], pa.float32())})
    with pytest.raises(DataError, match=rf"a\.parquet, row group 1: values of (label|weight) column {column} "):
        read(dataset(tmp_path, weight="w" if column == "w" else None))


def test_a_file_that_vanishes_or_shrinks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"c": list(range(20))})
    with opened(dataset(tmp_path, shuffle=False)) as source:
        path.unlink()
        with pytest.raises(DataError, match=r"a\.parquet, row group 0: cannot be read"):
            source.read(0, 0, 3)
    write(path, {"c": list(range(20))})
    with opened(dataset(tmp_path, shuffle=False)) as source:
        write(path, {"c": list(range(20))}, group_rows=4)
        with pytest.raises(DataError, match="was changed, replaced or removed"):
            source.read(0, 0, 3)
