"""The differences between two checkpoints equal those of a slow twin, for any distribution of rows over files."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.checkpoint.comparison import MAX_CHANGED, Diff, compare_checkpoints
from persia_cli.errors import CheckpointError
from tests.unit.checkpoint.made_up import write_sorted

DIM = 8
ROWS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40)),
    st.tuples(st.integers(0, 8), st.sampled_from([0.0, 1.0, -1.0, 2.5, 1e-8, math.nan])),
    min_size=1,
    max_size=40,
)


def frame(rows: dict[tuple[str, int], tuple[int, float]]) -> pd.DataFrame:
    columns = {
        "table": [table for table, _ in rows],
        "id": np.array([id_ for _, id_ in rows], np.uint64),
        "last_used": [used for used, _ in rows.values()],
        "embedding": [np.array([value, *range(1, DIM)], np.float32) for _, value in rows.values()],
    }
    return pd.DataFrame(columns)


def naive(before: pd.DataFrame, after: pd.DataFrame, table: str) -> dict[str, int]:
    """The counts of one table by dictionaries of all its rows."""
    one, other = (
        {row.id: (row.embedding.tobytes(), row.last_used) for row in side.itertuples() if row.table == table}
        for side in (before, after)
    )
    both = one.keys() & other.keys()
    equal = [id_ for id_ in both if one[id_][0] == other[id_][0]]
    return {
        "added": len(other.keys() - one.keys()),
        "removed": len(one.keys() - other.keys()),
        "equal": len(equal),
        "changed": len(both) - len(equal),
        "touched": sum(one[id_] != other[id_] for id_ in equal),
    }


@settings(max_examples=10)
@given(before=ROWS, after=ROWS, files=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_counts_are_those_of_dictionaries(before, after, files) -> None:
    with TemporaryDirectory() as folder:
        one = write_sorted(Path(folder) / "one", 9, frame(before), files[0])
        other = write_sorted(Path(folder) / "other", 9, frame(after), files[1])
        found = compare_checkpoints(one, other)
    assert {table.name for table in found.tables} == {table for table, _ in [*before, *after]}
    for table in found.tables:
        wanted = naive(frame(before), frame(after), table.name)
        assert {name: getattr(table, name) for name in wanted} == wanted
        assert (table.before, table.after) == tuple(sum(t == table.name for t, _ in side) for side in (before, after))


def compared(tmp_path: Path, before: dict, after: dict, **dense) -> Diff:
    one = write_sorted(tmp_path / "one", 9, frame(before), 2, dense.get("one"))
    other = write_sorted(tmp_path / "other", 20, frame(after), 3, dense.get("other"))
    return compare_checkpoints(one, other)


def test_how_far_rows_have_moved(tmp_path: Path) -> None:
    ids = range(12)
    found = compared(tmp_path, {("a", i): (0, 0.0) for i in ids}, {("a", i): (1, float(i)) for i in ids})
    [table] = found.tables
    assert (table.changed, table.equal, table.touched) == (11, 1, 1)
    assert table.mean_change == pytest.approx(sum(ids) / 11)
    assert table.max_change == 11.0
    assert [row.id for row in table.most_changed] == [11, 10, 9, 8, 7][:MAX_CHANGED]
    rest = np.arange(1, DIM)
    for row in table.most_changed:
        one, other = np.array([0, *rest]), np.array([row.id, *rest])
        assert row.change == row.id
        assert row.cosine == pytest.approx(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    assert found.steps == (9, 20)


def test_a_checkpoint_differs_in_nothing_from_itself(tmp_path: Path) -> None:
    rows = {("a", i): (i % 5, math.nan if i == 3 else float(i)) for i in range(50)}
    one = write_sorted(tmp_path / "one", 9, frame(rows), 2)
    found = compare_checkpoints(one, one)
    assert [(t.equal, t.changed, t.added, t.removed, t.touched) for t in found.tables] == [(50, 0, 0, 0, 0)]
    assert (found.settings, [tensor.change for tensor in found.dense]) == ({}, [0.0])


def test_rows_that_are_not_finite_have_moved_furthest(tmp_path: Path) -> None:
    before = {("a", i): (0, 0.0) for i in range(9)}
    found = compared(tmp_path, before, before | {("a", 4): (0, math.inf), ("a", 5): (0, 3.0)})
    assert [row.id for row in found.tables[0].most_changed] == [4, 5]
    assert found.tables[0].most_changed[0].cosine is None


def test_dense_weights_by_name(tmp_path: Path) -> None:
    rows = {("a", 1): (0, 0.0)}
    one = {"w": np.array([3, 4], np.float32), "old": np.ones(1, np.float32), "s": np.ones(2, np.float32)}
    other = {"w": np.array([3, 5], np.float32), "new": np.ones(1, np.float32), "s": np.ones(3, np.float32)}
    found = {tensor.name: tensor for tensor in compared(tmp_path, rows, rows, one=one, other=other).dense}
    assert (found["w"].change, found["w"].relative) == (1.0, 0.2)
    assert (found["old"].note, found["new"].note) == ("removed", "added")
    assert found["s"].note == "[2] became [3]"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    one = write_sorted(tmp_path / "one", 9, frame({("a", i): (0, 1.0) for i in range(50)}), 3)
    other = write_sorted(tmp_path / "other", 9, frame({("a", 1): (0, 1.0)}))
    damaged = sorted((one / "embeddings").iterdir())[2]
    damaged.write_bytes(damaged.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=damaged.name):
        compare_checkpoints(one, other)
