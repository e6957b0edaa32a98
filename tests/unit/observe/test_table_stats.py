"""Statistics of a checkpoint's tables: what pandas computes of the same rows."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.errors import CheckpointError
from persia_cli.observe.table_report import BINS, age_edges, table_stats
from persia_cli.store.checkpoints.manifest import EMBEDDINGS, SavedTable, read_manifest
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_rows, write_run

STEP = 137
FILES = [made_up_rows(2500, 8, STEP, ("a", "b"), 1), made_up_rows(10, 8, STEP, ("b",), 2)]


@pytest.fixture
def checkpoint(tmp_path):
    return write_run(tmp_path / "run", make_run(), STEP, FILES)


def test_every_statistic_equals_that_of_pandas(checkpoint):
    rows = pd.concat(FILES)
    rows["norm"] = [math.sqrt(sum(float(x) ** 2 for x in vector)) for vector in rows["embedding"]]
    found = table_stats(checkpoint, read_manifest(checkpoint))
    assert list(found) == ["a", "b"]
    for name, own in rows.groupby("table"):
        stats = found[name]
        assert (stats.rows, stats.zeros, stats.not_finite) == (len(own), (own["norm"] == 0).sum(), 0)
        assert stats.zeros > 0
        norms = own["norm"][own["norm"] > 0]
        binned = pd.cut(norms, list(stats.norms.edges), right=False).value_counts(sort=False)
        assert binned.tolist() == list(stats.norms.counts)
        assert sum(stats.norms.counts) == len(norms)
        ages = pd.cut(STEP - own["last_used"], list(stats.ages.edges), right=False).value_counts(sort=False)
        assert ages.tolist() == list(stats.ages.counts)
        assert sum(stats.ages.counts) == len(own)


@given(st.integers(0, 10**6))
def test_the_bins_of_ages_are_equally_wide_and_hold_every_step(step):
    edges = age_edges(step)
    assert 1 <= edges.size - 1 <= BINS
    assert edges[0] == 1
    assert np.unique(np.diff(edges)).size == 1
    assert edges[-1] > step >= edges[-2] or step < 1


def test_extreme_rows_have_their_place(tmp_path):
    tiny, huge = np.float32(1e-45), np.float32(3.4e38)
    vectors = [[0.0] * 8, [tiny] + [0.0] * 7, [huge] * 8, [np.nan] + [0.0] * 7, [np.inf] * 8]
    rows = pd.DataFrame({"table": "a", "id": range(5), "last_used": [0, 5, 5, 5, 5]})
    rows["id"] = rows["id"].astype(np.uint64)
    rows["embedding"] = [np.array(vector, np.float32) for vector in vectors]
    checkpoint = write_run(tmp_path / "run", make_run(), 6, [rows])
    stats = table_stats(checkpoint, read_manifest(checkpoint))["a"]
    assert (stats.rows, stats.zeros, stats.not_finite) == (5, 1, 2)
    assert (stats.norms.counts[0], stats.norms.counts[-1], sum(stats.norms.counts)) == (1, 1, 2)
    assert stats.norms.edges[0] <= tiny
    assert stats.norms.edges[-1] > math.sqrt(8) * float(huge)
    assert (stats.ages.edges, stats.ages.counts) == ((1, 2, 3, 4, 5, 6, 7), (4, 0, 0, 0, 0, 1))


def test_a_table_without_rows_has_empty_histograms(tmp_path):
    checkpoint = write_run(tmp_path / "run", make_run(), 3, [made_up_rows(5, 8, 3, ("a",))])
    manifest = read_manifest(checkpoint)
    manifest.tables.append(SavedTable("b", 8, "float32", 0, 0))
    stats = table_stats(checkpoint, manifest)["b"]
    assert (stats.rows, stats.norms.counts, sum(stats.ages.counts)) == (0, (), 0)


def rewritten(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: write_rows(path, made_up_rows(5, 8, 3, ("stranger",)), 8),
        lambda path: rewritten(path, pa.ipc.open_file(path).read_all().drop_columns("last_used")),
        lambda path: rewritten(path, pa.table({"table": ["a"], "last_used": [1], "embedding": [[1.0]]})),
    ],
    ids=["cut", "other table", "no last_used", "plain list"],
)
def test_a_harmed_file_is_named(checkpoint, harm):
    path = sorted((checkpoint / EMBEDDINGS).iterdir())[1]
    harm(path)
    with pytest.raises(CheckpointError, match=path.name):
        table_stats(checkpoint, read_manifest(checkpoint))
