"""The check of a shard at recovery: it finds every flaw of its index."""

import re

import numpy as np
import pytest

from persia_cli.errors import MemoryFileError
from persia_cli.kernels.table.buckets import KEYS, MARKS, ROWS
from persia_cli.store.recovery import check_store
from persia_cli.store.shard import Shard
from tests.support.killed import job_of
from tests.support.shards import OPTIMIZERS, TABLES, layout_of


@pytest.fixture
def job():
    return job_of(OPTIMIZERS[2], capacity=200, steps=6, batch=80)


def damaged(job, harm) -> str:
    """The checker's finding for a full shard, after some damage to its first store."""
    file = job.create()
    shard, _ = job.attach(file)
    job.go_on(shard)
    harm(shard.stores[0])
    with pytest.raises(MemoryFileError) as error:
        check_store(shard.stores[0], shard.counts.rows())
    return str(error.value)


def slot(store, taken: bool = True) -> tuple[int, int]:
    """Bucket and place of a slot."""
    rows = store.index.marks.reshape(-1, int(MARKS))[:, int(ROWS) : int(ROWS) + 4]
    bucket, place = np.argwhere((rows != 0) == taken)[-1]
    return int(bucket), int(place)


def mark_at(store, bucket: int, place: int) -> int:
    return bucket * int(MARKS) + int(ROWS) + place


def set_row(value):
    def harm(store):
        store.index.marks[mark_at(store, *slot(store))] = value(store)

    return harm


def set_key(store):
    bucket, place = slot(store)
    store.index.buckets[bucket * int(KEYS) + place] ^= np.uint64(1 << 31)


def set_partition(store):
    bucket, place = slot(store)
    store.index.buckets[bucket * int(KEYS) + place] ^= np.uint64(1 << 63)


def set_table(store):
    bucket, place = slot(store)
    store.index.tables[store.index.marks[mark_at(store, bucket, place)] - 1] = 1


def empty_first(store):
    rows = store.index.marks.reshape(-1, int(MARKS))[:, int(ROWS) : int(ROWS) + 4]
    bucket = int(np.argwhere((rows != 0).sum(1) > 1)[0][0])
    store.index.marks[mark_at(store, bucket, 0)] = 0


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (set_row(lambda store: 2**31), "beyond the capacity"),
        (set_row(lambda store: 1), "the same row"),
        (set_row(lambda store: 0), "belongs to no key|numbers of rows"),
        (set_key, "neither of its buckets"),
        (set_partition, "partition that is not its own"),
        (set_table, "table that is not in the group"),
        (empty_first, "gap"),
    ],
)
def test_the_checker_finds(job, harm, message):
    assert re.search(message, damaged(job, harm))


def test_a_second_bucket_whose_first_is_not_full_is_found():
    """Only in partitions of many buckets; in others a key may lie in either."""
    layout = layout_of(1, 1000, 1, OPTIMIZERS[0], TABLES[:1])
    shard = Shard(layout, 0, 1)
    keys = np.random.default_rng(3).integers(2**64, size=1000, dtype=np.uint64)
    shard.look_up(0, keys, np.zeros(keys.size, np.uint16), 0, create=True)
    store = shard.stores[0]
    rows_of_tables = np.array([store.used])
    assert check_store(store, rows_of_tables) == store.used == 1000
    index = store.index
    first = (((keys & np.uint64(2**32 - 1)) * index.size) >> np.uint64(32)).astype(np.int64)
    words, marks = index.buckets.reshape(-1, 8), index.marks.reshape(-1, 16)
    homes = [home for key, home in zip(keys.tolist(), first.tolist(), strict=True) if key not in words[home, :4]]
    marks[homes[0], 11] = 0
    with pytest.raises(MemoryFileError, match=r"first is not full|belongs to no key"):
        check_store(store, rows_of_tables)
