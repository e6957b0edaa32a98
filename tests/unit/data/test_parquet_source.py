"""Reading Parquet: the same samples whatever the portions, splits, ids, and what is wrong with the values."""

import threading
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
from persia_cli.data.read.batch import Batch, join
from persia_cli.data.read.block import Room
from persia_cli.data.read.ids import text_id
from persia_cli.data.read.order import BlockSize
from persia_cli.data.read.reserved_ids import NULL_ID
from persia_cli.data.read.row_groups import RowGroup, RowGroupStream
from persia_cli.data.read.scan import scan
from persia_cli.data.read.slices import SliceReader
from persia_cli.data.read.source import Source, open_source
from persia_cli.errors import DataError

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


def read_all(data: ParquetDataset, split: Any = "train") -> Batch:
    with opened(data, split) as source:
        return source.read(0, 0, source.rows)


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


@settings(deadline=None, max_examples=30)
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
    assert taken_apart(whole) == [[[n], list(range(n, n + n % 4))] for n in numbers]
    for one, other in ((whole.ids, parted.ids), (whole.offsets, parted.offsets), (whole.dense, parted.dense)):
        np.testing.assert_array_equal(one, other)


def taken_apart(batch: Batch) -> list[list[list[int]]]:
    n = batch.size
    return [
        [batch.ids[batch.offsets[f * n + s] : batch.offsets[f * n + s + 1]].tolist() for f in range(batch.features)]
        for s in range(n)
    ]


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
    train, evaluation = (read_all(data, name).dense[:, 0].astype(int).tolist() for name in ("train", "eval"))
    assert sorted(train + evaluation) == list(range(63))
    assert evaluation == sorted(evaluation)  # never shuffled
    assert train != sorted(train)
    expected = {"every": lambda n: n % 5 == 4, "column": lambda n: n % 3 == 0, "files": lambda n: n >= 23}
    assert evaluation == [n for n in range(63) if expected[split["kind"]](n)]


def test_slices_of_large_row_groups_give_every_row_with_its_values(tmp_path: Path) -> None:
    rows = 4000
    words = [f"w{n % 7}" if n % 11 else None for n in range(rows)]
    columns = {"c": words, "l": [list(range(n % 5)) for n in range(rows)], "d": np.arange(rows, dtype=np.float32)}
    write(tmp_path / "a.parquet", columns, group_rows=900)
    data = dataset(tmp_path, sparse=["c", "l"], split={"kind": "every", "n": 3})
    with opened(data) as source:
        whole = source.read(0, 0, source.rows)
    in_file_order = np.argsort(whole.dense[:, 0])
    with blocks_of(BlockSize(rows=100, groups=2)), opened(data) as source:
        sliced = source.read(0, 0, source.rows)
        middle = source.read(0, 1234, 1334)
        before = source.read(0, 1100, 1200)
    assert not np.array_equal(whole.dense, sliced.dense)
    order = np.argsort(sliced.dense[:, 0])
    for one, other in ((whole.take(in_file_order), sliced.take(order)), (middle, sliced.rows(1234, 1334))):
        np.testing.assert_array_equal(one.dense, other.dense)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(before.ids, sliced.rows(1100, 1200).ids)


def test_a_wrong_value_in_a_slice_is_found_at_its_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"d": [0.5] * 777 + [float("nan")] + [0.5] * 222}, group_rows=500)
    with (
        blocks_of(BlockSize(rows=100, groups=1)),
        opened(dataset(tmp_path)) as source,
        pytest.raises(DataError, match=r"row group 1: 1 of .* in row 277;"),
    ):
        source.read(0, 0, source.rows)


def test_row_groups_are_read_on_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 8000
    write(tmp_path / "a.parquet", {"c": list(range(rows))}, group_rows=2000)
    opens: list[int] = []

    class Counted(RowGroupStream):
        def __init__(self, filesystem: Any, group: RowGroup, columns: list[str], rows: int) -> None:
            opens.append(group.number)
            super().__init__(filesystem, group, columns, rows)

    monkeypatch.setattr(slices, "RowGroupStream", Counted)
    with blocks_of(BlockSize(rows=200, groups=4)), opened(dataset(tmp_path)) as source:
        source.read(0, 0, source.rows - 500)  # the block after it is read ahead
    assert sorted(opens) == [0, 1, 2, 3]


def test_epochs_differ_and_come_again(folder: Path) -> None:
    with opened(dataset(folder)) as source:
        first, second, again = (source.read(epoch, 0, source.rows).dense for epoch in (0, 1, 0))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_integer_split_columns_work_and_rows_of_neither_value_stay_out(tmp_path: Path) -> None:
    columns = {"day": pa.array([1, 2, None, 3, 2, 1], pa.uint64()), "d": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    write(tmp_path / "a.parquet", columns, group_rows=2)
    data = dataset(tmp_path, split={"kind": "column", "column": "day", "train": 1, "eval": 2})
    assert sorted(read_all(data).dense[:, 0]) == [0.0, 5.0]
    assert read_all(data, "eval").dense[:, 0].tolist() == [1.0, 4.0]


def test_ids_keep_their_64_bits_and_nulls_become_the_missing_id(tmp_path: Path) -> None:
    columns = {
        "signed": pa.array([-1, None, 5], pa.int32()),
        "big": pa.array([2**64 - 1, 2**63, None], pa.uint64()),
        "word": pa.array([7, None, 9], pa.int16()).dictionary_encode(),
        "l": pa.array([[1, None], None, []], pa.large_list(pa.int64())),
        "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
    }
    write(tmp_path / "a.parquet", columns)
    features = [{"name": name, "missing_id": 77} for name in columns]
    batch = read_all(dataset(tmp_path, sparse=features, shuffle=False))
    assert taken_apart(batch) == [
        [[2**64 - 1], [2**64 - 1], [7], [1, 77], [1, 2]],
        [[77], [2**63], [77], [77], [77]],
        [[5], [77], [9], [], [3, 4]],
    ]


def test_a_null_has_an_id_that_no_value_has(tmp_path: Path) -> None:
    columns = {
        "number": pa.array([0, None, 5]), "word": pa.array(["", None, "5"]), "price": pa.array([0.5, None, 9.0]),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    }  # fmt: skip
    write(tmp_path / "a.parquet", columns)

    def ids(missing: object) -> list[list[list[int]]]:
        features = [{"name": name, "missing_id": missing} for name in columns]
        features[2]["buckets"] = [1.0]
        return taken_apart(read_all(dataset(tmp_path, sparse=features, shuffle=False)))

    empty, five = text_id("word", ""), text_id("word", "5")
    for missing, null in ((None, [NULL_ID]), (-1, [2**64 - 1]), (0, [0]), (2**64 - 2, [2**64 - 2]), ("none", [])):
        assert ids(missing) == [[[0], [empty], [1], [1, *null]], [null] * 4, [[5], [five], [2], []]], missing
    write(tmp_path / "a.parquet", {"c": pa.array([1, None, NULL_ID])})
    with pytest.raises(DataError, match="row 2 of column c, so sparse feature c has no id there"):
        read_all(dataset(tmp_path, sparse=["c"]))


def test_long_sequences_keep_their_newest_ids_and_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"l": [[1, 2, 3, 4], [5], [], [6, 7, 8]]})
    feature = {"name": "clicks", "column": "l", "pooling": "none", "max_length": 2}
    with opened(dataset(tmp_path, sparse=[feature], shuffle=False)) as source:
        assert taken_apart(source.read(0, 0, 4)) == [[[3, 4]], [[5]], [[]], [[7, 8]]]
        assert source.counts == {"truncated_sequences": 2}


def test_only_rows_of_the_split_are_counted_and_checked(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": [0.0, 1.0, 0.0, 7.0], "l": [[1], [1, 2], [1], [1, 2, 3]]})
    split = {"kind": "every", "n": 2, "offset": 1}
    data = dataset(tmp_path, sparse=[{"name": "l", "max_length": 1}], split=split)
    with opened(data) as source:
        source.read(0, 0, 2)
        assert source.counts == {}
    with pytest.raises(DataError, match="row 3"):
        read_all(data, "eval")


def test_weights_tasks_and_other_number_types(tmp_path: Path) -> None:
    columns = {
        "y": pa.array([True, False]),
        "z": pa.array([0.25, 1.0], pa.float64()),
        "w": pa.array([0, 3], pa.int8()),
        "d": pa.array([2**53 + 1, 1], pa.int64()),
    }
    write(tmp_path / "a.parquet", columns)
    batch = read_all(dataset(tmp_path, labels=["y", "z"], weight="w", shuffle=False))
    assert batch.labels.tolist() == [[1.0, 0.25], [0.0, 1.0]]
    assert batch.weights is not None
    assert batch.weights.tolist() == [0.0, 3.0]
    assert batch.dense[0, 0] == np.float32(2**53)


def test_evaluation_samples_alone_have_groups(tmp_path: Path) -> None:
    words = ["b", None, "a", "b"]
    columns = {
        "c": pa.array([-1, 2, None, 4], pa.int64()),
        "word": pa.array(words),
        "coded": pa.array(words).dictionary_encode(),
        "few": pa.array([3, 1, 2, 3], pa.uint8()).dictionary_encode(),
    }
    write(tmp_path / "a.parquet", columns, group_rows=3)

    def groups(column: str) -> list[int]:
        found = read_all(dataset(tmp_path, group_by=column, split={"kind": "eval"}), "eval").query_ids
        assert found is not None
        return found.tolist()

    assert groups("c") == [2**64 - 1, 2, NULL_ID, 4]
    assert groups("word") == [text_id("word", "b"), NULL_ID, text_id("word", "a"), text_id("word", "b")]
    assert groups("coded") == [text_id("coded", "b"), NULL_ID, text_id("coded", "a"), text_id("coded", "b")]
    assert groups("few") == [3, 1, 2, 3]
    assert read_all(dataset(tmp_path, group_by="word")).query_ids is None
    with pytest.raises(DataError, match=r"column d is double, but query ids are integers, strings or times"):
        groups("d")
    with pytest.raises(DataError, match=r"no column wrod"):
        groups("wrod")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e300])
def test_dense_values_that_are_no_numbers_need_a_fill(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "a.parquet", {"d": pa.array([1.0] * 7 + [value] + [value], pa.float64())})
    with pytest.raises(DataError) as caught:
        read_all(dataset(tmp_path))
    text = str(caught.value)
    assert "a.parquet, row group 1" in text
    assert "2 of 4 values of dense column d" in text
    assert "in row 2" in text
    assert "dataset.fill" in text
    with opened(dataset(tmp_path, fill=-1.0, shuffle=False)) as source:
        assert source.read(0, 0, 9).dense[:, 0].tolist() == [1.0] * 7 + [-1.0, -1.0]
        assert source.counts == {"filled_dense_values": 2}


@pytest.mark.parametrize("value", [None, float("nan"), -0.1, 1.5])
def test_labels_outside_0_to_1_are_refused(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "a.parquet", {"y": pa.array([0.0, 1.0, 0.5, 0.0, 0.0, value], pa.float32())})
    rule = "every row needs a label" if value != value else "between 0 and 1"
    rule = "a label is a finite number" if value is None else rule  # the footer alone reports nulls
    with pytest.raises(DataError, match=rf"a\.parquet, row group 1: 1 of 1 values of label column y .* {rule}"):
        read_all(dataset(tmp_path))


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -1.0])
def test_weights_that_are_negative_or_no_numbers_are_refused(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "a.parquet", {"w": pa.array([0.0, value], pa.float32())})
    with pytest.raises(DataError, match=r"row group 0: 1 of 2 values of weight column w .* finite and not negative"):
        read_all(dataset(tmp_path, weight="w"))


def test_a_file_that_vanishes_or_shrinks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"c": list(range(20))})
    with opened(dataset(tmp_path, shuffle=False)) as source:
        path.unlink()
        with pytest.raises(DataError, match=r"a\.parquet, row group 0: cannot be read"):
            source.read(0, 0, 3)
    write(path, {"c": list(range(20))})
    with opened(dataset(tmp_path, shuffle=False)) as source:
        write(path, {"c": list(range(20))}, group_rows=4)
        with pytest.raises(DataError, match="it has 4 rows, but the footer has 5"):
            source.read(0, 0, 3)


def test_rows_beyond_the_split_are_a_mistake_of_the_caller(folder: Path) -> None:
    with opened(dataset(folder)) as source, pytest.raises(ValueError, match="not within"):
        source.read(0, 60, 64)


def test_one_background_thread_reads_ahead_and_close_ends_it(folder: Path) -> None:
    before = threading.active_count()
    with blocks_of(BlockSize(rows=10, groups=2)):
        source = open_source(dataset(folder), "train", 0)
        for start in range(0, 60, 6):
            source.read(0, start, start + 6)
            assert threading.active_count() == before + 1
        source.close()
    source.close()
    assert threading.active_count() == before


def test_batches_do_not_keep_the_block_alive(folder: Path) -> None:
    with opened(dataset(folder, sparse=["c", "l"])) as source:
        batch = source.read(0, 0, 5)
        for array in (batch.dense, batch.labels, batch.ids, batch.offsets):
            assert array.base is None or array.base.nbytes == array.nbytes


def test_open_row_groups_hold_less_than_the_rows_of_a_block(tmp_path: Path) -> None:
    rows = 1 << 17
    numbers = np.arange(4 * rows) % 1000
    found = scan(dataset(write(tmp_path / "a.parquet", {"y": numbers % 2, "d": numbers / 2, "c": numbers}, rows)))
    reader = SliceReader(found.filesystem, found.selector, "train", ["y", "d", "c"])
    before = pa.total_allocated_bytes()
    read = 0
    for number, group in enumerate(found.groups):
        read += sum(piece.table.nbytes for piece in reader.read(number, group, 0, group.rows // 2, parts=2))
    held = pa.total_allocated_bytes() - before
    reader.close()
    assert held < read


def test_a_slightly_larger_block_takes_the_memory_of_the_one_before() -> None:
    room = Room()
    first = room.array("dense", (1000, 2), np.float32)
    assert np.shares_memory(first, room.array("dense", (1100, 2), np.float32))
