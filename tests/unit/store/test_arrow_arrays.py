"""Arrow arrays that are made without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from persia_cli.store.checkpoints.record_batches import arrow_numbers, arrow_texts, numbers_of

SAVE = """
import sys
from pathlib import Path
import numpy as np
from persia_cli.store.shard import Shard
from tests.support.saving import save_shard
from tests.support.shards import layout_of
shard = Shard(layout_of(when_full="evict_lfu"), 0, 1)
table = shard.layout.groups[0].tables[0].number
keys = np.arange(9, dtype=np.uint64)
shard.look_up(0, keys, np.full(9, table, np.uint16), 1, create=True)
files = save_shard(shard, Path(sys.argv[1]) / "embeddings")
print(sum(sum(file.rows.all_tables.values()) for file in files if file.rows), "pandas" in sys.modules)
"""
"""A save of nine rows and their sketch; prints how many rows there are, and if pandas was imported."""


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.int64, np.float32])
def test_numbers_are_those_of_pyarrow(dtype):
    for values in (np.arange(7, dtype=dtype), np.arange(14, dtype=dtype)[::2], np.empty(0, dtype)):
        made = arrow_numbers(values)
        made.validate(full=True)
        assert made.equals(pa.array(values))


def test_numbers_are_not_copied():
    values = np.zeros(3, np.int64)
    made = arrow_numbers(values)
    values[1] = 5
    assert made.to_pylist() == [0, 5, 0]


@pytest.mark.parametrize("part", [slice(None), slice(2, 5), slice(7, 7)])
def test_numbers_of_a_part_come_back(part):
    values = np.arange(7, dtype=np.int32)
    found = numbers_of(pa.array(values)[part])
    assert found.dtype == np.int32
    assert np.array_equal(found, values[part])


def test_missing_numbers_are_refused():
    with pytest.raises(ValueError, match="1 of 3 numbers are missing"):
        numbers_of(pa.array([1, None, 3]))


@pytest.mark.parametrize("texts", [[], ["user"], ["user", "", "Größe", "item"]])
def test_texts_are_those_of_pyarrow(texts):
    made = arrow_texts(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts, pa.string()))


def test_a_save_does_not_wait_for_pandas(tmp_path):
    done = subprocess.run([sys.executable, "-c", SAVE, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9", "False"]
