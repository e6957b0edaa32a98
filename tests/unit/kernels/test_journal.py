"""Before an update changes a row, the journal has its complete old content, and no other."""

import numpy as np
import pytest

from persia_cli.kernels.rows.rows import FLOAT32, RowArena
from persia_cli.kernels.table.arguments import FoundRows, new_request
from persia_cli.kernels.table.journal import ENTRY_WORDS, KernelJournal
from persia_cli.kernels.table.update import UPDATES
from persia_cli.store.layout import RowOptimizer, row_width
from persia_cli.store.row_rules import rule_at
from persia_cli.store.shard import Shard
from tests.support.shards import BY_KIND, TABLES, layout_of

ROWS, UNTOUCHED = 5, np.float32(-7.0)


@pytest.mark.parametrize("optimizer", BY_KIND.values(), ids=lambda each: each.kind)
def test_the_journal_has_the_last_two_rows_unchanged(optimizer: RowOptimizer) -> None:
    """Rows of all sizes from 4 to 200 numbers: some are copied without a loop."""
    rule = rule_at(optimizer, step=9, seed=0)
    for dim in (1, 4, 13, 16, 17, 20, 24, 32, 36, 48, 49, 64):
        width = row_width(dim, "float32", optimizer)
        whole = -(-width // 16) * 16
        words = np.random.default_rng(dim).random(ROWS * width, np.float32)
        before = words.reshape(ROWS, width).copy()
        arena = RowArena(words, np.uint64(width), np.uint64(dim), np.uint64(dim), FLOAT32, np.zeros(dim, np.float32))
        journal = KernelJournal(
            words=np.zeros(3, np.uint64),
            rows=np.full(2 * whole, UNTOUCHED),
            entries=np.zeros(2 * int(ENTRY_WORDS), np.uint64),
            group=np.uint64(0),
        )
        table = Shard(layout_of(dim, 8, 1, optimizer, TABLES[:1]), 0, 1).tables[0]._replace(rows=arena, journal=journal)
        found, gradients = np.array([4, 0, 3]), np.ones(3 * dim, np.float32)
        request = new_request(np.arange(3, dtype=np.uint64), np.zeros(3, np.uint16), FoundRows.only(found))
        UPDATES[optimizer.kind](table, request, rule, gradients)
        assert not np.array_equal(words.reshape(ROWS, width)[found], before[found])
        for position in (1, 2):
            logged = journal.rows[(position & 1) * whole :][:whole]
            assert np.array_equal(logged[:width], before[found[position]]), (dim, position)
            assert (logged[width:] == UNTOUCHED).all(), (dim, position)
            assert journal.words[1 + (position & 1)] == found[position] * width
        assert journal.words[0] == 2
