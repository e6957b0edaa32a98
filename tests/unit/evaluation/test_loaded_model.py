"""Tools that work on a saved model in one process have all its rows."""

import numpy as np
import pytest

from persia_cli.evaluation.loaded_model import _with_space
from persia_cli.store.checkpoints.saved import SavedRows
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.shard import Shard
from tests.support.shards import SGD, TABLES, layout_of


@pytest.mark.parametrize("rows", [0, 15, 38, 190])
def test_every_saved_row_has_space(rows):
    table, rng = TABLES[0], np.random.default_rng(rows)
    files = [RowFile(SavedRows(0, 8, 0, 8, {table.name: rows} if rows else {}), (table.name,), ())]
    layout = layout_of(dim=2, capacity=8, optimizer=SGD)
    for _ in range(200):
        shard, keys = Shard(_with_space(layout, files), 0, 1), rng.integers(0, 2**64, rows, dtype=np.uint64)
        parts = {"embedding": np.zeros((rows, 2), np.float32)}
        shard.insert(0, keys, np.full(rows, table.number, np.uint16), np.zeros(rows, np.int64), parts)
        assert shard.counters()[table.name].left_out == 0
