"""Memory of embedding servers: where it begins, when it is taken, and how much a row costs."""

import mmap
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from persia_cli.kernels import memory
from persia_cli.roles.shard_memory import on_a_thread
from tests.conftest import poll_for

ROWS = 10_000_000
MEASURE = """
import gc
import numpy as np
from persia_cli.kernels.warm import warm
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


def test_memory_lives_as_long_as_what_looks_at_it():
    view = memory.zeros(1 << 22, np.float32)[5:]
    view[:] = 3
    others = [memory.zeros(1 << 22, np.float32) for _ in range(3)]
    assert (view == 3).all()
    assert not any(other.any() for other in others)


def test_what_the_machine_cannot_promise_is_a_memory_error():
    for size in (1 << 50, 1 << 60):
        with pytest.raises(MemoryError):
            memory.zeros(size, np.float32)


def test_a_system_without_huge_pages_gives_others(monkeypatch):
    class Pages(mmap.mmap):
        def madvise(self, option):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(memory.mmap, "mmap", Pages)
    assert memory.zeros(1 << 22, np.float32).size == 1 << 22


def memory_of(array):
    """Return the bytes of an array that are in memory, and those in huge pages."""
    address, figures, own = array.ctypes.data, {"Rss": 0, "AnonHugePages": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if limits := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            own = int(limits[1], 16) < address + array.nbytes and int(limits[2], 16) > address
        elif own and name in figures:
            figures[name] += int(value.split()[0]) * 1024
    return figures["Rss"], figures["AnonHugePages"]


def scattered(count):
    """Return an array of `count` huge pages, and its ScatteredPages; skips where pages in use cannot be changed."""
    array = memory.zeros(count * memory.HUGE_PAGE, np.uint8)
    pages = memory.ScatteredPages(array, memory.zeros(100, np.uint8), beside=partial(on_a_thread, threading.Event()))
    if not pages.can_change:
        pytest.skip("this system cannot change pages in use (MADV_COLLAPSE)")
    return array, pages


def test_few_writes_take_little_memory_and_many_get_huge_pages_while_others_write():
    array, pages = scattered(12)
    places = np.arange(7, array.size, memory.HUGE_PAGE // 2)
    array[places] = 5
    pages.note(places.size)
    resident, huge = memory_of(array)
    assert huge == 0
    assert resident < 2**20
    pages.note(memory.FEW)
    written = []

    def done():
        written.append(1000 * len(written) + 11)
        array[written] = 6
        return memory_of(array)[1] >= 10 * memory.HUGE_PAGE and all(
            t.name != "beside-look-ups" for t in threading.enumerate()
        )

    poll_for(done, 10, "huge pages")
    assert np.array_equal(np.flatnonzero(array == 5), places)
    assert np.array_equal(np.flatnonzero(array == 6), written)


def test_writes_at_once_to_fewer_places_than_pages_take_no_more_memory_than_these():
    array, pages = scattered(12)
    places = np.arange(7, array.size, 4 * memory.SMALL_PAGE)
    pages.expect(places.size)
    array[places] = 5
    resident, huge = memory_of(array)
    assert huge == 0
    assert resident < array.size / 3


@pytest.mark.parametrize(("most", "more"), [(memory.FEW, False), (12 * 512 // memory.DENSE, True)])
def test_many_writes_at_once_get_huge_pages_as_they_come(most, more):
    array, pages = scattered(12)
    pages.expect(most, more)
    array[:: memory.SMALL_PAGE] = 5
    pages.note(memory.FEW)
    assert memory_of(array)[1] >= 10 * memory.HUGE_PAGE


def test_where_pages_in_use_cannot_be_changed_they_are_huge_from_the_start(monkeypatch):
    monkeypatch.setattr(memory, "_advised", lambda *_: False)
    array = memory.zeros(4 * memory.HUGE_PAGE, np.uint8)
    pages = memory.ScatteredPages(array, beside=memory.at_once)
    array[3] = 1
    pages.note(2 * memory.FEW)
    assert not pages.can_change
    assert array.sum() == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_row_takes_its_values_and_at_most_32_bytes_more_and_only_when_it_comes():
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
