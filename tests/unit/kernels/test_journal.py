"""Before an update changes a row, the journal has its complete old content, and no other."""

import numpy as np
import pytest

from persia_cli.kernels.journal import private_journal
from persia_cli.kernels.optimizers import Rule
from persia_cli.kernels.rows import FLOAT32, RowArena
from persia_cli.kernels.update import JOURNALED_UPDATES, GradientCounts

STATES = {
    "sgd": lambda dim: 0,
    "rowwise_adagrad": lambda dim: 1,
    "adagrad": lambda dim: dim,
    "adam": lambda dim: 2 * dim,
    "rowwise_adam": lambda dim: 1,
}
ROWS, UNTOUCHED = 5, np.float32(-7.0)


@pytest.mark.parametrize("kind", STATES)
def test_the_journal_has_the_last_two_rows_unchanged(kind: str) -> None:
    """Rows of all sizes from 4 to 200 numbers: some are copied without a loop."""
    one, zero = np.float32(1.0), np.float32(0.0)
    rule = Rule(np.float32(0.1), np.float32(1e-8), one, one, one, zero, one, zero, zero, True, np.uint64(0))
    for dim in (1, 4, 13, 16, 17, 20, 24, 32, 36, 48, 49, 64):
        width = -(-(dim + STATES[kind](dim)) // 4) * 4
        whole = -(-width // 16) * 16
        words = np.random.default_rng(dim).random(ROWS * width, np.float32)
        before = words.reshape(ROWS, width).copy()
        arena = RowArena(words, np.uint64(width), np.uint64(dim), np.uint64(dim), FLOAT32, np.zeros(dim, np.float32))
        journal = private_journal(0, width)
        journal.rows[:] = UNTOUCHED
        counts = GradientCounts(np.zeros(1, np.int64), np.zeros(1, np.int64))
        found, gradients = np.array([4, 0, 3]), np.ones(3 * dim, np.float32)
        JOURNALED_UPDATES[kind](
            journal, arena, rule, np.arange(3, dtype=np.uint64), found, np.zeros(3, np.uint16), gradients, counts
        )
        assert not np.array_equal(words.reshape(ROWS, width)[found], before[found])
        for position in (1, 2):
            note = journal.rows[(position & 1) * whole :][:whole]
            assert np.array_equal(note[:width], before[found[position]]), (kind, dim, position)
            assert (note[width:] == UNTOUCHED).all(), (kind, dim, position)
            assert journal.words[1 + (position & 1)] == found[position] * width
        assert journal.words[0] == 2
