"""Numbers of look-ups of rows, as stored in checkpoints, against plain integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.table.frequency import count_at_last_use, words_of

STEPS = st.integers(0, 2**32 - 1)
NEAR = st.integers(-40, 2**23 + 40)
"""Steps of use after look-ups were last counted; far and negative ones have equal bits."""


def naive_count(count: int, counted: int, used: int, epoch_bits: int) -> int:
    """A count, halved for each epoch that ended from the step in which it was counted to that of the last use.

    A word has 24 bits of a step. A difference of 2^23 or more is that of a step which was counted after its last use.
    """
    since = (used - counted) % 2**24
    since = 0 if since >= 2**23 else min(since, used)
    return count >> ((used >> epoch_bits) - ((used - since) >> epoch_bits))


@given(st.lists(st.tuples(st.integers(0, 255), STEPS, NEAR), max_size=20), st.integers(0, 24))
def test_counts_are_halved_for_each_epoch_until_the_last_use(rows: list[tuple[int, int, int]], epoch_bits: int) -> None:
    counts = np.array([count for count, _, _ in rows], np.uint8)
    used = np.array([step for _, step, _ in rows], np.uint32)
    counted = np.array([max(0, step - since) for _, step, since in rows], np.int64)
    found = np.empty(counts.size, np.uint8)
    count_at_last_use(words_of(counts, counted), used, epoch_bits, found)
    wanted = [
        naive_count(int(count), int(step), int(last), epoch_bits)
        for count, step, last in zip(counts, counted, used, strict=True)
    ]
    assert found.tolist() == wanted
