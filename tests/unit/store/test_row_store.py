"""A row store moves its index into huge pages as rows come, so that small tables take little memory."""

from persia_cli.kernels.toolchain.memory import HUGE_PAGE
from persia_cli.store.memory_file import PrivateMemory
from persia_cli.store.row_store import FEW, INDEX_PER_ROW, RowStore
from tests.support.shards import layout_of

ROWS = HUGE_PAGE // INDEX_PER_ROW
"""Rows for a huge page of the index."""


class Recorder(PrivateMemory):
    """Memory that records which bytes of the index move into huge pages."""

    def __init__(self):
        self.moved = []

    def back(self, array, start, stop):
        if array.dtype == "uint64":
            self.moved.append((start, stop))


def test_the_index_moves_into_huge_pages_as_rows_come():
    memory = Recorder()
    (group,) = layout_of(capacity=1 << 18, partitions=4).groups
    store = RowStore(group, range(4), memory)
    assert store.index.buckets.nbytes > 2 * HUGE_PAGE

    for used in (FEW, FEW + ROWS - 1):
        store.used = used
        store.back(0)
    assert memory.moved == []

    store.back(1)
    store.used = FEW + 2 * ROWS
    store.back(ROWS - 1)
    assert memory.moved == [(0, HUGE_PAGE), (HUGE_PAGE, 2 * HUGE_PAGE)]

    store.used = store.capacity
    store.back(0)
    store.back(0)
    assert memory.moved[2:] == [(2 * HUGE_PAGE, store.index.buckets.nbytes)]
