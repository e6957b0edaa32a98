"""The gradients of the last steps come back as they were put, and those of no other step."""

import os

import numpy as np
import pytest

from persia_cli.kernels.memory import HUGE_PAGE
from persia_cli.store.memory_file import SERVING, MemoryFile, new_file
from persia_cli.store.outbox import MOST_GROUPS, Outbox


@pytest.fixture
def file():
    number = new_file("outbox")
    yield number
    os.close(number)


def outbox_in(file: int, keep: bool, steps: int = 3) -> tuple[MemoryFile, Outbox]:
    memory = MemoryFile(file, "a test", Outbox.nbytes(steps) + 4 * HUGE_PAGE, keep)
    return memory, Outbox(memory.array, steps)


def gradients_of(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [rng.integers(0, 256, (rng.integers(0, 50), width), np.uint8) for width in (64, 18, 4)]


def test_a_later_process_finds_the_last_steps(file):
    memory, outbox = outbox_in(file, keep=False)
    for step in range(8):
        outbox.put(step, gradients_of(step), step // 2)
    memory.state = SERVING
    memory.close()
    del memory, outbox
    _, outbox = outbox_in(file, keep=True)
    found = outbox.before(7)
    assert [(kept.step, kept.reductions) for kept in found] == [(5, 2), (6, 3)]  # step 7 was not committed
    for step, gradients, _ in found:
        for one, other in zip(gradients, gradients_of(step), strict=True):
            assert one.shape == other.shape
            assert np.array_equal(one, other)


def test_a_step_that_is_written_in_part_is_none(file):
    _, outbox = outbox_in(file, keep=False)
    outbox.put(0, gradients_of(0))
    with pytest.raises(MemoryError):
        outbox.put(3, [np.empty((0, 4), np.uint8)] * (MOST_GROUPS + 1))  # in the place of step 0
    assert outbox.before(9) == []
