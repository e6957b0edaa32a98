"""The rows of ids in tables of one row per id, and in hash stacks."""

import numpy as np
import pytest

from persia_cli.checkpoint.export import _row_ids
from persia_cli.kernels.rows import hashing
from persia_cli.store.layout import TableSpec


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_rows_are_those_that_training_looks_up(rounds: int) -> None:
    ids = np.array([0, 7, 2**63, 2**64 - 1], np.uint64)
    spec = TableSpec("item", 0, salt=99, init_bound=0.1, rounds=rounds, size=1000 if rounds else 0)
    keys = np.zeros((ids.size, max(rounds, 1)), np.uint64)
    for number, each in enumerate(ids):
        hashing.keys_of_id(each, np.uint64(99), np.uint64(rounds), np.uint64(spec.size), keys[number], np.uint64(0))
    found = _row_ids(spec, ids)
    of_rows = np.zeros(found.size, np.uint64)
    hashing.hash_ids(found.reshape(-1), np.zeros(found.size, np.uint16), np.array([99], np.uint64), of_rows)
    assert (keys == of_rows.reshape(found.shape).T).all()
