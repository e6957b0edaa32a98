"""What is said of the ids of a column, against what counting all of them says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.data.inspect import ids as ids_module
from persia_cli.data.inspect.ids import STANDARD_ERROR, IdCounts, common_samples, distinct_in
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.kernels.splitmix import mix64

ROWS = 300_000


def look(folder: Path, columns: dict[str, Any]) -> Inspection:
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=50_000)
    return inspect_data(str(folder), lambda done, total: None)


def ids_of(found: Inspection, name: str) -> IdCounts:
    ids = found.profile.columns[name].ids
    assert ids is not None
    return ids


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Samples of at most 1024 ids; the standard error with them."""
    monkeypatch.setattr(ids_module, "MOST_IDS", 1024)
    return 512**-0.5


@pytest.mark.parametrize("size", [1, 2, 100, 700, 5000, 60_000, 250_000])
def test_numbers_of_ids_are_within_the_stated_error(size: int, small: float, tmp_path: Path) -> None:
    columns = {}
    for seed in range(6):
        numbers = np.random.default_rng(seed).integers(0, 2**63, size)
        columns[f"c{seed}"] = np.resize(numbers, ROWS)
    found = look(tmp_path, columns | {"words": pa.array([f"w{n % size}" for n in range(ROWS)])})
    errors = [(column.distinct or 0) / size - 1.0 for column in found.profile.columns.values()]
    is_exact = {column.is_exact for column in found.profile.columns.values()}
    assert is_exact == {size <= 700}
    assert max(map(abs, errors)) <= (4 * small if size > 700 else 0.0)
    for column in found.profile.columns.values():
        assert column.ids is not None
        assert 400 < column.ids.ids.size < 2700 or size <= 700


def test_the_standard_error_is_that_of_the_smallest_sample() -> None:
    assert pytest.approx(0.0078, abs=1e-4) == STANDARD_ERROR


def test_numbered_rows_are_estimated(tmp_path: Path) -> None:
    column = look(tmp_path, {"row_id": np.arange(ROWS) + 10**12}).profile.columns["row_id"]
    assert column.distinct == pytest.approx(ROWS, rel=4 * STANDARD_ERROR)
    assert not column.is_exact


def test_frequent_ids_are_counted_whether_or_not_they_are_sampled(small: float, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).zipf(1.3, ROWS).astype(np.int64)
    found = look(tmp_path, {"id": -numbers, "word": pa.array([f"w{n}" for n in numbers])})
    top = Counter(numbers.tolist()).most_common(5)
    assert not found.profile.columns["id"].is_exact
    assert found.profile.columns["id"].top == tuple((str(-number), count / ROWS) for number, count in top)
    assert found.profile.columns["word"].top == tuple((f"w{number}", count / ROWS) for number, count in top)


def test_common_ids_of_columns_are_estimated(small: float, tmp_path: Path) -> None:
    keys = mix64(np.arange(ROWS, dtype=np.uint64))
    found = look(tmp_path, {"one": np.resize(keys[:60_000], ROWS), "two": np.resize(keys[30_000:130_000], ROWS)})
    one, two = ids_of(found, "one"), ids_of(found, "two")
    assert distinct_in([one, two]) == pytest.approx(130_000, rel=4 * small)
    mine, yours = common_samples(one.trained(), two.trained())
    assert set(mine.ids.tolist()) <= set(keys[:60_000].tolist())
    assert set(mine.ids.tolist()) & set(yours.ids.tolist()) == set(mine.ids.tolist()) & set(keys[30_000:].tolist())
    assert np.isin(mine.ids, yours.ids).mean() == pytest.approx(0.5, abs=0.1)


def test_unseen_ids_are_estimated_with_their_error(small: float, tmp_path: Path) -> None:
    train, evaluation = ROWS * 4 // 5, ROWS // 5
    known = np.arange(train) % 100_000
    found = look(tmp_path, {"id": np.concatenate([known, np.arange(evaluation) + 70_000])})
    drift = found.profile.columns["id"].drift
    assert drift.unseen_ids is not None
    assert drift.unseen_lookups is not None
    assert drift.unseen_error is not None
    assert 0.0 < drift.unseen_error < 0.05
    assert drift.unseen_ids == pytest.approx(0.5, abs=4 * drift.unseen_error)
    assert drift.unseen_lookups == pytest.approx(0.5, abs=0.15)


def test_no_ids_at_all(tmp_path: Path) -> None:
    column = look(tmp_path, {"id": pa.nulls(10, pa.int64()), "y": [0, 1] * 5}).profile.columns["id"]
    assert (column.distinct, column.count, column.top, column.is_exact) == (0, 0, (), True)
    assert column.drift.unseen_ids is None
