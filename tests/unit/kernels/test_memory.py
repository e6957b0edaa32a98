"""Memory of embedding servers: its alignment, the time of its use, and the cost of a row."""

import subprocess
import sys

import numpy as np
import pytest

from persia_cli.kernels.toolchain import memory

ROWS = 10_000_000
MEASURE = """
import gc
import numpy as np
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, partitions_for
from persia_cli.store.shard import Shard

def resident():
    gc.collect()
    words = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Rss:")).split()
    return int(words[1]) * 1024

warm()
rows = {rows}
group = GroupSpec(0, 16, RowOptimizer("adagrad", 0.1), (TableSpec("t", 0, 1, 0.1),), rows, partitions_for(rows, 4096))
layout = EmbeddingLayout((group,), (), 0)

def train(shard, batches):
    rng, tables = np.random.default_rng(0), np.zeros(100_000, np.uint16)
    for step in range(batches):
        keys = rng.integers(2**64, size=100_000, dtype=np.uint64)
        shard.look_up(0, keys, tables, step + 1, True)

# What a look-up itself needs, once and for all.
small = EmbeddingLayout((GroupSpec(0, 16, group.optimizer, group.tables, 200_000, 64),), (), 0)
train(Shard(small, 0, 1), 3)
before = resident()
shard = Shard(layout, 0, 1)
empty = resident()
train(shard, rows // 200_000)
half, half_rows = resident(), shard.stores[0].used
train(shard, rows // 100_000 + 20)
print(empty - before, half - before, half_rows, resident() - before, shard.stores[0].used)
"""


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 1000, (2 << 20) // 8, (5 << 20) + 3])
def test_arrays_begin_on_a_line_are_zero_and_can_be_written(size, dtype):
    array = memory.zeros(size, dtype)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((size,), dtype, True, True)
    large = array.nbytes >= memory.HUGE_PAGE
    assert size == 0 or array.ctypes.data % (memory.HUGE_PAGE if large else memory.CACHE_LINE) == 0
    assert not array.any()
    array[:] = 1
    assert array.all()


def test_memory_beyond_the_machine_is_a_memory_error():
    for size in (1 << 50, 1 << 60):
        with pytest.raises(MemoryError):
            memory.zeros(size, np.float32)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_row_takes_at_most_32_bytes_beyond_its_values():
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(rows=ROWS)], capture_output=True, text=True, timeout=500, check=True
    )
    empty, half, half_rows, full, full_rows = map(int, done.stdout.split())
    print(f"bytes a row: {half / half_rows:.1f} of {half_rows:,}, {full / full_rows:.1f} of {full_rows:,}")
    assert full_rows > 0.99 * ROWS
    assert full <= (16 * 2 * 4 + 32) * full_rows
    # A store of no rows takes next to nothing, one of half its rows the index and half of the values.
    assert empty < 0.005 * full
    assert half_rows < 0.51 * ROWS
    assert half < 0.62 * full
